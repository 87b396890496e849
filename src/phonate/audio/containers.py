"""What a file of sound holds, told by its bytes and never by its name: the kind of container, and the files that were
joined to make it.

Decoders stop at the end of the first of joined files, and read what is cut short, without an error.

libsndfile reads WAV, AIFF, FLAC, MP3, Ogg Vorbis and Opus, FFmpeg (through PyAV) all else.
"""

from __future__ import annotations

import codecs
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from phonate.audio import mp4, ogg

USUAL_SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".m4a")
"""Those of most recordings, which messages name."""
VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".3gp", ".3g2", ".asf", ".wmv", ".avi", ".flv", ".ogv", ".mxf"}
    | {".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".vob", ".rm"}
)
"""Those of files that may hold a video, whose sound is read."""
AUDIO_SUFFIXES = frozenset(
    {*USUAL_SUFFIXES, *VIDEO_SUFFIXES, ".wave", ".bwf", ".w64", ".rf64", ".aiff", ".aif", ".aifc", ".caf"}
    | {".au", ".snd", ".sph", ".nist", ".mp2", ".mpga", ".oga", ".opus", ".spx", ".weba", ".mka", ".ac3", ".dts", ".ra"}
    | {".m4b", ".m4r", ".aac", ".adts", ".wma", ".amr", ".awb", ".wv", ".ape", ".tta", ".tak", ".mpc", ".dsf"}
)
"""Suffixes, in lower case, of the files in folders that are taken for recordings, by training, checks, sessions and
voices alike. How a file is read, its bytes decide."""
RAW_SUFFIXES = (".raw", ".pcm")
"""Those of samples alone, which nobody can read who does not know their rate and kind."""


@dataclass(frozen=True)
class Kind:
    """A kind of container."""

    name: str
    demuxer: str | None = None
    """FFmpeg's name of it; None where libsndfile reads it. FFmpeg never guesses: a text that looks like a playlist
    would make it open other files and addresses."""
    timed: bool = False
    """Whether packets have times that count from the beginning of the recording."""
    promises: bool = False
    """Whether the length that FFmpeg reports stands in the header, and is not an estimate."""
    clock: bool = False
    """Whether times are those of a clock that runs before the recording begins, and that may jump."""
    endless: bool = False
    """Whether it is frames alone, of which no header says how many: it may end within one, as a radio stream does, or
    a recorder that was stopped."""


WAV, AIFF, FLAC, OGG, MP3 = (Kind(name) for name in ("WAV", "AIFF", "FLAC", "OGG", "MP3"))
AU, SPHERE, CAF, W64, SVX = (Kind(name) for name in ("AU", "NIST", "CAF", "W64", "SVX"))
MP4 = Kind("MP4", "mov", timed=True, promises=True)
MATROSKA = Kind("Matroska", "matroska", timed=True)
ASF = Kind("ASF", "asf", timed=True)
AAC = Kind("AAC", "aac", endless=True)
DSF, DSDIFF = Kind("DSF", "dsf"), Kind("DSDIFF", "iff")
DTS = Kind("DTS", "dts", endless=True)
AVI, TTA = Kind("AVI", "avi"), Kind("TTA", "tta", promises=True)
FLV = Kind("FLV", "flv", timed=True, clock=True, endless=True)
VOC = Kind("VOC", "voc")
REALMEDIA, TRUEHD = Kind("RealMedia", "rm", endless=True), Kind("TrueHD", "truehd", endless=True)
OTHER = Kind("other")
"""What libsndfile may know, such as MP3 behind junk."""

