"""Recordings that clients send: decoded in other processes, with limits on time, memory and length.

Decoders are large programs in C that parse what strangers send. One that hangs, allocates or crashes ends its process,
not the server. What comes back is plain samples.
"""

from __future__ import annotations

import multiprocessing
import queue
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phonate.audio.decoding import FloatArray, joined, open_recording
from phonate.compute.system import limit_memory, limit_processor_time, temporary_file
from phonate.config.errors import DataError, InputError, PhonateError

_MEMORY = 2 * 2**30
"""Bytes of address space beyond what a process has at its start."""
_CLOCK = 3.0
"""Seconds by the clock for one of processor time: the machine may be busy."""
_REUSED = 200
"""Recordings that a process decodes before it is replaced, in case a decoder leaks."""
_START_SECONDS = 60.0


class Upload(NamedTuple):
    """A recording that a client sent, decoded."""

    waveform: FloatArray
    """(N,), its channels mixed."""
    sample_rate: int
    """Hz."""
    remarks: tuple[str, ...] = ()
    """What is unusual about the file and was mended, one line each, behind its name."""


class Decoders:
    """Processes that decode, started when they are needed. May be called from several threads."""

    def __init__(self, count: int) -> None:
        """`count`: recordings that are decoded at once; others wait.

        Raises InputError where the temporary folder can't hold the socket of a process.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        try:
            forkserver.ensure_running()  # begins to import; decoders are forked from it within milliseconds
        except OSError as error:
            if error.errno is not None:  # Python's own error about the length of the path has no number
                raise
            raise InputError(
                f"{tempfile.gettempdir()}: can't hold the socket of a process ({error}); set the environment variable "
                "TMPDIR to a folder with a shorter path"
            ) from error
        self._free: queue.LifoQueue[_Decoder | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)

    def decoded(self, recording: bytes, limit: float, seconds: float, name: str = "reference_audio") -> Upload:
        """A recording, decoded. Blocks for as long as that takes.

        Args:
            recording: A whole file in memory.
            limit: Longest length in seconds.
            seconds: Processor time for decoding.
            name: What errors and remarks call it.

        Raises InputError where it is of no known format, can't be decoded in time, is longer, or has no sound.
        """
        with temporary_file(recording) as file:
            outcome = self._decoded(file, limit, seconds)
        if isinstance(outcome, str):
            raise InputError(f"{name}: {outcome}")
        return outcome._replace(remarks=tuple(f"{name}: {remark}" for remark in outcome.remarks))

    def _decoded(self, path: Path, limit: float, seconds: float) -> Upload | str:
        decoder = self._free.get()
        try:
            decoder = decoder or _Decoder()
            outcome = decoder.decode(path, limit, seconds)
            if not decoder.usable:
                decoder.end()
                decoder = None
            return outcome
        finally:
            self._free.put(decoder)

    def close(self) -> None:
        """End the processes that are idle; others are started when they are needed again."""
        idle = [self._free.get_nowait() for _ in range(self._free.qsize())]
        for decoder in idle:
            self._free.put(None)
            if decoder is not None:
                decoder.end()


class _Decoder:
    """One process that decodes recordings one after the other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_decode_all, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._left = _REUSED
        if not self._connection.poll(_START_SECONDS):
            raise PhonateError("the process that decodes recordings did not start")
        self._connection.recv()

    @property
    def usable(self) -> bool:
        """Whether it may decode another one."""
        return self._left > 0

    def decode(self, path: Path, limit: float, seconds: float) -> Upload | str:
        """A recording, or what is wrong with it."""
        try:
            self._connection.send((path, limit, seconds))
            if not self._connection.poll(_CLOCK * seconds):
                self._left = 0
                return "takes too long to decode; convert it to WAV"
            answer = self._connection.recv()
            self._left -= 1
            if isinstance(answer, str):
                return answer
            rate, remarks = answer
            return Upload(np.frombuffer(self._connection.recv_bytes(), dtype=np.float32), rate, remarks)
        except (EOFError, OSError):  # the process was ended by a limit or a crash
            self._left = 0
            return "can't be decoded; is it damaged? Convert it to WAV"

    def end(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _decode_all(connection: Connection[Any, Any]) -> None:
    """Answer each path with rate and remarks and then the samples, or with what is wrong as a string. Runs in its own
    process, until the other end is closed."""
    limit_memory(_MEMORY)
    connection.send("ready")
    while True:
        try:
            path, limit, seconds = connection.recv()
        except EOFError:
            return
        limit_processor_time(time.process_time() + seconds)
        try:
            upload = _limited(path, limit)
        except DataError as error:
            connection.send(str(error).removeprefix(f"{path}: "))
        except MemoryError:
            connection.send("needs too much memory to decode")
        else:
            connection.send((upload.sample_rate, upload.remarks))
            connection.send_bytes(upload.waveform.tobytes())


def _limited(path: Path, limit: float) -> Upload:
    """A recording of at most `limit` seconds, of which no more is decoded. Raises DataError."""
    with open_recording(path) as recording:
        rate = recording.sample_rate
        waveform = joined(_not_longer(path, recording.blocks(), limit * rate, limit))
        return Upload(waveform, rate, tuple(recording.remarks))


def _not_longer(path: Path, blocks: Iterable[FloatArray], most: float, limit: float) -> Iterator[FloatArray]:
    samples = 0
    for block in blocks:
        samples += len(block)
        if samples > most:
            raise DataError(f"{path}: longer than {limit:g} s, which is the limit; cut it")
        yield block
