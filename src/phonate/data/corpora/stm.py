"""STM: segments with speakers and texts (NIST SCTK, `stm` format), beside the recordings."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.annotations import seconds
from phonate.data.corpora._annotations import Recordings, annotation_files, is_stereo, ordered, root_of, split_of
from phonate.data.corpora._lists import read_lines
from phonate.data.manifests.rows import Problem, Row, Segment, checked_row, corpus_format, printable

logger = logging.getLogger("phonate")

_CHANNELS = {"a": 0, "b": 1, "1": 0, "2": 1}
_SIDES = (("a", "b"), ("1", "2"))
_ALTERNATIVES = re.compile(r"\{\s([^{}]*)\}")
_MARKS = re.compile(r"\([^()]*\)|(?<!\S)(@|%\w+)(?!\S)")
"""Optional words, and what is no word."""
_IGNORED = "ignore_time_segment_in_scoring"


def is_stm(path: Path) -> bool:
    """STM files, or a folder with some."""
    return bool(annotation_files(path, ".stm"))


@corpus_format(is_stm, priority=60, unit="segment")
def stm_rows(path: Path) -> Iterator[Row | Problem]:
    """A row for each recording, or channel of one, that an STM file under `path` names, with its lines as segments.
    Lines that are to be ignored in scoring are no segments; a recording of which a line can't be read is refused."""
    files = annotation_files(path, ".stm")
    if not files:
        raise DataError(f"{path}: no .stm file in it")
    root = root_of(path)
    recordings, names = Recordings(root), set[str]()
    yield from recordings.problems
    for file in files:
        for row in _rows(file, root, recordings):
            names.add(row.id.partition("/")[0] if isinstance(row, Row) else row.id)
            yield row
    if path.is_dir():
        yield from recordings.others(names)


def _rows(file: Path, root: Path, recordings: Recordings) -> Iterator[Row | Problem]:
    try:
        lines = read_lines(file)
    except DataError as error:
        yield Problem("", str(file), "unreadable", str(error))
        return
    found: dict[tuple[str, str], list[Segment]] = {}
    places: dict[str, str] = {}
    bad: dict[str, Problem] = {}
    marked = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        name, place = line.split()[0], f"{file}:{number}"
        places.setdefault(name, place)
        try:
            channel, segment = _segment(line)
        except (ValueError, IndexError):
            detail = "expected recording, channel, speaker, start, end, labels and text; correct it"
            bad.setdefault(name, Problem(name, place, "malformed row", detail))
            continue
        found.setdefault((name, channel.lower()), []).extend([segment] if segment is not None else [])
        marked += segment is not None and (segment.text or "") not in line
    if marked:
        report_marks(file, marked)
    yield from bad.values()
    several = {name for name, _ in found if any({(name, one), (name, two)} <= found.keys() for one, two in _SIDES)}
    for (name, channel), segments in found.items():
        if name in bad:
            continue
        audio = recordings.find(name, places[name])
        if isinstance(audio, Problem):
            yield audio
            continue
        # 1 alone also stands for all of a recording
        named = name in several or (channel in _SIDES[0] and is_stereo(audio))
        side = _CHANNELS.get(channel) if named else None
        id = f"{name}/{channel}" if name in several else name
        yield checked_row(Row(id, audio, ordered(segments), places[name], side, split=split_of(file, root)))


@cache
def report_marks(file: Path, count: int) -> None:
    """Says, once, what is not taken of the texts of a file."""
    logger.warning(
        "%s: %d texts hold alternatives, optional words or marks; of these only first alternatives are taken",
        printable(str(file)),
        count,
    )


def _segment(line: str) -> tuple[str, Segment | None]:
    """Channel and segment of a line; None for one that is to be ignored."""
    _, channel, speaker, begin, finish, *rest = line.split(maxsplit=5)
    start, end = seconds(begin), seconds(finish)
    text = rest[0] if rest else ""
    if text.startswith("<") and ">" in text:  # labels such as <o,f0,male>
        text = text[text.index(">") + 1 :].strip()
    if start >= end:
        raise ValueError(line)
    if _IGNORED in text.lower():
        return channel, None
    return channel, Segment(start, end, speaker, spoken(text) or None)


def spoken(text: str) -> str:
    """The words of a transcript as sclite writes it: the first of alternatives (`{ wanna / want to / @ }`, where `@` is
    nothing), without optional words and marks (`(uh)`, `(%hesitation)`, `%hesitation`)."""
    plain = text
    while (first := _ALTERNATIVES.sub(lambda found: f" {found[1].split(' / ')[0]} ", plain)) != plain:
        plain = first  # alternatives may hold others
    plain = _MARKS.sub(" ", plain)
    return text if plain == text else " ".join(plain.split())