TS = Kind("MPEG-TS", "mpegts", True, clock=True, endless=True)
_TS = re.compile(rb"(....)?G(?:(.{187})G.{187}|(.{191})G.{191}|(.{203})G.{203})G", re.DOTALL)
_SIGNATURES = (
    (re.compile(rb"(RIFF|RIFX|RF64|BW64)....WAVE", re.DOTALL), WAV),
    (re.compile(rb"fLaC"), FLAC),
    (re.compile(rb"FORM....AIF[FC]", re.DOTALL), AIFF),
    (re.compile(rb"OggS"), OGG),
    (re.compile(rb"\x1aE\xdf\xa3"), MATROSKA),
    (re.compile(rb"....(ftyp|moov|mdat|wide|pnot)", re.DOTALL), MP4),
    (re.compile(rb"\xff[\xf0\xf1\xf8\xf9]"), AAC),
    (re.compile(rb"\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]"), MP3),
    (re.compile(rb"\.snd"), AU),
    (re.compile(rb"NIST_1A"), SPHERE),
    (re.compile(rb"caff"), CAF),
    (re.compile(rb"0&\xb2u\x8ef\xcf\x11"), ASF),
    (re.compile(rb"#!AMR"), Kind("AMR", "amr", endless=True)),
    (re.compile(rb"\x0bw"), Kind("AC3", "ac3", endless=True)),
    (re.compile(rb"wvpk"), Kind("WavPack", "wv")),
    (re.compile(rb"MAC "), Kind("APE", "ape")),
    (re.compile(rb"TTA1"), TTA),
    (re.compile(rb"tBaK"), Kind("TAK", "tak", promises=True)),
    (re.compile(rb"MP\+"), Kind("Musepack", "mpc", promises=True)),
    (re.compile(rb"MPCK"), Kind("Musepack", "mpc8", promises=True)),
    (re.compile(rb"DSD "), DSF),
    (re.compile(rb"FRM8........DSD ", re.DOTALL), DSDIFF),
    # Packets of 188 bytes that begin with G; AVCHD has 4 bytes more before each, some broadcasts 16 behind it.
    (_TS, TS),
    (re.compile(rb"\x00\x00\x01\xba"), Kind("MPEG-PS", "mpeg", True, clock=True, endless=True)),
    (re.compile(rb"\.RMF"), REALMEDIA),
    (re.compile(rb"\x06\x0e\+4\x02\x05\x01\x01"), Kind("MXF", "mxf", promises=True)),
    (
        re.compile(rb"\x7f\xfe\x80\x01|\xfe\x7f\x01\x80|\x1f\xff\xe8\x00|\xff\x1f\x00\xe8"),
        Kind("DTS", "dts", endless=True),
    ),
    (re.compile(rb"....\xf8ro\xba", re.DOTALL), TRUEHD),
    (re.compile(rb"FLV\x01"), FLV),
    (re.compile(rb"RIFF....AVI ", re.DOTALL), AVI),
    (re.compile(rb"riff\x2e\x91\xcf\x11"), W64),
    (re.compile(rb"FORM....(8SVX|16SV)", re.DOTALL), SVX),
    (re.compile(rb"Creative Voice File"), VOC),
    (re.compile(rb"2BIT|PVF1"), OTHER),  # what libsndfile knows by more than these
    (re.compile(rb"\x64\xa3[\x01-\x04]\x00|\x00[\x01-\x04]\xa3\x64"), OTHER),  # IRCAM
)
_SNDFILE_WAV = {0x01, 0x02, 0x03, 0x06, 0x07, 0x11, 0x31, 0x40, 0xFFFE}
_WAV_FLOAT = 0x03
_SNDFILE_CAF = {b"lpcm", b"ulaw", b"alaw"}
"""Codecs in these containers that libsndfile decodes; FFmpeg decodes the others, integers of 64 bits, and ALAC, of
which libsndfile refuses what FFmpeg itself writes."""
HEAD = 512
"""First bytes of a file that are enough to recognise it."""
_SNDFILE_FLAC = (7, 15, 23)
"""Bits of a sample, less one as FLAC's header has them (RFC 9639, section 8.2), that libsndfile decodes."""
_ADTS_HEADER = 7
_CHUNK = 2**20
_FARTHEST = 2**62  # more can't be sought; damaged headers say so
_OGG_TAIL = 65_536  # an Ogg page is at most 65,307 bytes
EARLY_SECONDS, JITTER_SECONDS = 0.0005, 0.03
"""By which the times of the first and of later packets may differ from the samples before them: Matroska rounds to
milliseconds, and the clocks of recorders are not those of their microphones."""


