"""Servers for tests: applications in this process, and real ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

from trained import trained

if any(importlib.util.find_spec(name) is None for name in ("fastapi", "openai", "uvicorn")):
    collect_ignore_glob = ["test_*.py"]  # without phonate[serve]
else:
    from fastapi.testclient import TestClient
    from servers import STAND_IN, Serve, Server, only, recording
    from stand_in import StandIn

    from phonate.serving.server import create_app
    from phonate.serving.settings import ServingSettings


@pytest.fixture(autouse=True, scope="session")
def _short_paths_of_sockets() -> None:
    """Those of processes lie where the first one is made, and their paths must not be as long as those of tests."""
    util.get_temp_dir()


@pytest.fixture(scope="session")
def wav() -> bytes:
    """A recording of a second, of 300 Hz."""
    return recording()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serve]:
    """A function that makes a client of a stand-in with the given settings; `client.service` is the stand-in."""
    with ExitStack() as clients:

        def make(seconds: float = 0.0, **settings: Any) -> TestClient:
            service = StandIn(seconds)
            name = settings.pop("model_name", "stand-in")
            app = create_app(only(service, name), ServingSettings(**{"voices": tmp_path / "voices", **settings}))
            client = clients.enter_context(TestClient(app, raise_server_exceptions=False))
            client.service = service
            return client

        yield make


@pytest.fixture(scope="session")
def small_voice(espeak: None) -> Path:
    """A run of the task speech with two voices."""
    from small_voice import small_run

    return trained("voice", small_run) / "small"


@pytest.fixture
def stand_in_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A function that starts a stand-in server with settings."""
    with ExitStack() as servers:

        def start(**settings: object) -> Server:
            words = [f"{name}={value}" for name, value in settings.items()]
            return servers.enter_context(Server(str(STAND_IN), str(tmp_path / "voices"), *words))

        yield start
