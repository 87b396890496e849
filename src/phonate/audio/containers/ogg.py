"""Ogg: chained streams, and the times that pages give to packets of Vorbis and Opus, which libsndfile does not read.

A page says how many samples there are up to its end (its granule position, RFC 3533, section 6). Where that is more
than its packets have, a player is silent: a recording that was cut out of a longer one begins late, and a recorder that
paused leaves a hole.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import BinaryIO

from phonate.audio.containers.joints import next_file, search
from phonate.audio.containers.kinds import Kind
from phonate.audio.containers.part import EARLY_SECONDS, JITTER_SECONDS, Examined, Part

_HEADER = 27
"""Bytes of a page before its table of segment lengths (RFC 3533, section 6)."""
_CONTINUED, _FIRST, _LAST = 1, 2, 4
"""Flags of a page."""
_LONGEST_PAGE = 65_536  # bytes; the format allows 65,307
_OPUS_RATE = 48_000
_SILK_MS, _HYBRID_MS, _CELT_MS = (10.0, 20.0, 40.0, 60.0), (10.0, 20.0), (2.5, 5.0, 10.0, 20.0)
_MODE_BITS = 41
_HEADERS = {b"OpusHead": 2, b"\x01vorbis": 3}
"""First bytes of a stream -> its packets without sound."""


@dataclass(frozen=True)
class Page:
    """A page and its place in the file."""

    start: int
    end: int
    flags: int
    granule: int
    """Samples up to the end of the last packet that ends in it; -1 where none does."""
    stream: int
    lengths: bytes
    """Bytes of each segment; a packet ends at one of under 255."""

    @property
    def content(self) -> int:
        """Where its segments begin."""
        return self.start + _HEADER + len(self.lengths)


def examine(file: BinaryIO, part: Part) -> Examined:
    """The first of its files that has sound: some phones write headers twice."""
    while True:
        examined, follows = _chained(file, part)
        if follows is None or follows <= part.start or any(p.granule > 0 for p in pages(file, part.start, follows)):
            return examined, follows
        part = replace(part, start=follows)


def _chained(file: BinaryIO, part: Part) -> Examined:
    """Chained streams (RFC 3533, section 4): where first pages follow pages that are none, another file begins."""
    at, codecs = part.start, []
    page = _page_at(file, at)
    while page is not None and page.flags & _FIRST:
        file.seek(page.content)
        codecs.append(file.read(8))
        at = page.end
        page = _page_at(file, at)
    follows = search(file, re.compile(rb"OggS\x00[\x02\x06]"), at)
    end = part.end if follows is None else follows
    behind = max((page.end for page in pages(file, at, end)), default=at)
    if behind < end and (other := next_file(file, behind)) is not None:
        end = follows = other
    known = len(codecs) == 1 and codecs[0].startswith((b"\x01vorbis", b"OpusHead"))
    late = _late_or_paused(file, part.start, end) if known else None
    if not known or late is not None:
        part = replace(part, kind=Kind("OGG", "ogg", timed=True), begins=late)
    tail = max(part.start, part.end - _LONGEST_PAGE)
    file.seek(tail)
    last = _page_at(file, tail + file.read().rfind(b"OggS"))
    if last is None or last.end > part.end:
        part = replace(part, missing=1.0)  # nothing says how much
    elif not last.flags & _LAST:
        part = replace(part, no_last_page=True)
    return part, follows


def _page_at(file: BinaryIO, at: int) -> Page | None:
    """The page that begins at byte `at`; None where none does."""
    file.seek(at)
    head = file.read(_HEADER)
    if len(head) < _HEADER or head[:4] != b"OggS":
        return None
    lengths = file.read(head[26])
    granule, stream = struct.unpack("<qI", head[6:18])
    return Page(at, at + _HEADER + len(lengths) + sum(lengths), head[5], granule, stream, lengths)


def _late_or_paused(file: BinaryIO, start: int, end: int) -> float | None:
    """The seconds at which sound of the first stream of Vorbis or Opus between two bytes begins, where it is later than
    its packets are long: at its beginning, or behind it; else None."""
    packets = _packets(file, start, end)
    ident, _ = next(packets, (b"", 0))
    headers = next((count for name, count in _HEADERS.items() if ident.startswith(name)), 0)
    others = [packet for packet, _ in islice(packets, headers - 1)] if headers else []
    if not others:
        return None
    opus = headers == _HEADERS[b"OpusHead"]
    samples = _opus_samples if opus else _vorbis_samples(ident, others[-1])
    rate = _OPUS_RATE if opus else int.from_bytes(ident[12:16], "little")
    if not rate:
        return None
    held, position = 0, None
    for packet, granule in packets:
        held += samples(packet)
        if granule is None:
            continue
        gap = (granule - (position or 0) - held) / rate
        if gap > (EARLY_SECONDS if position is None else JITTER_SECONDS):
            return gap if position is None else 0.0
        held, position = 0, granule
    return None


def _packets(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int | None]]:
    """Packets of the stream that begins first, the last that ends in a page with the page's granule position."""
    held, stream = list[bytes](), None
    for page in pages(file, start, end):
        stream = page.stream if stream is None else stream
        if page.stream != stream:
            continue
        file.seek(page.content)
        content, at = file.read(sum(page.lengths)), 0
        if not page.flags & _CONTINUED:
            held.clear()
        last = max((number for number, length in enumerate(page.lengths) if length < 255), default=-1)
        for number, length in enumerate(page.lengths):
            held.append(content[at : at + length])
            at += length
            if length < 255:
                yield b"".join(held), page.granule if number == last else None
                held.clear()


