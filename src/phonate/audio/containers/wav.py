"""WAV: its length, which programs that write into a pipe don't know, and its codec."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import BinaryIO

from phonate.audio.containers.joints import next_file
from phonate.audio.containers.kinds import Kind
from phonate.audio.containers.part import Examined, Part, missing_share

_SNDFILE_WAV = {0x01, 0x02, 0x03, 0x06, 0x07, 0x11, 0x40, 0xFFFE}
"""Not GSM (0x31), of which libsndfile makes the byte that fills up an odd length a block of 40 ms, which is noise."""
_WAV_FLOAT = 0x03


def examine(file: BinaryIO, part: Part) -> Examined:
    start = part.start
    file.seek(start)
    head = file.read(12)
    order = ">" if head[:4] == b"RIFX" else "<"
    if head[:4] == b"BW64":  # which libsndfile does not know
        part = replace(part, kind=Kind("WAV", "wav"))
    whole = start + 8 + struct.unpack(f"{order}I", head[4:8])[0]
    large, sizes = None, 0
    while len(header := file.read(8)) == 8:
        name, length = header[:4], struct.unpack(f"{order}I", header[4:])[0]
        at = file.tell()
        if name == b"ds64" and len(fields := file.read(16)) == 16:
            riff, large = struct.unpack("<QQ", fields)
            whole, sizes = start + 8 + riff, at
        elif name == b"fmt " and len(fields := file.read(16)) == 16:
            codec, bits = struct.unpack(f"{order}H12xH", fields)
            if codec not in _SNDFILE_WAV or (bits == 64 and codec != _WAV_FLOAT):
                part = replace(part, kind=Kind("WAV", "wav"))
        elif name == b"data" and large == 0 and length == 0xFFFFFFFF:
            return replace(part, unknown_length=True, length=(sizes + 8, struct.pack("<Q", part.end - at))), None
        elif name == b"data":
            return _wav_data(file, part, at, large if large is not None and length == 0xFFFFFFFF else length, whole)
        file.seek(at + length + length % 2)
    return part, None


def _wav_data(file: BinaryIO, part: Part, at: int, length: int, whole: int) -> Examined:
    """`at`: where the samples begin; `length`: their bytes, as written; `whole`: the end of the file, as written."""
    held = part.end - at
    # What programs write that don't know the length: 0, or the largest number, rounded or not, signed or not.
    special = 0x7FFFF000 <= length <= 0x80000000 or 0xFFFF0000 <= length <= 0xFFFFFFFF
    if length == 0 and held and not _only_chunks(file, at, part.end):
        return replace(part, unknown_length=True, length=(at - 4, struct.pack("<I", min(held, 0xFFFFFFFE)))), None
    if special and held < length:
        return replace(part, unknown_length=True), None
    whole = max(whole, at + length)
    return replace(part, missing=missing_share(at, at + length, part.end)), next_file(file, whole + whole % 2)


def _only_chunks(file: BinaryIO, at: int, size: int) -> bool:
    """Whether nothing but whole chunks, such as LIST, stands from `at` to the end."""
    while at < size:
        file.seek(at)
        header = file.read(8)
        if len(header) < 8 or not re.fullmatch(rb"[ -~]{4}", header[:4]):
            return False
        length = struct.unpack("<I", header[4:])[0]
        at += 8 + length + length % 2
    return at in (size, size + 1)
