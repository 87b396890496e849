"""From a request to encoded sound, while it is made."""

from __future__ import annotations

import asyncio
import io
import math
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from phonate.audio.decoding import MADE, FloatArray, resampled
from phonate.config.errors import InputError
from phonate.serving.guard import ApiError
from phonate.serving.metrics import Metrics, RequestMetrics
from phonate.text.captions import TimedWord
from phonate.text.phonemes import NothingToSay
from phonate.text.sentences import SentenceStream
from phonate.training.inference import SpeechRequest, SpeechResult, SpeechService

# ------------------- Encodes sound while it is made. Every file says in a comment that a model made it

_FULL_SCALE = 32767.0


@dataclass(frozen=True)
class Format:
    """A format of sound that the server sends."""

    media_type: str
    container: str = ""
    """FFmpeg's name; "" for samples without a container."""
    codec: str = ""
    options: tuple[tuple[str, str], ...] = ()
    rate: int | None = None
    """Hz, where there is only one."""
    bit_rate: int | None = None
    """Bits per second; None: the encoder's choice."""
    delay: int = 0
    """Samples that the encoder puts before the sound, which a stream has no place to tell players of."""
    streamed: bool = True
    """Whether a part of a file can be sent before the rest is made."""


FORMATS = {
    # LAME's own choice, 32 kb/s at 22,050 Hz, has nothing above 9 kHz.
    "mp3": Format("audio/mpeg", "mp3", "libmp3lame", bit_rate=128_000, delay=1105),
    "opus": Format("audio/ogg", "ogg", "libopus", (("page_duration", "100000"),), rate=48_000),
    "aac": Format("audio/aac", "adts", "aac", (("write_id3v2", "1"),), delay=1024),
    # The header of a FLAC file has the number of samples; libsndfile reads no file without it.
    "flac": Format("audio/flac", "flac", "flac", streamed=False),
    "wav": Format("audio/wav", "wav", "pcm_s16le"),
    "pcm": Format("audio/pcm", rate=24_000),
    "raw": Format("audio/pcm"),
}
"""As OpenAI names them. pcm: 16-bit little-endian samples, mono, at the rate of OpenAI's, which its clients play; raw:
the same at the model's own rate, for Wyoming."""


class _Pipe:
    """What an encoder writes into; without a way to go back, so that a file's parts come in order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def read(self) -> bytes:
        """What was written since the last call."""
        part = b"".join(self._parts)
        self._parts.clear()
        return part


def encoded(chunks: Iterable[FloatArray], sample_rate: int, name: str, whole: bool = False) -> Iterator[bytes]:
    """Chunks of samples (n,) in [-1, 1] as parts of a file of the format `name`, as soon as they are there.

    A WAV file that is sent in parts has no length in its header (0xFFFFFFFF). `whole`: as one part, with the length.
    """
    sound_format = FORMATS[name]
    if not sound_format.container:
        for chunk in resampled(iter(chunks), sample_rate, sound_format.rate or sample_rate):
            if len(chunk):
                yield _integers(chunk).tobytes()
    elif whole or not sound_format.streamed:
        file = io.BytesIO()
        for _ in _write_file(chunks, sample_rate, sound_format, file):
            pass
        yield file.getvalue()
    else:
        pipe = _Pipe()
        for _ in _write_file(chunks, sample_rate, sound_format, pipe):
            if part := pipe.read():
                yield part


def _write_file(chunks: Iterable[FloatArray], sample_rate: int, sound_format: Format, file: Any) -> Iterator[None]:
    """Write a file; yields after each chunk and after the end."""
    container, stream = _open_container(file, sample_rate, sound_format)
    at = 0
    with container:
        for chunk in chunks:
            container.mux(stream.encode(_frame(chunk, sample_rate, at)))
            at += len(chunk)
            yield
        container.mux(stream.encode(None))
    yield


def _open_container(file: Any, sample_rate: int, sound_format: Format) -> tuple[Any, Any]:
    """A container that writes into `file`, and its stream of sound."""
    import av

    container = av.open(file, "w", format=sound_format.container, options=dict(sound_format.options))
    container.metadata["comment"] = MADE
    stream: Any = container.add_stream(sound_format.codec, rate=sound_format.rate or sample_rate, layout="mono")
    if sound_format.bit_rate is not None:
        stream.bit_rate = sound_format.bit_rate
    stream.metadata["comment"] = MADE  # Ogg keeps comments with the stream
    return container, stream


def _frame(chunk: FloatArray, sample_rate: int, at: int) -> Any:
    """A frame that begins at sample `at`: without a time Opus would begin late by what its encoder puts before it."""
    import av

    frame = av.AudioFrame.from_ndarray(_integers(chunk)[None], format="s16", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = sample_rate, at, Fraction(1, sample_rate)
    return frame


def _integers(chunk: FloatArray) -> NDArray[np.int16]:
    return np.asarray(np.rint(_FULL_SCALE * np.clip(chunk, -1.0, 1.0)).astype("<i2"))


# --------------------------------------------------------------------- From a request to encoded sound

T = TypeVar("T")

LONGEST_PIECE = 400
"""Characters of a sentence that comes in pieces; a longer one is cut."""
_AHEAD = 2
"""Sentences of such a text that the model has at once: the one that is heard, and the next. The others wait here, where
they are in no other request's way."""

_CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody receives it


class Speech:
    """The speech of one request, encoded, while it is made."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        counter: ChunkCounter,
        result: SpeechResult,
        delay: float = 0.0,
    ) -> None:
        """`delay`: seconds by which the sound is late in the file."""
        self._result = result
        self._delay = delay
        self._first = b""
        self._rest = parts
        self._counter = counter

    async def parts(self) -> AsyncIterator[bytes]:
        """Parts of the file, as they are made. Raises TimeoutError when its time is over."""
        if self._first:
            yield self._first
        async for part in self._rest:
            yield part

    async def begin(self, request: Request) -> None:
        """Wait for the first part, unless the client goes away. Raises what goes wrong until then."""
        self._first = await _unless_disconnected(request, self._rest)

    def words(self) -> list[TimedWord]:
        """As `SpeechResult.words`, with times in the file."""
        late = self._delay
        return [replace(word, start=word.start + late, end=word.end + late) for word in self._result.words()]

    @property
    def samples(self) -> int:
        """Samples so far."""
        return self._counter.samples

    async def close(self) -> None:
        """End the work on it, if it still goes on."""
        await self._rest.aclose()


class ChunkCounter:
    """Chunks of sound, counted as they pass."""

    def __init__(
        self,
        chunks: Iterator[FloatArray],
        sample_rate: int,
        request_metrics: RequestMetrics,
        longest: float | None = None,
    ) -> None:
        """`longest`: seconds, of which more are an InputError."""
        self.samples = 0
        self._longest = longest
        self._chunks = chunks
        self._sample_rate = sample_rate
        self._request_metrics = request_metrics

    def __iter__(self) -> Iterator[FloatArray]:
        for chunk in self._chunks:
            self.samples += len(chunk)
            if self._longest is not None and self.samples > self._longest * self._sample_rate:
                raise InputError(
                    f"the speech is longer than the {self._longest:g} s that this server makes for a request; send a "
                    "shorter text"
                )
            self._request_metrics.sound(len(chunk) / self._sample_rate)
            yield chunk


class Pieces(SpeechResult):
    """The speech of a text that comes in pieces, such as a language model's tokens: a request to the service for each
    sentence as soon as it is complete. One thread adds, another takes the chunks."""

    def __init__(self, service: SpeechService, request: SpeechRequest) -> None:
        """`request`: how the text is spoken; its own text is not looked at."""
        # one seed, so that a voice which is drawn at random stays the same
        self._request = replace(request, seed=secrets.randbits(62) if request.seed is None else request.seed)
        self._service = service
        self._sentences = SentenceStream(LONGEST_PIECE, service.language or "en-us")
        self._results: queue.SimpleQueue[SpeechResult | Exception | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        """Sentences that the service was not given yet."""
        self._given = 0
        """Those that it has."""
        self._whole = False
        """Whether no more text comes."""
        self._current: SpeechResult | None = None
        self._cancelled = False
        self._spoke = False
        self._words: list[TimedWord] = []
        self._texts: list[str] = []

    def add(self, piece: str) -> None:
        """The next piece of the text. What can't be met is raised by `chunks`."""
        self._texts.append(piece)
        self._submit(self._sentences.add(piece))

    def finish(self) -> None:
        """No more comes."""
        rest = self._sentences.finish()
        self._submit(rest, whole=True)

    @property
    def characters(self) -> int:
        """Of the text so far."""
        return sum(map(len, self._texts))

    def left_out(self) -> str:
        """As `SpeechService.left_out`, of the text so far."""
        return self._service.left_out(replace(self._request, text="".join(self._texts)))

    def _submit(self, sentences: Iterable[str] = (), whole: bool = False, done: int = 0) -> None:
        """Give the service what waits, as far as it may have more. `done`: sentences that were heard meanwhile."""
        with self._lock:
            self._waiting += sentences
            self._given -= done
            self._whole |= whole
            sentence = ""
            while self._waiting and self._given < _AHEAD and not self._cancelled:
                sentence = self._waiting.popleft()
                try:
                    result = self._service.submit(replace(self._request, text=sentence, continues=True))
                except NothingToSay:
                    continue  # such as a line of asterisks
                except Exception as error:  # noqa: BLE001 - the other thread raises it
                    self._waiting.clear()
                    self._results.put(error)
                    return
                self._spoke = True
                self._given += 1
                self._results.put(result)
                if self._cancelled:
                    result.cancel()
            if self._whole and not self._waiting:
                self._whole = False  # told once
                self._results.put(None if self._spoke else NothingToSay(sentence))

    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        samples, after, rate = 0, 0.0, self._service.sample_rate
        while (result := self._next(timeout)) is not None:
            self._current = result
            if silence := round(after * rate):
                samples += silence
                yield np.zeros(silence, dtype=np.float32)
            begins = samples / rate
            for chunk in result.chunks(timeout):
                self._words += [
                    replace(one, start=round(one.start + begins, 3), end=round(one.end + begins, 3))
                    for one in result.words()
                ]
                samples += len(chunk)
                yield chunk
            after = result.after
            self._submit(done=1)

    def words(self) -> list[TimedWord]:
        words, self._words = self._words, []
        return words

    def _next(self, timeout: float | None) -> SpeechResult | None:
        try:
            result = None if self._cancelled else self._results.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no text within {timeout:g} s") from None
        if isinstance(result, Exception):
            raise result
        return result

    def cancel(self) -> None:
        self._cancelled = True
        for _ in range(self._results.qsize()):
            result = self._results.get()
            if isinstance(result, SpeechResult):
                result.cancel()
        if self._current is not None:
            self._current.cancel()
        self._results.put(None)


