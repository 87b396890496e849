"""Labels of any format beside recordings, as a corpus: TextGrid, ELAN, captions, CTM, CHAT and the rest of
phonate.data.labels."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from phonate.audio.containers import AUDIO_SUFFIXES
from phonate.config.errors import DataError
from phonate.data.corpora.annotation_files import (
    Recordings,
    ordered,
    root_of,
    rows_of_sides,
    split_of,
)
from phonate.data.corpora.rows import Problem, Row, audio_files, checked_row, corpus_format, printable
from phonate.data.label_documents import is_alignment
from phonate.data.labels import (
    LABEL_FORMATS,
    LabelFormat,
    Labelled,
    label_files,
    label_format,
    same_name,
    suffixes,
)

logger = logging.getLogger("phonate")

_OWN_CORPORA = ("rttm", "stm")
"""Formats that have a reader of their own here."""


def is_labels(path: Path) -> bool:
    """A folder in which at least half of the recordings have labels, and no texts beside them. TextGrids of words and
    phones belong to such texts."""
    if not path.is_dir():
        return False
    kinds = {kind: files for kind, files in label_files(path).items() if kind.name not in _OWN_CORPORA}
    if not kinds:
        return False
    recordings = list(audio_files(path, problems=[]))
    texts = sum(file.with_suffix(end).is_file() for file in recordings for end in (".txt", ".lab"))
    fitting = [kind for kind, files in kinds.items() if _fits(kind, files, recordings, texts)]
    if len(fitting) > 1:
        titles = " and ".join(kind.title for kind in fitting)
        raise DataError(
            f"{path}: has labels of several kinds, {titles}; set data.format to one of "
            f"{', '.join(kind.name for kind in fitting)}, or to folder"
        )
    return bool(fitting)


def _fits(kind: LabelFormat, files: list[Path], recordings: list[Path], texts: int) -> bool:
    if kind.names_recordings:
        return bool(recordings)
    if texts and kind.name != "audacity":
        return False
    stems = {same_name(file.stem) for file in files}
    labelled = sum(same_name(file.stem) in stems for file in recordings)
    return 0 < len(recordings) <= 2 * labelled and not (kind.name == "textgrid" and is_alignment(files[0]))


def _is_file_of(name: str) -> Callable[[Path], bool]:
    return lambda path: path.is_file() and LABEL_FORMATS[name].has(path)


@corpus_format(is_labels, priority=35, unit="text")
def label_rows(path: Path) -> Iterator[Row | Problem]:
    """A row for each recording with labels of the one kind that a folder has, or of a file."""
    if path.is_file():
        kind = label_format(path)
        if kind is None:
            raise DataError(f"{path}: not a label file; they end in {suffixes()}")
    else:
        kinds = [one for one in label_files(path) if one.name not in _OWN_CORPORA]
        if len(kinds) != 1:
            names = ", ".join(one.name for one in kinds) or "none"
            raise DataError(f"{path}: has labels of {len(kinds)} kinds ({names}); set data.format to one of them")
        kind = kinds[0]
    yield from _rows_of_kind(path, kind)


def _rows_of_kind(path: Path, kind: LabelFormat) -> Iterator[Row | Problem]:
    files = [path] if path.is_file() else label_files(path).get(kind, [])
    if not files:
        raise DataError(f"{path}: no {' or '.join(kind.suffixes)} file in it")
    root = root_of(path)
    recordings = Recordings(root)
    yield from recordings.problems
    rows, names = list[Row | Problem](), set[str]()
    left_out: Counter[str] = Counter()
    merged: dict[str, Labelled] = {}
    for file in files:
        try:
            listed = kind.read(file)
        except DataError as error:
            rows.append(Problem(printable(file.stem), str(file), "malformed labels", printable(str(error))))
            names.add(file.stem)
            continue
        if kind.name == "ctm":
            sides = {(one.recording, one.channel or "1"): one.segments for one in listed}
            rows += rows_of_sides(file, root, recordings, sides, {one.recording: one.place for one in listed})
        for one in listed:
            names.add(one.recording)
            left_out += one.left_out
            if kind.names_recordings and one.recording in merged:  # a file of each participant
                merged[one.recording].segments += one.segments
            else:
                merged[one.recording if kind.names_recordings else one.place] = one
    if kind.name != "ctm":
        rows += [_labelled_row(one, root, recordings) for one in merged.values()]
    for what, count in left_out.items():
        report_left_out(path, what, count)
    yield from rows
    if path.is_dir():
        yield from recordings.others(names)


def _labelled_row(one: Labelled, root: Path, recordings: Recordings) -> Row | Problem:
    file = Path(one.place)
    beside = [near for end in AUDIO_SUFFIXES if (near := file.with_suffix(end)).is_file()]
    audio = beside[0] if len(beside) == 1 else recordings.find(one.recording, one.place)
    if isinstance(audio, Problem):
        return audio
    inside = audio.relative_to(root) if audio.is_relative_to(root) else Path(audio.name)
    id = one.recording if len(recordings.named(one.recording)) == 1 else inside.with_suffix("").as_posix()
    return checked_row(Row(id, audio, ordered(one.segments), one.place, split=split_of(file, root)))


@cache
def report_left_out(path: Path, what: str, count: int) -> None:
    """Says, once, how much of some labels is not taken over."""
    logger.warning("%s: left out: %d %s", printable(str(path)), count, what)


def _kind_rows(name: str) -> Callable[[Path], Iterator[Row | Problem]]:
    """A corpus format of one kind of labels, which a single file is recognised as."""

    @corpus_format(_is_file_of(name), priority=62, unit="text")
    def rows(path: Path) -> Iterator[Row | Problem]:
        return _rows_of_kind(path, LABEL_FORMATS[name])

    return rows


ami_rows, audacity_rows, chat_rows, ctm_rows, elan_rows, srt_rows, textgrid_rows, webvtt_rows = map(
    _kind_rows, ("ami", "audacity", "chat", "ctm", "elan", "srt", "textgrid", "webvtt")
)
