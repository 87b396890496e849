"""Containers whose header says where they end."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO

from phonate.audio.containers.joints import next_file, search_file
from phonate.audio.containers.kinds import AIFF, ASF, AU, AVI, DSDIFF, DSF, REALMEDIA, SPHERE, SVX, VOC, W64, Kind
from phonate.audio.containers.part import Examined, Part, missing_share


def declared(file: BinaryIO, part: Part) -> Examined:
    """What of it is missing, and whether another file begins where it ends."""
    end = END[part.kind](file, part.start)
    if end is None:
        return replace(part, unknown_length=True), None
    follows = search_file(file, end) if part.kind is REALMEDIA else next_file(file, end)
    return replace(part, missing=missing_share(part.start, end, part.end)), follows


def _aiff_end(file: BinaryIO, start: int) -> int | None:
    file.seek(start + 4)
    size = struct.unpack(">I", file.read(4))[0]
    return None if size == 0 or size >= 0x7F000000 else start + 8 + size + size % 2


def _au_end(file: BinaryIO, start: int) -> int | None:
    file.seek(start + 4)
    header = file.read(8)
    if len(header) < 8:
        return None
    begins, length = struct.unpack(">II", header)
    return None if length == 0xFFFFFFFF else start + begins + length


def _sphere_end(file: BinaryIO, start: int) -> int | None:
    file.seek(start)
    header = file.read(1024)
    fields = dict(re.findall(rb"^(\w+) -[is]\d* (\S+)", header, re.MULTILINE))
    try:
        samples = int(fields[b"sample_count"]) * int(fields[b"channel_count"]) * int(fields[b"sample_n_bytes"])
        return start + int(header[8:16]) + samples
    except (KeyError, ValueError):
        return None


def _w64_end(file: BinaryIO, start: int) -> int | None:
    file.seek(start + 16)
    size = int(struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0])
    return start + size if 0 < size < 2**62 else None


def _avi_end(file: BinaryIO, start: int) -> int | None:
    """Where the last of its lists ends: over 1 GB, others follow the first (OpenDML AVI 1.02, 2.0)."""
    end, kind = start, b"AVI "
    while True:
        file.seek(end)
        name, size, form = struct.unpack("<4sI4s", file.read(12).ljust(12, b"\0"))
        if (name, form) != (b"RIFF", kind):
            return end
        if size in (0, 0xFFFFFFFF):  # written into a pipe
            return None
        end, kind = end + 8 + size + size % 2, b"AVIX"


def _dsf_end(file: BinaryIO, start: int) -> int:
    """The size of the file that its header gives (DSF File Format Specification 1.01)."""
    file.seek(start + 12)
    return start + int(struct.unpack("<Q", file.read(8).ljust(8, b"\0"))[0])


def _dsdiff_end(file: BinaryIO, start: int) -> int:
    """The end of the chunk that all others are in (DSDIFF 1.5, 3.1)."""
    file.seek(start + 4)
    return start + 12 + int(struct.unpack(">Q", file.read(8).ljust(8, b"\0"))[0])


def _asf_end(file: BinaryIO, start: int) -> int | None:
    """The size that the file properties give (ASF Specification, 3.2); 0 in broadcasts."""
    file.seek(start)
    head = file.read(65_536)
    at = head.find(b"\xa1\xdc\xab\x8cG\xa9\xcf\x11")
    if at < 0 or len(head) < at + 48:
        return None
    size = int(struct.unpack("<Q", head[at + 40 : at + 48])[0])
    return start + size if size else None


def _realmedia_end(file: BinaryIO, start: int) -> int | None:
    """Where the last chunk with packets ends; that of a stream does not say so. FFmpeg counts 10 bytes too many, and
    its last 8 are no packet's."""
    at, end = start, None
    while True:
        file.seek(at)
        name, size, following = struct.unpack(">4sI6xI", file.read(18).ljust(18, b"\0"))
        if name == b"DATA":
            end = at + size - 18 if size > 18 else None
            size = following - at
        if size < 8:
            return end
        at += size


def voc(file: BinaryIO, part: Part) -> Examined:
    """A block of silence is its samples, less one, and 256 less the microseconds of each."""
    examined, follows = declared(file, part)
    silences = []
    for kind, at, length in _voc_blocks(file, part.start):
        if kind == _VOC_SILENCE and length >= 3:
            file.seek(at)
            samples, rate = struct.unpack("<HB", file.read(3).ljust(3, b"\0"))
            silences.append((at - part.start, (samples + 1) * (256 - rate) / 1e6))
    return replace(examined, silences=tuple(silences)), follows


_VOC_SILENCE = 3


def _voc_end(file: BinaryIO, start: int) -> int | None:
    """Where the last of its blocks ends."""
    end: int | None = start
    for kind, at, length in _voc_blocks(file, start):
        end = at - 3 if kind == 0 else None if length == 0xFFFFFF else at + length
    return end


def _voc_blocks(file: BinaryIO, start: int) -> Iterator[tuple[int, int, int]]:
    """Kind, first byte of the content and length of each; one of kind 0 is a byte that ends the file. SoX counts 8
    bytes too few in blocks of 16 bits, and what is left is no block."""
    size = file.seek(0, os.SEEK_END)
    file.seek(start + 20)
    at = start + int.from_bytes(file.read(2), "little")
    while at < size:
        file.seek(at)
        header = file.read(4).ljust(4, b"\0")
        length = int.from_bytes(header[1:], "little")
        if size - at <= 9 and (header[0], length) != (_VOC_SILENCE, 3):
            return
        yield header[0], at + 4, length
        if not header[0] or length == 0xFFFFFF:
            return
        at += 4 + length


