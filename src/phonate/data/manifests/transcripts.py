"""Texts that a speech recogniser wrote for recordings without any (`data.transcribe`), and that people may correct.

Each corpus, recogniser and language has a folder in the cache, with three files of JSON lines:

    transcripts.jsonl   the clips with their texts; it is a corpus by itself, too
    left_out.jsonl      what the recogniser did not understand, and why
    heard.jsonl         the recordings that are done; what is corrected or deleted in the others stays so
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError
from phonate.data.corpora._lists import read_lines
from phonate.data.manifests.rows import Problem, Row, as_text, checked_row, printable
from phonate.data.manifests.validation import has_words

TEXTS, LEFT_OUT, HEARD = "transcripts.jsonl", "left_out.jsonl", "heard.jsonl"
Entry = Mapping[str, Any]


def read_entries(file: Path) -> list[tuple[str, Entry]]:
    """The lines of one of the files with their places; none where there is no file.

    Raises DataError for a line that is no such entry, as after a slip while correcting it.
    """
    if not file.is_file():
        return []
    entries = []
    for number, line in enumerate(read_lines(file), start=1):
        if line.strip():
            entries.append((place := f"{file}:{number}", _entry(line, place)))
    return entries


def _entry(line: str, place: str) -> Entry:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not readable as JSON ({error}); correct the line, or delete it") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("source"), str):
        raise DataError(f'{place}: names no "source"; correct the line, or delete it')
    return entry


def needs_transcript(row: Row | Problem) -> bool:
    """Whether a recording has one speaker at most, and no text; where several speak, who says what is not heard."""
    return isinstance(row, Row) and not has_words(row.text) and len(row.speakers) <= 1


def with_transcripts(rows: Sequence[Row | Problem], folder: Path) -> list[Row | Problem]:
    """The rows, those without a text as their transcripts say: with a text, cut into clips, or left out for a reason.

    Raises DataError where recordings lack a text and nothing is transcribed yet.
    """
    if not any(map(needs_transcript, rows)):
        return list(rows)
    if not (folder / HEARD).is_file():
        raise DataError(
            f"{folder / TEXTS}: not there; recordings without a text are transcribed by phonate train and by phonate "
            "data prepare, with the recipe whose data.transcribe asks for it"
        )
    clips = _by_source(folder / TEXTS)
    left_out = _by_source(folder / LEFT_OUT)
    found: list[Row | Problem] = []
    for row in rows:
        if isinstance(row, Problem) or not needs_transcript(row):
            found.append(row)
            continue
        made = [_clip(row, entry, place) for place, entry in clips.get(row.id, ())]
        ids = {one.id for one in made}
        refused = [_problem(row, entry) for _, entry in left_out.get(row.id, ()) if entry.get("id") not in ids]
        found += [*made, *refused] or [row]
    return found


def _by_source(file: Path) -> dict[str, list[tuple[str, Entry]]]:
    entries: dict[str, list[tuple[str, Entry]]] = {}
    for place, entry in read_entries(file):
        entries.setdefault(str(entry["source"]), []).append((place, entry))
    return entries


def _clip(row: Row, entry: Entry, place: str) -> Row | Problem:
    """The part of a row that an entry is the text of."""
    try:
        start = row.start if entry.get("offset") is None else float(entry["offset"])
        end = row.end if entry.get("duration") is None else start + float(entry["duration"])
    except (TypeError, ValueError) as error:
        raise DataError(f"{place}: offset and duration are not seconds; correct them, or delete the line") from error
    first = row.segments[0] if row.segments else None
    clip = Row.clip(
        id=str(entry.get("id") or row.id),
        path=row.path,
        speaker=as_text(entry.get("speaker_id")) or (None if first is None else first.speaker),
        text=str(entry.get("text") or ""),
        place=place,
        split=row.split,
    )
    segments = tuple(replace(one, start=start, end=end) for one in clip.segments)
    return checked_row(replace(clip, segments=segments, channel=row.channel, start=start, end=end))


def _problem(row: Row, entry: Entry) -> Problem:
    return Problem(
        id=printable(str(entry.get("id") or row.id)),
        place=row.place,
        reason=str(entry.get("why")),
        detail=printable(str(entry.get("detail"))),
    )