@dataclass(frozen=True)
class Part:
    """One of the files that a file consists of, end to end; nearly always there is one."""

    kind: Kind
    start: int
    """Its first byte."""
    end: int
    """The byte behind its last."""
    missing: float | None = None
    """Share of the audio that its header promises and that is not there, 1 where only that something is missing is
    known; None where nothing is."""
    counted: bool = True
    """Whether the header of an MP3 says how many samples there are; libsndfile guesses what it does not say."""
    unknown_length: bool = False
    """Whether its header has no length, as that of a file that was written into a pipe."""
    cut_frame: bool = False
    """Whether its last frame is not there as a whole."""
    junk: int = 0
    """Bytes behind its last frame that are none, nor tags."""
    least: int = 0
    """Samples of each channel that a damaged MP3 without a count must have."""
    no_last_page: bool = False
    """Whether no page of an Ogg is marked as the last."""
    length: tuple[int, bytes] | None = None
    """Where such a header says 0, which libsndfile takes for the length, and what it should say."""
    begins: float | None = None
    """Seconds of its first sample, where FFmpeg does not know them: it counts a packet of Vorbis that has no sound."""
    channels: int | None = None
    """The most that a frame has, where not all have as many; None where they have, or that is not known."""
    silences: tuple[tuple[int, float], ...] = ()
    """Of a VOC: each byte of the part before which FFmpeg leaves out silence, and its seconds."""
    edits: Mapping[int, tuple[mp4.Edit, ...]] = field(default_factory=dict)
    """Of an MP4: see `mp4.edits`."""


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
        kind, at = _kind_at(file, start)
        examine = _EXAMINED.get(kind)
        part, follows = (Part(kind, at, size), None) if examine is None else examine(file, Part(kind, at, size))
        begins = start if part.start == at else part.start  # tags belong to it, junk does not
        if follows is None or not part.start < follows < size:
            yield replace(part, start=begins)
            return
        yield replace(part, start=begins, end=min(part.end, follows), missing=None, no_last_page=False)
        start = follows


def recognised(head: bytes) -> bool:
    """Whether a file with these first bytes is of a kind that can be read."""
    return head[:3] == b"ID3" or any(signature.match(head) for signature, _ in _SIGNATURES)


def told(path: Path) -> str:
    """What a file is by its first bytes, for messages."""
    with path.open("rb") as file:
        head = file.read(HEAD)
        utf_16 = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # may look like MP3
        if recognised(head) and not utf_16 and (kind := _kind_at(file, 0)[0]) is not OTHER:
            return f"a recording ({kind.name})"
    if not head:
        return "an empty file"
    if re.match(rb"....(styp|sidx|moof|emsg|prft)", head, re.DOTALL):
        return "a piece of a live MP4 without its header, which comes first"
    with suppress(UnicodeDecodeError):
        text = codecs.getincrementaldecoder("utf-16" if utf_16 else "utf-8-sig")().decode(head).split()
        if all(map(str.isprintable, text)):
            return f"a text that begins with {' '.join(text)[:30]!r}"
    if path.suffix.lower() in RAW_SUFFIXES:
        return "raw samples have no header"
    return f"a file that begins with {head[:8]!r}"


def _kind_at(file: BinaryIO, start: int) -> tuple[Kind, int]:
    """The kind of the file that begins at `start`, and the byte behind its tags."""
    at = after_tags(file, start)
    file.seek(at)
    head = file.read(HEAD)
    kind = next((kind for signature, kind in _SIGNATURES if signature.match(head)), OTHER)
    return kind, at


def _search(file: BinaryIO, pattern: re.Pattern[bytes], start: int) -> int | None:
    """Where from `start` on a pattern of at most 128 bytes is first."""
    size = file.seek(0, os.SEEK_END)
    while start < size:
        file.seek(start)
        # Not more than there is: to make room for it takes longer than to search a clip.
        if found := pattern.search(file.read(min(_CHUNK + 128, size - start))):
            return start + found.start()
        start += _CHUNK
    return None


def _missing(start: int, promised: int, size: int) -> float | None:
    return None if promised <= size else 1.0 - (size - start) / (promised - start)


def _follows(file: BinaryIO, at: int) -> int | None:
    """`at`, where another file begins there, of whatever kind."""
    kind, begins = _kind_at(file, min(at, _FARTHEST))
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


Examined = tuple[Part, int | None]
"""A part of which `start` is behind its tags, and where the next one begins."""


