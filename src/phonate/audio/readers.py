"""Recordings opened for reading, block by block. What a header promises is never taken as a size to allocate.

libsndfile reads most formats, FFmpeg (through PyAV) reads m4a, aac and webm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import soundfile

from phonate.audio import containers
from phonate.audio.mpg123 import quiet
from phonate.config.errors import DataError

if TYPE_CHECKING:
    import av.container

FloatArray = npt.NDArray[np.float32]

# FFmpeg is given the container's name instead of guessing it: a text file that looks like a playlist would
# otherwise make it open other files and addresses.
_AV_CONTAINERS = {".m4a": "mov", ".aac": "aac", ".webm": "matroska"}
_LOWEST_RATE, _HIGHEST_RATE = 1_000, 1_000_000  # Hz
_UNKNOWN = 2**62  # libsndfile reports more frames than this when a header, such as a streamed FLAC's, gives none
_BLOCK = 2**18  # samples of each channel that are decoded at once


class Reader(Protocol):
    """An open recording."""

    rate: int
    """Samples per second."""
    channels: int
    format: str
    """The format's name, such as WAV or AAC."""
    frames: int | None
    """Samples of each channel that the header promises; None where it does not say."""
    slack: int
    """Samples by which the promise may exceed what is there: codecs round a length to their own frames."""

    def blocks(self, start: int = 0) -> Iterator[FloatArray]:
        """Blocks (samples, channels) from sample `start` to the end of the file."""
        ...


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    """Open a recording for reading.

    Raises DataError for a file that is missing, empty, not audio, or cut short, or whose sample rate is implausible.
    """
    _check_file(path)
    container = _AV_CONTAINERS.get(path.suffix.lower())
    with _opened_soundfile(path) if container is None else _opened_av(path, container) as reader:
        if not _LOWEST_RATE <= reader.rate <= _HIGHEST_RATE:
            raise DataError(f"{path}: {reader.rate} samples per second is not a plausible rate; export it again")
        yield reader


def cut_short(path: Path, promised: float | None, held: float) -> DataError:
    """The error for a recording that ends early; lengths in seconds, `promised` None when the header gives none."""
    whole = "its end is missing" if promised is None else f"the header says {promised:.2f} s"
    return DataError(f"{path}: cut short: {whole}, {held:.2f} s are there; copy or export it again")


def _check_file(path: Path) -> None:
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not path.is_file():  # reading a pipe would block, and a device may have no end
        raise DataError(f"{path}: is a folder, a pipe or a device; give a file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; copy it again")


class _SoundfileReader:
    slack = 0

    def __init__(self, path: Path, file: soundfile.SoundFile) -> None:
        self._file = file
        self.rate: int = file.samplerate
        self.channels: int = file.channels
        self.format = str(file.format)
        self.frames: int | None = file.frames
        if self.format == "MP3" and not containers.mp3_has_length(path):
            self.frames = None

    def blocks(self, start: int = 0) -> Iterator[FloatArray]:
        # An MP3 frame needs bits of frames before it: after a seek libsndfile decodes the first ones wrongly.
        skip = start if self.format == "MP3" else 0
        if start > skip:
            self._file.seek(start)
        while len(block := self._read()):
            if skip < len(block):
                yield block[skip:]
            skip = max(0, skip - len(block))

    def _read(self) -> FloatArray:
        """The next block (samples, channels)."""
        with quiet() if self.format == "MP3" else nullcontext():
            block: FloatArray = self._file.read(_BLOCK, dtype="float32", always_2d=True)
        return block


def _soundfile(path: Path) -> soundfile.SoundFile:
    with quiet() if path.suffix.lower() == ".mp3" else nullcontext():
        return soundfile.SoundFile(os.fsencode(path))  # bytes: names need not be UTF-8


@contextmanager
def _opened_soundfile(path: Path) -> Iterator[Reader]:
    try:
        with _soundfile(path) as file:
            missing = containers.missing_share(path)
            if missing is not None:
                length = file.frames / file.samplerate
                raise cut_short(path, length / (1 - missing) if missing < 1 else None, length)
            if file.frames == 0:
                raise DataError(f"{path}: holds no samples; remove it or export it again")
            if file.frames < _UNKNOWN:
                yield _SoundfileReader(path, file)
            else:  # libsndfile can't read a FLAC that was written into a pipe
                with _opened_av(path, str(file.format).lower()) as reader:
                    yield reader
    except soundfile.LibsndfileError as error:
        # what libsndfile says of any MP3 that it can't decode; the file was just looked at
        absent = error.error_string.startswith("File does not exist")
        reason = "damaged, or of another format" if absent else error.error_string.rstrip(".")
        raise DataError(
            f"{path}: not readable as audio ({reason}); is it really {path.suffix.lower() or 'audio'}? Convert it to "
            "WAV or FLAC"
        ) from error


class _AVReader:
    def __init__(self, container: av.container.InputContainer, trusted: bool) -> None:
        self._container = container
        self._stream = container.streams.audio[0]
        context = self._stream.codec_context
        self.rate: int = context.sample_rate
        self.channels: int = context.channels
        self.format: str = context.name.upper()
        # A bare AAC stream has no header: FFmpeg's length for it is a guess from the bit rate.
        duration, unit = self._stream.duration, self._stream.time_base
        self.frames = round(float(duration * unit) * self.rate) if trusted and duration and unit else None
        self.slack = round(0.05 * self.rate)

    def blocks(self, start: int = 0) -> Iterator[FloatArray]:
        import av

        resampler = av.AudioResampler(format="fltp", rate=self.rate)
        skip = start
        for frame in chain(self._container.decode(self._stream), [None]):
            for part in resampler.resample(frame):
                block = part.to_ndarray().T.astype(np.float32, copy=False)
                if skip < len(block):
                    yield block[skip:]
                skip = max(0, skip - len(block))


@contextmanager
def _opened_av(path: Path, container: str) -> Iterator[Reader]:
    import av
    import av.error

    try:
        with av.open(str(path), format=container, options={"protocol_whitelist": "file"}) as opened_file:
            # A header cut in the middle lists streams that have no decoder or no rate.
            streams = [stream for stream in opened_file.streams.audio if stream.codec_context]
            if not streams or not streams[0].codec_context.sample_rate:
                raise DataError(f"{path}: has no audio that can be decoded; remove it or export it again")
            yield _AVReader(opened_file, trusted=container == "mov")
    except av.error.FFmpegError as error:
        raise DataError(
            f"{path}: not readable as audio ({error.strerror}); copy it again, or convert it to WAV or FLAC"
        ) from error
