"""Sound as it comes and goes: microphones, loudspeakers, raw samples in pipes, and files in short blocks.

Blocks are mono float32 samples (N,) from -1 to 1. Raw samples are 16-bit little-endian integers, one channel.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import soundfile

from phonate.audio.decoding import MADE, FloatArray, sound_writer, writable
from phonate.config.errors import DataError, InputError, MissingPackageError, optional_package

logger = logging.getLogger("phonate")
LOUDSPEAKER, PIPE = "loudspeaker", "-"
"""What stands for a sink in the place of a file's path."""
# -------------------------------------------------------------------------- Sound as it comes and goes

_FULL_SCALE = 32768.0


class Sink(Protocol):
    """Where blocks go to."""

    def write(self, samples: FloatArray) -> None:
        """Add a block (N,)."""
        ...


def raw_blocks(pipe: BinaryIO, size: int) -> Iterator[FloatArray]:
    """Raw samples from a pipe in blocks of `size`, each as soon as it is there, until the pipe is closed.

    Raises DataError for a WAV file. Says where it ends within a sample, whose half is left out.
    """
    first = True
    while data := pipe.read(2 * size):
        if first and data.startswith(b"RIFF"):
            raise DataError("standard input is a WAV file; give its path instead, or pipe raw 16-bit samples")
        first = False
        if len(data) % 2:
            logger.warning("standard input ended within a sample; is it raw 16-bit samples of one channel?")
        yield np.frombuffer(data[: len(data) // 2 * 2], dtype="<i2").astype(np.float32) / np.float32(_FULL_SCALE)


@contextlib.contextmanager
def opened_sink(name: str, sample_rate: int, size: int) -> Iterator[Sink]:
    """The loudspeaker, raw samples on standard output (-), or a .wav, .flac or .mp3 file; blocks of about
    `size` samples.
    Errors as for `loudspeaker` and `file_sink`."""
    if name == LOUDSPEAKER:
        with loudspeaker(sample_rate, size) as sink:
            yield sink
    elif name == PIPE:
        yield RawSink(sys.stdout.buffer)
    else:
        with file_sink(name, sample_rate) as sink:
            yield sink


def ahead(blocks: Iterator[FloatArray]) -> Iterator[FloatArray]:
    """The blocks, each computed while the one before is in use, so that playing does not wait."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        following = thread.submit(next, blocks, None)
        while (block := following.result()) is not None:
            following = thread.submit(next, blocks, None)
            yield block


class RawSink:
    """Raw samples into a pipe, block by block."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe

    def write(self, samples: FloatArray) -> None:
        """Add a block (N,)."""
        self._pipe.write(np.round(np.clip(samples, -1.0, 1.0) * (_FULL_SCALE - 1.0)).astype("<i2").tobytes())
        self._pipe.flush()


@contextlib.contextmanager
def file_sink(path: str | Path, sample_rate: int) -> Iterator[Sink]:
    """A 16-bit WAV or FLAC file, or an MP3 file, by suffix, that appears when all of it is written.

    Raises InputError for another suffix, or a folder that is not there or can't be written to.
    """
    path = writable(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with sound_writer(path, temporary, sample_rate) as file:
            file.comment = MADE
            yield file
        temporary.replace(path)
    except soundfile.LibsndfileError as error:
        raise InputError(f"{path}: can't be written ({error}); choose another place or make room") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def microphone(sample_rate: int, size: int) -> Iterator[Iterator[FloatArray]]:
    """Blocks of `size` samples from the system's microphone, without an end.

    Raises MissingPackageError without sounddevice and PortAudio, InputError where no microphone can be opened.
    """
    sounddevice = _sounddevice("a microphone")
    with _opened(sounddevice, "InputStream", sample_rate, size) as stream:
        yield _blocks(stream, size)


def _blocks(stream: Any, size: int) -> Iterator[FloatArray]:
    """The blocks of a microphone, without an end. Says, once, when some were lost before they were read."""
    reported = False
    while True:
        samples, lost = stream.read(size)
        if lost and not reported:
            logger.warning("the microphone's buffer is full: some of its sound is lost; close other programs")
            reported = True
        yield samples[:, 0]


@contextlib.contextmanager
def loudspeaker(sample_rate: int, size: int) -> Iterator[Sink]:
    """The system's loudspeaker; a block waits until it can be played. Errors as for `microphone`."""
    sounddevice = _sounddevice("a loudspeaker")
    with _opened(sounddevice, "OutputStream", sample_rate, size) as stream:
        yield _Playing(stream)


class _Playing:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, samples: FloatArray) -> None:
        if len(samples):
            self._stream.write(np.ascontiguousarray(samples[:, None]))


def _opened(sounddevice: Any, kind: str, sample_rate: int, size: int) -> Any:
    """A started stream of one channel, as a context manager."""
    options = {"samplerate": sample_rate, "blocksize": size, "channels": 1, "dtype": "float32", "latency": "low"}
    what = "microphone" if kind == "InputStream" else "loudspeaker"
    try:
        return getattr(sounddevice, kind)(**options)
    except (sounddevice.PortAudioError, ValueError) as error:
        raise InputError(
            f"no {what} can be opened at {sample_rate} Hz ({' '.join(str(error).split())}); connect one, and see "
            "python -m sounddevice for those that are there"
        ) from error


def _sounddevice(what: str) -> Any:
    try:
        return optional_package("sounddevice", what, "'phonate[live]'")
    except OSError as error:
        raise MissingPackageError(
            f"{what} needs the library PortAudio, which is not installed; on Linux, apt-get install libportaudio2; "
            "elsewhere, pip install --force-reinstall 'phonate[live]' brings it"
        ) from error


# -------------------------- The level of sound that is streamed, whose loudest sample is not known yet

_GAIN = 0.4
"""Speech that is rendered peaks at 1.7 in the median sentence, and at 3.2 in the loudest of forty."""
_KNEE = 0.7
"""Of full scale: samples below are not changed."""


def streamed(rendered: FloatArray) -> FloatArray:
    """Rendered samples (n,) at the level of streams, within -1 to 1: louder ones are bent smoothly, never cut off.

    Each sample is mapped by itself, so pieces of a sound are what the whole of it would be.
    """
    samples = np.asarray(_GAIN * rendered, dtype=np.float32)
    loud = np.abs(samples)
    bent = _KNEE + (1.0 - _KNEE) * np.tanh((loud - _KNEE) / (1.0 - _KNEE))
    return np.where(loud > _KNEE, np.copysign(bent, samples), samples).astype(np.float32)
