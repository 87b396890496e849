"""Judges that may be missing, and stand-ins for packages that those of evaluation import without needing them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from phonate.config.errors import InputError

logger = logging.getLogger("phonate")

T = TypeVar("T")


def judge_of(columns: str, make: Callable[[], T]) -> T | None:
    """What `make` returns; None where its package or model is not installed: a warning says which columns are left out,
    and what to install for them."""
    try:
        return make()
    except InputError as error:
        logger.warning("not judged: %s: %s", columns, error)
        return None


@contextmanager
def old_pkg_resources() -> Iterator[None]:
    """Context in which packages can be imported that get their version from pkg_resources (removed from setuptools).

    webrtcvad, which resemblyzer uses, only calls `get_distribution(name).version`, on import.
    """
    stand_in = types.ModuleType("pkg_resources")
    stand_in.get_distribution = importlib.metadata.distribution  # type: ignore[attr-defined]
    with _standing_in(stand_in):
        yield


@contextmanager
def empty_torchaudio() -> Iterator[None]:
    """Context in which packages can be imported that import torchaudio without needing it for our purpose.

    distillmos only uses it to read files in its command line tool. torchaudio is not available for every torch version,
    so it is not required.
    """
    with _standing_in(types.ModuleType("torchaudio")):
        yield


@contextmanager
def _standing_in(module: types.ModuleType) -> Iterator[None]:
    """Context in which `module` replaces an absent package; it is removed afterwards."""
    name = module.__name__
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        yield
        return
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]
