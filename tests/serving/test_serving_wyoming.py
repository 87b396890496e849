"""Home Assistant's protocol, spoken by its own client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from servers import only
from stand_in import RATE, OwnVoice, StandIn
from test_serving_transcriptions import WORDS, Hears

import phonate
from installed import missing
from phonate.serving.server import create_app
from phonate.serving.settings import ServingSettings
from phonate.serving.transcriptions import Recogniser
from phonate.serving.voices import StoredVoice, VoiceStore
from phonate.training.inference import Reference, SpeechService

if missing("wyoming"):
    pytest.skip("needs wyoming: pip install 'phonate[wyoming]'", allow_module_level=True)

from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeVoice,
)

Talk = Callable[[AsyncTcpClient], Awaitable[Any]]
Assist = Callable[..., Any]


@pytest.fixture
def assist() -> Assist:
    """A function that runs a talk between the client and a server of a service."""

    def run(talk: Talk, service: SpeechService | None = None, hears: Hears | None = None, **settings: Any) -> Any:
        recognisers = [] if hears is None else [Recogniser("whisper", lambda: hears)]
        place = socket.create_server(("127.0.0.1", 0))
        app = create_app(only(service or OwnVoice(), "house", *recognisers), ServingSettings(**settings), place)

        async def main() -> Any:
            client = AsyncTcpClient("127.0.0.1", place.getsockname()[1], read_timeout=20)
            async with app.router.lifespan_context(app), client:
                return await talk(client)

        return asyncio.run(main())

    return run


async def until(client: AsyncTcpClient, *last: str) -> list[Event]:
    """The events up to one of the `last` kinds, or the end of the connection."""
    events: list[Event] = []
    while (event := await client.read_event()) is not None:
        events.append(event)
        if event.type in last:
            break
    return events


def sound(events: list[Event]) -> np.ndarray:
    chunks = [AudioChunk.from_event(event) for event in events if AudioChunk.is_type(event.type)]
    return np.frombuffer(b"".join(chunk.audio for chunk in chunks), "<i2") / 32768


def test_it_says_what_it_can(assist: Assist) -> None:
    async def talk(client: AsyncTcpClient) -> Info:
        await client.write_event(Ping("there?").event())
        assert Pong.from_event((await until(client, "pong"))[-1]).text == "there?"
        await client.write_event(Describe().event())
        return Info.from_event((await until(client, "info"))[-1])

    info = assist(talk, hears=Hears())
    (speaks,), (hears,) = info.tts, info.asr
    assert speaks.installed
    assert speaks.attribution.url == ""
    assert speaks.version == phonate.__version__
    assert speaks.supports_synthesize_streaming
    assert [voice.name for voice in speaks.voices] == ["house", "anna", "ben"]
    assert all(voice.languages == ["en-US"] for voice in speaks.voices)
    assert [one.name for one in speaks.voices[0].speakers or []] == ["anna", "ben"]
    assert all(voice.installed for voice in speaks.voices)
    assert (hears.models[0].name, hears.models[0].languages) == ("whisper", ["de", "en"])
    assert assist(talk).asr == []


@pytest.mark.parametrize(
    ("voice", "said_by"),
    [
        (None, None),
        (SynthesizeVoice(name="ben"), "ben"),
        (SynthesizeVoice(name="house", speaker="ben"), "ben"),
        (SynthesizeVoice(language="en-US"), None),
    ],
)
def test_a_text_becomes_sound(assist: Assist, voice: SynthesizeVoice | None, said_by: str | None) -> None:
    async def talk(client: AsyncTcpClient) -> list[Event]:
        await client.write_event(Synthesize("hello", voice=voice).event())
        return await until(client, "audio-stop")

    service = OwnVoice()
    first, *chunks, last = assist(talk, service)
    start = AudioStart.from_event(first)
    assert (start.rate, start.width, start.channels) == (RATE, 2, 1)
    assert AudioStop.is_type(last.type)
    assert len(sound(chunks)) == 5 * RATE // 10
    assert (service.requests[0].text, service.requests[0].voice) == ("hello", said_by)


def test_text_in_pieces_is_spoken_sentence_by_sentence(assist: Assist) -> None:
    """As Home Assistant sends a language model's answer: the whole text comes once more, for older servers."""

    async def talk(client: AsyncTcpClient) -> list[Event]:
        await client.write_event(SynthesizeStart(voice=SynthesizeVoice(name="ben")).event())
        for piece in ("Good mor", "ning. ", "It is se", "ven o'clock"):
            await client.write_event(SynthesizeChunk(piece).event())
        before = await until(client, "audio-chunk")  # before the text is whole
        await client.write_event(SynthesizeChunk(".").event())
        await client.write_event(Synthesize("Good morning. It is seven o'clock.").event())
        await client.write_event(SynthesizeStop().event())
        return before + await until(client, "synthesize-stopped")

    service = OwnVoice()
    events = assist(talk, service)
    assert [one.text for one in service.requests] == ["Good morning.", "It is seven o'clock."]
    assert {one.voice for one in service.requests} == {"ben"}
    kinds = [event.type for event in events]
    assert (kinds.count("audio-start"), kinds.count("audio-stop")) == (1, 1)
    assert kinds[-2:] == ["audio-stop", "synthesize-stopped"]
    characters = sum(len(one.text) for one in service.requests)
    assert len(sound(events)) == pytest.approx(RATE * (characters / 10 + 0.25), abs=1)


