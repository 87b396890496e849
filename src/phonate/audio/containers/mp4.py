"""MP4: where it ends, and the edit lists of sound tracks (ISO/IEC 14496-12, 8.6.6), by which players leave parts out.

FFmpeg plays whole packets at the joints of a list, up to a tenth of a second more or less than it says.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import BinaryIO

from phonate.audio.containers.joints import next_file
from phonate.audio.containers.part import Edit, Examined, Part

_SOUND = b"soun"
_ONCE = 1 << 16
"""The usual speed, as a number with 16 bits behind the point."""


def examine(file: BinaryIO, part: Part) -> Examined:
    """Another file type box begins another file, as do bytes that are no box; pieces of a fragmented file have none.
    What is missing is told by the samples, but for the movie box, which recorders write last and nothing can be read
    without."""
    at, names = part.start, set[bytes]()
    while True:
        file.seek(min(at, part.end))
        header = file.read(16)
        named = re.match(rb"[ -~]{4}", header[4:])
        other = at > part.start and (header[4:8] == b"ftyp" or (not named and next_file(file, at) is not None))
        if len(header) < 8 or other:
            follows = at if other else None
            cut = part.cut_frame or (b"moof" in names and 0 < len(header) < 8)
            return replace(part, cut_frame=cut, missing=None if b"moov" in names else 1.0), follows
        names.add(header[4:8])
        length = struct.unpack(">I", header[:4])[0]
        if length == 1 and len(header) == 16:
            length = struct.unpack(">Q", header[8:])[0]
        if length == 0 and b"moov" not in names:  # goes on to the end of the file, where nobody wrote the movie box
            return replace(part, missing=1.0), None
        if length < 8:
            return part, None
        if header[4:8] in (b"mdat", b"moof") and at + length > part.end:
            part = replace(part, cut_frame=True)
        if header[4:8] == b"moov":
            part = replace(part, edits=_edits(file, at + 8, min(at + length, part.end)))
        at += length


def _edits(file: BinaryIO, start: int, end: int) -> dict[int, tuple[Edit, ...]]:
    """Those of each sound track, by its number, of the movie box whose content is between two bytes. Empty where no
    list has several: FFmpeg applies one edit to the sample."""
    boxes = list(_boxes(file, start, end))
    header = next((at for name, at, _ in boxes if name == b"mvhd"), None)
    scale = 0 if header is None else _number(file, header)
    in_pieces = any(name == b"mvex" for name, _, _ in boxes)
    lists = [_track(file, at, stop, scale, in_pieces) for name, at, stop in boxes if name == b"trak"]
    every = {number: listed for number, listed in lists if listed is not None}
    return every if scale and any(len(listed) > 1 for listed in every.values()) else {}


def _boxes(file: BinaryIO, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, first byte of the content, and the byte behind it."""
    while at + 8 <= end:
        file.seek(at)
        header = file.read(16)
        if len(header) < 8:
            return
        size, content = int(struct.unpack(">I", header[:4])[0]), at + 8
        if size == 1 and len(header) == 16:
            size, content = int(struct.unpack(">Q", header[8:])[0]), at + 16
        stop = end if size == 0 else at + size
        if not content <= stop <= end:
            return
        yield header[4:8], content, stop
        at = stop


def _inside(file: BinaryIO, start: int, end: int, *names: bytes) -> tuple[int, int] | None:
    """The content of the first box of the last of these names, in the first ones of the others."""
    for wanted in names:
        place = next(((at, stop) for name, at, stop in _boxes(file, start, end) if name == wanted), None)
        if place is None:
            return None
        start, end = place
    return start, end


def _number(file: BinaryIO, at: int) -> int:
    """What stands behind the two dates of a header: of a movie or a track's media the ticks of a second, of a track its
    number."""
    file.seek(at)
    head = file.read(24).ljust(24, b"\0")
    return int(struct.unpack(">I", head[20:24] if head[0] == 1 else head[12:16])[0])


def _track(file: BinaryIO, start: int, end: int, scale: int, in_pieces: bool) -> tuple[int, tuple[Edit, ...] | None]:
    """Its number, and its edits; None where it is no sound. `in_pieces`: the samples come in pieces behind the header,
    and an edit without a length goes on to their end."""
    header, media = _inside(file, start, end, b"tkhd"), _inside(file, start, end, b"mdia", b"mdhd")
    handler, listed = _inside(file, start, end, b"mdia", b"hdlr"), _inside(file, start, end, b"edts", b"elst")
    if header is None or media is None or handler is None or not (ticks := _number(file, media[0])):
        return 0, None
    file.seek(handler[0] + 8)
    if file.read(4) != _SOUND:
        return 0, None
    return _number(file, header[0]), tuple(_entries(file, listed, scale, ticks, in_pieces)) if listed and scale else ()


def _entries(file: BinaryIO, place: tuple[int, int], scale: int, ticks: int, in_pieces: bool) -> Iterator[Edit]:
    file.seek(place[0])
    head = file.read(8).ljust(8, b"\0")
    entry = struct.Struct(">QqI" if head[0] == 1 else ">IiI")
    count = min(int(struct.unpack(">I", head[4:])[0]), (place[1] - place[0] - 8) // entry.size)
    for length, begins, speed in entry.iter_unpack(file.read(count * entry.size)):
        if length or in_pieces:
            yield Edit(
                Fraction(length, scale) if length else None,
                None if begins < 0 else Fraction(begins, ticks),
                speed / _ONCE,
            )
