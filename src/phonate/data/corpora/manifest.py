"""From a corpus of any format to validated rows, a manifest and a report.

Every format declares how its corpora are recognised (`corpus_format`). Plug-ins may do so as well, or have a function
`recognises(path)` in the module of their function, and come first unless a PRIORITY there says otherwise.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from phonate.audio.containers.kinds import AUDIO_SUFFIXES, is_workbook, told
from phonate.audio.decoding import is_recording
from phonate.compute.remote import fetched, is_remote, mirrored
from phonate.config.errors import DataError, json_mistake, optional_package
from phonate.config.registry import looked_in, nearest_path
from phonate.data.corpora.layout import tell_speakers_in_folders
from phonate.data.corpora.lhotse import manifests_of
from phonate.data.corpora.lists import SAVE_WORKBOOK, read_lines, report_letters
from phonate.data.corpora.names import named_by, tell_numbered_speakers, tell_speakers_alike, tell_speakers_in_names
from phonate.data.corpora.rows import (
    FORMATS,
    REPORT,
    CorpusFormat,
    Problem,
    Requirements,
    Row,
    Rows,
    Segment,
    as_text,
    audio_files,
    by_segment,
    checked_row,
    nfc,
    printable,
)
from phonate.data.corpora.shards import SHARDS, shard_format
from phonate.data.corpora.transcripts import NOTES
from phonate.data.corpora.validation import CheckedRow, Report, has_words, leave_out, limit_rows, listed_in, validate
from phonate.data.labels import LABEL_FORMATS
from phonate.data.parallel import Progress
from phonate.data.settings import CORPORA, LHOTSE, LOCAL_SPEAKERS, DatasetSettings, RecordingData, cache_root

if TYPE_CHECKING:
    from lhotse import CutSet

logger = logging.getLogger("phonate")


# ----------------------- Texts that a recogniser wrote for recordings without any (`data.transcribe`)

# Each corpus, recogniser and language has a folder in the cache, with three files of JSON lines, for people to correct:
#
#     transcripts.jsonl   the clips with their texts; it is a corpus by itself, too
#     left_out.jsonl      what the recogniser did not understand, and why
#     heard.jsonl         the recordings that are done; what is corrected or deleted in the others stays so

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
        raise DataError(
            f"{place}: not readable as JSON ({json_mistake(error)}); correct the line, or delete it"
        ) from error
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
            f"{folder / TEXTS}: not there; recordings are transcribed by phonate train, or before it by phonate data "
            "prepare RECIPE with the same options"
        )
    clips = _by_source(folder / TEXTS)
    left_out = _by_source(folder / LEFT_OUT)
    filled: list[Row | Problem] = []
    for row in rows:
        if isinstance(row, Problem) or not needs_transcript(row):
            filled.append(row)
            continue
        parts = [_clip(row, entry, place) for place, entry in clips.get(row.id, ())]
        ids = {one.id for one in parts}
        refused = [_problem(row, entry) for _, entry in left_out.get(row.id, ()) if entry.get("id") not in ids]
        filled += [*parts, *refused] or [row]
    return filled


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


# --------------------------------------------- Which format a corpus has, when the recipe does not say


_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar")


def _absent(path: Path) -> DataError:
    return DataError(f"{path}: no such file or folder{looked_in(path)}{nearest_path(path)}")


def detect_format(path: Path) -> str:
    """The name of a format: folder, json, csv, ... Raises DataError saying what was found instead."""
    if not path.exists():
        raise _absent(path)
    if not path.is_dir() and not path.is_file():
        raise DataError(f"{path}: is a pipe or a device; a corpus is a folder or a file")
    formats = [(name, one) for name in CORPORA.names() if (one := format_of(name)) is not None]
    ranked = sorted(formats, key=lambda entry: (-entry[1].priority, entry[0]))
    for name, one in ranked:
        if one.recognises(path):
            if name in LISTS and (spoken := _spoken_beside(path)) is not None:
                raise DataError(f"{path}: the text of {spoken.name} beside it; give the folder, {path.parent}")
            equal = [other for other, its in ranked if other != name and its.priority == one.priority]
            _report_also(
                path, name, tuple(other for other in equal if path.is_dir() and dict(ranked)[other].recognises(path))
            )
            return name
    if is_workbook(path):
        raise DataError(f"{path}: a workbook; {SAVE_WORKBOOK}")
    if not path.is_dir():
        named = "" if is_recording(path) else "; a list of another format needs data.format"
        raise DataError(
            f"{path}: {told(path)}; give a folder of recordings, or a list of them such as metadata.csv{named}"
        )
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    listed = ", ".join(names[:5]) or "nothing"
    archive = next((name for name in names if name.lower().endswith(_ARCHIVES)), None)
    if archive is not None:
        raise DataError(f"{path}: no audio files in it (found: {listed}); unpack {archive}")
    raise DataError(
        f"{path}: no audio files and no metadata.csv or metadata.json in it (found: {listed}); put recordings there, "
        "or name another folder"
    )


def _spoken_beside(path: Path) -> Path | None:
    """The recording that a file of text beside it is called after."""
    if path.suffix.lower() != ".txt" or not path.is_file():
        return None
    return next((file for end in AUDIO_SUFFIXES if (file := path.with_suffix(end)).is_file()), None)


@functools.cache
def _report_also(path: Path, name: str, others: tuple[str, ...]) -> None:
    """Warns, once, that a folder may as well be read in another format."""
    if others:
        logger.warning("%s: read as %s; data.format=%s reads what else is there", path, name, others[0])


def format_of(name: str) -> CorpusFormat | None:
    """How corpora of a format are recognised; None where they are not, but by `data.format`."""
    entry = CORPORA.find(name)
    rows = CORPORA.get(name) if isinstance(entry, str) and ":" in entry else entry
    if rows in FORMATS:
        return FORMATS[rows]
    in_module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    module: Any = importlib.import_module(in_module) if isinstance(entry, str) else sys.modules.get(in_module)
    if not hasattr(module, "recognises"):
        return None
    return CorpusFormat(module.recognises, getattr(module, "PRIORITY", 100), getattr(module, "UNIT", "recording"))


# ------------------------- From a corpus of any format to validated rows, a Lhotse CutSet and a report


def list_corpus(settings: RecordingData) -> tuple[list[Row | Problem], Report]:
    """What the corpora list, without what `drop` and `limit` leave out, and the report for their validation."""
    if settings.executor == "ray":  # that it is missing should not be said after an hour of reading lists
        from phonate.data.cluster import require_ray

        require_ray()
    corpora = settings.corpora
    parts = [_listed(settings, one, alone=len(corpora) == 1) for one in corpora]
    formats = dict.fromkeys(report.format for _, report in parts)
    report = Report(", ".join(report.path for _, report in parts), ", ".join(formats))
    for _, part in parts:
        report.dropped += part.dropped
        report.over_limit += part.over_limit
        report.warnings += part.warnings
    listed = [row for rows, _ in parts for row in rows]
    if settings.transcripts is None:
        return limit_rows(leave_out(listed, settings.drop, report), settings.limit, report), report
    # The limit is of recordings, for which it also says what is transcribed; parts of them can be dropped.
    filled = with_transcripts(limit_rows(listed, settings.limit, report), settings.transcripts)
    if settings.speaker is not None:
        filled = [_of_one_speaker(row, settings.speaker) for row in filled]
    return leave_out(filled, settings.drop, report), report


def require_corpora(settings: RecordingData) -> None:
    """Refuse, as `list_corpus` would, corpora on this disk that are not there or that no format recognises, without
    reading them. Raises DataError."""
    corpora = [corpus for one in settings.to_prepare for corpus in one.corpora]
    for drop in (*(one.drop for one in settings.to_prepare), *(corpus.drop for corpus in corpora)):
        if drop is not None:
            listed_in(drop)
    for corpus in corpora:
        if corpus.path is not None and not is_remote(corpus.path):
            _on_disk(corpus.path, corpus.format)


def _on_disk(path: str, name: str) -> tuple[Path, str]:
    """Where a corpus is, and its format. Raises DataError."""
    where = Path(path).expanduser()
    name = detect_format(where) if name == "auto" else name
    if name not in SHARDS and not where.exists():
        raise _absent(where)
    return where, name


def _listed(settings: RecordingData, corpus: DatasetSettings, alone: bool) -> tuple[list[Row | Problem], Report]:
    """What one corpus lists. Of several, ids and speakers begin with its name: a name may be another's elsewhere."""
    local = corpus.path is None and corpus.name in LOCAL_SPEAKERS
    address = None
    if corpus.path is None:
        path, name = manifests_of(corpus, settings.threads or 1), "lhotse"
    elif is_remote(corpus.path):
        address = corpus.path
        name = shard_format(address) or "auto"
        path = Path(address) if name in SHARDS else mirrored(address, cache_root(settings))
        if name not in SHARDS:
            name = detect_format(path) if corpus.format == "auto" else corpus.format
    else:
        path, name = _on_disk(corpus.path, corpus.format)
    rows = cast(Rows, CORPORA.get(name))
    offered = {
        "cache": cache_root(settings) / "audio",
        "speaker_folder": settings.speaker_folder,
        "of_others": not (settings.speaker is None and settings.speaker_in_name is None),
        "language": getattr(settings, "language", None),
    }
    extra = {name: offered[name] for name in offered.keys() & inspect.signature(rows).parameters.keys()}
    report = Report(address or str(path), name)
    listed = list(rows(address if address and name in SHARDS else path, **extra))
    if address is not None and name not in SHARDS:
        _fetch_missing(listed, address, path)
    if (name in LISTS or name in LABELS) and path.is_dir():
        _report_unlisted(path, name, listed)
    if local:
        listed = [_with_own_speakers(row) for row in listed]
    listed = _with_speakers(settings, path, name, listed)
    unit = settings.unit if corpus.unit == "auto" else corpus.unit
    declared = format_of(name) if unit == "auto" else None
    if unit == "segment" or (declared is not None and _is_of_segments(declared, listed)):
        listed = list(by_segment(listed, settings.requirements.one_speaker))
    listed = limit_rows(leave_out(listed, corpus.drop, report), corpus.limit, report)
    texts = (row.text for row in listed if isinstance(row, Row) and row.text)
    report_letters(str(path), texts, getattr(settings, "language", None))
    return listed if alone else [_within(row, corpus.name, settings.speaker) for row in listed], report