def test_speech_becomes_text(assist: Assist) -> None:
    async def talk(client: AsyncTcpClient) -> Transcript:
        await client.write_event(Transcribe(language="de").event())
        await client.write_event(AudioStart(48_000, 2, 2).event())
        for _ in range(4):
            await client.write_event(AudioChunk(48_000, 2, 2, np.ones((24_000, 2), "<i2").tobytes()).event())
        await client.write_event(AudioStop().event())
        return Transcript.from_event((await until(client, "transcript"))[-1])

    hears = Hears()
    transcript = assist(talk, hears=hears)
    assert (transcript.text, transcript.language) == (" ".join(WORDS), "de")
    assert hears.asked == [(32_000, 16_000, "de")]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([Synthesize("hello", voice=SynthesizeVoice(name="bem"))], "there is no voice 'bem'; did you mean ben"),
        ([Synthesize("hi", voice=SynthesizeVoice(name="house", speaker="zoe"))], "zoe"),
        ([Synthesize("")], "empty"),
        ([Synthesize("long" * 10)], "40 characters"),
        ([SynthesizeChunk("hi")], "synthesize-start"),
        ([SynthesizeStart(), SynthesizeChunk("long" * 10)], "limit"),
        ([SynthesizeStart(), SynthesizeChunk("fail."), SynthesizeStop()], "its log says why"),
        ([AudioStart(16_000, 2, 1), AudioStop()], "whisper"),
        ([SynthesizeStart(text_format="ssml"), *[SynthesizeChunk("<speak>" * 20)] * 3], "300 characters with markup"),
        ([AudioChunk(10**9, 2, 1, bytes(4))], "192000"),
        ([AudioChunk(16_000, 2, 1, bytes(3))], "3 bytes"),
        ([AudioChunk(16_000, 2, 1, bytes(3000))] * 2, "more than 4096 bytes"),
        ([AudioChunk(16_000, 2, 1, bytes(4)), AudioChunk(8_000, 2, 1, bytes(4))], "one rate"),
    ],
)
def test_a_mistake_is_told_and_ends_the_connection(assist: Assist, events: list[Any], said: str) -> None:
    """Home Assistant waits for sound until the connection ends."""

    async def talk(client: AsyncTcpClient) -> list[Event]:
        for event in events:
            await client.write_event(event.event())
        return await until(client)

    errors = [
        Error.from_event(event).text for event in assist(talk, max_text=30, max_body=4096) if event.type == "error"
    ]
    assert len(errors) == 1
    assert said in errors[0]


