"""WebSockets: the text of a language model in pieces in, its sentences as sound out."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from servers import Serve, Server, only
from stand_in import CHUNK, RATE, OwnVoice
from starlette.websockets import WebSocketDisconnect

import phonate
from phonate.serving.server import create_app
from phonate.serving.settings import ServingSettings

PLACE = "/v1/audio/speech/stream"


@pytest.fixture
def client() -> Iterator[Callable[..., TestClient]]:
    """A function that makes a client of a server of a stand-in that has the voices anna and ben."""
    clients = []

    def make(**settings: Any) -> TestClient:
        made = TestClient(create_app(only(OwnVoice(), "house"), ServingSettings(**settings)))
        clients.append(made.__enter__())
        return made

    yield make
    for one in clients:
        one.__exit__(None, None, None)


def spoken(socket: Any) -> tuple[np.ndarray, list[str]]:
    """The samples up to the next event done or error, and the types of all events."""
    sound, types = b"", [""]
    while types[-1] not in ("speech.audio.done", "error"):
        event = socket.receive_json()
        types.append(event["type"])
        sound += base64.b64decode(event.get("audio", ""))
    return np.frombuffer(sound, "<i2"), types[1:]


def append(socket: Any, *pieces: str) -> None:
    for piece in pieces:
        socket.send_json({"type": "input_text.append", "text": piece})


def test_sentences_are_spoken_while_the_text_is_written(client: Callable[..., TestClient]) -> None:
    house = client()
    with house.websocket_connect(PLACE) as socket:
        socket.send_json({"type": "session.update", "session": {"model": "house", "voice": "ben", "speed": None}})
        updated = socket.receive_json()
        assert updated["type"] == "session.updated"
        assert (updated["session"]["voice"], updated["session"]["sample_rate"]) == ("ben", 24_000)
        append(socket, "It is", " late. Go", " ho")
        assert socket.receive_json()["type"] == "speech.audio.delta"  # before the text is whole
        append(socket, "me.")
        socket.send_json({"type": "input_text.flush"})
        sound, types = spoken(socket)
        assert types[-1] == "speech.audio.done"
        assert len(sound) == pytest.approx((len("It is late.Go home.") - 1) * CHUNK + 0.25 * RATE, abs=1)
        append(socket, "And then?")  # another text
        socket.send_json({"type": "input_text.end"})
        assert len(spoken(socket)[0]) == len("And then?") * CHUNK
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 1000
    service = house.app.state.server.services["house"].model.loaded  # type: ignore[attr-defined]
    assert [one.text for one in service.requests] == ["It is late.", "Go home.", "And then?"]
    assert {one.voice for one in service.requests} == {"ben"}
    assert len({one.seed for one in service.requests[:2]}) == 1


def test_a_text_that_is_not_all_read_is_told_at_its_end(
    client: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnVoice, "left_out", lambda _, request: "ZHE" if "Ж" in request.text else "")
    with client().websocket_connect(PLACE) as socket:
        for text, told in (("Go Ж", True), ("home", False)):
            append(socket, text, ". Then stop.")
            socket.send_json({"type": "input_text.flush"})
            while (event := socket.receive_json())["type"] != "speech.audio.done":
                assert "warning" not in event
            assert ("ZHE" in event.get("warning", "")) is told


def test_of_a_long_text_the_model_has_two_sentences_at_once(client: Callable[..., TestClient]) -> None:
    house = client()
    service = house.app.state.server.services["house"]  # type: ignore[attr-defined]
    service.prepare()
    most = 0
    with house.websocket_connect(PLACE) as socket:
        append(socket, "".join(f"Number {number}. " for number in range(20)))
        socket.send_json({"type": "input_text.flush"})
        events, done = 0, False
        while not done:
            done = socket.receive_json()["type"] == "speech.audio.done"
            events += 1
            loaded = service.model.loaded
            heard = sum(result.made.empty() for result in loaded.results)
            most = max(most, len(loaded.results) - heard)
    assert len(service.model.loaded.requests) == 20
    assert most <= 2


def test_what_is_cancelled_is_not_spoken(client: Callable[..., TestClient]) -> None:
    house = client()
    service = house.app.state.server.services["house"]  # type: ignore[attr-defined]
    service.prepare()
    service.model.loaded._seconds = 0.05
    with house.websocket_connect(PLACE) as socket:
        append(socket, "A long answer that nobody wants to hear. ", "Or does anybody")
        assert socket.receive_json()["type"] == "speech.audio.delta"
        socket.send_json({"type": "input_text.cancel"})
        socket.send_json({"type": "session.update", "session": {"voice": "anna"}})
        while socket.receive_json()["type"] == "speech.audio.delta":
            pass
        append(socket, "Yes.")
        socket.send_json({"type": "input_text.flush"})
        assert len(spoken(socket)[0]) == 4 * CHUNK
    assert house.app.state.server.gate.running == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("messages", "said", "code"),
    [
        ([{"type": "input_text.append"}], "text is missing", 1008),
        ([{"type": "input_text.apend"}], "input_text.append", 1008),
        ([["hello"]], "JSON object", 1008),
        ([{"type": "session.update", "session": {"speed": 9}}], "session.speed", 1008),
        ([{"type": "session.update", "session": {"model": "x"}}], "no model 'x'", 1008),
        ([{"type": "session.update", "session": "x"}], "session", 1008),
        ([{"type": "input_text.append", "text": "x" * 40}], "30 characters", 1008),
        ([{"type": "input_text.append", "text": "\ud800"}], "surrogate", 1008),
        ([{"type": "input_text.append", "text": "hi"}, {"type": "session.update"}], "flush first", 1008),
    ],
)
def test_a_mistake_is_told_and_closes(
    client: Callable[..., TestClient], messages: list[Any], said: str, code: int
) -> None:
    with client(max_text=30).websocket_connect(PLACE) as socket:
        for message in messages:
            socket.send_text(json.dumps(message))
        event = socket.receive_json()
        assert event["type"] == "error"
        assert said in event["error"]["message"]
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == code


def test_an_error_of_the_model_is_an_event(client: Callable[..., TestClient]) -> None:
    with client().websocket_connect(PLACE) as socket:
        append(socket, "It will fail.")
        socket.send_json({"type": "input_text.flush"})
        assert spoken(socket)[1][-1] == "error"
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 1011


def test_a_text_that_waits_keeps_the_settings_that_it_began_with(client: Callable[..., TestClient]) -> None:
    house = client()
    service = house.app.state.server.services["house"]  # type: ignore[attr-defined]
    service.prepare()
    service.model.loaded._seconds = 0.02
    with house.websocket_connect(PLACE) as socket:
        for text in ("One two.", "Three."):
            append(socket, text)
            socket.send_json({"type": "input_text.flush"})
        socket.send_json({"type": "session.update", "session": {"response_format": "wav"}})
        append(socket, "Four.")
        socket.send_json({"type": "input_text.end"})
        lengths = [len(spoken(socket)[0]) for _ in range(3)]
    assert lengths[:2] == [len("One two.") * CHUNK, len("Three.") * CHUNK]
    assert lengths[2] > len("Four.") * CHUNK  # its header


def test_a_socket_needs_the_key_and_no_other_site_may_open_one(serving: Serve) -> None:
    client = serving(api_keys=("secret",))
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(PLACE):
        pass
    key = {"Authorization": "Bearer secret"}
    with client.websocket_connect(PLACE, headers=key):
        pass
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(PLACE, headers={**key, "Origin": "http://x.org"}):
        pass


def test_words_come_with_their_times() -> None:
    """Those of the packaged voice, counted from the beginning of the text."""
    service = phonate.load("base/voice", "speech").speech_service(2)
    with (
        TestClient(create_app(only(service, "voice"), ServingSettings())) as client,
        client.websocket_connect(PLACE) as socket,
    ):
        socket.send_json({"type": "session.update", "session": {"timestamp_granularities": ["word"]}})
        socket.receive_json()
        append(socket, "Nobody knew. ", "It was late.")
        socket.send_json({"type": "input_text.end"})
        words: list[dict[str, Any]] = []
        samples = 0
        while (event := socket.receive_json())["type"] != "speech.audio.done":
            words += event.get("words", [])
            samples += len(base64.b64decode(event.get("audio", ""))) // 2
    service.close()
    assert [word["word"] for word in words] == ["Nobody", "knew.", "It", "was", "late."]
    assert words == sorted(words, key=lambda word: word["start"])
    assert words[2]["start"] > words[1]["end"] + 0.2
    assert words[-1]["end"] <= samples / 24_000 + 0.01


def test_the_client_of_the_package_websockets(stand_in_server: Callable[..., Server]) -> None:
    websockets = pytest.importorskip("websockets", reason="needs pip install websockets")
    server = stand_in_server()

    async def talk() -> list[str]:
        async with websockets.connect(server.url.replace("http", "ws") + PLACE) as socket:
            await socket.send(json.dumps({"type": "session.update", "session": {"voice": "own"}}))
            await socket.send(json.dumps({"type": "input_text.append", "text": "Hello there."}))
            await socket.send(json.dumps({"type": "input_text.end"}))
            return [json.loads(message)["type"] async for message in socket]

    types = asyncio.run(talk())
    assert (types[0], types[-1]) == ("session.updated", "speech.audio.done")
