"""Streams of frames or packets, of which no header says where they end: what is cut off, and what follows them."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import BinaryIO

from phonate.audio.containers.kinds import FARTHEST, HEAD, TS_PACKETS, Kind, next_file
from phonate.audio.containers.part import CHUNK, Examined, Part, missing_share, search


def searched(file: BinaryIO, part: Part) -> Examined:
    """Containers of which only the next one's first bytes say that it follows."""
    return part, search(file, _FIRST[part.kind.name], part.start + 4)


_FIRST = {
    "FLAC": re.compile(rb"fLaC[\x00\x80]\x00\x00\x22"),
    "FLV": re.compile(rb"FLV\x01[\x01\x04\x05]\x00\x00\x00\x09\x00\x00\x00\x00"),
    "TTA": re.compile(rb"TTA1[\x01\x02]\x00.\x00[\x08\x10\x18]\x00", re.DOTALL),
}


def flac(file: BinaryIO, part: Part) -> Examined:
    file.seek(part.start)
    head = file.read(26)
    counted = len(head) == 26 and bool(head[21] & 15 or any(head[22:]))
    late = _flac_begins_late(file, part)
    if late or (len(head) == 26 and (head[20] & 1) << 4 | head[21] >> 4 not in _SNDFILE_FLAC):
        part = replace(part, kind=Kind("FLAC", "flac", timed=late, promises=counted, endless=not counted))
    return searched(file, part)


_SNDFILE_FLAC = (7, 15, 23)
"""Bits of a sample, less one as FLAC's header has them (RFC 9639, section 8.2), that libsndfile decodes."""


def _flac_begins_late(file: BinaryIO, part: Part) -> bool:
    """Whether its first frame has another number than 0, as what was cut out of a longer file (RFC 9639, section 9.1);
    libsndfile repeats sound to fill up what it takes to be missing."""
    at, last = part.start + 4, False
    while not last:
        file.seek(at)
        header = file.read(4)
        if len(header) < 4:
            return False
        last = header[0] >= 0x80
        at += 4 + int.from_bytes(header[1:], "big")
    file.seek(at)
    frame = file.read(5)
    return len(frame) == 5 and frame[0] == 0xFF and frame[1] & 0xFE == 0xF8 and frame[4] > 0


def flv(file: BinaryIO, part: Part) -> Examined:
    """Programs note the size of the file once it is whole (E.4.4.1 of Adobe's FLV and F4V 10.1)."""
    file.seek(part.start)
    head = file.read(_FLV_HEAD)
    at = head.find(b"\x08filesize\0")
    part, follows = searched(file, part)
    size = struct.unpack(">d", head[at + 10 : at + 18])[0] if 0 <= at <= len(head) - 18 else 0.0
    if size == 0.0:
        return replace(part, cut_frame=_flv_is_cut(file, part)), follows
    promised = part.start + int(min(max(size, 0.0), FARTHEST))
    part = replace(part, missing=missing_share(part.start, promised, part.end))
    return part, next_file(file, promised) if follows is None else follows


_FLV_HEAD = 4_096
_FLV_TAGS = (8, 9, 18)
"""Sound, pictures and notes."""


def _flv_is_cut(file: BinaryIO, part: Part) -> bool:
    """Whether it ends within a tag, behind each of which stands how long it is; at the end some programs leave that
    out."""
    file.seek(max(part.start, part.end - 4))
    length = int.from_bytes(file.read(4), "big")
    file.seek(max(part.start, part.end - 4 - length))
    header = file.read(4)
    if header[0] in _FLV_TAGS and 11 + int.from_bytes(header[1:], "big") == length:
        return False
    at = part.start + 13
    while at < part.end:
        file.seek(at)
        header = file.read(4)
        if header[0] not in _FLV_TAGS:
            return False
        end = at + 11 + int.from_bytes(header[1:], "big")
        if len(header) < 4 or end > part.end:
            return True
        at = end + 4
    return False


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
    file.seek(part.start)
    head = file.read(3)
    file.seek(max(part.start, end - _ADTS_HEADER))
    cut = file.read(3) == head  # of which FFmpeg reads nothing
    return replace(part, end=max(part.start, end), cut_frame=cut), None


_ADTS_HEADER = 7


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
    rest = (part.end - part.start) % (len(match[match.lastindex or 2]) + 1)
    file.seek(part.end - rest + len(match[1] or b""))
    return replace(part, cut_frame=rest > 0 and file.read(1) == b"G"), None
