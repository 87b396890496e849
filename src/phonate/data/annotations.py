"""Speaker annotations: RTTM (speaker turns) and UEM (regions to score), and turns as arrays of frames."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phonate.compute.remote import on_disk
from phonate.compute.system import write_output
from phonate.config.errors import DataError, InputError

# ----------------------- Shared parts of the annotation formats: lines of fields, and times in seconds

_LONGEST = 7 * 24 * 3600.0


def seconds(value: str) -> float:
    """Parse a time in seconds. Raises ValueError if it is not a number from 0 to a week."""
    number = float(value)
    if not 0.0 <= number <= _LONGEST:
        raise ValueError(f"{value!r} is not a time in seconds")
    return number


def clock_seconds(value: str) -> float:
    """Seconds of `12.5`, `1:02:03.5` or `1:02:03,5`. Raises ValueError for what is neither."""
    total = 0.0
    for part in value.replace(",", ".").split(":"):
        total = 60.0 * total + float(part)
    return total


def format_seconds(value: float) -> str:
    """Format a time in seconds to the microsecond, without trailing zeros: 34.27."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def encoding_of(start: bytes) -> str:
    """The encoding of a text that begins with `start`: UTF-16 where it says so, as Windows writes it, else UTF-8."""
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def read_text(path: str | Path, errors: str = "strict") -> str:
    """A text file in UTF-8, or in UTF-16 with a mark. Raises OSError and UnicodeDecodeError."""
    with Path(path).open("rb") as file:
        encoding = encoding_of(file.read(2))
    return Path(path).read_text(encoding=encoding, errors=errors)