LISTS = frozenset({"csv", "ljspeech", "json", "audiofolder"})
"""The formats of lists that name the recordings of a folder."""
LABELS = frozenset({"labels", "stm", *LABEL_FORMATS})


def _report_unlisted(folder: Path, name: str, listed: Sequence[Row | Problem]) -> None:
    """Tells of recordings in a folder that its list does not name, and of other files beside what is read."""
    paths = [row.path for row in listed if isinstance(row, Row)]
    named = set(map(os.path.abspath, paths))
    every = list(audio_files(folder, None, problems=[]))
    others = [file for file in every if file.suffix.lower() in AUDIO_SUFFIXES and os.path.abspath(file) not in named]
    if others:  # or in it by a link
        named = set(map(os.path.realpath, paths))
        others = [file for file in others if os.path.realpath(file) not in named]
    if others and name in LISTS:
        refused = len(paths) < len(listed)
        _say_unlisted(folder, len(others), printable(str(others[0].relative_to(folder))), refused)
    read = {_LINE.sub("", row.place) for row in listed}
    stems = {os.path.splitext(path)[0] for path in map(str, paths)}
    kinds = {os.path.splitext(place)[1] for place in read}
    beside = Counter(
        file.suffix.lower() or "no suffix"
        for file in every
        if file.suffix.lower() not in (*AUDIO_SUFFIXES, *_WITH_LISTS)
        and printable(str(file)) not in read
        and (file.suffix not in kinds or os.path.splitext(file)[0] in stems)
        and not (NOTES.fullmatch(file.name) or file.name == REPORT)
    )
    if beside:
        _say_beside(folder, name, ", ".join(f"{count} {printable(kind)}" for kind, count in beside.most_common(6)))