def test_what_is_no_event_ends_the_connection_alone(assist: Assist) -> None:
    async def talk(client: AsyncTcpClient) -> Info:
        writer = client._writer
        assert writer is not None
        for line in (
            b"[]\n",
            b"{}\n",
            b"\xff\n",
            b'{"type": "synthesize"}\n',
            b'{"type": "x", "payload_length": 99999999999}\n',
        ):
            one_reader, one = await asyncio.open_connection(*writer.get_extra_info("peername"))
            one.write(line)
            await asyncio.wait_for(one_reader.read(), 10)
            one.close()
        await client.write_event(Describe().event())
        return Info.from_event((await until(client, "info"))[-1])

    assert assist(talk).tts


def test_there_is_a_place_for_so_many_clients(assist: Assist) -> None:
    async def talk(client: AsyncTcpClient) -> list[Event]:
        assert client._writer is not None
        host, port = client._writer.get_extra_info("peername")
        async with AsyncTcpClient(host, port) as second, AsyncTcpClient(host, port) as third:
            await second.write_event(Ping("there?").event())
            assert [event.type for event in await until(second, "pong")] == ["pong"]
            refused = await until(third)
        await client.write_event(Ping("still?").event())
        assert (await until(client, "pong"))[-1].type == "pong"
        return refused

    (refused,) = assist(talk, max_batch=1, max_queue=1)
    assert Error.from_event(refused).code == "rate_limit_exceeded"


def test_who_sends_nothing_loses_its_place(assist: Assist) -> None:
    async def talk(client: AsyncTcpClient) -> list[Event]:
        assert client._writer is not None
        host, port = client._writer.get_extra_info("peername")
        told = await until(client)
        async with AsyncTcpClient(host, port) as half:
            assert half._writer is not None
            half._writer.write(b'{"type": "ping", "data_length": 10}\n{')
            assert await until(half) == []
        async with AsyncTcpClient(host, port) as after:
            await after.write_event(Ping("there?").event())
            assert [event.type for event in await until(after, "pong")] == ["pong"]
        return told

    (told,) = assist(talk, max_batch=1, max_queue=0, request_seconds=0.3)
    assert Error.from_event(told).text == "nothing came for 0.3 s; connect again"


def test_uploaded_voices_are_there(assist: Assist, tmp_path: Any) -> None:
    tone = np.sin(np.arange(16_000) / 10).astype(np.float32)
    VoiceStore(tmp_path, 5).add(
        StoredVoice("zoe", "text", "Zoe", "yes", 0), Reference(tone, 16_000, "text"), (tone, 16_000)
    )

    async def talk(client: AsyncTcpClient) -> list[str]:
        await client.write_event(Describe().event())
        info = Info.from_event((await until(client, "info"))[-1])
        await client.write_event(Synthesize("hi", voice=SynthesizeVoice(name="zoe")).event())
        await until(client, "audio-stop")
        return [voice.name for voice in info.tts[0].voices]

    service = StandIn()
    assert "zoe" in assist(talk, service, voices=tmp_path)
    assert service.requests[0].reference is not None


def test_pieces_sound_as_the_whole_text(assist: Assist) -> None:
    """The packaged voice says a text in pieces as it says the whole text, silences included."""
    text = "Nobody knew why.\n\n***\n\nDr. Smith said so. Is it true?"

    async def talk(client: AsyncTcpClient) -> list[Event]:
        await client.write_event(SynthesizeStart().event())
        for at in range(0, len(text), 3):
            await client.write_event(SynthesizeChunk(text[at : at + 3]).event())
        await client.write_event(SynthesizeStop().event())
        return await until(client, "synthesize-stopped")

    model = phonate.load("base/voice", "speech")
    service = model.speech_service(2)
    pieces = sound(assist(talk, service))
    whole = np.concatenate(list(model.stream(text)))
    service.close()
    assert len(pieces) == len(whole)
    assert np.abs(pieces - whole).max() < 2e-3
