"""Continuous batching: requests from any thread join the batch between two frames, and leave it when they are done.

(Yu et al. 2022, Orca, https://www.usenix.org/conference/osdi22/presentation/yu)
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import PhonateError
from phonate.tasks.cloning.decoding.loop import Decoder, Job, Piece, Step, piece_seed
from phonate.tasks.cloning.decoding.sampling import Sampling


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
