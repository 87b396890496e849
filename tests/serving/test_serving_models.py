"""Several models in one server: loaded when they are asked for, unloaded when nobody asks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from servers import assert_error
from stand_in import StandIn

import phonate
from phonate.config.errors import InputError, MissingPackageError
from phonate.serving.models import LazyService
from phonate.serving.server import Hosted, create_app, hosted
from phonate.serving.settings import ServingSettings
from phonate.tasks.speech import speaking
from phonate.training.inference import SpeechRequest


class Named(StandIn):
    """A stand-in with voices of its own."""

    needs_reference = False

    def __init__(self, *voices: str) -> None:
        super().__init__()
        self._names = list(voices)
        self.closed = False

    @property
    def voices(self) -> list[str]:
        return self._names

    def close(self) -> None:
        super().close()
        self.closed = True


class Several:
    """A server of the models house (anna, ben) and street (zoe), and how often each was loaded."""

    def __init__(self, **settings: Any) -> None:
        self.made: dict[str, list[Named]] = {"house": [], "street": []}
        services = [
            LazyService("house", lambda: self._load("house", "anna", "ben")),
            LazyService("street", lambda: self._load("street", "zoe")),
        ]
        services[0].prepare()
        self.client = TestClient(create_app(Hosted(services), ServingSettings(**settings)))

    def _load(self, name: str, *voices: str) -> Named:
        self.made[name].append(Named(*voices))
        return self.made[name][-1]

    def speak(self, **fields: Any) -> Any:
        return self.client.post("/v1/audio/speech", json={"input": "hi", **fields})

    @property
    def spoke(self) -> list[tuple[str, str | None]]:
        """Model and voice of each request."""
        return [(name, one.voice) for name, made in self.made.items() for each in made for one in each.requests]


@pytest.fixture
def several() -> Iterator[Callable[..., Several]]:
    """A function that makes such a server."""
    clients = []

    def make(**settings: Any) -> Several:
        server = Several(**settings)
        clients.append(server.client.__enter__())
        return server

    yield make
    for client in clients:
        client.__exit__(None, None, None)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in the background."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_model_of_a_request_speaks_and_is_loaded_then(several: Callable[..., Several]) -> None:
    server = several()
    assert [one["id"] for one in server.client.get("/v1/models").json()["data"]] == ["house", "street"]
    assert server.speak(model="house", voice="ben").status_code == 200
    assert not server.made["street"]
    assert server.speak(model="street", voice="zoe").status_code == 200
    assert server.speak(model="street").status_code == 200
    assert server.spoke == [("house", "ben"), ("street", "zoe"), ("street", None)]
    assert len(server.made["street"]) == 1
    assert_error(server.speak(model="stret"), 404, "no model 'stret'", "model")


def test_openais_names_stand_for_the_first_model_that_has_the_voice(several: Callable[..., Several]) -> None:
    server = several(aliases={"gpt-4o-mini-tts": "street", "narrator": "zoe"})
    server.speak(model="tts-1", voice="ben")
    server.speak(model="gpt-4o-mini-tts")
    server.speak(model="tts-1", voice="zoe")
    server.speak(model="tts-1", voice="narrator")
    server.speak(model="tts-1", voice="alloy")
    assert server.spoke == [("house", "ben"), ("house", "anna"), ("street", None), ("street", "zoe"), ("street", "zoe")]


def test_voices_are_those_of_the_model(several: Callable[..., Several]) -> None:
    server = several()
    voices = server.client.get("/v1/voices").json()["data"]
    assert [(one["id"], one["model"]) for one in voices] == [("anna", "house"), ("ben", "house")]
    assert not server.made["street"]
    assert server.client.get("/v1/audio/voices?model=street").json() == {"voices": [{"id": "zoe", "name": "zoe"}]}
    assert len(server.client.get("/v1/voices").json()["data"]) == 3


def test_a_model_that_nobody_uses_is_unloaded_and_comes_back(several: Callable[..., Several]) -> None:
    server = several(idle_minutes=0.004)
    server.speak(model="street")
    until(lambda: server.made["street"][0].closed and server.made["house"][0].closed)
    assert len(server.client.get("/v1/voices").json()["data"]) == 3, "voices are known without loading"
    assert len(server.made["house"]) == 1
    assert server.speak(model="street", voice="zoe").status_code == 200
    assert len(server.made["street"]) == 2


def test_a_model_that_fails_to_unload_harms_no_other(several: Callable[..., Several]) -> None:
    server = several(idle_minutes=0.004)

    def broken() -> None:
        server.made["house"][0].closed = True
        raise RuntimeError("the driver broke")

    server.made["house"][0].close = broken  # type: ignore[method-assign]
    server.speak(model="street")
    until(lambda: server.made["house"][0].closed and server.made["street"][0].closed)
    assert server.speak(model="house").status_code == 200
    assert len(server.made["house"]) == 2


def test_a_model_at_work_stays(several: Callable[..., Several]) -> None:
    server = several(idle_minutes=0.002)
    server.made["house"][0]._seconds = 0.1
    with server.client.stream("POST", "/v1/audio/speech", json={"model": "house", "input": 8 * "a"}) as answer:
        sound = b"".join(answer.iter_bytes())
    assert len(sound) > 1000
    assert len(server.made["house"][0].results) == 1
    until(lambda: server.made["house"][0].closed)


def test_names_of_models() -> None:
    models = hosted(["base/voice", "other=base/voice", "whisper", "base/diarizer"])
    assert [one.model.name for one in models.services] == ["voice", "other"]
    assert [(one.name, one.tells_speakers) for one in models.recognisers] == [("whisper", True)]
    with pytest.raises(InputError, match=r"'voice' already.*other=base/voice"):
        hosted(["base/voice", "base/voice"])
    with pytest.raises(InputError, match="can't make speech"):
        hosted(["base/vocoder"])
    with pytest.raises(InputError, match="add whisper"):
        hosted(["base/voice", "base/diarizer"])
    with pytest.raises(InputError, match="--codec"):
        hosted(["base/voice"], options={"codec": "x", "dtype": None})
    with pytest.raises(InputError, match="--compile-model: no model"):
        hosted(["base/voice"], options={"compile_model": True})
    with pytest.raises(InputError, match="NAME=RUN"):
        hosted(["=base/voice"])


@pytest.mark.parametrize("models", [["whisper"], ["base/voice", "whisper", "base/diarizer"]])
def test_a_package_that_is_missing_is_told_before_anything_is_served(
    monkeypatch: pytest.MonkeyPatch, models: list[str]
) -> None:
    absent = {"faster_whisper"}
    monkeypatch.setattr("phonate.config.errors.not_installed", lambda *names: [one for one in names if one in absent])
    with pytest.raises(MissingPackageError, match="whisper needs the package faster_whisper, which is not installed"):
        hosted(models)


def test_a_server_that_only_transcribes(several: Callable[..., Several]) -> None:
    with TestClient(create_app(hosted(["whisper"]), ServingSettings())) as client:
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["whisper"]
        assert client.get("/ready").json()["model"] == "whisper"
        asked = {"model": "tts-1", "input": "hi"}
        assert_error(client.post("/v1/audio/speech", json=asked), 404, "speaks nothing")


_LOADED_AND_UNLOADED = """
import psutil

