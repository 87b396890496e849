"""Matroska: where its segment ends, also one that recorders left open."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import BinaryIO

from phonate.audio.containers.joints import next_file, search
from phonate.audio.containers.part import Examined, Part, missing_share


def examine(file: BinaryIO, part: Part) -> Examined:
    end = _segment_end(file, part.start, part.end)
    if end is not None:
        return replace(part, missing=missing_share(part.start, end, part.end)), next_file(file, end)
    follows = search(file, re.compile(rb"\x1aE\xdf\xa3.{1,60}?(webm|matroska)", re.DOTALL), part.start + 4)
    kind, end = replace(part.kind, endless=True), follows or part.end
    at = _elements_end(file, part.start, end)
    if at < end and (other := next_file(file, at)) is not None:
        return replace(part, kind=kind), other
    return replace(part, kind=kind, cut_frame=at > end, end=min(at, end), junk=max(0, end - at)), follows


def _segment_end(file: BinaryIO, start: int, end: int) -> int | None:
    """Where the segment of a Matroska file ends; None where recorders left it open (RFC 8794, sections 4 and 6.2)."""
    file.seek(start + 4)
    header = _ebml_size(file)
    if header is None or header > end:
        return None
    file.seek(header, os.SEEK_CUR)
    if file.read(4) != b"\x18\x53\x80\x67":
        return None
    size = _ebml_size(file)
    return None if size is None else file.tell() + size


def _elements_end(file: BinaryIO, at: int, end: int) -> int:
    """Where the last element ends of a Matroska file that recorders left open; behind `end` where that is cut off."""
    while at < end:
        file.seek(at)
        name = file.read(1)
        name += file.read(8 - name[0].bit_length())
        size = _ebml_size(file)
        whole = file.tell() < end
        if whole and (name not in _ELEMENTS or (size is None and name not in _OPEN_ELEMENTS)):
            return at
        if size is None and not whole:
            return end + 1
        at = file.tell() + (size or 0)
    return at


_OPEN_ELEMENTS = (b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75")
"""Segments and clusters: they may go on to the end of the file."""
_ELEMENTS = frozenset(
    bytes.fromhex(one)
    for one in (
        *("1a45dfa3", "18538067", "114d9b74", "1549a966", "1654ae6b", "1f43b675", "1c53bb6b", "1254c367", "1043a770"),
        *("1941a469", "e7", "5854", "a7", "ab", "a3", "a0", "af", "ec", "bf"),
    )
)
"""Those of a file, a segment and a cluster (RFC 9559, section 5.1)."""


def _ebml_size(file: BinaryIO) -> int | None:
    """The size that is written here; None where it is unknown."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    length = 9 - first[0].bit_length()
    rest = file.read(length - 1)
    if len(rest) < length - 1:
        return None
    value = int.from_bytes(bytes([first[0] & (0xFF >> length)]) + rest, "big")
    return None if value == (1 << 7 * length) - 1 else value
