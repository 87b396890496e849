"""What a file of sound is: in a folder by its suffix, and when it is read by its first bytes, whatever its name.

libsndfile reads WAV, AIFF, FLAC, MP3, Ogg Vorbis and Opus, FFmpeg (through PyAV) all else.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

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
WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
_PACKED = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""First bytes of a workbook, as of all zip files, or as Excel wrote it until 2003."""


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
AC3, AMR, DTS = (Kind(name, name.lower(), endless=True) for name in ("AC3", "AMR", "DTS"))
AVI, TTA, WAVPACK = Kind("AVI", "avi"), Kind("TTA", "tta", promises=True), Kind("WavPack", "wv")
FLV = Kind("FLV", "flv", timed=True, clock=True, endless=True)
VOC = Kind("VOC", "voc")
REALMEDIA, TRUEHD = Kind("RealMedia", "rm", endless=True), Kind("TrueHD", "truehd", endless=True)
OTHER = Kind("other")
"""What libsndfile may know, such as MP3 behind junk."""
TS = Kind("MPEG-TS", "mpegts", True, clock=True, endless=True)
PS = Kind("MPEG-PS", "mpeg", True, clock=True, endless=True)
TS_PACKETS = re.compile(rb"(....)?G(?:(.{187})G.{187}|(.{191})G.{191}|(.{203})G.{203})G", re.DOTALL)
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
    (re.compile(rb"#!AMR"), AMR),
    (re.compile(rb"\x0bw"), AC3),
    (re.compile(rb"wvpk"), WAVPACK),
    (re.compile(rb"MAC "), Kind("APE", "ape")),
    (re.compile(rb"TTA1"), TTA),
    (re.compile(rb"tBaK"), Kind("TAK", "tak", promises=True)),
    (re.compile(rb"MP\+"), Kind("Musepack", "mpc", promises=True)),
    (re.compile(rb"MPCK"), Kind("Musepack", "mpc8", promises=True)),
    (re.compile(rb"DSD "), DSF),
    (re.compile(rb"FRM8........DSD ", re.DOTALL), DSDIFF),
    # Packets of 188 bytes that begin with G; AVCHD has 4 bytes more before each, some broadcasts 16 behind it.
    (TS_PACKETS, TS),
    (re.compile(rb"\x00\x00\x01\xba"), PS),
    (re.compile(rb"\.RMF"), REALMEDIA),
    (re.compile(rb"\x06\x0e\+4\x02\x05\x01\x01"), Kind("MXF", "mxf", promises=True)),
    (re.compile(rb"\x7f\xfe\x80\x01|\xfe\x7f\x01\x80|\x1f\xff\xe8\x00|\xff\x1f\x00\xe8"), DTS),
    (re.compile(rb"....\xf8ro\xba", re.DOTALL), TRUEHD),
    (re.compile(rb"FLV\x01"), FLV),
    (re.compile(rb"RIFF....AVI ", re.DOTALL), AVI),
    (re.compile(rb"riff\x2e\x91\xcf\x11"), W64),
    (re.compile(rb"FORM....(8SVX|16SV)", re.DOTALL), SVX),
    (re.compile(rb"Creative Voice File"), VOC),
    (re.compile(rb"2BIT|PVF1"), OTHER),  # what libsndfile knows by more than these
    (re.compile(rb"\x64\xa3[\x01-\x04]\x00|\x00[\x01-\x04]\xa3\x64"), OTHER),  # IRCAM
)
HEAD = 512
"""First bytes of a file that are enough to recognise it."""
SEARCHED = 65_536


def recognised(head: bytes) -> bool:
    """Whether a file with these first bytes is of a kind that can be read."""
    return head[:3] == b"ID3" or any(signature.match(head) for signature, _ in _SIGNATURES)


def is_workbook(path: Path, suffixes: Sequence[str] = WORKBOOKS) -> bool:
    """Whether a file with one of the suffixes is a workbook, whatever it is called."""
    if path.suffix.lower() not in suffixes or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4).startswith(_PACKED)


def told(path: Path) -> str:
    """What a file is by its first bytes, for messages."""
    with path.open("rb") as file:
        head = file.read(HEAD)
        utf_16 = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # may look like MP3
        if recognised(head) and not utf_16 and (kind := kind_at(file, 0)[0]) is not OTHER:
            return f"a recording ({kind.name})"
    if not head:
        return "an empty file"
    if re.match(rb"....(styp|sidx|moof|emsg|prft)", head, re.DOTALL):
        return "a piece of a live MP4 without its header, which comes first"
    with suppress(UnicodeDecodeError):
        text = codecs.getincrementaldecoder("utf-16" if utf_16 else "utf-8-sig")().decode(head).split()
        if all(map(str.isprintable, text)):
            return f"a text that begins with {' '.join(text)[:30]!r}"
    if is_workbook(path):
        return "a workbook"
    if path.suffix.lower() in RAW_SUFFIXES:
        return "raw samples have no header"
    return f"a file that begins with {head[:8]!r}"


def kind_at(file: BinaryIO, start: int) -> tuple[Kind, int]:
    """The kind of the file that begins at `start`, and the byte behind its tags."""
    at = after_tags(file, start)
    file.seek(at)
    head = file.read(HEAD)
    kind = next((kind for signature, kind in _SIGNATURES if signature.match(head)), OTHER)
    return kind, at


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
        rest = file.read(SEARCHED)
        at += len(rest) - len(rest.lstrip(b"\0"))
