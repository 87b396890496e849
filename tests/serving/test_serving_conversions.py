"""Conversion over HTTP: recordings, and sound while it comes over a WebSocket."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import soundfile
from fastapi.testclient import TestClient
from servers import Serve, assert_error, recording
from starlette.websockets import WebSocketDisconnect

from phonate.audio.decoding import FloatArray
from phonate.config.registry import UnknownVoiceError
from phonate.serving import conversions
from phonate.serving.conversions import Conversion
from phonate.serving.routes import warned
from phonate.serving.server import Hosted, create_app, hosted
from phonate.serving.settings import ServingSettings

RATE = 22_050
STREAM = "/v1/audio/conversions/stream"


class _Live:
    """Turns the sound over, a block later."""

    sample_rate, latency = RATE, 2205

    def __init__(self) -> None:
        self._before = np.zeros(0, dtype=np.float32)

    def push(self, samples: FloatArray) -> FloatArray:
        if samples[0] == -1.0:
            raise RuntimeError("the model broke")
        before, self._before = self._before, -samples
        return before

    def finish(self) -> FloatArray:
        return self._before


class Turns:
    """A converter without a model: turns the sound over."""

    sample_rate = RATE
    target: str | None = "anna"

    def __init__(self) -> None:
        self.speakers = ["anna", "ben"]
        self.asked: list[tuple[Any, int | None, float]] = []

    def _checked(self, speaker: Any) -> None:
        if isinstance(speaker, str) and speaker not in self.speakers:
            raise UnknownVoiceError(speaker, self.speakers)

    def stream(
        self, audio: FloatArray, speaker: Any = None, *, sample_rate: int | None = None, semitones: float = 0.0
    ) -> Iterator[FloatArray]:
        self._checked(speaker)
        self.asked.append((speaker, sample_rate, semitones))
        count = round(len(audio) * RATE / (sample_rate or RATE))
        yield from np.array_split(np.full(count, -0.5, dtype=np.float32), 3)

    def live(self, speaker: Any = None, semitones: float = 0.0) -> _Live:
        self._checked(speaker)
        return _Live()

    def reference(self, recordings: FloatArray, *, sample_rate: int | None = None) -> tuple[int, int | None]:
        return len(recordings), sample_rate


Make = Callable[..., tuple[TestClient, Turns]]


@pytest.fixture
def turning() -> Iterator[Make]:
    """A function that makes a client of a server that only converts, and its converter."""
    clients = []

    def make(**settings: Any) -> tuple[TestClient, Turns]:
        turns = Turns()
        models = Hosted([], [], [Conversion("turn", lambda: turns)])
        clients.append(TestClient(create_app(models, ServingSettings(**settings))).__enter__())
        return clients[-1], turns

    yield make
    for client in clients:
        client.__exit__(None, None, None)


def posted(client: TestClient, file: bytes, reference: bytes | None = None, **fields: str) -> Any:
    files = {"file": ("in.wav", file)} | ({} if reference is None else {"reference_audio": ("ref.wav", reference)})
    return client.post("/v1/audio/conversions", files=files, data=fields)


def test_a_model_that_converts_to_any_voice_needs_a_recording_of_it(turning: Make, wav: bytes) -> None:
    client, turns = turning()
    turns.target = None
    assert_error(posted(client, wav), 400, "send one of about a minute", "reference_audio")
    assert posted(client, wav, reference=wav).status_code == 200
    joined = recording(kind="MP3") * 2
    warning = posted(client, joined, reference=joined).headers["warning"]
    assert all(f"{name}: 2 files were joined in it" in warning for name in ("file", "reference_audio"))
    assert "reference_audio=@recording.wav" in client.get("/").text


def test_titles_of_tracks_do_not_fill_a_header() -> None:
    assert len(warned((), remarks=[f"holds 2 sound tracks ({'x' * 9000}, en)"])["Warning"]) < 600


@pytest.mark.parametrize("form", ["wav", "flac", "mp3", "opus"])
def test_a_recording_comes_back_in_another_voice(turning: Make, wav: bytes, form: str) -> None:
    client, turns = turning(aliases={"alloy": "ben"})
    answer = posted(client, wav, voice="alloy", response_format=form, semitones="-2", instructions="x")
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-AI-Generated"] == "true"
    assert "instructions" in answer.headers["warning"]
    assert turns.asked == [("ben", 16_000, -2.0)]
    assert "file: " not in answer.headers["warning"]
    samples, rate = soundfile.read(io.BytesIO(answer.content))
    assert len(samples) / rate == pytest.approx(1.0, abs=0.1)
    if form in ("wav", "flac"):  # the others filter what is constant
        assert np.abs(samples + 0.5).max() < 1e-4


def test_pcm_is_the_default_of_nobody_and_has_openais_rate(turning: Make, wav: bytes) -> None:
    client, _ = turning()
    assert posted(client, wav).headers["content-type"] == "audio/mpeg"
    answer = posted(client, wav, response_format="pcm")
    assert (answer.headers["X-Sample-Rate"], len(answer.content)) == ("24000", 48_000)
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["turn"]


def test_the_page_offers_openais_clients_nothing_that_they_know(turning: Make, serving: Serve) -> None:
    assert "OpenAI's clients and others" not in turning()[0].get("/").text
    assert "OpenAI's clients and others" in serving().get("/").text


def test_a_recording_may_give_the_voice(turning: Make, wav: bytes) -> None:
    client, turns = turning()
    assert posted(client, wav, recording(2.0)).status_code == 200
    assert turns.asked[0][0] == (32_000, 16_000)
    assert_error(posted(client, wav, wav, voice="anna"), 400, "either voice", "voice")


def test_what_cant_be_met_says_why(turning: Make, serving: Serve, wav: bytes) -> None:
    client, _ = turning(max_conversion_seconds=2.0)
    refused = posted(client, wav, voice="zoe")
    assert_error(refused, 400, "^there is no voice 'zoe'; choose from 'anna'", "voice")
    assert refused.json()["error"]["code"] == "voice_not_found"
    assert_error(posted(client, wav, model="x"), 404, "no model 'x'; there is only 'turn'", "model")
    assert_error(posted(client, wav, response_format="xml"), 400, "'mp3'")
    assert_error(posted(client, recording(3.0)), 400, "file: .*2 s")
    assert_error(posted(client, b"text"), 400, "file: not readable as audio")
    assert_error(posted(serving(), wav), 404, "conversion, too")
    assert client.app.state.server.gate.running == 0  # type: ignore[attr-defined]


def test_sound_is_converted_while_it_comes(turning: Make) -> None:
    client, _ = turning()
    sound = (8000 * np.sin(np.arange(4 * 2205) / 9)).astype("<i2")
    with client.websocket_connect(STREAM) as socket:
        socket.send_json({"type": "session.update", "session": {"voice": "ben"}})
        assert socket.receive_json() == {
            "type": "session.updated",
            "session": {"model": "turn", "voice": "ben", "sample_rate": RATE, "latency_ms": 100.0},
        }
        first, *others = np.split(sound, 4)
        socket.send_bytes(first.tobytes())
        socket.send_bytes(others[0].tobytes())
        converted = socket.receive_bytes()  # before the rest is sent
        for block in others[1:]:
            socket.send_bytes(block.tobytes())
        socket.send_json({"type": "input_audio.end"})
        while "bytes" in (message := socket.receive()):
            converted += message["bytes"]
        assert "conversion.done" in message["text"]
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
    assert closed.value.code == 1000
    assert np.abs(np.frombuffer(converted, "<i2") + sound).max() <= 1
    assert client.app.state.server.gate.running == 0  # type: ignore[attr-defined]


def test_the_rate_of_the_client_may_be_another(turning: Make) -> None:
    client, _ = turning()
    with client.websocket_connect(STREAM) as socket:
        socket.send_json({"type": "session.update", "session": {"sample_rate": 48_000}})
        socket.receive_json()
        socket.send_bytes(np.zeros(48_000, "<i2").tobytes())
        socket.send_json({"type": "input_audio.end"})
        converted = b""
        while "bytes" in (message := socket.receive()):
            converted += message["bytes"]
    assert len(converted) // 2 == pytest.approx(RATE, abs=2)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([b"\0\0"], "not valid JSON"),
        ([{"type": "input_audio.end"}], "session.update"),
        ([{"type": "session.update", "session": {"voice": "zoe"}}], "choose from 'anna'"),
        ([{"type": "session.update", "session": {"sample_rate": 1}}], "session.sample_rate"),
        ([{"type": "session.update", "session": {"model": "x"}}], "no model 'x'"),
        ([{"type": "session.update"}, b"\0"], "half of a"),
        ([{"type": "session.update"}, {"type": "input_audio.stop"}], "input_audio.end"),
    ],
)
def test_a_mistake_is_told_and_closes(turning: Make, messages: list[Any], said: str) -> None:
    client, _ = turning()
    with client.websocket_connect(STREAM) as socket:
        for message in messages:
            socket.send_bytes(message) if isinstance(message, bytes) else socket.send_json(message)
        while (event := socket.receive_json())["type"] == "session.updated":
            pass
        assert said in event["error"]["message"]
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
    assert closed.value.code == 1008
    assert client.app.state.server.gate.running == 0  # type: ignore[attr-defined]


def test_a_client_that_goes_away_leaves_nothing(turning: Make) -> None:
    client, _ = turning()
    with client.websocket_connect(STREAM) as socket:
        socket.send_json({"type": "session.update"})
        socket.receive_json()
    assert client.app.state.server.gate.running == 0  # type: ignore[attr-defined]
    assert hosted(["base/voice"]).converters == []


def test_a_failure_is_told_while_the_client_still_speaks(turning: Make) -> None:
    client, _ = turning()
    with client.websocket_connect(STREAM) as socket:
        socket.send_json({"type": "session.update"})
        socket.receive_json()
        socket.send_bytes(np.full(100, -32768, "<i2").tobytes())
        assert "its log says why" in socket.receive_json()["error"]["message"]
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
    assert closed.value.code == 1011


@pytest.mark.parametrize("messages", [[], [{"type": "session.update"}]])
def test_who_sends_nothing_leaves_the_place_to_others(turning: Make, messages: list[Any]) -> None:
    client, _ = turning(request_seconds=0.2)
    with client.websocket_connect(STREAM) as socket:
        for message in messages:
            socket.send_json(message)
            socket.receive_json()
        assert "nothing came for 0.2 s" in socket.receive_json()["error"]["message"]
        with pytest.raises(WebSocketDisconnect):
            socket.receive_json()
    assert client.app.state.server.gate.running == 0  # type: ignore[attr-defined]


def test_no_more_than_seconds_of_sound_wait_in_memory() -> None:
    async def main() -> None:
        live = conversions._Live(_Live(), RATE)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(live.push(np.zeros(100 * RATE, dtype=np.float32)), 0.1)
        assert live._blocks.qsize() < 20
        chunks = live.chunks()
        await asyncio.to_thread(next, chunks)
        await asyncio.wait_for(live.push(np.zeros(RATE, dtype=np.float32)), 5)

    asyncio.run(main())


def test_a_model_that_was_unloaded_is_loaded_beside_the_event_loop() -> None:
    """All requests would wait for it otherwise."""
    beside: list[bool] = []

    def load() -> Turns:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            beside.append(True)
        else:
            beside.append(False)
        return Turns()

    conversion = Conversion("turn", load)
    conversion.prepare()
    conversion.model.close()
    with (
        TestClient(create_app(Hosted([], [], [conversion]), ServingSettings())) as client,
        client.websocket_connect(STREAM) as socket,
    ):
        socket.send_json({"type": "session.update"})
        assert socket.receive_json()["type"] == "session.updated"
    assert beside == [True, True]


def test_a_conversion_that_takes_too_long_says_so(turning: Make, wav: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    client, turns = turning(request_seconds=0.2)
    stopped = threading.Event()

    def slow(*_: Any, **__: Any) -> Iterator[FloatArray]:
        stopped.wait(20)
        yield np.zeros(RATE, dtype=np.float32)

    monkeypatch.setattr(turns, "stream", slow)
    assert_error(posted(client, wav), 504, "0.2 s")
    stopped.set()
