"""Recordings opened for reading, block by block, with a reader for each library that decodes.

libsndfile decodes MP3 with libmpg123, which writes notes on damaged frames straight to the file descriptor of standard
error, and libsndfile has no option against it. It ends where the first frame says, whatever follows.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from phonate.audio.containers import EARLY_SECONDS, FLAC, JITTER_SECONDS, MP3, MP4, OTHER, Kind, Part, parts
from phonate.config.errors import DataError

if TYPE_CHECKING:
    import av.container

FloatArray = npt.NDArray[np.float32]

_LOWEST_RATE, _HIGHEST_RATE = 1_000, 1_000_000  # Hz
_UNKNOWN = 2**62  # libsndfile reports more frames than this when a header, such as a streamed FLAC's, gives none
_BLOCK = 2**18  # samples of each channel that are decoded at once
_RESTART_SECONDS = 1.0
"""Times that go back by more begin anew."""
_LONGEST_HOLE = 3600.0
"""Seconds. Longer ones come from clocks that do not begin with the recording."""


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
    remarks: list[str]
    """What is unusual about the file, and was mended."""

    def blocks(self, start: int = 0) -> Iterator[FloatArray]:
        """Blocks (samples, channels) from sample `start` to the end of the file. To be called once: many decoders do
        not go back."""
        ...


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    """Open a recording for reading.

    Raises DataError for a file that is missing, empty, not audio, or cut short, or whose sample rate is implausible.
    """
    _check_file(path)
    try:
        files = parts(path)
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror}); see who may read it") from error
    with _opened_part(path, files[0], len(files) == 1) as reader:
        yield reader if len(files) == 1 else _JoinedReader(path, files, reader)


@contextmanager
def _opened_part(path: Path, part: Part, only: bool = True) -> Iterator[Reader]:
    """Open one of the files that a file consists of."""
    kind = part.kind
    # by its bytes where that is enough: decoders are faster with files of their own
    source = None if only and part.length_at is None else _Range(path, part)
    reading = _opened_soundfile(path, part, source) if kind.demuxer is None else _opened_av(path, part, kind, source)
    with source or nullcontext(), reading as reader:
        if not _LOWEST_RATE <= reader.rate <= _HIGHEST_RATE:
            raise DataError(f"{path}: {reader.rate} samples per second is not a plausible rate; export it again")
        if part.unknown_length:
            reader.remarks.append("its header has no length; it is read to the end of the file")
        yield reader


def cut_short(path: Path, promised: float | None, held: float | None) -> DataError:
    """The error for a recording that ends early; lengths in seconds, None where they are not known."""
    whole = "its end is missing" if promised is None else f"the header says {promised:.2f} s"
    there = "" if held is None else f", {held:.2f} s are there"
    return DataError(f"{path}: cut short: {whole}{there}; copy or export it again")


def _check_file(path: Path) -> None:
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not path.is_file():  # reading a pipe would block, and a device may have no end
        raise DataError(f"{path}: is a folder, a pipe or a device; give a file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; copy it again")


class _Range(io.RawIOBase):
    """A part of a file as a file; the length of a WAV that says 0 is what it is."""

    def __init__(self, path: Path, part: Part) -> None:
        self._file: BinaryIO = path.open("rb", buffering=0)
        self._start, self._size, self._at = part.start, part.end - part.start, 0
        self._length_at = None if part.length_at is None else part.length_at - part.start
        if self._length_at is not None:
            self._length = min(self._size - self._length_at - 4, 0xFFFFFFFE).to_bytes(4, "little")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._file.seek(self._start + self._at)
        content = bytearray(self._file.read(min(len(buffer), max(0, self._size - self._at))))
        if self._length_at is not None:
            for number, byte in enumerate(self._length, self._length_at - self._at):
                if 0 <= number < len(content):
                    content[number] = byte
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


class _SoundfileReader:
    slack = 0

    def __init__(self, part: Part, file: soundfile.SoundFile) -> None:
        self._file = file
        self.rate: int = file.samplerate
        self.channels: int = file.channels
        self.format = str(file.format)
        self.frames: int | None = file.frames
        self.remarks: list[str] = []
        if self.format == "MP3" and not part.counted:
            self.frames = None

    def blocks(self, start: int = 0) -> Iterator[FloatArray]:
        # An MP3 frame needs bits of frames before it: after a seek libsndfile decodes the first ones wrongly.
        skip = start if self.format == "MP3" else 0
        # Opus is sought to 0, too: where its first page begins late, libsndfile is late by as much until then.
        if start > skip or self._file.subtype == "OPUS":
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


@contextmanager
def _opened_soundfile(path: Path, part: Part, source: _Range | None) -> Iterator[Reader]:
    try:
        # Within `quiet`, for libmpg123 notes what it sees when it opens a file. Bytes: names need not be UTF-8.
        with quiet() if part.kind in (MP3, OTHER) else nullcontext():
            file = soundfile.SoundFile(os.fsencode(path) if source is None else source)
        with file:
            if part.missing is not None:
                length = file.frames / file.samplerate
                raise cut_short(path, length / (1 - part.missing) if part.missing < 1 else None, length)
            if file.frames == 0:
                raise DataError(f"{path}: holds no samples; remove it or export it again")
            if part.kind is not FLAC or file.frames < _UNKNOWN:
                yield _SoundfileReader(part, file)
            else:  # libsndfile can't read a FLAC that was written into a pipe
                with _opened_av(path, part, Kind("FLAC", "flac"), source) as reader:
                    yield reader
    except (soundfile.LibsndfileError, TypeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: soundfile.LibsndfileError | TypeError) -> DataError:
    if isinstance(error, TypeError):  # what soundfile says of the suffix .raw
        return DataError(f"{path}: not readable as audio (raw samples have no header); convert it to WAV or FLAC")
    # what libsndfile says of any MP3 that it can't decode; the file was just looked at
    absent = error.error_string.startswith("File does not exist")
    reason = "damaged, or of another format" if absent else error.error_string.rstrip(".")
    return DataError(
        f"{path}: not readable as audio ({reason}); is it really {path.suffix.lower() or 'audio'}? Convert it to WAV "
        "or FLAC"
    )


class _AVReader:
    def __init__(self, path: Path, container: av.container.InputContainer, kind: Kind, part: Part) -> None:
        self._path, self._container, self._kind, self._begins = path, container, kind, part.begins
        self._stream = container.streams.audio[0]
        context = self._stream.codec_context
        self.rate: int = context.sample_rate
        self.channels: int = part.channels or context.channels
        self.frames: int | None = None
        self.format: str = kind.name if kind.demuxer in ("ogg", "mp3") else context.name.upper()
        duration, unit, start = self._stream.duration, self._stream.time_base, max(0, self._stream.start_time or 0)
        self._packets = container.demux(self._stream)
        self._begun = False
        self._origin = 0
        if kind is MP4 and (first := next(self._packets, None)) is not None:
            self._packets = chain([first], self._packets)
            # Edit lists move the times to where the sound begins; iTunes only notes how long the encoder's delay is.
            if first.pts == 0 and first.has_sidedata("skip_samples") and unit:
                self._origin, start = round(float(start * unit) * self.rate), -start
        # A bare AAC stream has no header: FFmpeg's length for it is a guess from the bit rate.
        if kind.promises and duration and unit:
            self.frames = round(float((duration + start) * unit) * self.rate)
        self.slack = round(0.05 * self.rate)
        self.remarks: list[str] = []

    def blocks(self, start: int = 0) -> Iterator[FloatArray]:
        if self._begun:
            raise RuntimeError(f"{self._path}: is decoded from its beginning once; open it again")
        self._begun, skip = True, start
        for block in self._blocks():
            if skip < len(block):
                yield block[skip:]
            skip = max(0, skip - len(block))

    def _blocks(self) -> Iterator[FloatArray]:
        """All blocks, at the times of their packets: a player is silent where there are none."""
        import av

        resampler: av.AudioResampler | None = None
        run, at, origin = None, 0, self._origin  # the run's format; samples so far; where time 0 is
        for frame in chain(self._frames(), [None]):
            form = frame and (frame.format.name, frame.layout.nb_channels, frame.sample_rate)
            pieces = []
            if resampler is not None and form != run:
                pieces += resampler.resample(None)
            if frame is not None:
                if form != run:
                    self._check_channels(frame, at)
                    resampler, run = av.AudioResampler(format="fltp", rate=self.rate), form
                origin, gap = self._gap(frame, origin, at)
                yield from _silence(gap, self.channels)
                at += gap
                assert resampler is not None
                pieces += resampler.resample(frame)
            for piece in pieces:
                at += piece.samples
                samples = piece.to_ndarray().T.astype(np.float32, copy=False)
                yield np.broadcast_to(samples, (len(samples), self.channels))

    def _gap(self, frame: av.AudioFrame, origin: int, at: int) -> tuple[int, int]:
        """Where time 0 is, and the samples of silence before a frame that comes behind `at` others."""
        if not self._kind.timed or frame.pts is None or frame.time_base is None:
            return origin, 0
        time = round(float(frame.pts * frame.time_base) * self.rate)
        if not at and self._begins is not None:
            origin = time - round(self._begins * self.rate)
        gap = time - origin - at
        if gap > _LONGEST_HOLE * self.rate:
            raise DataError(
                f"{self._path}: its times go from {at / self.rate:.2f} to {(at + gap) / self.rate:.2f} s; "
                "convert it to WAV or FLAC"
            )
        if gap < -_RESTART_SECONDS * self.rate:  # nothing is left out
            origin += gap
        return origin, gap if gap > (JITTER_SECONDS if at else EARLY_SECONDS) * self.rate else 0

    def _frames(self) -> Iterator[av.AudioFrame]:
        for packet in self._packets:
            if (
                packet.size or packet.pts is None
            ):  # not the empty one with which some streams end, which decoders refuse
                yield from packet.decode()

    def _check_channels(self, frame: av.AudioFrame, at: int) -> None:
        channels = frame.layout.nb_channels
        if channels not in (1, self.channels):
            raise DataError(
                f"{self._path}: from {at / self.rate:.2f} s on it has {channels} instead of {self.channels} channels; "
                "cut it there, or convert it to WAV or FLAC"
            )


def _silence(samples: int, channels: int) -> Iterator[FloatArray]:
    for start in range(0, samples, _BLOCK):
        yield np.zeros((min(_BLOCK, samples - start), channels), np.float32)


@contextmanager
def _opened_av(path: Path, part: Part, kind: Kind, source: _Range | None) -> Iterator[Reader]:
    import av
    import av.error

    if part.missing is not None:
        raise cut_short(path, None, None)
    try:
        options = {"protocol_whitelist": "file"}
        with av.open(
            str(path) if source is None else source,
            "r",
            format=kind.demuxer,
            options=options,
            metadata_errors="replace",
        ) as opened_file:
            # A header cut in the middle lists streams that have no decoder or no rate.
            streams = [stream for stream in opened_file.streams.audio if stream.codec_context]
            if not streams or not streams[0].codec_context.sample_rate:
                raise DataError(f"{path}: has no audio that can be decoded; remove it or export it again")
            yield _AVReader(path, opened_file, kind, part)
    except av.error.FFmpegError as error:
        raise DataError(
            f"{path}: not readable as audio ({error.strerror}); copy it again, or convert it to WAV or FLAC"
        ) from error


class _JoinedReader:
    """Files that were joined end to end, each read by itself, at the rate of the first."""

    slack = 0

    def __init__(self, path: Path, files: Sequence[Part], first: Reader) -> None:
        self._path, self._files = path, files
        self.rate, self.channels, self.format = first.rate, first.channels, first.format
        self.frames: int | None = None
        self.remarks: list[str] = [f"{len(files)} files were joined in it; all are read"]
        held: int | None = 0
        for number in range(len(files)):
            with self._opened(number) as reader:
                self.channels = max(self.channels, reader.channels)
                same = reader.frames is not None and reader.rate == self.rate
                held = held + reader.frames if held is not None and same and reader.frames is not None else None
        self.frames = held

    @contextmanager
    def _opened(self, number: int) -> Iterator[Reader]:
        """One of the files; errors say which."""
        try:
            with _opened_part(self._path, self._files[number], only=False) as reader:
                yield reader
        except DataError as error:
            reason = str(error).removeprefix(f"{self._path}: ")
            place = f"file {number + 1} of {len(self._files)} that were joined in it"
            raise DataError(f"{self._path}: {place}, from byte {self._files[number].start} on: {reason}") from error

    def blocks(self, start: int = 0) -> Iterator[FloatArray]:
        skip = start
        for number in range(len(self._files)):
            with self._opened(number) as reader:
                for block in self._adapted(number, reader):
                    if skip < len(block):
                        yield block[skip:]
                    skip = max(0, skip - len(block))

    def _adapted(self, number: int, reader: Reader) -> Iterator[FloatArray]:
        """The blocks of one of the files, at the rate and with the channels of all."""
        if reader.channels not in (1, self.channels):
            raise DataError(f"{self._path}: has {reader.channels} channels, another has {self.channels}; cut it there")
        stream = soxr.ResampleStream(reader.rate, self.rate, reader.channels, dtype="float32")
        left = reader.frames  # a codec's own padding behind the length that the header gives is not part of it
        for block in chain(reader.blocks(), [np.zeros((0, reader.channels), np.float32)]):
            last = not len(block)
            if left is not None:
                block, left = block[:left], left - len(block[:left])
            if reader.rate != self.rate:
                block = stream.resample_chunk(np.ascontiguousarray(block), last=last)
            if len(block):
                yield np.broadcast_to(block, (len(block), self.channels))
        if left is not None and left > reader.slack:
            promised = reader.frames or 0
            raise cut_short(self._path, promised / reader.rate, (promised - left) / reader.rate)


# -------------------------------------------------- Keeping the notes of libmpg123 off the console

_STANDARD_ERROR = 2
_NOTE = re.compile(
    rb"(Note: (Illegal Audio-MPEG|Trying to resync|Skipped \d+ bytes|Hit end of)"
    rb"|Warning: (Xing|Encountered|Real sample|Cannot|Big change|Frankenstein)|\[[\w./]*libmpg123/).*"
)


class _Filter:
    """Standard error led through a temporary file while any thread decodes; what mpg123 did not write is passed on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._console = -1
        self._buffer = -1

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            if self._buffer < 0:
                with tempfile.TemporaryFile(buffering=0) as file:
                    self._buffer = os.dup(file.fileno())
            with contextlib.suppress(OSError):  # standard error may be closed
                self._console = os.dup(_STANDARD_ERROR)
                os.dup2(self._buffer, _STANDARD_ERROR, inheritable=True)

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._console < 0:
                return
            os.dup2(self._console, _STANDARD_ERROR, inheritable=True)
            size = os.lseek(self._buffer, 0, os.SEEK_CUR)
            if size:
                os.lseek(self._buffer, 0, os.SEEK_SET)
                self._pass_on(os.read(self._buffer, size))
                os.lseek(self._buffer, 0, os.SEEK_SET)
                os.ftruncate(self._buffer, 0)
            os.close(self._console)
            self._console = -1

    def _pass_on(self, output: bytes) -> None:
        others = b"".join(
            line for line in output.splitlines(keepends=True) if line.strip() and not _NOTE.match(line.strip())
        )
        if others:
            with contextlib.suppress(OSError):  # the console has gone
                os.write(self._console, others)


_filter = _Filter()
quiet = _filter.on
"""Within, nothing that libmpg123 notes reaches standard error. For short calls: other output waits until the end."""