class Speaker:
    """Gives requests to services and encodes what they make."""

    def __init__(self, metrics: Metrics, seconds: float, places: int, longest: float | None = None) -> None:
        """`seconds`: for one request; `places`: requests at once; `longest`: seconds of speech of a text."""
        self._longest = longest
        self._metrics = metrics
        self._seconds = seconds
        self._threads = anyio.CapacityLimiter(places)

    async def speak(
        self,
        request: Request,
        sample_rate: int,
        submit: Callable[[], SpeechResult],
        name: str,
        whole: bool = False,
        of_text: bool = True,
    ) -> Speech:
        """The speech at `sample_rate` Hz that `submit` begins to make, in the format `name`, as one part where `whole`.

        Returns when the first part is there, so that what goes wrong before can be an answer.

        Raises InputError for a request that can't be met, ApiError 504 where its time is over.
        """
        try:
            speech = await self.begin(sample_rate, submit, name, whole, of_text=of_text)
            await speech.begin(request)
        except TimeoutError as error:
            raise ApiError(
                504, f"no speech within {self._seconds:g} s; send a shorter text or recording", code="timeout"
            ) from error
        return speech

    async def begin(
        self,
        sample_rate: int,
        submit: Callable[[], SpeechResult],
        name: str,
        whole: bool = False,
        limited: bool = True,
        of_text: bool = True,
    ) -> Speech:
        """As `speak`, without waiting for the first part.

        `limited`: whether its time is; that of live conversion is not. `of_text`: whether a text is spoken, and not a
        recording converted.
        """
        request_metrics = RequestMetrics(self._metrics)
        deadline = time.monotonic() + self._seconds if limited else math.inf
        abandoned = False
        results: list[SpeechResult] = []

        def submitted() -> SpeechResult:
            results.append(submit())
            if abandoned:
                results[0].cancel()
            return results[0]

        try:
            result = await self._in_thread(submitted, deadline)
        except BaseException as error:
            abandoned = True
            for result in results:
                result.cancel()
            request_metrics.end(_outcome(error))
            raise
        longest = self._longest if of_text else None
        counter = ChunkCounter(result.chunks(self._seconds), sample_rate, request_metrics, longest)
        parts = encoded(counter, sample_rate, name, whole)
        rest = self._parts(result, parts, deadline, request_metrics)
        return Speech(rest, counter, result, FORMATS[name].delay / sample_rate)

    async def _parts(
        self, result: SpeechResult, parts: Iterator[bytes], deadline: float, request_metrics: RequestMetrics
    ) -> AsyncGenerator[bytes, None]:
        outcome = "cancelled"
        try:
            while (part := await self._in_thread(lambda: next(parts, None), deadline)) is not None:
                yield part
            outcome = "ok"
        except Exception as error:
            outcome = _outcome(error)
            raise
        finally:
            result.cancel()
            request_metrics.end(outcome)

    async def _in_thread(self, call: Callable[[], T], deadline: float) -> T:
        """What `call` returns. Raises TimeoutError at `deadline`; the thread is then left to itself, which a cancelled
        result ends."""
        with anyio.fail_after(deadline - time.monotonic()):
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)


def _outcome(error: BaseException) -> str:
    if isinstance(error, InputError):
        return "refused"
    if isinstance(error, TimeoutError):
        return "timeout"
    return "failed" if isinstance(error, Exception) else "cancelled"


async def _unless_disconnected(request: Request, parts: AsyncGenerator[bytes, None]) -> bytes:
    """The first part, unless the client goes away before it is there. Its body must have been read."""
    first = asyncio.ensure_future(anext(parts, b""))
    disconnected = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({first, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            return first.result()
        raise ApiError(_CLIENT_CLOSED_REQUEST, "the client went away")
    finally:
        for task in (first, disconnected):
            task.cancel()
        await asyncio.gather(first, disconnected, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