def _ends(file: BinaryIO, part: Part) -> Examined:
    """Containers whose header says where they end."""
    end = _END[part.kind](file, part.start)
    if end is None:
        return replace(part, unknown_length=True), None
    return replace(part, missing=_missing(part.start, end, part.end)), _follows(file, end)


def _wav(file: BinaryIO, part: Part) -> Examined:
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
    return replace(part, missing=_missing(at, at + length, part.end)), _follows(file, whole + whole % 2)


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


def _flac(file: BinaryIO, part: Part) -> Examined:
    file.seek(part.start)
    head = file.read(26)
    counted = len(head) == 26 and bool(head[21] & 15 or any(head[22:]))
    late = _flac_begins_late(file, part)
    if late or (len(head) == 26 and (head[20] & 1) << 4 | head[21] >> 4 not in _SNDFILE_FLAC):
        part = replace(part, kind=Kind("FLAC", "flac", timed=late, promises=counted, endless=not counted))
    return _searched(file, part)


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


def _flv(file: BinaryIO, part: Part) -> Examined:
    """Programs note the size of the file once it is whole (E.4.4.1 of Adobe's FLV and F4V 10.1)."""
    file.seek(part.start)
    head = file.read(_HEAD)
    at = head.find(b"\x08filesize\0")
    part, follows = _searched(file, part)
    size = struct.unpack(">d", head[at + 10 : at + 18])[0] if 0 <= at <= len(head) - 18 else 0.0
    if size == 0.0:
        return replace(part, cut_frame=_flv_is_cut(file, part)), follows
    promised = part.start + int(min(max(size, 0.0), _FARTHEST))
    part = replace(part, missing=_missing(part.start, promised, part.end))
    return part, _follows(file, promised) if follows is None else follows


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


def _aac(file: BinaryIO, part: Part) -> Examined:
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


def _truehd(file: BinaryIO, part: Part) -> Examined:
    """Frames begin with their length, in words of 2 bytes, and one of 128 at least has a sync behind it. FFmpeg leaves
    out what is there of the last one."""
    file.seek(max(part.start, part.end - _CHUNK))
    tail = file.read()
    at = tail.rfind(_TRUEHD_SYNC) - 4
    while 0 <= at < len(tail) and (length := 2 * (int.from_bytes(tail[at : at + 2], "big") & 0xFFF)):
        at += length
    return replace(part, cut_frame=at > len(tail)), None


_TRUEHD_SYNC = b"\xf8ro\xba"


def _ts(file: BinaryIO, part: Part) -> Examined:
    file.seek(part.start)
    match = _TS.match(file.read(HEAD))
    assert match is not None
    rest = (part.end - part.start) % (len(match[match.lastindex or 2]) + 1)
    file.seek(part.end - rest + len(match[1] or b""))
    return replace(part, cut_frame=rest > 0 and file.read(1) == b"G"), None


def _searched(file: BinaryIO, part: Part) -> Examined:
    """Containers of which only the next one's first bytes say that it follows."""
    return part, _search(file, _FIRST[part.kind.name], part.start + 4)


def _ogg(file: BinaryIO, part: Part) -> Examined:
    """The first of its files that has sound: some phones write headers twice."""
    while True:
        examined, follows = _ogg_file(file, part)
        if follows is None or follows <= part.start or any(p.granule > 0 for p in ogg.pages(file, part.start, follows)):
            return examined, follows
        part = replace(part, start=follows)


def _ogg_file(file: BinaryIO, part: Part) -> Examined:
    """Chained streams (RFC 3533, section 4): where first pages follow pages that are none, another file begins."""
    at, codecs = part.start, []
    page = ogg.page_at(file, at)
    while page is not None and page.flags & ogg.FIRST:
        file.seek(page.content)
        codecs.append(file.read(8))
        at = page.end
        page = ogg.page_at(file, at)
    follows = _search(file, re.compile(rb"OggS\x00[\x02\x06]"), at)
    end = part.end if follows is None else follows
    behind = max((page.end for page in ogg.pages(file, at, end)), default=at)
    if behind < end and (other := _follows(file, behind)) is not None:
        end = follows = other
    known = len(codecs) == 1 and codecs[0].startswith((b"\x01vorbis", b"OpusHead"))
    late = ogg.late_or_paused(file, part.start, end, EARLY_SECONDS, JITTER_SECONDS) if known else None
    if not known or late is not None:
        part = replace(part, kind=Kind("OGG", "ogg", timed=True), begins=late)
    file.seek(max(part.start, part.end - _OGG_TAIL))
    tail = file.read()
    last = tail[max(0, tail.rfind(b"OggS")) :]
    whole = len(last) >= ogg.HEADER and len(last) >= ogg.HEADER + last[26] + sum(last[ogg.HEADER :][: last[26]])
    if not whole:
        part = replace(part, missing=1.0)  # nothing says how much
    elif not last[5] & ogg.LAST:
        part = replace(part, no_last_page=True)
    return part, follows


