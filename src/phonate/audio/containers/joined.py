"""The files that were joined to make one, as decoders stop at the end of the first, without an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from phonate.audio.containers import flac, kinds, lengths, matroska, mp3, mp4, ogg, streams, wav
from phonate.audio.containers.kinds import OTHER, Kind, kind_at
from phonate.audio.containers.part import Examined, Part, missing_share


def parts(path: Path) -> tuple[Part, ...]:
    """The files that were joined to make this one, in order. Raises OSError."""
    status = path.stat()
    return _parts(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _parts(path: Path, device: int, inode: int, size: int, changed: int) -> tuple[Part, ...]:
    """By what tells one state of a file from another: parts of a long recording are read one by one."""
    with path.open("rb") as file:
        return tuple(_all_parts(file, size))


def _all_parts(file: BinaryIO, size: int) -> Iterator[Part]:
    start = 0
    while True:
        kind, at = kind_at(file, start)
        examine = _EXAMINED.get(kind)
        part, follows = (Part(kind, at, size), None) if examine is None else examine(file, Part(kind, at, size))
        begins = start if part.start == at else part.start  # tags belong to it, junk does not
        if follows is None or not part.start < follows < size:
            yield replace(part, start=begins)
            return
        yield replace(part, start=begins, end=min(part.end, follows), missing=None, no_last_page=False)
        start = follows


_EXAMINED: dict[Kind, Callable[[BinaryIO, Part], Examined]] = {
    kinds.WAV: wav.examine,
    kinds.FLAC: flac.examine,
    kinds.OGG: ogg.examine,
    kinds.MATROSKA: matroska.examine,
    kinds.MP3: mp3.examine,
    OTHER: mp3.examine,
    kinds.CAF: lengths.caf,
    kinds.MP4: mp4.examine,
    kinds.FLV: streams.flv,
    kinds.TS: streams.ts,
    kinds.AAC: streams.aac,
    kinds.TRUEHD: streams.truehd,
    kinds.TTA: lengths.tta,
    kinds.AMR: streams.amr,
    **dict.fromkeys(streams.FRAME_BYTES, streams.frames),
    **dict.fromkeys(lengths.END, lengths.declared),
    kinds.VOC: lengths.voc,
}


def with_end(path: Path, part: Part, form: str) -> Part:
    """Of a kind that libsndfile told: with what of it is missing, or that its header has no length."""
    if part.kind is not OTHER or form not in lengths.END_OF_OTHERS:
        return part
    with path.open("rb") as file:
        end = lengths.END_OF_OTHERS[form](file, part.start)
    return (
        replace(part, unknown_length=True)
        if end is None
        else replace(part, missing=missing_share(part.start, end, part.end))
    )
