"""Where in a file another one begins that was joined to it."""

from __future__ import annotations

import os
import re
from typing import BinaryIO

from phonate.audio.containers.frames import frame_bytes
from phonate.audio.containers.kinds import OTHER, kind_at

CHUNK = 2**20
_LONGEST_BEGINNING = 1024
_BEGINNINGS = re.compile(
    rb"fLaC[\x00\x80]\x00\x00\x22|OggS\x00[\x02\x06]\x00{8}|\x1aE\xdf\xa3.{1,60}?(?:webm|matroska)"
    rb"|RIFF....(?:WAVE|AVI )|(?:RIFX|RF64|BW64)....WAVE|FORM....AIF[FC]|caff\x00\x01\x00\x00|\.snd\x00\x00"
    rb"|\x00\x00\x00.ftyp|#!AMR(?:-WB)?\n|TTA1[\x01\x02]\x00.\x00[\x08\x10\x18]\x00|wvpk....[\x02-\x10]\x04"
    rb"|0&\xb2u\x8ef\xcf\x11|FLV\x01[\x01\x04\x05]\x00\x00\x00\x09|ID3[\x02-\x04]\x00|\xff[\xe2-\xff]|\x0bw|G(?:.{187}G){5}",
    re.DOTALL,
)
"""Of files, with more than their signatures, which are in coded sound by chance; `next_file` confirms short ones."""


def next_file(file: BinaryIO, at: int) -> int | None:
    """Where another file begins, of whatever kind: at `at`, or behind tags that end the one before it."""
    at = _after_last_tags(file, min(at, os.fstat(file.fileno()).st_size))  # few file systems seek far behind their end
    kind, begins = kind_at(file, at)
    codec = _SHORT_SIGNATURES.get(kind.name)
    for _ in range(_FRAMES if codec else 0):
        file.seek(begins)
        length = frame_bytes(codec or "", file.read(8))
        if not length:
            return None
        begins += length
    return None if kind is OTHER else at


_SHORT_SIGNATURES = {"MP3": "mp3", "AAC": "aac", "AC3": "ac3"}
"""Kinds that further frames must confirm, by FFmpeg's names of their codecs."""
_FRAMES = 4


def _after_last_tags(file: BinaryIO, at: int) -> int:
    """The byte behind an APEv2 and an ID3v1 tag, with which files end."""
    file.seek(at)
    head = file.read(32)
    if head[:8] == b"APETAGEX" and len(head) == 32:  # the size is without this header
        at += 32 + int.from_bytes(head[12:16], "little")
        file.seek(at)
        head = file.read(3)
    return at + 128 if head[:3] == b"TAG" else at


def search(file: BinaryIO, pattern: re.Pattern[bytes], start: int) -> int | None:
    """Where from `start` on a pattern of at most `_LONGEST_BEGINNING` bytes is first."""
    size = file.seek(0, os.SEEK_END)
    while start < size:
        file.seek(start)
        # Not more than there is: to make room for it takes longer than to search a clip.
        if found := pattern.search(file.read(min(CHUNK + _LONGEST_BEGINNING, size - start))):
            return start + found.start()
        start += CHUNK
    return None


def search_file(file: BinaryIO, start: int) -> int | None:
    """Where from `start` on another file begins, for kinds that don't tell where they end."""
    at = search(file, _BEGINNINGS, start)
    while at is not None and next_file(file, at) is None:
        at = search(file, _BEGINNINGS, at + 1)
    return at
