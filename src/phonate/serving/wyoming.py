"""Wyoming, the protocol of Home Assistant's voice assistants: speech for text, also for text that comes in pieces, and
transcripts, on a port of its own. Needs the extra `phonate[wyoming]`.

The protocol knows no keys, so whoever reaches the port can use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio.to_thread
import numpy as np
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_write_event
from wyoming.info import AsrModel, AsrProgram, Attribution, Info, TtsProgram, TtsVoice, TtsVoiceSpeaker
from wyoming.ping import Ping, Pong
from wyoming.server import AsyncEventHandler
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStopped,
    SynthesizeTextFormat,
    SynthesizeVoice,
)

import phonate
from phonate.audio.decoding import FloatArray, resample
from phonate.config.errors import InputError
from phonate.serving.guard import error_event
from phonate.serving.models import LazyService
from phonate.serving.routes import HIGHEST_RATE, LOWEST_RATE, MARKUP, ServerState
from phonate.serving.settings import ServingSettings
from phonate.serving.speech import Pieces
from phonate.serving.transcriptions import RATE, recogniser_of
from phonate.training.inference import SpeechRequest, SpeechResult

_log = logging.getLogger(__name__)

_WIDTH = 2
"""Bytes of a sample that is sent."""
_SAMPLES = {1: ("u1", 128.0, 128.0), 2: ("<i2", 0.0, 32768.0), 4: ("<i4", 0.0, 2147483648.0)}
"""Bytes of a sample that comes -> numpy's type, its zero and its full scale."""


@contextlib.asynccontextmanager
async def listening(state: ServerState, place: socket.socket) -> AsyncIterator[None]:
    """Answer whoever connects to `place`, as long as the context lasts."""
    clients: set[asyncio.Task[None]] = set()
    most = state.settings.max_batch + state.settings.max_queue

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(clients) >= most:
            await _refuse(writer, f"{most} clients are connected, which is the limit; try again later")
            return
        task = asyncio.ensure_future(_Client(state, _Reader(reader, state.settings), writer).run())
        clients.add(task)
        try:
            await task
        finally:
            clients.discard(task)

    await information(state)  # which loads all, for who asks waits for a second only
    server = await asyncio.start_server(connected, sock=place)
    try:
        yield
    finally:
        server.close()
        for task in clients:
            task.cancel()


async def _refuse(writer: asyncio.StreamWriter, why: str) -> None:
    """Tell a client that it is not served, and close its connection."""
    with contextlib.suppress(ConnectionError):
        await async_write_event(Error(why, "rate_limit_exceeded").event(), writer)
        writer.close()


async def information(state: ServerState) -> Info:
    """What this server does, as Home Assistant shows it. Loads models that were not loaded before."""
    own: dict[str, Any] = {
        "attribution": Attribution(name="phonate", url=""),  # it has no address
        "installed": True,
        "version": phonate.__version__,
    }
    store = state.voices
    voices: dict[str, TtsVoice] = {}
    for name in state.services:
        service = await state.service(name)
        languages = [tag(service.language)] if service.language else []
        stored = await state.in_thread(store.list) if store is not None and service.needs_reference else []
        speakers = [TtsVoiceSpeaker(one) for one in service.voices]
        # Home Assistant's menu lists voices, and not their speakers
        for one in (name, *service.voices, *(voice.name for voice in stored)):
            several = speakers if one == name and len(speakers) > 1 else None
            voices.setdefault(one, TtsVoice(one, description=one, languages=languages, speakers=several, **own))
    speaks = TtsProgram("phonate", description="phonate", voices=[], supports_synthesize_streaming=True, **own)
    speaks.voices = list(voices.values())
    hears = AsrProgram("phonate", description="phonate", models=[], **own)
    for recogniser in state.recognisers.values():
        languages = list(await anyio.to_thread.run_sync(recogniser.languages))
        hears.models.append(AsrModel(recogniser.name, description=recogniser.name, languages=languages, **own))
    return Info(tts=[speaks] if voices else [], asr=[hears] if hears.models else [])


def tag(code: str) -> str:
    """A code of a language as others write it: "en-US" for "en-us"."""
    first, *rest = code.replace("_", "-").split("-")
    return "-".join([first.lower(), *(part.upper() if len(part) == 2 else part for part in rest)])


def _samples(chunks: Sequence[AudioChunk]) -> FloatArray:
    """The samples (N,) in [-1, 1] of what came, its channels mixed."""
    blocks = []
    for chunk in chunks:
        kind, zero, scale = _SAMPLES[chunk.width]
        mono = np.frombuffer(chunk.audio, kind).reshape(-1, chunk.channels).astype(np.float32).mean(axis=1)
        blocks.append((mono - np.float32(zero)) / np.float32(scale))
    return np.concatenate(blocks)