def text_of(path: str | Path) -> str:
    """As `read_text`, but raises DataError."""
    try:
        return read_text(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error


def not_utf8(path: str | Path, error: UnicodeDecodeError) -> DataError:
    """The error for a file whose bytes are no UTF-8."""
    return DataError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8")


def fields_of(path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """`file:line` and the fields of each line that is neither empty nor a comment (`;` or `#`).

    Raises DataError for a file that can't be read or is not UTF-8 text.
    """
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        fields = line.split()
        if fields and not fields[0].startswith((";", "#")):
            yield f"{path}:{number}", fields


def require_field(value: str, what: str) -> str:
    """`value`, if it is valid as a field. Raises InputError if it is empty or contains spaces."""
    if not value or value.split() != [value]:
        raise InputError(f"{what} {value!r} can't be written: names must not be empty or contain spaces; rename it")
    return value


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write a text file atomically. Raises InputError if it can't be written."""
    write_output(path, "".join(f"{line}\n" for line in lines).encode())


# ------------------------------------- RTTM: speaker turns (NIST, Rich Transcription 2009, appendix A)


@dataclass(frozen=True, order=True)
class SpeakerTurn:
    """An interval of a recording in which one speaker is active. A diarization is a list of turns.

    Raises InputError unless 0 <= start < end.
    """

    start: float
    """Seconds from the beginning of the recording."""
    end: float
    """Seconds, exclusive."""
    speaker: str

    def __post_init__(self) -> None:
        if not 0.0 <= self.start < self.end:  # false for NaN, too
            raise InputError(
                f"invalid turn of {self.speaker}, {self.start:g} to {self.end:g} s: it must satisfy 0 <= start < end"
            )

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.end - self.start


FIELDS = 10
"""Of a line."""
_UNKNOWN = "<NA>"
_SPACED = re.compile(r"SPEAKER (.+?) (\S+) (\d[\d.eE-]*) (\d[\d.eE-]*) <NA> <NA> (.+?)(?: <NA>){0,2}")
_CONFIDENCE = re.compile(r"<NA>|[\d.eE-]+")


def rttm_fields(fields: list[str]) -> list[str]:
    """The fields of a SPEAKER line, those of a name with spaces as one, where `<NA> <NA>` between times and speaker
    shows which they are."""
    usual = len(fields) <= FIELDS and fields[5:7] == [_UNKNOWN] * 2 and all(map(_CONFIDENCE.fullmatch, fields[8:]))
    if fields[0] != "SPEAKER" or usual:
        return fields
    match = _SPACED.fullmatch(" ".join(fields))
    if match is None:
        return fields
    name, channel, start, duration, speaker = match.groups()
    return ["SPEAKER", name, channel, start, duration, _UNKNOWN, _UNKNOWN, speaker, _UNKNOWN, _UNKNOWN]


def speaker_line(fields: Sequence[str]) -> tuple[str, SpeakerTurn] | None:
    """Channel and turn of a SPEAKER line; None for a turn of zero length.

    Raises ValueError with the expected fields.
    """
    if len(fields) > FIELDS:
        raise ValueError(f"{len(fields)} fields, RTTM has {FIELDS}: names can't hold spaces; write _ for them")
    if len(fields) < 8:  # what follows may be left out
        raise ValueError("expected SPEAKER, recording, channel, start, duration, two fields and the speaker")
    if fields[7] == _UNKNOWN and fields[5:7] != [_UNKNOWN, _UNKNOWN]:  # a field is missing before the speaker
        raise ValueError(f"the speaker, field 8, is {_UNKNOWN}; is a field before it missing?")
    try:
        start, duration = seconds(fields[3]), seconds(fields[4])
    except ValueError:
        times = f"start {fields[3]}, duration {fields[4]}"
        raise ValueError(f"{times}: expected seconds of 0 or more, such as 3.20") from None
    end = start + duration
    return (fields[2], SpeakerTurn(start, end, fields[7])) if end > start else None


def read_rttm(path: str | Path) -> dict[str, list[SpeakerTurn]]:
    """Recording -> its turns, sorted by start, from the SPEAKER lines of an RTTM file; other line types are ignored.

    Raises DataError with file and line for invalid lines, and for a recording with several channels.
    """
    recordings: dict[str, list[SpeakerTurn]] = {}
    channels: dict[str, str] = {}
    for place, fields in ((place, rttm_fields(fields)) for place, fields in fields_of(path)):
        if fields[0] != "SPEAKER":
            if not fields[0].isupper():
                raise DataError(f"{place}: not RTTM; a line begins with its type, such as SPEAKER")
            continue
        try:
            line = speaker_line(fields)
        except ValueError as error:
            raise DataError(f"{place}: {error}; correct it") from None
        turns = recordings.setdefault(fields[1], [])
        if line is None:
            continue
        channel, turn = line
        if channels.setdefault(fields[1], channel) != channel:
            raise DataError(
                f"{place}: {fields[1]} has turns in channels {channels[fields[1]]} and {channel}; give each channel "
                "its own recording name"
            )
        turns.append(turn)
    return {recording: sorted(turns) for recording, turns in recordings.items()}


Region = tuple[float, float]
"""Start and end in seconds."""
_NOISES = ("laugh", "breath", "lipsmack", "cough", "sneeze", "other")
_EXTEND = 0.5


@dataclass(frozen=True)
class Zones:
    """What the lines of an RTTM file beside SPEAKER say of a recording, as md-eval takes it."""

    unscored: tuple[Region, ...] = ()
    """NOSCORE lines."""
    noises: tuple[Region, ...] = ()
    """NON-LEX lines (laughs, breaths), up to half a second longer at each end, but not over a word or the boundary of
    a turn."""
    labels: tuple[Region, ...] = ()
    """All labels that count for how long the recording is."""

    def extent(self, turns: Sequence[SpeakerTurn]) -> list[Region]:
        """From the first to the last label and turn."""
        bounds = [*self.labels, *((one.start, one.end) for one in turns)]
        return [(min(one[0] for one in bounds), max(one[1] for one in bounds))] if bounds else []


_EXTENTS = ("SEGMENT", "SPEAKER", "SU", "EDIT", "FILLER", "IP", "CB", "A/P", "LEXEME", "NON-LEX")


def read_zones(path: str | Path) -> dict[str, Zones]:
    """Recording -> its zones, for recordings that have NOSCORE or NON-LEX lines. Raises DataError with file and line
    for invalid lines of these types."""
    listed: dict[str, dict[str, list[Region]]] = {}
    for place, fields in fields_of(path):
        kind = fields[0]
        if kind not in (*_EXTENTS, "NOSCORE") or len(fields) < 5:
            continue
        try:
            start = seconds(fields[3])
            end = start + seconds(fields[4])
        except ValueError:
            if kind in ("NOSCORE", "NON-LEX"):
                raise DataError(f"{place}: expected {kind}, recording, channel, start and duration") from None
            continue
        if kind == "NON-LEX" and (len(fields) < 7 or fields[6].lower() not in _NOISES):
            kind = "SEGMENT"
        if end > start:
            listed.setdefault(fields[1], {}).setdefault(kind, []).append((start, end))
    return {
        name: Zones(
            tuple(kinds.get("NOSCORE", ())),
            tuple(_extended(kinds)),
            tuple(one for kind, regions in kinds.items() if kind != "NOSCORE" for one in regions),
        )
        for name, kinds in listed.items()
        if kinds.keys() & {"NOSCORE", "NON-LEX"}
    }


def _extended(kinds: Mapping[str, list[Region]]) -> Iterator[Region]:
    """Noises, as far as md-eval extends them: after one behind which nothing follows, nothing is scored."""
    words, edges = kinds.get("LEXEME", []), [time for region in kinds.get("SPEAKER", ()) for time in region]
    noises = kinds.get("NON-LEX", [])
    for start, end in noises:
        following = [first for first, _ in noises if first > end + 2 * _EXTEND]
        if not any(first < end < last for first, last in words):
            after = [time for time in (*(first for first, _ in words), *edges) if time >= end]
            end = min([end + _EXTEND, *after]) if after or following else _LONGEST
        if not any(first < start < last for first, last in words):
            before = [time for time in (*(last for _, last in words), *edges) if time <= start]
            start = max([start - _EXTEND, *before])
        yield start, end


def write_rttm(path: str | Path, recordings: Mapping[str, Iterable[SpeakerTurn]]) -> None:
    """Write the turns of recordings to an RTTM file, with channel 1 and times to the microsecond.

    Recordings without turns do not appear in the file, as RTTM can't express them.

    Raises InputError for a name with spaces, or if the file can't be written.
    """
    write_lines(path, (line for name, turns in recordings.items() for line in rttm_lines(name, turns)))


def rttm_lines(recording: str, turns: Iterable[SpeakerTurn]) -> list[str]:
    """The SPEAKER lines of one recording, sorted by start. Raises InputError for a name with spaces."""
    require_field(recording, "recording")
    return [
        f"SPEAKER {recording} 1 {format_seconds(turn.start)} {format_seconds(turn.duration)} <NA> <NA> "
        f"{require_field(turn.speaker, 'speaker')} <NA> <NA>"
        for turn in sorted(turns)
    ]


# --------------------- UEM: the regions of recordings to score ("un-partitioned evaluation map", NIST)


def uem_region(fields: Sequence[str]) -> Region:
    """The region of a line. Raises ValueError with the expected fields."""
    try:
        start, end = seconds(fields[2]), seconds(fields[3])
    except (IndexError, ValueError):
        raise ValueError("expected recording, channel, start and end") from None
    if start >= end:
        raise ValueError(f"the region from {start:g} to {end:g} s is empty")
    return start, end


def read_uem(path: str | Path) -> dict[str, list[Region]]:
    """Recording -> its regions (start, end) in seconds, sorted by start. Channels are ignored.

    Raises DataError with file and line for invalid lines.
    """
    recordings: dict[str, list[Region]] = {}
    for place, fields in fields_of(on_disk(path)):
        try:
            recordings.setdefault(fields[0], []).append(uem_region(fields))
        except ValueError as error:
            raise DataError(f"{place}: {error}; correct it") from None
    return {recording: sorted(regions) for recording, regions in recordings.items()}


def write_uem(path: str | Path, recordings: Mapping[str, Iterable[Region]]) -> None:
    """Write the regions of recordings to a UEM file, with channel 1 and times to the microsecond.

    Raises InputError for a name with spaces, or if the file can't be written.
    """
    write_lines(
        path,
        (
            f"{require_field(name, 'recording')} 1 {format_seconds(start)} {format_seconds(end)}"
            for name, regions in recordings.items()
            for start, end in sorted(regions)
        ),
    )


# ---------------------------- Turns of an array of frames. Shapes: T frames, S speakers


def turns_from_activity(
    activity_TS: NDArray[np.generic], frames_per_second: float, speakers: Sequence[str], start: float = 0.0
) -> list[SpeakerTurn]:
    """The turns, sorted by start, of an array (T, S) that is nonzero where a speaker is active.

    Args:
        activity_TS: Frame t spans the time from t / frames_per_second to (t + 1) / frames_per_second.
        speakers: The name of each column.
        start: Start of frame 0 in the recording, in seconds.

    Raises ValueError for an array of another shape.
    """
    if activity_TS.ndim != 2 or activity_TS.shape[1] != len(speakers):
        raise ValueError(f"expected an array (frames, {len(speakers)} speakers), got shape {activity_TS.shape}")
    turns = []
    silent_S = np.zeros((1, len(speakers)), dtype=np.int8)
    edges_TS = np.diff(np.concatenate([silent_S, (activity_TS != 0).astype(np.int8), silent_S]), axis=0)
    for column, speaker in enumerate(speakers):
        begins, ends = np.flatnonzero(edges_TS[:, column] > 0), np.flatnonzero(edges_TS[:, column] < 0)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            turns.append(SpeakerTurn(start + begin / frames_per_second, start + end / frames_per_second, speaker))
    return sorted(turns)