def _matroska(file: BinaryIO, part: Part) -> Examined:
    end = _segment_end(file, part.start)
    if end is not None:
        return replace(part, missing=_missing(part.start, end, part.end)), _follows(file, end)
    follows = _search(file, re.compile(rb"\x1aE\xdf\xa3.{1,60}?(webm|matroska)", re.DOTALL), part.start + 4)
    kind, end = replace(part.kind, endless=True), follows or part.end
    at = _elements_end(file, part.start, end)
    if at < end and (other := _follows(file, at)) is not None:
        return replace(part, kind=kind), other
    return replace(part, kind=kind, cut_frame=at > end, end=min(at, end), junk=max(0, end - at)), follows


def _segment_end(file: BinaryIO, start: int) -> int | None:
    """Where the segment of a Matroska file ends; None where recorders left it open (RFC 8794, sections 4 and 6.2)."""
    file.seek(start + 4)
    header = _ebml_size(file)
    if header is None:
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


def _mp3(file: BinaryIO, part: Part) -> Examined:
    stream = stream_at(file, part.start, part.end, surely=part.kind is OTHER)
    if stream is None:
        return part, None
    part = replace(part, end=part.end if stream.end is None else stream.end, junk=stream.junk)
    if part.kind is OTHER:
        part = replace(part, start=stream.first)
    part = replace(part, cut_frame=stream.cut, least=stream.least)
    if stream.changes:  # libmpg123 stops where they do
        return replace(part, kind=Kind("MP3", "mp3", endless=not stream.counted), channels=2), stream.follows
    # libsndfile takes all frames to be as long as the first, and stops where the file would end; of VBRI's it hears the
    # one that counts the others, too.
    if stream.varies or stream.vbri:
        return replace(part, kind=Kind("MP3", "mp3", promises=stream.vbri, endless=not stream.vbri)), stream.follows
    return replace(part, kind=MP3, counted=stream.counted), stream.follows


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


def _voc(file: BinaryIO, part: Part) -> Examined:
    """A block of silence is its samples, less one, and 256 less the microseconds of each."""
    examined, follows = _ends(file, part)
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


_END_OF_OTHERS: dict[str, Callable[[BinaryIO, int], int | None]] = {
    "AVR": _avr_end,
    "MAT4": _mat4_end,
    "MAT5": _mat5_end,
    "MPC2K": _mpc2k_end,
    "SDS": _sds_end,
    "WVE": _wve_end,
    **dict.fromkeys(("IRCAM", "PAF", "PVF", "XI"), lambda _file, _start: None),
}
"""By libsndfile's names; these four have no length."""


def with_end(path: Path, part: Part, form: str) -> Part:
    """Of a kind that libsndfile told: with what of it is missing, or that its header has no length."""
    if part.kind is not OTHER or form not in _END_OF_OTHERS:
        return part
    with path.open("rb") as file:
        end = _END_OF_OTHERS[form](file, part.start)
    return (
        replace(part, unknown_length=True)
        if end is None
        else replace(part, missing=_missing(part.start, end, part.end))
    )


def _caf(file: BinaryIO, part: Part) -> Examined:
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
            return replace(part, kind=Kind("CAF", "caf"), missing=_missing(part.start, at, part.end)), None
        if _follows(file, at):
            return part, at