class _Reader:
    """What a client sends, no event of which is larger than a request may be, or takes longer to come."""

    def __init__(self, reader: asyncio.StreamReader, settings: ServingSettings) -> None:
        self._reader, self._most, self._seconds = reader, settings.max_body, settings.request_seconds
        self.on_silence: Callable[[str], Awaitable[None]] | None = None
        """Told why nothing more is read, when nothing has come for so long."""

    async def readline(self) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._reader.readline()
        except TimeoutError:
            if self.on_silence is not None:
                await self.on_silence(f"nothing came for {self._seconds:g} s; connect again")
            return b""

    async def readexactly(self, count: int) -> bytes:
        if count > self._most:
            raise ValueError(f"an event of {count} bytes; at most {self._most} are allowed")
        try:
            async with asyncio.timeout(self._seconds):
                return await self._reader.readexactly(count)
        except TimeoutError:
            raise EOFError(f"an event without its end for {self._seconds:g} s") from None


class _Client(AsyncEventHandler):
    """One connection."""

    def __init__(self, state: ServerState, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)  # type: ignore[arg-type]  # it reads lines and bytes
        reader.on_silence = self._end_idle
        self._state = state
        self._voice: SynthesizeVoice | None = None
        self._pieces: Pieces | None = None
        """The text that comes in pieces, ..."""
        self._sending: asyncio.Task[None] | None = None
        """... and what sends its speech."""
        self._document: str | None = None
        """SSML that comes in pieces, which is spoken when it is whole."""
        self._characters = 0
        self._language: str | None = None
        self._recogniser: str | None = None
        self._heard: list[AudioChunk] = []
        """As they came: as numbers of floating point they would be up to four times as large."""
        self._rate = RATE
        self._seconds, self._bytes = 0.0, 0

    async def run(self) -> None:
        """Answer events until the client goes away, or sends what is none."""
        try:
            await super().run()
        except (KeyError, TypeError, AttributeError, ValueError, EOFError) as error:
            _log.info("a Wyoming client sent what is no event (%r); its connection is closed", error)
        except ConnectionError:
            pass  # it went away

    async def write_event(self, event: Event) -> None:
        """Send an event. Raises ConnectionError where the client takes nothing, which goes away or keeps others out."""
        try:
            async with asyncio.timeout(self._state.settings.request_seconds):
                await super().write_event(event)
        except TimeoutError:
            self.writer.transport.abort()
            raise ConnectionError("the client takes nothing") from None

    async def _end_idle(self, why: str) -> None:
        _log.info("a Wyoming client is idle; its connection is closed")
        await self._tell(InputError(why))

    async def handle_event(self, event: Event) -> bool:
        """Answer an event; False after a mistake, as clients wait for sound, not for an error."""
        try:
            await self._handle(event)
        except ConnectionError:
            raise
        except KeyError as error:
            await self._tell(InputError(f"{event.type}: {error} is missing"))
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            await self._tell(error)
            return False
        return True

    async def _handle(self, event: Event) -> None:
        answers: dict[str, Callable[[Event], Awaitable[None]]] = {
            "describe": self._describe,
            "ping": self._pong,
            "synthesize": self._speak_whole,
            "synthesize-start": self._start,
            "synthesize-chunk": self._add,
            "synthesize-stop": self._stop,
            "transcribe": self._expect,
            "audio-start": self._listen,
            "audio-chunk": self._hear,
            "audio-stop": self._transcribe,
        }
        if (answer := answers.get(event.type)) is not None:  # what is not known is passed over, as the protocol says
            await answer(event)

    async def _describe(self, _: Event) -> None:
        await self.write_event((await information(self._state)).event())

    async def _pong(self, event: Event) -> None:
        await self.write_event(Pong(Ping.from_event(event).text).event())

    async def _tell(self, error: Exception) -> None:
        told = error_event(error)["error"]
        with contextlib.suppress(ConnectionError):
            await self.write_event(Error(told["message"], told["code"]).event())

    # ------------------------------------------------------------------------------------------------ Speech

    async def _request(self, voice: SynthesizeVoice | None) -> tuple[LazyService, SpeechRequest]:
        """What speaks a text, and how. Raises ApiError for a voice that is not there."""
        state, name = self._state, None if voice is None else voice.name
        if voice is None or name is None:
            service = await self._speaking(None if voice is None else voice.language)
        elif state.names(name):
            service, name = await state.service(name), voice.speaker
        else:
            service = await state.service(None, name)
        own, reference = await state.voice(service, name)
        return service, SpeechRequest("", own, reference)

    async def _speaking(self, language: str | None) -> LazyService:
        """The first service of a language; the first of all where none is."""
        for one in self._state.services.values():
            if language is not None and one.language is not None and tag(one.language) == tag(language):
                return one
        return await self._state.service()

    async def _speak_whole(self, event: Event) -> None:
        if self._pieces is None and self._document is None:  # else it is the text that came in pieces, once more
            one = Synthesize.from_event(event)
            await self._speak(one.text, one.voice, one.text_format)

    async def _speak(self, text: str, voice: SynthesizeVoice | None, text_format: str | None) -> None:
        service, how = await self._request(voice)
        ssml = text_format == SynthesizeTextFormat.SSML
        content = self._state.spoken_text(service, text, "text", "ssml" if ssml else None)
        request = replace(how, text=content.text, script=content.script)
        await self._send(service, lambda: service.submit(request))

    async def _start(self, event: Event) -> None:
        await self.disconnect()
        start = SynthesizeStart.from_event(event)
        self._voice, self._characters = start.voice, 0
        if start.text_format == SynthesizeTextFormat.SSML:
            self._document = ""
            return
        service, how = await self._request(start.voice)
        pieces = self._pieces = Pieces(service, how)
        self._sending = asyncio.ensure_future(self._send_or_tell(service, lambda: pieces))

    async def _add(self, event: Event) -> None:
        text = SynthesizeChunk.from_event(event).text
        if self._document is not None:
            if len(self._document) + len(text) > (most := MARKUP * self._state.settings.max_text):
                raise InputError(f"text: more than {most} characters with markup, which is the limit")
            self._document += text
            return
        if self._pieces is None:
            raise InputError("synthesize-chunk came before synthesize-start")
        pieces, state = self._pieces, self._state
        self._characters += len(text)
        if self._characters > state.settings.max_text:
            raise InputError(f"text: more than {state.settings.max_text} characters, which is the limit")
        await anyio.to_thread.run_sync(lambda: pieces.add(text))

    async def _stop(self, _: Event) -> None:
        if self._document is not None:
            document, self._document = self._document, None
            await self._speak(document, self._voice, SynthesizeTextFormat.SSML)
        elif self._pieces is not None and self._sending is not None:
            await anyio.to_thread.run_sync(self._pieces.finish)
            await self._sending
            self._pieces = self._sending = None
        await self.write_event(SynthesizeStopped().event())

    async def _send_or_tell(self, service: LazyService, submit: Callable[[], SpeechResult]) -> None:
        try:
            await self._send(service, submit)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            await self._tell(error)
            self.writer.close()

    async def _send(self, service: LazyService, submit: Callable[[], SpeechResult]) -> None:
        """Send speech while it is made."""
        state, began, rate = self._state, time.monotonic(), service.sample_rate
        state.gate.enter()
        try:
            speech = await state.speaker.begin(rate, submit, "raw")
            try:
                started = False
                async for part in speech.parts():
                    if not started:
                        await self.write_event(AudioStart(rate, _WIDTH, 1).event())
                        started = True
                    await self.write_event(AudioChunk(rate, _WIDTH, 1, part).event())
                await self.write_event(AudioStop().event())
            finally:
                await speech.close()
        finally:
            state.gate.leave(time.monotonic() - began)

    async def disconnect(self) -> None:
        """End the work on what the client no longer waits for."""
        if self._pieces is not None:
            self._pieces.cancel()
        if self._sending is not None:
            self._sending.cancel()
        self._pieces = self._sending = None

    # ------------------------------------------------------------------------------------------- Transcripts

    async def _expect(self, event: Event) -> None:
        asked = Transcribe.from_event(event)
        self._language, self._recogniser = asked.language, asked.name

    async def _listen(self, _: Event) -> None:
        self._heard, self._seconds, self._bytes = [], 0.0, 0

    async def _hear(self, event: Event) -> None:
        chunk = AudioChunk.from_event(event)
        if chunk.width not in _SAMPLES or chunk.channels < 1 or len(chunk.audio) % (chunk.width * chunk.channels):
            raise InputError(
                f"audio-chunk: {len(chunk.audio)} bytes are no samples of {chunk.width} bytes in {chunk.channels} "
                "channels; send 2 bytes in 1"
            )
        if not LOWEST_RATE <= chunk.rate <= HIGHEST_RATE:  # at a higher one, an hour would be too much for memory
            raise InputError(f"audio-chunk: a rate of {chunk.rate} Hz; send one of {LOWEST_RATE} to {HIGHEST_RATE}")
        if self._heard and chunk.rate != self._rate:
            raise InputError(f"audio-chunk: a rate of {chunk.rate} Hz after one of {self._rate} Hz; send one rate")
        settings = self._state.settings
        self._heard.append(chunk)
        self._rate = chunk.rate
        self._seconds += len(chunk.audio) / (chunk.width * chunk.channels * chunk.rate)
        self._bytes += len(chunk.audio)
        if self._seconds > (most := settings.max_transcription_seconds):
            raise InputError(f"audio: longer than {most:g} s, which is the limit")
        if self._bytes > settings.max_body:
            raise InputError(f"audio: more than {settings.max_body} bytes, which is the limit")

    async def _transcribe(self, _: Event) -> None:
        state, began, language = self._state, time.monotonic(), self._language
        recogniser = recogniser_of(state, self._recogniser)
        chunks, self._heard, rate = self._heard, [], self._rate
        if not chunks:
            await self.write_event(Transcript("").event())
            return
        state.gate.enter()
        try:
            said = await anyio.to_thread.run_sync(
                lambda: recogniser.transcribe(
                    np.asarray(resample(_samples(chunks), rate, RATE), dtype=np.float32), language, False
                ),
                limiter=state.recognising,
            )
        finally:
            state.gate.leave(time.monotonic() - began)
        await self.write_event(Transcript(said.text, language=said.language).event())