_LINE = re.compile(r":( sample )?\d+$")
_WITH_LISTS = (".wrd", ".ltr", ".uem")


@functools.cache
def _say_unlisted(folder: Path, count: int, example: str, refused: bool) -> None:
    where = "in no list, or in rows that are refused" if refused else "in no list"
    logger.info("%s: ignored, recordings %s: %d, such as %s", folder, where, count, example)


@functools.cache
def _say_beside(folder: Path, name: str, kinds: str) -> None:
    logger.info("%s: read as %s; also there, and ignored unless it names them: %s", folder, name, kinds)


def _is_of_segments(declared: CorpusFormat, listed: Sequence[Row | Problem]) -> bool:
    if declared.unit == "text":
        return any(one.text for row in listed if isinstance(row, Row) for one in row.segments)
    return declared.unit == "segment"


def _fetch_missing(rows: Sequence[Row | Problem], address: str, list_file: Path) -> None:
    """Fetch the recordings that a list names and its mirror lacks: those of a web server, which lists no folder."""
    below, folder = list_file.parent, address.rpartition("/")[0]
    files = {row.path for row in rows if isinstance(row, Row) and row.path.is_relative_to(below)}
    for file in sorted(files):
        if not file.is_file():
            with suppress(DataError):  # as of any list, a missing file is its row's problem
                fetched(f"{folder}/{file.relative_to(below).as_posix()}", file)


