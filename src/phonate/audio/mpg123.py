"""MP3: where the frames of a file are, and keeping the notes of libmpg123 off the console.

libsndfile decodes MP3 with libmpg123, which writes notes on damaged frames straight to the file descriptor of standard
error, and libsndfile has no option against it. It ends where the first frame says, whatever follows.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

_STANDARD_ERROR = 2
_NOTE = re.compile(
    rb"(Note: (Illegal Audio-MPEG|Trying to resync|Skipped \d+ bytes|Hit end of)"
    rb"|Warning: (Xing|Encountered|Real sample|Cannot|Big change|Frankenstein)|\[[\w./]*libmpg123/).*"
)

_MOST_DAMAGED = 100
_HEAD, _SEARCHED = 4_096, 65_536
_COUNTS = (b"Xing", b"Info", b"VBRI")
_KBPS = {
    (True, 1): range(32, 449, 32),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates by whether it is MPEG-1, and layer."""


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
                self._pass_on(os.pread(self._buffer, size, 0))
                os.lseek(self._buffer, 0, os.SEEK_SET)
                os.ftruncate(self._buffer, 0)
            os.close(self._console)
            self._console = -1

    def _pass_on(self, written: bytes) -> None:
        others = b"".join(
            line for line in written.splitlines(keepends=True) if line.strip() and not _NOTE.match(line.strip())
        )
        if others:
            with contextlib.suppress(OSError):  # the console has gone
                os.write(self._console, others)


_filter = _Filter()
quiet = _filter.on
"""Within, nothing that libmpg123 notes reaches standard error. For short calls: other output waits until the end."""


@dataclass(frozen=True)
class Stream:
    """The MPEG frames of a file."""

    counted: bool
    """Whether the first frame counts them (Xing, Info, VBRI); files that were written into a pipe, and many of constant
    bit rate, have no count."""
    follows: int | None
    """The byte at which another file begins that was joined to it."""


def stream_at(file: BinaryIO, start: int, size: int, surely: bool) -> Stream | None:
    """What begins at byte `start`, behind tags, of a file of `size` bytes; None where no frames do. `surely`: take only
    several in a row for frames. Without a count all frames are looked at."""
    first = _next_frames(file, start, 4 if surely else 2)
    if first is None:
        return None if surely else Stream(False, None)
    file.seek(first)
    frames, length = _count(file.read(_HEAD))
    if frames and length:
        return Stream(True, _next_frames(file, first + length, 4) if first + length < size else None)
    return Stream(frames > 0, None if frames else _new_stream(file, first, size))


def _count(head: bytes) -> tuple[int, int]:
    """Frames and bytes that a first frame says there are; 0 for what it does not say."""
    for name in (b"Xing", b"Info"):
        at = head.find(name)
        if at >= 0 and len(head) >= at + 16:
            flags, *values = struct.unpack(">III", head[at + 4 : at + 16])
            frames = values.pop(0) if flags & 1 else 0
            return frames, values[0] if flags & 2 else 0
    at = head.find(b"VBRI")
    if at >= 0 and len(head) >= at + 18:
        length, frames = struct.unpack(">II", head[at + 10 : at + 18])
        return frames, length
    return 0, 0


def _frame(header: bytes) -> tuple[int, tuple[int, int, int]] | None:
    """Length in bytes of the frame with these 4 bytes, and what does not change in a stream: version and layer, rate,
    whether it is mono. (ISO/IEC 11172-3, 2.4.2.3)"""
    if len(header) < 4 or header[0] != 0xFF or header[1] < 0xE0:
        return None
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)  # version 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    bits, rate, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer == 4 or not 0 < bits < 15 or rate == 3:
        return None
    hz = (44_100, 48_000, 32_000)[rate] // {3: 1, 2: 2, 0: 4}[version]
    kbps = _KBPS[(version == 3, layer)][bits - 1]
    if layer == 1:
        length = 4 * (12_000 * kbps // hz + padding)
    else:
        length = (72_000 if layer == 3 and version != 3 else 144_000) * kbps // hz + padding
    return length, (header[1] & 0xFE, hz, int(header[3] >> 6 == 3))


def _next_frames(file: BinaryIO, start: int, count: int) -> int | None:
    """Where, within a few frames from `start`, at least `count` MPEG frames of one stream follow each other; tags
    before them belong to them. None where that is nowhere."""
    file.seek(start)
    head = file.read(_SEARCHED)
    tags = after_tags(file, start)
    if tags > start:
        return start if _next_frames(file, tags, count) is not None else None
    at = head.find(b"\xff")
    while at >= 0:
        if _is_stream(file, start + at, count):
            return start + at
        at = head.find(b"\xff", at + 1)
    return None


def _is_stream(file: BinaryIO, at: int, count: int) -> bool:
    stream = None
    for _ in range(count):
        file.seek(at)
        frame = _frame(file.read(4))
        if frame is None or stream not in (None, frame[1]):
            return False
        at, stream = at + frame[0], frame[1]
    return True


def _new_stream(file: BinaryIO, first: int, size: int) -> int | None:
    """Where in frames without a count those of another rate begin, or a tag or count that only a file begins with."""
    at, stream, damaged = first, None, 0
    while at < size and damaged < _MOST_DAMAGED:
        file.seek(at)
        head = file.read(64)
        frame = _frame(head)
        if frame is None:
            if head[:3] == b"ID3":
                return at
            following = _next_frames(file, at + 1, 2)
            if following is None:
                return None
            at, damaged = following, damaged + 1
            continue
        if stream is not None and (frame[1] != stream or any(head[4 + n : 8 + n] in _COUNTS for n in (9, 17, 32))):
            return at
        at, stream = at + frame[0], frame[1]
    return None


def after_tags(file: BinaryIO, at: int) -> int:
    """The byte behind ID3 tags and the zeros that some programs leave behind them."""
    while True:
        file.seek(at)
        tag = file.read(10)
        if tag[:3] != b"ID3" or len(tag) < 10:
            return at
        # 7 bits of each byte (ID3v2.4.0, section 3.1); the flag says that a footer follows
        length = sum((byte & 0x7F) << shift for byte, shift in zip(tag[6:], (21, 14, 7, 0), strict=True))
        at += 10 + length + (10 if tag[5] & 0x10 else 0)
        file.seek(at)
        rest = file.read(_SEARCHED)
        at += len(rest) - len(rest.lstrip(b"\0"))
