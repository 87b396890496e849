"""Detects truncated files by what their container promises; libsndfile reads them without an error."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

_OGG_TAIL = 65_536  # an Ogg page is at most 65,307 bytes
_OGG_HEADER = 27  # bytes of a page before its table of segment lengths (RFC 3533, section 6)
_END_OF_STREAM = 4
_MP3_HEAD = 4096
"""Bytes of an MP3 file, behind its tags, in which the first frame begins."""


def missing_share(path: Path) -> float | None:
    """Share of the audio that is missing at the end, None when nothing is.

    WAV promises bytes in its data chunk. The last page of an Ogg file (Vorbis, Opus) is marked as the last,
    but no header says how much is missing: then 1. FLAC, m4a and some MP3 files promise samples, which the
    reader counts.
    """
    with path.open("rb") as file:
        magic = file.read(4)
        if magic == b"RIFF":
            return _missing_wav(file)
        if magic == b"OggS":
            return _missing_ogg(file)
    return None


def mp3_has_length(path: Path) -> bool:
    """Whether the first frame of an MP3 file counts the frames (a Xing, Info or VBRI header).

    Files that were written into a pipe, and many of constant bit rate, have no such count: libsndfile then guesses the
    length from the file's size.
    """
    with path.open("rb") as file:
        tag = file.read(10)
        size = 0
        if tag[:3] == b"ID3" and len(tag) == 10:  # 7 bits of each byte (ID3v2.4.0, section 3.1)
            size = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(tag[6:], (21, 14, 7, 0), strict=True))
        file.seek(size)
        head = file.read(_MP3_HEAD)
    for name in (b"Xing", b"Info"):
        at = head.find(name)
        if at >= 0 and head[at + 7 : at + 8] and head[at + 7] & 1:
            return any(head[at + 8 : at + 12])
    at = head.find(b"VBRI")
    return at >= 0 and any(head[at + 14 : at + 18])


def _missing_wav(file: BinaryIO) -> float | None:
    size = os.fstat(file.fileno()).st_size
    file.seek(12)
    while len(header := file.read(8)) == 8:
        name, length = header[:4], struct.unpack("<I", header[4:])[0]
        if name == b"data":
            held = size - file.tell()
            # Programs that write into a pipe don't know the length and leave 0 or the largest number.
            streamed = length == 0 or length >= 0xFFFFFFFF - 0xFFFF
            return None if streamed or held >= length else 1 - held / length
        file.seek(length + length % 2, os.SEEK_CUR)
    return None


def _missing_ogg(file: BinaryIO) -> float | None:
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - _OGG_TAIL))
    tail = file.read()
    page = tail[max(0, tail.rfind(b"OggS")) :]
    if len(page) < _OGG_HEADER or not page[5] & _END_OF_STREAM:
        return 1.0
    segments = page[_OGG_HEADER : _OGG_HEADER + page[26]]
    return None if len(page) >= _OGG_HEADER + page[26] + sum(segments) else 1.0