def _with_speakers(settings: RecordingData, path: Path, name: str, listed: list[Row | Problem]) -> list[Row | Problem]:
    """The rows with the speakers that the settings give, or as they are."""
    if settings.speaker is not None:
        _tell_of_renamed(path, listed, settings.speaker)
        return [_of_one_speaker(row, settings.speaker) for row in listed]
    if settings.speaker_in_name is not None:
        return [named_by(settings.speaker_in_name, row) for row in listed]
    if not settings.tells_speakers_apart:
        return listed
    if settings.speaker_folder is None and not (name in LISTS and _are_in_folders_of_speakers(path, listed)):
        tell_speakers_in_names(path, name, listed)
    tell_speakers_alike(path, listed)
    if settings.requirements.one_speaker:  # others need no names that mean the same everywhere
        tell_numbered_speakers(path, listed)
    return listed


def _are_in_folders_of_speakers(path: Path, listed: Sequence[Row | Problem]) -> bool:
    """Whether the recordings of a list that names no speaker may be of those that their folders name, which is told."""
    folder = path if path.is_dir() else path.parent
    rows = [row for row in listed if isinstance(row, Row)]
    speakers = {one.speaker for row in rows for one in row.segments}
    if speakers != {nfc(printable(folder.resolve().name))}:
        return False
    return tell_speakers_in_folders(folder, [row.path for row in rows], str(speakers.pop()))


def _tell_of_renamed(path: Path, listed: Sequence[Row | Problem], speaker: str) -> None:
    """Tells, once, that data.speaker stands for several speakers whom a corpus names; warns where it is one of them."""
    names = tuple(sorted({name for row in listed if isinstance(row, Row) for name in row.speakers}))
    if len(names) > 1:
        _say_renamed(path, names, speaker)


@functools.cache
def _say_renamed(path: Path, names: tuple[str, ...], speaker: str) -> None:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    told = f"{printable(str(path))}: data.speaker={speaker} stands for all {len(names)} speakers ({shown})"
    if speaker in names:
        logger.warning("%s; for recordings of %s alone, give only those as data.path", told, speaker)
    else:
        logger.info("%s", told)