def _mp4(file: BinaryIO, part: Part) -> Examined:
    """Another file type box begins another file, as do bytes that are no box; pieces of a fragmented file have none.
    What is missing is told by the samples, but for the movie box, which recorders write last and nothing can be read
    without."""
    at, names = part.start, set[bytes]()
    while True:
        file.seek(min(at, _FARTHEST))
        header = file.read(16)
        named = re.match(rb"[ -~]{4}", header[4:])
        other = at > part.start and (header[4:8] == b"ftyp" or (not named and _follows(file, at) is not None))
        if len(header) < 8 or other:
            follows = at if other else None
            cut = part.cut_frame or (b"moof" in names and 0 < len(header) < 8)
            return replace(part, cut_frame=cut, missing=None if b"moov" in names else 1.0), follows
        names.add(header[4:8])
        length = struct.unpack(">I", header[:4])[0]
        if length == 1 and len(header) == 16:
            length = struct.unpack(">Q", header[8:])[0]
        if length == 0 and b"moov" not in names:  # goes on to the end of the file, where nobody wrote the movie box
            return replace(part, missing=1.0), None
        if length < 8:
            return part, None
        if header[4:8] in (b"mdat", b"moof") and at + length > part.end:
            part = replace(part, cut_frame=True)
        if header[4:8] == b"moov":
            part = replace(part, edits=mp4.edits(file, at + 8, min(at + length, part.end)))
        at += length


