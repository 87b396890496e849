"""Streams of frames or packets, of which no header says where they end: what is cut off, and what follows them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import BinaryIO

from phonate.audio.containers.frames import frame_bytes
from phonate.audio.containers.joints import CHUNK, next_file
from phonate.audio.containers.kinds import AC3, DTS, HEAD, PS, TS_PACKETS, WAVPACK, Kind
from phonate.audio.containers.part import Examined, Part, missing_share

_HEADER = 14
"""Bytes that tell how long a frame is."""


def frames(file: BinaryIO, part: Part) -> Examined:
    return _ended(file, part, _walk(file, part.start, part.end, FRAME_BYTES[part.kind]))


def _ended(file: BinaryIO, part: Part, at: int) -> Examined:
    """A part whose last frame ends at byte `at`, if another file is behind it."""
    follows = next_file(file, at) if at < part.end else None
    return part if follows is None else replace(part, end=at), follows


def _walk(file: BinaryIO, at: int, end: int, length_of: Callable[[bytes], int]) -> int:
    """The byte behind the last of frames that are one behind the other; behind `end` where it is cut off."""
    while at < end:
        file.seek(at)
        length = length_of(file.read(_HEADER))
        if not length:
            break
        at += length
    return at


def _wavpack_bytes(head: bytes) -> int:
    return 8 + int.from_bytes(head[4:8], "little") if head[:4] == b"wvpk" else 0


def _packet_bytes(head: bytes) -> int:
    """Of a program stream (ISO/IEC 13818-1, 2.5.3; ISO/IEC 11172-1, 2.4.3.2): packs, in which packets are, and the code
    at its end."""
    if head[:3] != b"\0\0\1" or len(head) < 4 or head[3] < 0xB9:
        return 0
    if head[3] == 0xBA:
        return 14 + (head[-1] & 7) if head[4:5] >= b"\x40" else 12
    return 4 if head[3] == 0xB9 else 6 + int.from_bytes(head[4:6], "big")


FRAME_BYTES: Mapping[Kind, Callable[[bytes], int]] = {
    AC3: partial(frame_bytes, "ac3"),
    DTS: partial(frame_bytes, "dts"),
    WAVPACK: _wavpack_bytes,
    PS: _packet_bytes,
}


def amr(file: BinaryIO, part: Part) -> Examined:
    """Frames of which the first byte says how long they are (RFC 4867, section 5.3). FFmpeg takes any byte for one, of
    which the decoder that knows pauses makes noise."""
    file.seek(part.start)
    wide = file.read(9) == b"#!AMR-WB\n"
    sizes = _AMR_WIDE if wide else _AMR

    def length(head: bytes) -> int:
        return 0 if head[4:8] == b"ftyp" or not head or head[0] & 0x83 else sizes[head[0] >> 3]

    at = _walk(file, part.start + (9 if wide else 6), part.end, length)
    part, follows = _ended(file, part, at)
    if follows is None and 0 < part.end - at <= _MOST_TAGS:
        part = replace(part, end=at, junk=part.end - at)
    return part, follows


_MOST_TAGS = 4096
"""Bytes behind the last frame that are taken for tags, under three seconds; more may be sound behind damage."""
_AMR = (13, 14, 16, 18, 20, 21, 27, 32, 6, 0, 0, 0, 0, 0, 0, 1)
_AMR_WIDE = (18, 24, 33, 37, 41, 47, 51, 59, 61, 6, 0, 0, 0, 0, 1, 1)
"""Bytes of a frame of each mode, with its first byte."""


def aac(file: BinaryIO, part: Part) -> Examined:
    """Without tags at its end, ID3v1 and APEv2 before it, in which FFmpeg looks for frames."""
    end = part.end
    file.seek(max(part.start, end - 128))
    end -= 128 if file.read(3) == b"TAG" else 0
    file.seek(max(part.start, end - 32))
    footer = file.read(32)
    if footer[:8] == b"APETAGEX" and len(footer) == 32:
        size, flags = struct.unpack("<12xI4xI8x", footer)
        end -= size + (32 if flags >> 31 else 0)
    at = _walk(file, part.start, end, partial(frame_bytes, "aac"))
    # Of a header alone FFmpeg reads nothing.
    return _ended(file, replace(part, end=max(part.start, end), cut_frame=at > end), at)


def flv(file: BinaryIO, part: Part) -> Examined:
    """Programs note the size of the file once it is whole (E.4.4.1 of Adobe's FLV and F4V 10.1). Behind each tag stands
    how long it is; at the end some programs leave that out."""
    file.seek(part.start)
    head = file.read(_FLV_HEAD)
    at = head.find(b"\x08filesize\0")
    size = struct.unpack(">d", head[at + 10 : at + 18])[0] if 0 <= at <= len(head) - 18 else 0.0
    end = _walk(file, part.start + 13, part.end, _tag_bytes)
    follows = next_file(file, end) if end < part.end else None
    if not 0.0 < size < math.inf:
        return replace(part, cut_frame=end - 4 > part.end), follows
    missing = missing_share(part.start, part.start + int(size), part.end) if follows is None else None
    return replace(part, missing=missing), follows


def _tag_bytes(head: bytes) -> int:
    """Of sound, pictures or notes."""
    return 15 + int.from_bytes(head[1:4].ljust(3, b"\xff"), "big") if head[:1] in (b"\x08", b"\x09", b"\x12") else 0


_FLV_HEAD = 4_096


def truehd(file: BinaryIO, part: Part) -> Examined:
    """Frames begin with their length, in words of 2 bytes, and one of 128 at least has a sync behind it. FFmpeg leaves
    out what is there of the last one."""
    file.seek(max(part.start, part.end - CHUNK))
    tail = file.read()
    at = tail.rfind(_TRUEHD_SYNC) - 4
    while 0 <= at < len(tail) and (length := 2 * (int.from_bytes(tail[at : at + 2], "big") & 0xFFF)):
        at += length
    return replace(part, cut_frame=at > len(tail)), None


_TRUEHD_SYNC = b"\xf8ro\xba"


def ts(file: BinaryIO, part: Part) -> Examined:
    file.seek(part.start)
    match = TS_PACKETS.match(file.read(HEAD))
    assert match is not None
    length, before = len(match[match.lastindex or 2]) + 1, len(match[1] or b"")
    at, whole = part.start, True
    while at < part.end and whole:
        file.seek(at + before)
        marks = file.read(length * _TS_AT_ONCE)[::length]
        packets = len(marks) - len(marks.lstrip(b"G"))
        at, whole = at + packets * length, 0 < packets == len(marks)
    return _ended(file, replace(part, cut_frame=at > part.end), at)


_TS_AT_ONCE = 4096