# What libsndfile knows by more than its first bytes. Its header is whole, or libsndfile would not have opened it.


def tta(file: BinaryIO, part: Part) -> Examined:
    """A table has the bytes of each frame, and a checksum (the format's description, by its author). What is missing is
    told by the samples."""
    file.seek(part.start)
    rate, samples = struct.unpack("<10x2I4x", file.read(_TTA_HEADER).ljust(_TTA_HEADER, b"\0"))
    count = -(-samples // (256 * rate // 245)) if rate else 0
    table = file.read(4 * min(count, part.end // 4))
    end = (
        part.start
        + _TTA_HEADER
        + 4 * count
        + 4
        + sum(one for (one,) in struct.iter_unpack("<I", table[: len(table) // 4 * 4]))
    )
    return part, next_file(file, end)


_TTA_HEADER = 22


def caf(file: BinaryIO, part: Part) -> Examined:
    file.seek(part.start + 28)
    if file.read(4) not in _SNDFILE_CAF:
        part = replace(part, kind=Kind("CAF", "caf"))
    at = part.start + 8
    while True:
        file.seek(at)
        header = file.read(12)
        if len(header) < 12:
            return part, None
        length = struct.unpack(">q", header[4:])[0]
        if length < 0:  # the samples go on to the end of the file, which libsndfile calls malformed
            return replace(part, kind=Kind("CAF", "caf"), unknown_length=True), None
        at += 12 + length
        if at > part.end:  # of which libsndfile opens nothing
            return replace(part, kind=Kind("CAF", "caf"), missing=missing_share(part.start, at, part.end)), None
        if next_file(file, at):
            return part, at


_SNDFILE_CAF = {b"lpcm", b"ulaw", b"alaw"}
"""Codecs in these containers that libsndfile decodes; FFmpeg decodes the others, integers of 64 bits, and ALAC, of
which libsndfile refuses what FFmpeg itself writes."""
END: dict[Kind, Callable[[BinaryIO, int], int | None]] = {
    AIFF: _aiff_end,
    AU: _au_end,
    SPHERE: _sphere_end,
    ASF: _asf_end,
    DSF: _dsf_end,
    DSDIFF: _dsdiff_end,
    W64: _w64_end,
    AVI: _avi_end,
    SVX: _aiff_end,
    VOC: _voc_end,
    REALMEDIA: _realmedia_end,
}


def _avr_end(file: BinaryIO, start: int) -> int:
    file.seek(start + 12)
    stereo, bits, frames = struct.unpack(">HH10xI", file.read(18))
    return start + 128 + int(frames * (2 if stereo else 1) * (bits // 8))


def _mat4_end(file: BinaryIO, start: int) -> int:
    """Two matrices: the rate, then the samples (Level 4 MAT-files: type, rows, columns, imaginary, length of the
    name)."""
    file.seek(start)
    first = file.read(20)
    order = "<" if first[4] else ">"
    at = start + 20 + int(struct.unpack(f"{order}16xI", first)[0]) + 8
    file.seek(at)
    kind, rows, columns, _, name = struct.unpack(f"{order}5I", file.read(20))
    return at + 20 + int(name) + int(rows) * int(columns) * (8, 4, 4, 2, 2, 1)[kind // 10 % 10]


def _mat5_end(file: BinaryIO, start: int) -> int:
    """An element with the rate, then one of flags, dimensions, name and samples (MAT-File Level 5: type, size)."""
    file.seek(start + 126)
    order, at = "<" if file.read(2) == b"IM" else ">", start + 128

    def element() -> int:
        file.seek(at)
        kind, size = struct.unpack(f"{order}2I", file.read(8))
        return 0 if kind >> 16 else int(size)  # small ones are in their 8 bytes

    at += 8 + element() + 8
    for _ in range(3):
        at += 8 + -(-element() // 8) * 8
    return at + 8 + element()


def _mpc2k_end(file: BinaryIO, start: int) -> int:
    file.seek(start + 21)
    stereo, frames = struct.unpack("<B8xI", file.read(13))
    return start + 42 + int(frames) * (4 if stereo else 2)


def _wve_end(file: BinaryIO, start: int) -> int:
    file.seek(start + 18)
    return start + 32 + int(struct.unpack(">I", file.read(4))[0])


def _sds_end(file: BinaryIO, start: int) -> int:
    """Packets of 127 bytes with 120 of samples, 7 bits in each (MIDI 1.0, Sample Dump Standard)."""
    file.seek(start + 6)
    head = file.read(7)
    frames = head[4] | head[5] << 7 | head[6] << 14
    return start + 21 + -(-frames // (120 // -(-head[0] // 7))) * 127


END_OF_OTHERS: dict[str, Callable[[BinaryIO, int], int | None]] = {
    "AVR": _avr_end,
    "MAT4": _mat4_end,
    "MAT5": _mat5_end,
    "MPC2K": _mpc2k_end,
    "SDS": _sds_end,
    "WVE": _wve_end,
    **dict.fromkeys(("IRCAM", "PAF", "PVF", "XI"), lambda _file, _start: None),
}
"""By libsndfile's names; these four have no length."""
