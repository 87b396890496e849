"""Speech in another voice: `/v1/audio/conversions`, a recording in and its conversion out, and a WebSocket, on which
both flow at once."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import anyio
import anyio.to_thread
import numpy as np
from fastapi import APIRouter, File, Form, Request, UploadFile, WebSocket
from fastapi.concurrency import contextmanager_in_threadpool
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from phonate.audio.decoding import FloatArray, resampled
from phonate.config.errors import InputError
from phonate.serving.guard import ApiError, no_model
from phonate.serving.live import answering, arrived, json_of, received, unless_failed, validated
from phonate.serving.models import Lazy
from phonate.serving.routes import (
    HIGHEST_RATE,
    LOWEST_RATE,
    ServerState,
    StreamedSpeech,
    marks,
    state_of,
)
from phonate.serving.speech import FORMATS
from phonate.serving.uploads import Upload
from phonate.training.inference import SpeechResult

router = APIRouter(prefix="/v1/audio/conversions")

_KNOWN = ("file", "model", "voice", "response_format", "semitones", "reference_audio")
_FULL_SCALE = 32768.0
_MOST_BLOCKS = 8
"""Of a second or less, that wait to be converted."""


class ConvertsLive(Protocol):
    """A conversion of sound while it comes."""

    sample_rate: int
    latency: int

    def push(self, samples: FloatArray) -> FloatArray:
        """The converted samples that are ready."""

    def finish(self) -> FloatArray:
        """The last ones."""


class Converts(Protocol):
    """What the server needs of a converter, such as `phonate.load(run, "conversion")`."""

    sample_rate: int
    speakers: list[str]
    target: str | None
    """The voice where none is named; None: recordings give it."""

    def stream(
        self, audio: FloatArray, speaker: Any = None, *, sample_rate: int | None = None, semitones: float = 0.0
    ) -> Iterator[FloatArray]:
        """The converted samples in pieces."""

    def live(self, speaker: Any = None, semitones: float = 0.0) -> ConvertsLive:
        """A conversion of sound while it comes."""

    def reference(self, recordings: FloatArray, *, sample_rate: int | None = None) -> Any:
        """A voice that a recording gives."""


class Conversion:
    """A converter that is loaded when it is needed."""

    def __init__(self, name: str, load: Callable[[], Converts]) -> None:
        self.model: Lazy[Converts] = Lazy(name, load)
        self.sample_rate: int | None = None
        """Hz, once it was loaded."""
        self.voices: Sequence[str] = ()
        self.needs_reference = False
        """Whether a recording must give the voice, as far as is known before it was loaded."""

    def prepare(self) -> int:
        """Load it, unless it was loaded before; returns its sample rate."""
        if self.sample_rate is None:
            with self.model.use() as converter:
                self.voices, self.sample_rate = list(converter.speakers), converter.sample_rate
                self.needs_reference = converter.target is None
        return self.sample_rate


class _ConversionResult(SpeechResult):
    """The conversion of a recording."""

    def __init__(
        self,
        conversion: Conversion,
        recording: Upload,
        voice: str | None,
        semitones: float,
        reference: Upload | None,
    ) -> None:
        self._conversion, self._recording, self._voice = conversion, recording, voice
        self._semitones, self._reference = semitones, reference
        self._cancelled = False

    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        with self._conversion.model.use() as converter:
            voice: Any = self._voice
            if self._reference is not None:
                voice = converter.reference(self._reference.waveform, sample_rate=self._reference.sample_rate)
            waveform, rate, _ = self._recording
            for chunk in converter.stream(waveform, voice, sample_rate=rate, semitones=self._semitones):
                if self._cancelled:
                    return
                yield chunk

    def cancel(self) -> None:
        self._cancelled = True


def conversion_of(state: ServerState, model: str | None) -> Conversion:
    """The converter of that name; None: the first. Raises ApiError."""
    converters: Mapping[str, Conversion] = state.converters
    if not converters:
        raise ApiError(404, "this server converts nothing; start it with a run of the task conversion, too")
    if model is None:
        return next(iter(converters.values()))
    for name in (model, state.settings.aliases.get(model, "")):
        if name in converters:
            return converters[name]
    raise no_model(model, converters, "convert voices", state.models)


@router.post("", response_class=Response)
async def conversions(
    request: Request,
    file: Annotated[UploadFile, File()],
    model: Annotated[str | None, Form()] = None,
    voice: Annotated[str | None, Form()] = None,
    response_format: Annotated[Literal["mp3", "opus", "aac", "flac", "wav", "pcm"], Form()] = "mp3",
    semitones: Annotated[float, Form()] = 0.0,
    reference_audio: Annotated[UploadFile | None, File()] = None,
) -> Response:
    """Convert a recording to a voice of the model, or to that of `reference_audio`. It is sent while it is made."""
    state = state_of(request)
    conversion = conversion_of(state, model)
    if voice and reference_audio is not None:
        raise ApiError(400, "give either voice or reference_audio", param="voice")
    unknown = [name for name in await request.form() if name not in _KNOWN]
    recording = await _decoded(state, file, state.settings.max_conversion_seconds, "file")
    reference = None
    if reference_audio is not None:
        reference = await _decoded(state, reference_audio, state.settings.max_reference_seconds, "reference_audio")
    rate = await anyio.to_thread.run_sync(conversion.prepare)
    if conversion.needs_reference and reference is None:
        raise ApiError(
            400,
            "reference_audio: this model converts to the voice of a recording; send one of about a minute",
            param="reference_audio",
        )
    own = state.settings.aliases.get(voice or "", voice) or None
    result = _ConversionResult(conversion, recording, own, semitones, reference)
    speech = await state.speaker.speak(request, rate, lambda: result, response_format, of_text=False)
    form = FORMATS[response_format]
    remarks = (*recording.remarks, *(reference.remarks if reference else ()))
    headers = marks(form.rate or rate, unknown, remarks=remarks)
    return StreamedSpeech(speech, speech.parts(), form.media_type, headers)


async def _decoded(state: ServerState, file: UploadFile, most: float, name: str) -> Upload:
    recording = await file.read()
    return await state.in_thread(lambda: state.decoders.decoded(recording, most, state.settings.decode_seconds, name))


# -------------------------------------------------------------------------------------------- While it is spoken


class LiveSession(BaseModel):
    """How a session converts; null is the same as leaving a field out."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str | None = None
    """Null: the first that converts."""
    voice: str | None = None
    sample_rate: int | None = Field(default=None, ge=LOWEST_RATE, le=HIGHEST_RATE)
    """Hz, of what the client sends; null: the model's."""
    semitones: float | None = None