_END: dict[Kind, Callable[[BinaryIO, int], int | None]] = {
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
_FIRST = {
    "FLAC": re.compile(rb"fLaC[\x00\x80]\x00\x00\x22"),
    "FLV": re.compile(rb"FLV\x01[\x01\x04\x05]\x00\x00\x00\x09\x00\x00\x00\x00"),
    "TTA": re.compile(rb"TTA1[\x01\x02]\x00.\x00[\x08\x10\x18]\x00", re.DOTALL),
}
_EXAMINED: dict[Kind, Callable[[BinaryIO, Part], Examined]] = {
    WAV: _wav,
    FLAC: _flac,
    OGG: _ogg,
    MATROSKA: _matroska,
    MP3: _mp3,
    OTHER: _mp3,
    CAF: _caf,
    MP4: _mp4,
    FLV: _flv,
    TS: _ts,
    AAC: _aac,
    TRUEHD: _truehd,
    TTA: _searched,
    **dict.fromkeys(_END, _ends),
    VOC: _voc,
}


# ------------------------------------------------------------ Where the frames of an MP3 are

_MOST_DAMAGED = 100
_LOST = 5
"""Frames that decoders may leave out where some bytes are none."""
_HEAD, _SEARCHED = 4_096, 65_536
_COUNTS = (b"Xing", b"Info", b"VBRI")
_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")
"""With which tags behind the last frame begin."""
_KBPS = {
    (True, 1): range(32, 449, 32),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates by whether it is MPEG-1, and layer."""


@dataclass(frozen=True)
class Stream:
    """The MPEG frames of a file."""

    first: int
    """Its first byte."""
    counted: bool
    """Whether the first frame counts them (Xing, Info, VBRI); files that were written into a pipe, and many of constant
    bit rate, have no count."""
    follows: int | None
    """The byte at which another file begins that was joined to it."""
    changes: bool = False
    """Whether some frames are mono and others stereo."""
    varies: bool = False
    """Whether frames without a count have several bit rates, so that the length of the file says nothing of theirs."""
    vbri: bool = False
    """Whether VBRI counts them."""
    end: int | None = None
    """The byte behind the last frame, where others are behind it that are none: libmpg123 looks for frames in them."""
    junk: int = 0
    """How many these are, where they are neither tags nor zeros."""
    cut: bool = False
    """Whether the last of frames without a count goes on behind the end of the file."""
    least: int = 0
    """Samples that these surely have, where bytes between them are none."""


def stream_at(file: BinaryIO, start: int, size: int, surely: bool) -> Stream | None:
    """What begins at byte `start`, behind tags, of a file of `size` bytes; None where no frames do. `surely`: take only
    several in a row for frames."""
    first = _next_frames(file, start, 4 if surely else 2)
    if first is None and surely:
        return None
    file.seek(start if first is None else first)
    head = file.read(_HEAD)
    frame = _frame(head[:4])
    head = head if frame is None else head[: frame[0]]  # behind a short file the next one's count is near
    frames, length = _count(head)
    if first is None:  # of free format, whose frames don't say how long they are
        return Stream(start, frames > 0, None)
    if not frames:
        return _uncounted(file, first, size)
    end, changes = _behind(file, first, frames)
    if length:
        end = first + length
    follows = _file_behind(file, end, size) if end is not None else None
    return Stream(first, True, follows, changes, vbri=head[36:40] == b"VBRI")


def _count(head: bytes) -> tuple[int, int]:
    """Frames and bytes that a first frame says there are; 0 for what it does not say."""
    for name in (b"Xing", b"Info"):
        at = head.find(name)
        if at >= 0 and len(head) >= at + 16:
            flags, *values = struct.unpack(">III", head[at + 4 : at + 16])
            frames = values.pop(0) if flags & 1 else 0
            return frames, values[0] if flags & 2 else 0
    at = head.find(b"VBRI")
    if at >= 0 and len(head) >= at + 18:
        length, frames = struct.unpack(">II", head[at + 10 : at + 18])
        return frames, length
    return 0, 0


@lru_cache(maxsize=1024)
def _frame(header: bytes) -> tuple[int, tuple[int, int, int]] | None:
    """Length in bytes of the frame with these 4 bytes, and what does not change in a stream: version and layer, rate,
    whether it is mono. (ISO/IEC 11172-3, 2.4.2.3)"""
    if len(header) < 4 or header[0] != 0xFF or header[1] < 0xE0:
        return None
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)  # version 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    bits, rate, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer == 4 or not 0 < bits < 15 or rate == 3:
        return None
    hz = (44_100, 48_000, 32_000)[rate] // {3: 1, 2: 2, 0: 4}[version]
    kbps = _KBPS[(version == 3, layer)][bits - 1]
    if layer == 1:
        length = 4 * (12_000 * kbps // hz + padding)
    else:
        length = (72_000 if layer == 3 and version != 3 else 144_000) * kbps // hz + padding
    return length, (header[1] & 0xFE, hz, int(header[3] >> 6 == 3))


def frame_bytes(codec: str, head: bytes) -> int:
    """The length of the frame that begins with `head`, as it says; 0 where it does not. (AAC in ADTS: ISO/IEC 13818-7,
    6.2; AC-3: ATSC A/52, 5.3 and E.1.3.1; DTS: ETSI TS 102 114, 5.3.1)"""
    head = head.ljust(8, b"\0")
    if codec in ("mp1", "mp2", "mp3", "mp3float"):
        frame = _frame(head[:4])
        return 0 if frame is None else frame[0]
    if codec == "aac" and head[:1] == b"\xff" and head[1] & 0xF6 == 0xF0:
        return int.from_bytes(head[3:6], "big") >> 5 & 0x1FFF
    if codec in ("ac3", "eac3") and head[:2] == b"\x0bw":
        if head[5] >> 3 > 10:
            return 2 * ((int.from_bytes(head[2:4], "big") & 0x7FF) + 1)
        rate, size = head[4] >> 6, head[4] & 63
        if rate < 3 and size < 38:
            words = 96_000 * _AC3_KBPS[size // 2] // (48_000, 44_100, 32_000)[rate]
            return 2 * (words + (size & 1 if rate == 1 else 0))
    if codec in ("dts", "dca") and head[:4] == b"\x7f\xfe\x80\x01":
        return (int.from_bytes(head[5:8], "big") >> 4 & 0x3FFF) + 1
    return 0


_AC3_KBPS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)


def _next_frames(file: BinaryIO, start: int, count: int) -> int | None:
    """Where, within a few frames from `start`, at least `count` MPEG frames of one stream follow each other; tags
    before them belong to them. None where that is nowhere."""
    file.seek(start)
    head = file.read(_SEARCHED)
    tags = after_tags(file, start)
    if tags > start:
        return start if _next_frames(file, tags, count) is not None else None
    at = head.find(b"\xff")
    while at >= 0:
        if _is_stream(file, start + at, count):
            return start + at
        at = head.find(b"\xff", at + 1)
    return None


def _is_stream(file: BinaryIO, at: int, count: int) -> bool:
    stream = None
    for _ in range(count):
        file.seek(at)
        frame = _frame(file.read(4))
        if frame is None or stream not in (None, frame[1]):
            return False
        at, stream = at + frame[0], frame[1]
    return True


def _behind(file: BinaryIO, first: int, frames: int) -> tuple[int | None, bool]:
    """Where `frames` frames and the one that counts them end, None where there are fewer; and whether some are mono and
    others stereo."""
    at, channels = first, set[int]()
    for _ in range(frames + 1):
        file.seek(at)
        frame = _frame(file.read(4))
        if frame is None:
            return None, len(channels) > 1
        at += frame[0]
        channels.add(frame[1][2])
    return at, len(channels) > 1


def _uncounted(file: BinaryIO, first: int, size: int) -> Stream:
    """Frames without a count end where those of another rate begin, or a tag or count that only a file begins with."""
    at, damaged, follows, end, junk, cut = first, 0, None, None, 0, False
    stream: list[int] | None = None
    channels, bit_rates, frames = set[int](), set[int](), 0
    while at < size and damaged < _MOST_DAMAGED:
        file.seek(at)
        head = file.read(HEAD)
        frame = _frame(head[:4])
        length, (*kind, mono) = frame or (0, (0, 0, 0))
        begins = any(head[4 + n : 8 + n] in _COUNTS for n in (9, 17, 32)) or kind != stream
        if frame is not None and stream is not None and begins and _is_stream(file, at, 2):
            follows = at
            break
        if frame is None or (stream is not None and begins):
            if head[:3] == b"ID3" and _next_frames(file, at, 2) is not None:
                follows = at
                break
            if head.startswith(_TAGS):  # they end a file
                follows, end = _frames_behind(file, at + 1, size), at
                break
            if frame is None and (follows := _follows(file, at)) is not None:
                break
            following = _next_frames(file, at + 1, 2)
            if following is None:
                cut = at + 4 > size and head.startswith(b"\xff")
                clean = cut or _only_zeros(file, at)
                end = at if clean or _frames_behind(file, at + 1, size) is None else None
                junk = 0 if clean or end is None else size - at
                break
            at, damaged = following, damaged + 1
            continue
        channels.add(mono)
        bit_rates.add(head[2] >> 4)
        at, stream, frames = at + length, kind, frames + 1
    least = max(0, frames - _LOST * damaged) * _samples(stream[0]) if damaged and stream else 0
    varies, cut = len(bit_rates) > 1, cut or at > size
    return Stream(first, False, follows, len(channels) > 1, varies, end=end, junk=junk, cut=cut, least=least)


def _samples(version_and_layer: int) -> int:
    """Samples of a frame with this second byte."""
    version, layer = version_and_layer >> 3 & 3, 4 - (version_and_layer >> 1 & 3)
    return 384 if layer == 1 else 1152 if layer == 2 or version == 3 else 576


def _file_behind(file: BinaryIO, at: int, size: int) -> int | None:
    """Where behind the last frame, which ends at byte `at`, another file begins. None where none does."""
    file.seek(at)
    other = _follows(file, at + (128 if file.read(3) == b"TAG" else 0))
    return _frames_behind(file, at, size) if other is None else other


def _frames_behind(file: BinaryIO, at: int, size: int) -> int | None:
    """Where from byte `at` on frames are next, however far: covers in tags are large. None where none are."""
    places = (_next_frames(file, start, 4) for start in range(at, size, _SEARCHED))
    return next((place for place in places if place is not None), None)


def _only_zeros(file: BinaryIO, at: int) -> bool:
    """Whether nothing else is behind byte `at`."""
    file.seek(at)
    return not any(chunk.strip(b"\0") for chunk in iter(lambda: file.read(_CHUNK), b""))


def after_tags(file: BinaryIO, at: int) -> int:
    """The byte behind ID3 tags and the zeros that some programs leave behind them."""
    while True:
        file.seek(at)
        tag = file.read(10)
        if tag[:3] != b"ID3" or len(tag) < 10:
            return at
        # 7 bits of each byte (ID3v2.4.0, section 3.1); the flag says that a footer follows
        length = sum((byte & 0x7F) << shift for byte, shift in zip(tag[6:], (21, 14, 7, 0), strict=True))
        at += 10 + length + (10 if tag[5] & 0x10 else 0)
        file.seek(at)
        rest = file.read(_SEARCHED)
        at += len(rest) - len(rest.lstrip(b"\0"))
