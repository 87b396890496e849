"""RTTM: who speaks when (NIST, Rich Transcription 2009, appendix A), beside the recordings, with or without UEM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.annotations import FIELDS, Region, SpeakerTurn, speaker_line, uem_region
from phonate.data.corpora._annotations import Recordings, annotation_files, ordered, root_of, split_of
from phonate.data.corpora._lists import read_lines
from phonate.data.manifests.rows import Problem, Row, Segment, checked_row, corpus_format, malformed

_TYPE = re.compile(r"[A-Z][A-Z/_-]*")
"""The type of a line: SPEAKER, SPKR-INFO, NON-LEX, A/P ..."""
_LINE = "SPEAKER recording 1 start duration <NA> <NA> speaker <NA> <NA>"


def is_rttm(path: Path) -> bool:
    """RTTM files, or a folder with some."""
    return bool(annotation_files(path, ".rttm"))


@dataclass
class _Recording:
    """What RTTM and UEM say of one recording."""

    place: str
    split: str | None
    file: Path
    segments: list[Segment] = field(default_factory=list)
    channels: set[str] = field(default_factory=set)
    bad: list[Problem] = field(default_factory=list)


@corpus_format(is_rttm, priority=60)
def rttm_rows(path: Path) -> Iterator[Row | Problem]:
    """A row for each recording that an RTTM file under `path` names, with its SPEAKER lines as segments; with UEM files
    beside them a row for each region that they list. A recording of which a line can't be read is refused, for it would
    be trained on with speech missing."""
    files = annotation_files(path, ".rttm")
    if not files:
        raise DataError(f"{path}: no .rttm file in it")
    root = root_of(path)
    recordings, found = Recordings(root), dict[str, _Recording]()
    yield from recordings.problems
    for file in files:
        yield from _read(file, root, recordings, found)
    lists = annotation_files(path if path.is_dir() else path.parent, ".uem")
    regions, silent, problems = _regions(sorted(lists, key=lambda one: one.stem != path.stem))  # its own list first
    yield from problems
    for name in silent.keys() - found.keys():
        # Recordings without speech. Those of a list of other recordings are none of one file's.
        if path.is_dir() or silent[name].stem == path.stem:
            found[name] = _Recording(str(silent[name]), split_of(silent[name], root), silent[name])
    for name, recording in sorted(found.items()):
        yield from _rows(name, recording, recordings, regions.get(name))
    if path.is_dir():
        yield from recordings.others(found.keys())


def _read(file: Path, root: Path, recordings: Recordings, found: dict[str, _Recording]) -> Iterator[Problem]:
    """Add the lines of a file to the recordings; yields what belongs to none."""
    try:
        written = _fields(file)
    except DataError as error:
        yield Problem("", str(file), "unreadable", f"{error}; correct or remove the file")
        return
    split = split_of(file, root)
    for place, fields in written:
        if len(fields) < 2 or fields[0] != "SPEAKER":
            if not _TYPE.fullmatch(fields[0]):
                yield malformed(place, f"not RTTM; expected {_LINE}; correct or remove the line")
            continue
        spoken: tuple[str, SpeakerTurn] | None = None
        mistake: str | None = None
        try:
            spoken = speaker_line(fields)
        except ValueError as error:
            mistake = f"{error}; correct it"
            if len(fields) > FIELDS and isinstance(recordings.find(fields[1], place), Problem):  # a name with spaces
                yield malformed(place, mistake)
                continue
        recording = found.setdefault(fields[1], _Recording(place, split, file))
        if recording.file != file:
            raise DataError(
                f"{place}: {fields[1]} is in {recording.file.name} too; give the file that is meant as data.path"
            )
        if mistake is not None:
            recording.bad.append(Problem(fields[1], place, "malformed row", mistake))
        if spoken is not None:
            channel, turn = spoken
            recording.segments.append(Segment(turn.start, turn.end, turn.speaker))
            recording.channels.add(channel)


def _fields(file: Path) -> list[tuple[str, list[str]]]:
    """Place and fields of each line but comments. Raises DataError for a file without a line of RTTM in it."""
    lines = [(f"{file}:{number}", line.split()) for number, line in enumerate(read_lines(file), start=1)]
    written = [(place, fields) for place, fields in lines if fields and not fields[0].startswith((";", "#"))]
    if written and not any(_TYPE.fullmatch(fields[0]) for _, fields in written):
        raise DataError(f"not RTTM: no line of text like {_LINE}")
    return written


def _regions(files: list[Path]) -> tuple[dict[str, list[Region]], dict[str, Path], list[Problem]]:
    """Recording -> its regions (start, end) in UEM files, and the first of these files; the lines that can't be
    read."""
    regions: dict[str, list[Region]] = {}
    first: dict[str, Path] = {}
    problems: list[Problem] = []
    for file in files:
        for number, line in enumerate(read_lines(file), start=1):
            fields = line.split()
            if not fields or fields[0].startswith(";"):
                continue
            try:
                regions.setdefault(fields[0], []).append(uem_region(fields))
                first.setdefault(fields[0], file)
            except ValueError as error:
                problems.append(malformed(f"{file}:{number}", str(error)))
    return regions, first, problems


def _rows(
    name: str, recording: _Recording, recordings: Recordings, regions: list[Region] | None
) -> Iterator[Row | Problem]:
    if recording.bad:
        yield recording.bad[0]
        return
    audio = recordings.find(name, recording.place)
    if isinstance(audio, Problem):
        yield audio
        return
    if len(recording.channels) > 1:
        detail = f"segments of channels {', '.join(sorted(recording.channels))}; save each channel as a file of its own"
        yield Problem(name, recording.place, "several channels", detail)
        return
    segments = ordered(recording.segments)
    if regions is None:
        yield checked_row(Row(name, audio, segments, recording.place, split=recording.split))
        return
    for start, end in sorted(set(regions)):
        inside = tuple(one for one in segments if one.start < end and (one.end or end) > start)
        id = name if len(regions) == 1 else f"{name}-{round(1000 * start):08d}"
        yield checked_row(Row(id, audio, inside, recording.place, None, start, end, recording.split))