class _Live(SpeechResult):
    """The conversion of sound that still comes. The event loop pushes, a thread takes the chunks."""

    def __init__(self, conversion: ConvertsLive, rate: int) -> None:
        self._conversion, self._rate = conversion, rate
        self._blocks: queue.SimpleQueue[FloatArray | None] = queue.SimpleQueue()
        self._room, self._loop = asyncio.Semaphore(_MOST_BLOCKS), asyncio.get_running_loop()
        self._cancelled = False

    async def push(self, samples: FloatArray) -> None:
        """The next samples (n,). Returns when all but some seconds are converted, so that no more waits in memory."""
        for start in range(0, len(samples), self._rate):
            await self._room.acquire()
            self._blocks.put(samples[start : start + self._rate])

    def end(self) -> None:
        """No more come."""
        self._blocks.put(None)

    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        for block in resampled(self._pushed(), self._rate, self._conversion.sample_rate, "LQ"):
            if len(converted := self._conversion.push(block)):
                yield converted
        yield self._conversion.finish()

    def _pushed(self) -> Iterator[FloatArray]:
        while (block := self._blocks.get()) is not None and not self._cancelled:
            self._loop.call_soon_threadsafe(self._room.release)
            yield block

    def cancel(self) -> None:
        self._cancelled = True
        self.end()


@router.websocket("/stream")
async def live_conversion(socket: WebSocket) -> None:
    """Convert sound while it comes. Takes session.update, then 16-bit samples in binary messages, then
    input_audio.end; sends session.updated, 16-bit samples, and conversion.done."""
    await socket.accept()
    state: ServerState = socket.app.state.server
    async with answering(socket):
        first = await received(socket, state.settings.request_seconds)
        if first["type"] != "session.update":
            raise InputError("the first message must be session.update")
        session = validated(LiveSession, first.get("session", {}))
        conversion, began = conversion_of(state, session.model), time.monotonic()
        rate = await anyio.to_thread.run_sync(conversion.prepare)
        state.gate.enter()
        try:
            async with contextmanager_in_threadpool(conversion.model.use()) as converter:
                own = state.settings.aliases.get(session.voice or "", session.voice) or None
                running = await anyio.to_thread.run_sync(lambda: converter.live(own, session.semitones or 0.0))
                shown: dict[str, Any] = {"model": conversion.model.name, "voice": own, "sample_rate": rate}
                shown["latency_ms"] = round(1000.0 * running.latency / rate, 1)
                await socket.send_json({"type": "session.updated", "session": shown})
                await _convert(socket, state, _Live(running, session.sample_rate or rate), rate)
        finally:
            state.gate.leave(time.monotonic() - began)


async def _convert(socket: WebSocket, state: ServerState, live: _Live, rate: int) -> None:
    """Convert what comes, until the client says that no more does."""
    speech = await state.speaker.begin(rate, lambda: live, "raw", limited=False, of_text=False)

    async def send() -> None:
        async for part in speech.parts():
            await socket.send_bytes(part)
        await socket.send_json({"type": "conversion.done"})

    sending = asyncio.ensure_future(send())
    try:
        while True:
            message = await unless_failed(arrived(socket, state.settings.request_seconds), sending)
            if (samples := message.get("bytes")) is None:
                if json_of(message.get("text") or "")["type"] != "input_audio.end":
                    raise InputError("send samples in binary messages, or input_audio.end")
                live.end()
                await sending
                return
            if len(samples) % 2:
                raise InputError("a binary message has half of a 16-bit sample at its end")
            waveform = np.frombuffer(samples, "<i2").astype(np.float32) / np.float32(_FULL_SCALE)
            await unless_failed(live.push(waveform), sending)
    finally:
        live.cancel()
        sending.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(sending, return_exceptions=True)
            await speech.close()
