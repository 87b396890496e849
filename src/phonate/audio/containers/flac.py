"""FLAC: what libsndfile does not decode, and what follows its last frame, of which only its number is known."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import BinaryIO

from phonate.audio.containers.joints import search, search_file
from phonate.audio.containers.kinds import Kind
from phonate.audio.containers.part import Examined, Part

_STREAMINFO = 26
"""Bytes up to the checksum of the samples (RFC 9639, section 8.2)."""
_SNDFILE_BITS = (7, 15, 23)
"""Of a sample, less one as the header has them, that libsndfile decodes."""
_LARGEST_NUMBER = 0x10FFFF
"""Frame numbers are written as UTF-8 would a letter's; Python knows no more letters."""


def examine(file: BinaryIO, part: Part) -> Examined:
    file.seek(part.start)
    head = file.read(_STREAMINFO)
    if len(head) < _STREAMINFO:
        return part, None
    samples = int.from_bytes(head[21:26], "big") & 0xF_FFFF_FFFF
    first = _first_frame(file, part.start)
    late = _begins_late(file, first)
    if late or (head[20] & 1) << 4 | head[21] >> 4 not in _SNDFILE_BITS:
        part = replace(part, kind=Kind("FLAC", "flac", timed=late, promises=samples > 0, endless=not samples))
    number = _last_number(head, samples)
    last = None if number is None else search(file, number, first)
    return part, search_file(file, last or first)


def _first_frame(file: BinaryIO, start: int) -> int:
    """The byte behind the metadata, in which may be the header of another file, or a picture."""
    at, last = start + 4, False
    while not last:
        file.seek(at)
        header = file.read(4)
        if len(header) < 4:
            return at
        last = header[0] >= 0x80
        at += 4 + int.from_bytes(header[1:], "big")
    return at


def _begins_late(file: BinaryIO, first: int) -> bool:
    """Whether its first frame has another number than 0, as what was cut out of a longer file (RFC 9639, section 9.1);
    libsndfile repeats sound to fill up what it takes to be missing."""
    file.seek(first)
    frame = file.read(5)
    return len(frame) == 5 and frame[0] == 0xFF and frame[1] & 0xFE == 0xF8 and frame[4] > 0


def _last_number(head: bytes, samples: int) -> re.Pattern[bytes] | None:
    """What begins its last frame; None where that is not known, as frames are not all as long."""
    shortest, longest = int.from_bytes(head[8:10], "big"), int.from_bytes(head[10:12], "big")
    number = (samples - 1) // longest if samples and 0 < shortest == longest else -1
    if not 0 <= number <= _LARGEST_NUMBER:
        return None
    return re.compile(rb"\xff\xf8.." + re.escape(chr(number).encode("utf-8", "surrogatepass")), re.DOTALL)