from phonate.serving.server import hosted
from phonate.training.inference import SpeechRequest

models, resident = hosted(["base/voice"]), lambda: psutil.Process().memory_info().rss / 2**20
for _ in range(4):
    assert sum(map(len, models.services[0].submit(SpeechRequest("Nobody knew why. It was late.")).chunks()))
    loaded = resident()
    models.unload_after(0.0)
    print(loaded, resident())
"""


@pytest.mark.slow
def test_the_memory_of_an_unloaded_model_goes_back() -> None:
    """In a process of its own, for the allocator of this one holds what other tests left."""
    run = subprocess.run([sys.executable, "-c", _LOADED_AND_UNLOADED], capture_output=True, text=True, check=True)
    resident = [[float(word) for word in line.split()] for line in run.stdout.splitlines()]
    loaded, unloaded = resident[-1]
    assert loaded - unloaded > 20, resident
    assert unloaded - resident[0][1] < 8, resident


def test_voices_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two voices that are asked at once render no more pieces at the same time than one would."""
    rendered, running, most = speaking._next_piece, 0, 0
    lock = threading.Lock()

    def counted(one: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)  # for others to begin
        try:
            return rendered(one)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(speaking, "_next_piece", counted)
    monkeypatch.setattr(speaking, "cores", lambda: 2)
    speaking._renderers.cache_clear()
    voice = phonate.load("base/voice", "speech")
    services = [voice.speech_service(4) for _ in range(3)]
    results = [service.submit(SpeechRequest("One. Two. Three.")) for service in services for _ in range(2)]
    sounds = [np.concatenate(list(result.chunks(timeout=60))) for result in results]
    for service in services:
        service.close()
    speaking._renderers.cache_clear()
    assert most == 2
    assert all(np.array_equal(sound, sounds[0]) for sound in sounds)
