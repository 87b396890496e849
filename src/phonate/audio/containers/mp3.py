"""Where the frames of an MP3 are."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import BinaryIO

from phonate.audio.containers.frames import mpeg_frame, mpeg_samples
from phonate.audio.containers.joints import CHUNK, next_file
from phonate.audio.containers.kinds import HEAD, MP3, OTHER, SEARCHED, Kind, after_tags
from phonate.audio.containers.part import Examined, Part


def examine(file: BinaryIO, part: Part) -> Examined:
    stream = stream_at(file, part.start, part.end, surely=part.kind is OTHER)
    if stream is None:
        return part, None
    part = replace(part, end=part.end if stream.end is None else stream.end, junk=stream.junk)
    if part.kind is OTHER:
        part = replace(part, start=stream.first)
    part = replace(part, cut_frame=stream.cut, least=stream.least)
    if stream.changes:  # libmpg123 stops where they do
        return replace(part, kind=Kind("MP3", "mp3", endless=not stream.counted), channels=2), stream.follows
    # libsndfile takes all frames to be as long as the first, and stops where the file would end; of VBRI's it hears the
    # one that counts the others, too.
    if stream.varies or stream.vbri:
        return replace(part, kind=Kind("MP3", "mp3", promises=stream.vbri, endless=not stream.vbri)), stream.follows
    return replace(part, kind=MP3, counted=stream.counted), stream.follows


_HEAD = 4_096
_MOST_DAMAGED = 100
_LOST = 5
"""Frames that decoders may leave out where some bytes are none."""
_COUNTS = (b"Xing", b"Info", b"VBRI")
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")
"""With which tags behind the last frame begin."""


@dataclass(frozen=True)
class Stream:
    """The MPEG frames of a file."""

    first: int
    """Its first byte."""
    counted: bool
    """Whether the first frame counts them (Xing, Info, VBRI); files that were written into a pipe, and many of constant
    bit rate, have no count."""
    follows: int | None
    """The byte at which another file begins that was joined to it."""
    changes: bool = False
    """Whether some frames are mono and others stereo."""
    varies: bool = False
    """Whether frames without a count have several bit rates, so that the length of the file says nothing of theirs."""
    vbri: bool = False
    """Whether VBRI counts them."""
    end: int | None = None
    """The byte behind the last frame, where others are behind it that are none: libmpg123 looks for frames in them."""
    junk: int = 0
    """How many these are, where they are neither tags nor zeros."""
    cut: bool = False
    """Whether the last of frames without a count goes on behind the end of the file."""
    least: int = 0
    """Samples that these surely have, where bytes between them are none."""


def stream_at(file: BinaryIO, start: int, size: int, surely: bool) -> Stream | None:
    """What begins at byte `start`, behind tags, of a file of `size` bytes; None where no frames do. `surely`: take only
    several in a row for frames."""
    first = _next_frames(file, start, 4 if surely else 2)
    if first is None and surely:
        return None
    file.seek(start if first is None else first)
    head = file.read(_HEAD)
    frame = mpeg_frame(head[:4])
    head = head if frame is None else head[: frame[0]]  # behind a short file the next one's count is near
    frames, length = _count(head)
    if first is None:  # of free format, whose frames don't say how long they are
        return Stream(start, frames > 0, None)
    if not frames:
        return _uncounted(file, first, size)
    end, changes = _behind(file, first, frames)
    if length:
        end = first + length
    follows = _file_behind(file, end, size) if end is not None else None
    return Stream(first, True, follows, changes, vbri=head[36:40] == b"VBRI")


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


def _next_frames(file: BinaryIO, start: int, count: int) -> int | None:
    """Where, within a few frames from `start`, at least `count` MPEG frames of one stream follow each other; tags
    before them belong to them. None where that is nowhere."""
    file.seek(start)
    head = file.read(SEARCHED)
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
        frame = mpeg_frame(file.read(4))
        if frame is None or stream not in (None, frame[1]):
            return False
        at, stream = at + frame[0], frame[1]
    return True


def _behind(file: BinaryIO, first: int, frames: int) -> tuple[int | None, bool]:
    """Where `frames` frames and the one that counts them end, None where there are fewer; and whether some are mono and
    others stereo."""
    at, channels = first, set[int]()
    for _ in range(frames + 1):
        file.seek(at)
        frame = mpeg_frame(file.read(4))
        if frame is None:
            return None, len(channels) > 1
        at += frame[0]
        channels.add(frame[1][2])
    return at, len(channels) > 1


def _uncounted(file: BinaryIO, first: int, size: int) -> Stream:
    """Frames without a count end where those of another rate begin, or a tag or count that only a file begins with."""
    at, damaged, follows, end, junk, cut = first, 0, None, None, 0, False
    stream: list[int] | None = None
    channels, bit_rates, frames = set[int](), set[int](), 0
    while at < size and damaged < _MOST_DAMAGED:
        file.seek(at)
        head = file.read(HEAD)
        frame = mpeg_frame(head[:4])
        length, (*kind, mono) = frame or (0, (0, 0, 0))
        begins = any(head[4 + n : 8 + n] in _COUNTS for n in (9, 17, 32)) or kind != stream
        if frame is not None and stream is not None and begins and _is_stream(file, at, 2):
            follows = at
            break
        if frame is None or (stream is not None and begins):
            if head[:3] == b"ID3" and _next_frames(file, at, 2) is not None:
                follows = at
                break
            if head.startswith(_TAGS):  # they end a file
                follows, end = _frames_behind(file, at + 1, size), at
                break
            if frame is None and (follows := next_file(file, at)) is not None:
                break
            following = _next_frames(file, at + 1, 2)
            if following is None:
                cut = at + 4 > size and head.startswith(b"\xff")
                clean = cut or _only_zeros(file, at)
                end = at if clean or _frames_behind(file, at + 1, size) is None else None
                junk = 0 if clean or end is None else size - at
                break
            at, damaged = following, damaged + 1
            continue
        channels.add(mono)
        bit_rates.add(head[2] >> 4)
        at, stream, frames = at + length, kind, frames + 1
    least = max(0, frames - _LOST * damaged) * mpeg_samples(stream[0]) if damaged and stream else 0
    varies, cut = len(bit_rates) > 1, cut or at > size
    return Stream(first, False, follows, len(channels) > 1, varies, end=end, junk=junk, cut=cut, least=least)


def _file_behind(file: BinaryIO, at: int, size: int) -> int | None:
    """Where behind the last frame, which ends at byte `at`, another file begins. None where none does."""
    other = next_file(file, at)
    return _frames_behind(file, at, size) if other is None else other


def _frames_behind(file: BinaryIO, at: int, size: int) -> int | None:
    """Where from byte `at` on frames are next, however far: covers in tags are large. None where none are."""
    places = (_next_frames(file, start, 4) for start in range(at, size, SEARCHED))
    return next((place for place in places if place is not None), None)


def _only_zeros(file: BinaryIO, at: int) -> bool:
    """Whether nothing else is behind byte `at`."""
    file.seek(at)
    return not any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(CHUNK), b""))