def _of_one_speaker(row: Row | Problem, speaker: str) -> Row | Problem:
    """The row with all that is said in it by `speaker`."""
    if isinstance(row, Problem):
        return row
    return (row if row.segments else replace(row, segments=(Segment(),))).with_speaker(speaker)


def _within(row: Row | Problem, name: str, speaker: str | None) -> Row | Problem:
    """The row of a corpus called `name` beside others; `speaker` is the one of all corpora, if there is one."""
    if isinstance(row, Problem):
        return replace(row, id=f"{name}/{row.id}") if row.id else row
    segments = tuple(
        replace(
            one,
            id=one.id and f"{name}/{one.id}",
            speaker=speaker or (one.speaker and f"{name}/{one.speaker}"),
        )
        for one in row.segments
    )
    return replace(row, id=f"{name}/{row.id}", segments=segments)


def _with_own_speakers(row: Row | Problem) -> Row | Problem:
    """The row with speakers that no other row has."""
    if isinstance(row, Problem):
        return row
    segments = tuple(replace(one, speaker=one.speaker and f"{row.id}/{one.speaker}") for one in row.segments)
    return replace(row, segments=segments)


def check_corpus(
    settings: RecordingData, progress: Progress | None = None, requirements: Requirements | None = None
) -> tuple[list[CheckedRow], Report]:
    """The usable recordings of a corpus, and the report on all. `requirements` are the settings' own by default.

    Raises DataError when no recording can be used.
    """
    rows, report = list_corpus(settings)
    needs, notes = requirements or settings.requirements, cache_root(settings)
    checked = validate(rows, needs, report, progress, settings.threads, settings.executor, notes)
    report.require_usable()
    return checked, report


def read_corpus(settings: RecordingData, progress: Progress | None = None) -> tuple[CutSet, Report]:
    """A corpus as a Lhotse CutSet, and the report on it."""
    checked, report = check_corpus(settings, progress)
    return to_cuts(checked), report


def to_cuts(recordings: Sequence[CheckedRow]) -> CutSet:
    """A CutSet with a cut for each row, and a supervision for each of its segments.

    Raises MissingPackageError without Lhotse.
    """
    lhotse = optional_package("lhotse", "a CutSet", LHOTSE)
    return cast("CutSet", lhotse.CutSet.from_dicts(cut_document(one) for one in recordings))


def cut_document(one: CheckedRow) -> dict[str, Any]:
    """A row as Lhotse writes a cut, with a supervision for each segment. (Without Lhotse: every training writes cuts,
    and few install it.)"""
    row, rate, channels = one.row, one.sample_rate, list(range(one.channels))
    first = round(row.start * rate)
    samples = round((first / rate + one.seconds) * rate)
    duration = (samples - first) / rate
    mono = row.channel is not None or len(channels) == 1
    channel: int | list[int] = (row.channel or 0) if mono else channels
    segments = one.segments
    supervisions = [
        {
            "id": row.id if len(segments) == 1 else f"{row.id}-{number}",
            "recording_id": row.id,
            "start": segment.start,
            "duration": (duration if segment.end is None else min(segment.end, duration)) - segment.start,
            "channel": channel,
            **({} if segment.text is None else {"text": segment.text}),
            **({} if segment.speaker is None else {"speaker": segment.speaker}),
        }
        for number, segment in enumerate(segments)
    ]
    recording = {
        "id": row.id,
        "sources": [{"type": "file", "channels": channels, "source": row.source}],
        "sampling_rate": rate,
        "num_samples": samples,  # up to the end of the row: what the file holds after it is not known here
        "duration": samples / rate,
        "channel_ids": channels,
    }
    return {
        "id": row.id,
        "start": first / rate,
        "duration": duration,
        "channel": channel,
        "supervisions": supervisions,
        "recording": recording,
        "type": "MonoCut" if mono else "MultiCut",
    }