def pages(file: BinaryIO, start: int, end: int) -> Iterator[Page]:
    """Pages one behind the other."""
    while start < end and (page := _page_at(file, start)) is not None:
        yield page
        start = page.end


def _opus_samples(packet: bytes) -> int:
    """Samples of a packet of Opus at 48 kHz (RFC 6716, section 3.1)."""
    if not packet:
        return 0
    mode, code = packet[0] >> 3, packet[0] & 3
    lengths = _SILK_MS if mode < 12 else _HYBRID_MS if mode < 16 else _CELT_MS
    length = lengths[mode % len(lengths)]
    count = (1, 2, 2, packet[1] & 63 if len(packet) > 1 else 0)[code]
    return count * round(length * _OPUS_RATE / 1000)


def _vorbis_samples(ident: bytes, setup: bytes) -> Callable[[bytes], int]:
    """Samples of each packet of Vorbis, one after the other: a quarter of the blocks of it and of the one before
    (Vorbis I, sections 1.3.2 and 4.3.1)."""
    blocks = (1 << (ident[28] & 15), 1 << (ident[28] >> 4))
    modes = _vorbis_modes(setup)
    bits = (len(modes) - 1).bit_length()
    before: int | None = None

    def samples(packet: bytes) -> int:
        nonlocal before
        if not packet or packet[0] & 1:
            return 0
        mode = packet[0] >> 1 & ((1 << bits) - 1)
        block = blocks[modes[mode] if mode < len(modes) else 0]
        length = 0 if before is None else (before + block) // 4
        before = block
        return length

    return samples


def _vorbis_modes(setup: bytes) -> list[int]:
    """Of each mode, whether its blocks are the long ones. Modes are the last of the setup header, behind their number
    in 6 bits (section 4.2.4), so they are read from its end, where a bit is set."""
    bits = int.from_bytes(setup, "little")
    end, modes, found = bits.bit_length() - 1, list[int](), list[int]()
    while (at := end - (len(modes) + 1) * _MODE_BITS) >= 6 and len(modes) < 64:
        mode = bits >> at & ((1 << _MODE_BITS) - 1)
        if mode >> 1 & 0xFFFFFFFF or mode >> 33 > 63:  # window and transform are 0, there are 64 mappings at most
            break
        modes.insert(0, mode & 1)
        if bits >> (at - 6) & 63 == len(modes) - 1:
            found = list(modes)
    return found or [0]
