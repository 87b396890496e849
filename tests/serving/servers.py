"""Recordings, answers and real servers for tests of the server."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from fastapi.testclient import TestClient

from phonate.serving.models import LazyService
from phonate.serving.server import Hosted
from phonate.serving.transcriptions import Recogniser
from phonate.training.inference import SpeechService
from phonate_process import PythonProcess

STAND_IN = Path(__file__).with_name("stand_in.py")

Serve = Callable[..., TestClient]
"""Makes a client of a stand-in with the given settings; `client.service` is the stand-in."""


def only(service: SpeechService, name: str = "stand-in", *recognisers: Recogniser) -> Hosted:
    """The models of a server that has one which speaks."""
    return Hosted([LazyService(name, lambda: service)], recognisers)


def recording(seconds: float = 1.0, pitch: float = 300.0, rate: int = 16_000, kind: str = "WAV") -> bytes:
    """A file with a tone."""
    file = io.BytesIO()
    tone = 0.3 * np.sin(2 * np.pi * pitch * np.arange(int(seconds * rate)) / rate)
    soundfile.write(file, tone, rate, format=kind)
    return file.getvalue()


class Server:
    """A server in a process of its own."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.lines: list[str] = []
        options: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "env": {**os.environ, **environment}}
        self.process = PythonProcess(*command, **options)
        self._begun = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._begun.wait(300), "the server did not start"
        found = re.search(r"(http://\S+)", "".join(self.lines))
        assert found, self.lines
        self.url = found[1]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "serving" in line:
                self._begun.set()
        self._begun.set()

    def line_with(self, words: str, seconds: float = 60.0) -> str:
        """The first line that has `words`, once it is there."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self.lines:
                if words in line:
                    return line.strip()
            time.sleep(0.05)
        raise AssertionError(f"no line with {words!r}: {self.lines}")

    def stop(self, number: int = signal.SIGTERM, timeout: float = 60.0) -> int:
        """Send a signal; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout)
        self._reader.join(10)
        return code

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)


def assert_error(answer: Any, status: int, said: str, param: str | None = None) -> None:
    """An answer is an error in OpenAI's form whose message matches `said`."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert re.search(said, error["message"]), error
    if param is not None:
        assert error["param"] == param
