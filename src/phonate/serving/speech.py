"""From a request to encoded sound. The model's chunks are awaited in threads, within a time limit, and a client that
goes away ends the work on its request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError
from phonate.serving.encoding import encoded
from phonate.serving.errors import ApiError
from phonate.serving.metrics import Metrics, RequestMetrics
from phonate.training.speech_service import SpeechRequest, SpeechResult, SpeechService

T = TypeVar("T")

_CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody receives it


class Speech:
    """The speech of one request, encoded, while it is made."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], counted: Counted, result: SpeechResult) -> None:
        self.words = result.words
        self._first = first
        self._rest = rest
        self._counted = counted

    async def parts(self) -> AsyncIterator[bytes]:
        """Parts of the file, as they are made. Raises TimeoutError when its time is over."""
        yield self._first
        async for part in self._rest:
            yield part

    @property
    def samples(self) -> int:
        """Samples so far."""
        return self._counted.samples

    async def close(self) -> None:
        """End the work on it, if it still goes on."""
        await self._rest.aclose()


class Counted:
    """Chunks of sound, counted as they pass."""

    def __init__(self, chunks: Iterator[FloatArray], sample_rate: int, seen: RequestMetrics) -> None:
        self.samples = 0
        self._chunks = chunks
        self._sample_rate = sample_rate
        self._seen = seen

    def __iter__(self) -> Iterator[FloatArray]:
        for chunk in self._chunks:
            self.samples += len(chunk)
            self._seen.sound(len(chunk) / self._sample_rate)
            yield chunk


class Speaker:
    """Gives requests to a service and encodes what it makes."""

    def __init__(self, service: SpeechService, metrics: Metrics, seconds: float, places: int) -> None:
        """`seconds`: for one request; `places`: requests at once."""
        self.service = service
        self._metrics = metrics
        self._seconds = seconds
        self._threads = anyio.CapacityLimiter(places)

    async def speak(self, request: Request, wanted: SpeechRequest, name: str, whole: bool = False) -> Speech:
        """The speech of `wanted` in the format `name`, as one part where `whole`.

        Returns when the first part is there, so that what goes wrong before can be an answer.

        Raises InputError for a request that can't be met, ApiError 504 where its time is over.
        """
        seen, deadline = self._metrics.request(), time.monotonic() + self._seconds
        try:
            result = await self._in_thread(lambda: self.service.submit(wanted), deadline)
        except BaseException as error:
            seen.end(_outcome(error))
            raise
        counted = Counted(result.chunks(self._seconds), self.service.sample_rate, seen)
        parts = encoded(counted, self.service.sample_rate, name, whole)
        rest = self._parts(result, parts, deadline, seen)
        try:
            first = await _unless_gone(request, rest)
        except TimeoutError as error:
            raise ApiError(504, f"no speech within {self._seconds:g} s; send a shorter text", code="timeout") from error
        return Speech(first, rest, counted, result)

    async def _parts(
        self, result: SpeechResult, parts: Iterator[bytes], deadline: float, seen: RequestMetrics
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
            seen.end(outcome)

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


async def _unless_gone(request: Request, parts: AsyncGenerator[bytes, None]) -> bytes:
    """The first part, unless the client goes away before it is there. Its body must have been read."""
    first = asyncio.ensure_future(anext(parts, b""))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({first, gone}, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            return first.result()
        raise ApiError(_CLIENT_CLOSED_REQUEST, "the client went away")
    finally:
        for task in (first, gone):
            task.cancel()
        await asyncio.gather(first, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
