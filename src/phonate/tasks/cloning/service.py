"""Voice cloning for several callers at once, by continuous batching.

(Yu et al. 2022, Orca, https://www.usenix.org/conference/osdi22/presentation/yu)
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.audio.higgs_codec import HiggsCodec
from phonate.config.errors import InputError, PhonateError
from phonate.config.registry import nearest
from phonate.tasks.cloning.decoding import Decoder, Job, Piece, Sampling, Step, piece_seed, sound
from phonate.tasks.cloning.references import check_reference, check_text
from phonate.training.speech_service import Reference, SpeechRequest, SpeechResult, SpeechService

# --------------------------------------------------------------------------------- Continuous batching


class Generation:
    """The codes of one request, as they are made. `frames` is for one reader; the rest for any thread."""

    def __init__(self, pieces: Sequence[Piece], sampling: Sampling, seed: int) -> None:
        self.cut_short = False
        """Whether a piece reached its limit before the model ended it."""
        self.cancelled = threading.Event()
        self.jobs = deque(Job(piece, sampling, piece_seed(seed, number), self) for number, piece in enumerate(pieces))
        """The pieces that have not been begun."""
        self._made: queue.SimpleQueue[NDArray[np.int16] | Exception | None] = queue.SimpleQueue()

    def cancel(self) -> None:
        """Stop working on it; `frames` ends."""
        self.cancelled.set()
        self._made.put(None)

    def frames(self, timeout: float | None = None) -> Iterator[NDArray[np.int16]]:
        """Frames (K,) of codes.

        Raises:
            TimeoutError: None came for `timeout` seconds.
            PhonateError: The request can't be met, or something failed.
        """
        while True:
            try:
                made = self._made.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError(f"no speech was made for {timeout:g} seconds") from None
            if made is None or self.cancelled.is_set():
                return
            if isinstance(made, PhonateError):
                raise made
            if isinstance(made, Exception):
                raise PhonateError(f"the model failed: {type(made).__name__}: {made}") from made
            yield made

    def next_job(self) -> Job[Generation] | None:
        """The next piece; None: there is none."""
        return self.jobs.popleft() if self.jobs else None

    def add(self, step: Step[Generation]) -> None:
        """Take what a step made."""
        self.cut_short |= step.cut_short
        if step.codes is not None:
            self._made.put(step.codes)

    def end(self, error: Exception | None = None) -> None:
        """There are no more frames, because of `error` if there is one."""
        self._made.put(error)


class Engine:
    """Works on requests in a thread of its own, in the order in which they came, at most one new one between two
    frames, so that those that are being spoken do not wait long.

    An error of one request is raised by its `frames`; the others go on.
    """

    def __init__(self, decoder: Decoder[Generation]) -> None:
        self._decoder = decoder
        self._waiting: deque[Generation] = deque()
        self._begun: list[Generation] = []
        self._next_pieces: deque[Job[Generation]] = deque()
        """Of requests that were begun; they go before new requests."""
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="phonate-cloning", daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """Requests that are being worked on."""
        return len(self._begun)

    @property
    def waiting(self) -> int:
        """Requests that have not been begun."""
        return len(self._waiting)

    def submit(self, generation: Generation) -> None:
        """Work on `generation` as soon as there is room. Raises PhonateError after `close`."""
        with self._changed:
            if self._closed:
                raise PhonateError("the service is closed")
            self._waiting.append(generation)
            self._changed.notify()

    def close(self) -> None:
        """Finish what was submitted, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        try:
            while self._wait():
                self._drop_cancelled()
                if self._decoder.free and (job := self._next()) is not None:
                    self._join(job)
                self._step()
        finally:  # nobody may wait for a thread that is gone
            with self._changed:
                self._closed = True
                for generation in (*self._begun, *self._waiting):
                    generation.end(PhonateError("the service stopped"))

    def _wait(self) -> bool:
        """Wait for something to do. False: it is closed, and there is nothing left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._begun or self._closed)
            return bool(self._waiting or self._begun)

    def _drop_cancelled(self) -> None:
        with self._changed:
            for one in [one for one in self._waiting if one.cancelled.is_set()]:
                self._waiting.remove(one)
        for one in [one for one in self._begun if one.cancelled.is_set()]:
            self._decoder.leave(one)
            self._finish(one)

    def _next(self) -> Job[Generation] | None:
        if self._next_pieces:
            return self._next_pieces.popleft()
        with self._changed:
            if not self._waiting:
                return None
            generation = self._waiting.popleft()
            self._begun.append(generation)
        job = generation.next_job()
        if job is None:
            self._finish(generation)
        return job

    def _join(self, job: Job[Generation]) -> None:
        try:
            self._decoder.join(job)
        except Exception as error:  # noqa: BLE001  # raised in the request's thread
            self._finish(job.owner, error)

    def _step(self) -> None:
        try:
            made = self._decoder.step()
        except Exception as error:  # noqa: BLE001  # raised in the threads of all requests it concerns
            for generation in self._decoder.owners:
                self._decoder.leave(generation)
                self._finish(generation, error)
            return
        for step in made:
            step.owner.add(step)
            if step.done:
                self._go_on(step.owner)

    def _go_on(self, generation: Generation) -> None:
        """Queue the next piece of a request."""
        job = generation.next_job()
        if job is None:
            self._finish(generation)
        else:
            self._next_pieces.append(job)

    def _finish(self, generation: Generation, error: Exception | None = None) -> None:
        self._begun.remove(generation)
        if any(job.owner is generation for job in self._next_pieces):
            self._next_pieces = deque(job for job in self._next_pieces if job.owner is not generation)
        generation.end(error)


_log = logging.getLogger(__name__)
# ----------------------------------------------------------- Voice cloning for several callers at once

NOTHING_SAID = "the model ended before it said anything; try another seed, a longer text or another reference"
CUT_SHORT = "speech was cut short: the model did not end it within the time that the text should take"

Pieces = Callable[[Reference, str], list[Piece]]
"""What is to be generated for a text in the voice of a reference."""


class ClonedSpeech(SpeechResult):
    """Codes come from the engine; they become sound in the thread that asks for it."""

    def __init__(self, generation: Generation, codec: HiggsCodec) -> None:
        self._generation = generation
        self._codec = codec

    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        """As `SpeechResult.chunks`."""
        empty = True
        for chunk in sound(self._generation.frames(timeout), self._codec.stream()):
            empty = False
            yield chunk
        if self._generation.cancelled.is_set():
            return
        if empty:
            raise PhonateError(NOTHING_SAID)
        if self._generation.cut_short:
            _log.warning(CUT_SHORT)

    def cancel(self) -> None:
        """Stop working on it."""
        self._generation.cancel()


class CloningService(SpeechService):
    """Requests join the batch of an engine between two frames."""

    needs_reference = True

    def __init__(
        self, decoder: Decoder[Generation], codec: HiggsCodec, voices: Mapping[str, Reference], pieces: Pieces
    ) -> None:
        self.sample_rate = codec.sample_rate
        self._decoder, self._codec, self._voices, self._pieces = decoder, codec, voices, pieces
        self._engine = Engine(decoder)

    @property
    def voices(self) -> Sequence[str]:
        """Names of the references that were loaded with the model."""
        return sorted(self._voices)

    def check(self, request: SpeechRequest) -> None:
        """Raise InputError for a text, voice or number that can't be met."""
        check_text(request.text)
        check_reference(self._reference(request))
        _sampling(request)
        if request.speed != 1.0:
            raise InputError(f"speed {request.speed:g}: a cloned voice speaks at its own speed; leave it at 1")

    def submit(self, request: SpeechRequest) -> ClonedSpeech:
        """Begin to work on `request`. The codes of its reference are made here, in the caller's thread."""
        self.check(request)
        seed = secrets.randbits(62) if request.seed is None else request.seed
        pieces = self._pieces(self._reference(request), request.text)
        generation = Generation(pieces, _sampling(request), seed)
        for job in generation.jobs:
            self._decoder.check(job)
        self._engine.submit(generation)
        return ClonedSpeech(generation, self._codec)

    @property
    def active(self) -> int:
        """Requests that are being worked on."""
        return self._engine.active

    @property
    def waiting(self) -> int:
        """Requests that have not been begun."""
        return self._engine.waiting

    def close(self) -> None:
        """Finish all requests and end the engine's thread."""
        self._engine.close()

    def _reference(self, request: SpeechRequest) -> Reference:
        """The request's own, or that of its voice. Raises InputError if there is none, or two."""
        if request.reference is not None:
            if request.voice is not None:
                raise InputError(f"voice {request.voice!r} and a reference are given; leave one of them out")
            return request.reference
        if request.voice is None:
            known = f", or one of the voices {', '.join(self.voices)}" if self._voices else ""
            raise InputError(f"no voice; give a reference{known}")
        if request.voice not in self._voices:
            known = nearest(request.voice, sorted(self._voices)) if self._voices else "give a reference"
            raise InputError(f"voice {request.voice!r} is not known; {known}")
        return self._voices[request.voice]


def _sampling(request: SpeechRequest) -> Sampling:
    return sampling(request.temperature, request.top_k, request.top_p)


def sampling(temperature: float | None = None, top_k: int | None = None, top_p: float | None = None) -> Sampling:
    """How codes are drawn; None: the default. Raises InputError for a number out of range."""
    default = Sampling()
    return Sampling(
        default.temperature if temperature is None else temperature,
        default.top_k if top_k is None else top_k,
        default.top_p if top_p is None else top_p,
    )
