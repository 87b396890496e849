"""JSON: a list of samples, an object with such a list, or an object a line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError, json_mistake
from phonate.data.annotations import read_text
from phonate.data.corpora.lists import (
    COLUMNS,
    LANGUAGES,
    LOOKED_AT,
    OBJECTS,
    PART,
    SEGMENTS,
    audio_name,
    clip_of,
    column_name,
    column_names,
    document_of,
    listed_in,
    lists_in,
    of_lists,
    part_of,
    read_lines,
    report_language,
    report_texts,
    report_unread,
    samples_of,
    samples_of_columns,
    speaker_of,
    suffix_of,
)
from phonate.data.corpora.places import Places
from phonate.data.corpora.rows import (
    Problem,
    Row,
    Segment,
    as_text,
    checked_row,
    corpus_format,
    id_of,
    listed_file,
    malformed,
    printable,
)

logger = logging.getLogger("phonate")


def is_json(path: Path) -> bool:
    """JSON and JSON lines, or a folder whose recordings these list."""
    return bool(listed_in(path, OBJECTS))


@corpus_format(is_json, priority=40, unit="text")
def json_rows(path: Path, language: str | None = None) -> Iterator[Row | Problem]:
    """Rows of `{"audio_path", "speaker_id", "text"}`, or of what NeMo (`audio_filepath`) and others call these; paths
    are relative to the file. Objects with a list of `segments` are recordings with these. Where no sample has a speaker
    there is one, who is called after the folder."""
    files = (lists_in(path, OBJECTS) or (path / "metadata.json",)) if path.is_dir() else (path,)
    yield from of_lists(files, partial(_rows_of_json, language=language))


def _rows_of_json(path: Path, language: str | None) -> Iterator[Row | Problem]:
    samples = [(place, one) for place, sample in _json_samples(path) for one in samples_of_columns(sample)]
    keys = {key: None for _, sample in samples if isinstance(sample, dict) for key in sample}
    named = next((one for one in LANGUAGES if one in keys), None)
    codes = frozenset(str(one[named]) for _, one in samples if isinstance(one, dict) and named and one.get(named))
    report_language(path, codes, language)
    within = [part for _, sample in samples if isinstance(sample, dict) for part in _segments_of(sample) or ()]
    keys |= {key: None for part in within for key in part}
    alone = None if "speaker_id" in column_names(keys) else speaker_of(path)
    names = (audio_name(sample) for _, sample in samples[:LOOKED_AT] if isinstance(sample, dict))
    places = Places(path, [name for name in names if name])
    report_unread(path, tuple(keys), alone, "text" in column_names(keys) or _TEXT_FILE in keys)
    if not within:  # words and segments have texts of their own
        report_texts(path, tuple(keys))
    for place, sample in samples:
        if isinstance(sample, Problem):
            yield sample
            continue
        name = audio_name(sample) if isinstance(sample, dict) else None
        if not isinstance(sample, dict) or not name:
            yield malformed(place, "no audio_path; each sample is an object with audio_path, speaker_id and text")
            continue
        parts = _segments_of(sample)
        try:
            if parts is None:
                yield _json_row(sample, name, places.find(name), alone, place, path.parent)
            else:
                yield _recording(sample, parts, places.find(name), alone, place)
        except (TypeError, ValueError) as error:
            yield malformed(place, f"its segments can't be read ({error}); each has a start and an end in seconds")


def _segments_of(sample: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The list of segments that an object holds, such as those of GigaSpeech; None where it has none. Of several it is
    one with texts, called as segments are, the shortest: words with times are longer."""
    lists = [(key, value) for key, value in sample.items() if isinstance(value, list) and _are_timed(value)]
    best = min(lists, key=lambda one: (not _have_texts(one[1]), one[0] not in SEGMENTS, len(one[1])), default=None)
    return None if best is None else best[1]


def _have_texts(parts: list[dict[str, Any]]) -> bool:
    return any("text" in column_names(part) for part in parts)


def _are_timed(parts: list[Any]) -> bool:
    """Whether all parts have a start and an end, and some a text or a speaker."""
    names = [column_names(part).keys() if isinstance(part, dict) else set() for part in parts]
    timed = all(columns & some for columns in names for some in ({"start", "start_ms"}, _ENDS))
    return timed and any(columns & {"text", "speaker_id"} for columns in names)


_ENDS = {"end", "end_ms", "duration", "duration_ms"}


def _recording(
    sample: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], file: Path, alone: str | None, place: str
) -> Row | Problem:
    """The row of a recording with segments. Raises ValueError where they have no times."""
    segments = []
    for part in parts:
        listed = {meaning: part[key] for meaning, key in column_names(part).items()}
        try:
            start, end = part_of(listed)
        except ValueError:
            times = ", ".join(f"{key} {listed[key]!r}" for key in PART if listed.get(key) is not None)
            raise ValueError(times) from None
        named = as_text(listed.get("speaker_id"))
        speaker = alone if named is None or named.upper() == "N/A" else named
        segments.append(Segment(start, end, speaker, _signs(as_text(listed.get("text"))), as_text(listed.get("id"))))
    key = column_names(sample).get("id", "aid")
    id = as_text(sample.get(key)) or id_of(str(audio_name(sample)))
    segments.sort(key=lambda one: one.start)
    return checked_row(Row(id, file, tuple(segments), place, split=as_text(sample.get("split"))))


_MARKS = {"<COMMA>": ",", "<PERIOD>": ".", "<QUESTIONMARK>": "?", "<EXCLAMATIONPOINT>": "!"}


_MARK = re.compile(r"\s*(<[A-Z]+>)")


def _signs(text: str | None) -> str | None:
    """A text whose punctuation is written as words, as GigaSpeech's is, with signs; tags of noise are no words."""
    return text and (_MARK.sub(lambda match: _MARKS.get(match[1], ""), text).strip() or None)


_TEXT_FILE = "text_filepath"
"""NeMo's key for the file that holds the text."""


def _json_row(
    sample: dict[str, Any], name: str, file: Path, alone: str | None, place: str, root: Path
) -> Row | Problem:
    listed = {meaning: sample[key] for meaning, key in column_names(sample).items()}
    speaker = listed.get("speaker_id")
    if isinstance(speaker, (dict, list)):
        return malformed(place, f"its speaker is a JSON {_kind(speaker)}; give a text")
    if not isinstance(text := listed.get("text"), (str, int, float)):
        listed["text"] = next((sample[key] for key in sample if _is_text(key, sample[key])), None)
        of_words = isinstance(text, list) and not any(isinstance(one, str) for one in text)  # with their times
        if isinstance(text, (dict, list)) and not of_words and listed["text"] is None:
            _report_no_texts(root, _kind(text))
    if not listed.get("text") and sample.get(_TEXT_FILE):
        try:
            listed["text"] = " ".join(read_text(listed_file(root, str(sample[_TEXT_FILE]))).split())
        except (OSError, UnicodeDecodeError) as error:
            return Problem(id_of(name), place, "unreadable text", f"{sample[_TEXT_FILE]}: {error}")
    return clip_of(listed, name, file, as_text(alone if speaker is None else speaker), place)


def _is_text(key: str, value: object) -> bool:
    return isinstance(value, str) and column_name(key) in COLUMNS["text"]


def _kind(value: object) -> str:
    return "list" if isinstance(value, list) else "object"


@cache
def _report_no_texts(root: Path, kind: str) -> None:
    logger.warning("%s: texts that are a JSON %s are not read; give texts", printable(str(root)), kind)


def _json_samples(path: Path) -> list[tuple[str, object]]:
    """Each sample with its place; a Problem in the place of one that is no JSON."""
    lines = read_lines(path)
    of_lines = suffix_of(path) == ".jsonl"
    try:
        document = json.loads("\n".join(lines)) if not of_lines else None
    except (ValueError, RecursionError) as error:
        if not isinstance(document_of(next((line for line in lines if line.strip()), "")), dict):
            raise DataError(f"{path}: not readable as JSON ({json_mistake(error)})") from error
        document = None  # an object a line, as NeMo writes into files called .json
    if document is None and not of_lines and len(lines) < 2:
        raise DataError(f'{path}: neither a list of samples nor an object with a list under "samples"')
    if document is None:
        return [_json_line(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    samples = samples_of(document)
    if samples is None and (audio_name(document) or samples_of_columns(document) != [document]):
        samples = [document]
    if not isinstance(samples, list):
        raise DataError(f'{path}: neither a list of samples nor an object with a list under "samples"')
    return [(f"{path}: sample {number}", sample) for number, sample in enumerate(samples, start=1)]


def _json_line(line: str, place: str) -> tuple[str, object]:
    try:
        return place, json.loads(line)
    except (ValueError, RecursionError) as error:
        return place, malformed(place, f"not readable as JSON ({json_mistake(error)})")
