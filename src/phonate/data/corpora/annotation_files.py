"""Formats of annotations of recordings that lie beside them or somewhere near: RTTM, STM, NeMo's manifests, and labels
of any format of `phonate.data.labels`, such as TextGrid, ELAN, captions, CTM and CHAT."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from phonate.audio.containers.kinds import AUDIO_SUFFIXES, VIDEO_SUFFIXES
from phonate.audio.decoding import probe
from phonate.config.errors import DataError
from phonate.config.registry import nearest
from phonate.config.words import that_many
from phonate.data.annotations import (
    FIELDS,
    Region,
    SpeakerTurn,
    read_rttm,
    read_uem,
    rttm_fields,
    speaker_line,
    uem_region,
)
from phonate.data.corpora.lists import LOOKED_AT, OBJECTS, first_object, json_lines, read_lines
from phonate.data.corpora.places import best
from phonate.data.corpora.rows import (
    Problem,
    Row,
    Segment,
    audio_files,
    checked_row,
    corpus_format,
    listed_file,
    malformed,
    printable,
    split_among,
)
from phonate.data.labels import (
    LABEL_FORMATS,
    LabelFormat,
    RecordingLabels,
    before_transcripts,
    by_start,
    label_files,
    label_format,
    of_speakers,
    same_name,
    some,
    suffixes,
)

logger = logging.getLogger("phonate")
Listed = TypeVar("Listed")

# ------------------------------------------------- Recordings by the names that annotations call them


_LANGUAGE = re.compile(r"\.([a-z]{2,3}(-[A-Za-z]{2,8})?|transcripts?|captions?|subtitles?)$")
"""What captions have behind the name of their recording: talk.en.vtt, Zoom's call.transcript.vtt."""


_MOST_COMPARED = 100


class Recordings:
    """The audio files under a folder, by the names that annotations call them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[Problem] = []
        """Folders that can't be read."""
        self._told = set[str]()
        self._files: dict[str, list[Path]] = {}
        for file in audio_files(root, problems=self.problems):
            self._files.setdefault(printable(file.stem), []).append(file)
        # AMI's annotations say ES2011a, its files are called ES2011a.Mix-Headset.wav.
        short: dict[str, list[Path]] = {}
        for stem, files in self._files.items():
            short.setdefault(stem.partition(".")[0], []).extend(files)
        self._files = short | self._files
        self._alike: dict[str, list[Path]] = {}
        for stem, files in self._files.items():
            self._alike.setdefault(same_name(stem), []).extend(files)

    def files_named(self, name: str) -> list[Path]:
        """The files that may be meant by a name, also with a language behind it, as captions have: talk.en.vtt, or with
        folders and a suffix, as if it were that of the file."""
        found = self._files.get(name) or list(dict.fromkeys(self._alike.get(same_name(name), ())))
        stem, suffix = os.path.splitext(name)
        if found:
            return found
        if "/" in name:
            *folders, last = name.split("/")
            return best(self.files_named(last), self.root / "x", folders)
        if suffix.lower() in AUDIO_SUFFIXES or _LANGUAGE.search(name):
            return self.files_named(stem)
        return []

    def find(self, name: str, place: str) -> Path | Problem:
        """The file of the recording `name`, in which `_` may stand for a space, or why there is none. Of several it is
        the one nearest to the `place` of its labels."""
        files = best(self.files_named(name), Path(place))
        if len(files) > 1:  # a video beside its sound
            files = [file for file in files if file.suffix.lower() not in VIDEO_SUFFIXES] or files
        if len(files) == 1:
            return files[0]
        root = printable(str(self.root))
        if not files:
            return Problem(name, place, "missing file", f"no recording {name!r} under {root}{self._near(name)}")
        names = ", ".join(printable(str(file.relative_to(self.root))) for file in files[:3])
        return Problem(name, place, "several files", f"recording {name!r} may be {names}; keep one of them")

    def _near(self, name: str) -> str:
        """What may be meant by the name of no recording, or once all names; of many it is not looked for, as that takes
        long."""
        known = sorted(self._files)
        if not 0 < len(known) <= _MOST_COMPARED:
            return ""
        if (mend := nearest(name, known)) in self._told:
            return ""
        if not mend.startswith("did you mean"):
            self._told.add(mend)
        return f"; {mend}"

    def of_labels(self, name: str, place: str) -> Path | Problem:
        """The file of the recording that labels at `place` call `name`: the one beside them, or as `find` says."""
        beside = [near for end in AUDIO_SUFFIXES if (near := Path(place).with_suffix(end)).is_file()]
        return beside[0] if len(beside) == 1 else self.find(name, place)

    def others(self, rows: Collection[Row | Problem]) -> list[Path]:
        """The recordings that are in no row, and that no problem may be about."""
        known = {row.path for row in rows if isinstance(row, Row)}
        known |= {file for row in rows if isinstance(row, Problem) for file in self.files_named(row.id)}
        return sorted({file for files in self._files.values() for file in files} - known)


_DEPTH = 4
"""Folders down to which annotations are looked for, as in TED-LIUM's legacy/train/stm/."""


def annotation_files(path: Path, suffix: str) -> list[Path]:
    """`path` itself, or the files with `suffix` in a folder and its folders."""
    if path.is_file():
        return [path] if path.suffix.lower() == suffix else []
    files = (Path(file) for file in _files_below(path, _DEPTH) if os.path.splitext(file)[1].lower() == suffix)
    return sorted(file for file in files if file.is_file() and not file.name.startswith("."))


def _files_below(folder: Path | str, depth: int) -> Iterator[str]:
    """What is in a folder and its folders, so many down; not by Path.glob, which takes ten times as long."""
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError:  # whoever reads the recordings in it says so
        return
    for entry in listed:
        yield entry.path
        # Of links that form a loop os.path.isdir says that they are no folder, which entry.is_dir raises.
        if depth > 1 and (os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()):
            yield from _files_below(entry.path, depth - 1)


def root_of(path: Path) -> Path:
    """The folder under which the recordings of annotations at `path` are looked for: theirs, or the one above where
    there are no recordings in it."""
    folder = path if path.is_dir() else path.parent
    beside = next(audio_files(folder, problems=[]), None)
    return folder if beside is not None else folder.parent


def is_stereo(file: Path) -> bool:
    """Whether a channel can be chosen. Where the file is mono, or can't be read, which is reported when it is checked,
    there is none to choose."""
    try:
        return probe(file).channels > 1
    except DataError:
        return False


def split_of(file: Path, root: Path) -> str | None:
    """The official split that a file's name, or a folder above it, stands for."""
    inside = file.relative_to(root).parts if file.is_relative_to(root) else (file.name,)
    return split_among(reversed((*inside[:-1], file.stem)))


# ------------- RTTM: who speaks when (NIST, Rich Transcription 2009, appendix A), with or without UEM

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
    recordings, annotated = Recordings(root), dict[str, _Recording]()
    yield from recordings.problems
    for file in files:
        yield from _read_rttm(file, root, recordings, annotated)
    lists = annotation_files(path if path.is_dir() else path.parent, ".uem")
    regions, silent, problems = _uem_regions(sorted(lists, key=lambda one: one.stem != path.stem))  # its own list first
    yield from problems
    for name in silent.keys() - annotated.keys():
        # Recordings without speech. Those of a list of other recordings are none of one file's.
        if path.is_dir() or silent[name].stem == path.stem:
            annotated[name] = _Recording(str(silent[name]), split_of(silent[name], root), silent[name])
    rows = [
        row
        for name, recording in sorted(annotated.items())
        for row in _recording_rows(name, recording, recordings, regions.get(name))
    ]
    yield from rows
    if path.is_dir():
        yield from _others(path, recordings, rows)


def _read_rttm(file: Path, root: Path, recordings: Recordings, annotated: dict[str, _Recording]) -> Iterator[Problem]:
    """Add the lines of a file to the recordings; yields what belongs to none."""
    try:
        lines = _rttm_lines(file)
    except DataError as error:
        yield Problem("", str(file), "unreadable", f"{error}; correct or remove the file")
        return
    split = split_of(file, root)
    for place, fields in lines:
        if len(fields) < 2 or fields[0] != "SPEAKER":
            if not _TYPE.fullmatch(fields[0]):
                yield malformed(place, f"not RTTM; expected {_LINE}; correct or remove the line")
            continue
        name = _without_suffix(fields[1])
        spoken: tuple[str, SpeakerTurn] | None = None
        mistake: str | None = None
        try:
            spoken = speaker_line(fields)
        except ValueError as error:
            mistake = f"{error}; correct it"
            if len(fields) > FIELDS and isinstance(recordings.find(name, place), Problem):  # a name with spaces
                yield malformed(place, mistake)
                continue
        recording = annotated.setdefault(name, _Recording(place, split, file))
        if recording.file != file:
            raise DataError(
                f"{place}: {name} is in {recording.file.name} too; give the file that is meant as data.path"
            )
        if mistake is not None:
            detail = f"{mistake}: because of this line all of {name} is left out"
            recording.bad.append(Problem(name, place, "malformed row", detail))
        if spoken is not None:
            channel, turn = spoken
            recording.segments.append(Segment(turn.start, turn.end, turn.speaker, place=place))
            recording.channels.add(channel)


def _without_suffix(name: str) -> str:
    """A recording's name: `monday.wav` is `monday`."""
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in AUDIO_SUFFIXES else name


def _rttm_lines(file: Path) -> list[tuple[str, list[str]]]:
    """Place and fields of each line but comments. Raises DataError for a file without a line of RTTM in it."""
    lines = [(f"{file}:{number}", rttm_fields(line.split())) for number, line in enumerate(read_lines(file), start=1)]
    content = [(place, fields) for place, fields in lines if fields and not fields[0].startswith((";", "#"))]
    if content and not any(_TYPE.fullmatch(fields[0]) for _, fields in content):
        raise DataError(f"not RTTM: no line of text like {_LINE}")
    return content


def _uem_regions(files: list[Path]) -> tuple[dict[str, list[Region]], dict[str, Path], list[Problem]]:
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
                regions.setdefault(_without_suffix(fields[0]), []).append(uem_region(fields))
                first.setdefault(_without_suffix(fields[0]), file)
            except ValueError as error:
                problems.append(malformed(f"{file}:{number}", str(error)))
    return regions, first, problems


def _recording_rows(
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
    segments = tuple(by_start(recording.segments))
    if regions is None:
        yield checked_row(Row(name, audio, segments, recording.place, split=recording.split))
        return
    for start, end in sorted(set(regions)):
        inside = tuple(one for one in segments if one.start < end and (one.end or end) > start)
        id = name if len(regions) == 1 else f"{name}-{round(1000 * start):08d}"
        yield checked_row(Row(id, audio, inside, recording.place, None, start, end, recording.split))


# --------- NeMo's manifests for diarization: audio_filepath with rttm_filepath and uem_filepath, a line each


def is_nemo(path: Path) -> bool:
    """JSON lines that name RTTM files, or a folder with one such list and no RTTM beside it."""
    if path.is_dir():
        return not is_rttm(path) and len(_nemo_lists(path)) == 1
    return path.suffix.lower() in OBJECTS and path.is_file() and "rttm_filepath" in first_object(path)


def _nemo_lists(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in OBJECTS and is_nemo(file))


@corpus_format(is_nemo, priority=50)
def nemo_rows(path: Path) -> Iterator[Row | Problem]:
    """A row for each line (or each region of its UEM), from `offset` for `duration`, with the turns of its RTTM as
    segments."""
    if path.is_dir():
        path = _nemo_lists(path)[0]
    for place, entry in json_lines(path):
        if isinstance(entry, Problem):
            yield entry
            continue
        try:
            yield from _nemo_line(entry, path.parent, place)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            yield malformed(place, f"not a line of NeMo's ({type(error).__name__}: {error}); correct it")
        except DataError as error:
            yield malformed(place, str(error))


def _nemo_line(entry: dict[str, Any], root: Path, place: str) -> Iterator[Row | Problem]:
    name = entry["audio_filepath"]
    audio = listed_file(root, name)
    id = printable(audio.stem)
    if not entry.get("rttm_filepath"):
        yield Problem(id, place, "no annotation", "its rttm_filepath is null")
        return
    turns = _of_recording(read_rttm(listed_file(root, entry["rttm_filepath"])), audio)
    if turns is None:
        yield Problem(id, place, "no annotation", f"{entry['rttm_filepath']} has no recording {id!r}")
        return
    start = float(entry.get("offset") or 0.0)
    end = start + float(entry["duration"]) if entry.get("duration") is not None else None
    regions = [(start, end)]
    if entry.get("uem_filepath"):
        listed = _of_recording(read_uem(listed_file(root, entry["uem_filepath"])), audio) or []
        regions = [
            (max(start, first), last if end is None else min(end, last))
            for first, last in listed
            if last > start and (end is None or first < end)
        ]
    for first, last in regions:
        inside = [one for one in turns if one.end > first and (last is None or one.start < last)]
        segments = tuple(Segment(one.start, one.end, one.speaker) for one in inside)
        part = f"-{round(1000 * first):08d}" if len(regions) > 1 or start else ""
        yield checked_row(Row(id + part, audio, segments, place, None, first, last, split_among([Path(name).stem])))


def _of_recording(listed: Mapping[str, list[Listed]], audio: Path) -> list[Listed] | None:
    """What a file lists for a recording: what it calls so, or all there is where it is of one recording."""
    by_name = {same_name(name): entries for name, entries in listed.items()}
    return by_name.get(same_name(audio.stem)) or (next(iter(by_name.values())) if len(by_name) == 1 else None)


# ------------------------------------ STM: segments with speakers and texts (NIST SCTK, `stm` format)

CHANNELS = {"a": 0, "b": 1, "1": 0, "2": 1}
"""What annotations call the sides of a conversation -> the channel, counted from 0."""
_SIDES = (("a", "b"), ("1", "2"))


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
    recordings = Recordings(root)
    yield from recordings.problems
    rows = [row for file in files for row in _stm_rows(file, root, recordings)]
    yield from rows
    if path.is_dir():
        yield from _others(path, recordings, rows)


def _stm_rows(file: Path, root: Path, recordings: Recordings) -> Iterator[Row | Problem]:
    try:
        lines = read_lines(file)
    except DataError as error:
        yield Problem("", str(file), "unreadable", str(error))
        return
    from phonate.data.label_texts import stm_segment

    segments_of: dict[tuple[str, str], list[Segment]] = {}
    places: dict[str, str] = {}
    bad: dict[str, Problem] = {}
    marked = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        name, place = line.split()[0], f"{file}:{number}"
        places.setdefault(name, place)
        try:
            channel, segment = stm_segment(line)
        except (ValueError, IndexError):
            detail = "expected recording, channel, speaker, start, end, labels and text"
            detail += f"; correct it: because of this line all of {name} is left out"
            bad.setdefault(name, Problem(name, place, "malformed row", detail))
            continue
        segments_of.setdefault((name, channel.lower()), []).extend(
            [replace(segment, place=place)] if segment is not None else []
        )
        marked += segment is not None and (segment.text or "") not in line
    if marked:
        report_marks(file, marked)
    yield from bad.values()
    good = {key: segments for key, segments in segments_of.items() if key[0] not in bad}
    yield from rows_of_sides(file, root, recordings, good, places)


def rows_of_sides(
    file: Path,
    root: Path,
    recordings: Recordings,
    segments_of: Mapping[tuple[str, str], Iterable[Segment]],
    places: Mapping[str, str],
) -> Iterator[Row | Problem]:
    """The rows of segments by recording and channel, of a conversation's sides."""
    several = {
        name for name, _ in segments_of if any({(name, one), (name, two)} <= segments_of.keys() for one, two in _SIDES)
    }
    for (name, channel), segments in segments_of.items():
        audio = recordings.find(name, places[name])
        if isinstance(audio, Problem):
            yield audio
            continue
        # 1 alone also stands for all of a recording
        named = name in several or (channel in _SIDES[0] and is_stereo(audio))
        side = CHANNELS.get(channel) if named else None
        id = f"{name}/{channel}" if name in several else name
        yield checked_row(Row(id, audio, tuple(by_start(segments)), places[name], side, split=split_of(file, root)))


@cache
def report_marks(file: Path, count: int) -> None:
    """Says, once, what is not taken of the texts of a file."""
    logger.warning(
        "%s: %s; of these only first alternatives are taken",
        printable(str(file)),
        that_many(count, "text", "hold alternatives, optional words or marks"),
    )


# ------------------------------------------------------ Labels of any format beside recordings

_OWN_CORPORA = ("rttm", "stm")
"""Formats that have a reader of their own here."""


def is_labels(path: Path) -> bool:
    """A folder in which at least half of the recordings have labels, and no texts beside them. TextGrids of words and
    phones belong to such texts, and so do transcripts in JSON that name no speakers."""
    fitting = _fitting(path) if path.is_dir() else []
    if len(fitting) > 1:
        titles = " and ".join(kind.title for kind in fitting)
        raise DataError(
            f"{path}: has labels of several kinds, {titles}; set data.format to one of "
            f"{', '.join(kind.name for kind in fitting)}, or to folder"
        )
    return bool(fitting)


def _kinds_in(path: Path) -> dict[LabelFormat, list[Path]]:
    return {kind: files for kind, files in label_files(path).items() if kind.name not in _OWN_CORPORA}


def _fitting(path: Path) -> list[LabelFormat]:
    """The kinds of labels in a folder that fit its recordings."""
    kinds = _kinds_in(path)
    if not kinds:
        return []
    recordings = list(audio_files(path, problems=[]))
    texts = sum(file.with_suffix(end).is_file() for file in recordings for end in (".txt", ".lab"))
    fitting = before_transcripts(kind for kind, files in kinds.items() if _fits(kind, files, recordings, texts))
    if len(fitting) < 2 or not _say_the_same([_said_in(kind, kinds[kind]) for kind in fitting]):
        return fitting
    _report_same(path, fitting[0].title, tuple(kind.title for kind in fitting[1:]))
    return fitting[:1]


_NEAR = 0.1
"""Seconds by which captions of several kinds that a program wrote may differ."""
_Said = dict[str, list[Segment]]


def _said_in(kind: LabelFormat, files: list[Path]) -> _Said | None:
    """Recording -> its segments; None where a file can't be read."""
    try:
        return {same_name(one.recording): one.segments for file in files for one in kind.read(file)}
    except DataError:  # reported by whoever reads the kind that is named
        return None


def _say_the_same(kinds: Sequence[_Said | None]) -> bool:
    """Whether all kinds have the same words and speakers of the same recordings, at the same times."""
    first, *others = kinds
    return first is not None and all(
        other is not None
        and other.keys() == first.keys()
        and all(_are_equal(first[name], other[name]) for name in first)
        for other in others
    )


def _are_equal(segments: Sequence[Segment], others: Sequence[Segment]) -> bool:
    return len(segments) == len(others) and all(
        (one.text, one.speaker) == (other.text, other.speaker) and abs(one.start - other.start) <= _NEAR
        for one, other in zip(segments, others, strict=True)
    )


@cache
def _report_same(path: Path, read: str, others: tuple[str, ...]) -> None:
    logger.info("%s: %s is read; %s there says the same", printable(str(path)), read, " and ".join(others))


def _fits(kind: LabelFormat, files: list[Path], recordings: list[Path], texts: int) -> bool:
    if kind.names_recordings:
        return bool(recordings)
    if texts and kind.name != "audacity":
        return False
    from phonate.data.label_documents import is_alignment, names_speakers

    stems = {same_name(name) for file in files for name in (file.stem, _LANGUAGE.sub("", file.stem))}
    labelled = sum(same_name(file.stem) in stems for file in recordings)
    if kind.name == "transcript" and not any(map(names_speakers, files[:LOOKED_AT])):
        return False
    return 0 < len(recordings) <= 2 * labelled and not (kind.name == "textgrid" and is_alignment(files[0]))


def _is_file_of(name: str) -> Callable[[Path], bool]:
    return lambda path: path.is_file() and LABEL_FORMATS[name].has(path)


@corpus_format(is_labels, priority=35, unit="text")
def label_rows(path: Path) -> Iterator[Row | Problem]:
    """A row for each recording with labels of the one kind that a folder has, or of a file. Beside others, transcripts
    in JSON are passed over: programs that write captions write both."""
    if path.is_file():
        kind = label_format(path)
        if kind is None:
            raise DataError(f"{path}: not a label file; they end in {suffixes()}")
    else:
        kinds = _fitting(path) or before_transcripts(_kinds_in(path))
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
    rows = list[Row | Problem]()
    left_out: Counter[str] = Counter()
    merged: dict[str, RecordingLabels] = {}
    for file in files:
        try:
            listed = list(map(of_speakers, kind.read(file)))
        except DataError as error:
            rows.append(Problem(printable(file.stem), str(file), "malformed labels", printable(str(error))))
            continue
        if kind.name == "ctm":
            sides = {(one.recording, one.channel or "1"): one.segments for one in listed}
            rows += rows_of_sides(file, root, recordings, sides, {one.recording: one.place for one in listed})
        for one in listed:
            left_out += one.left_out
            if kind.names_recordings and one.recording in merged:  # a file of each participant
                merged[one.recording].segments += one.segments
            else:
                merged[one.recording if kind.names_recordings else one.place] = one
    if kind.name != "ctm":
        rows += _one_each([_labelled_row(one, root, recordings) for one in merged.values()])
    for what, count in left_out.items():
        report_left_out(path, what, count)
    yield from rows
    if path.is_dir():
        yield from _others(path, recordings, rows)


def _others(folder: Path, recordings: Recordings, rows: Collection[Row | Problem]) -> Iterator[Row | Problem]:
    """A row for each recording that is in none of `rows`, where these say who speaks and so do labels of another kind
    that bear its name; else a problem."""
    others, labelled = recordings.others(rows), list[Row | Problem]()
    if others and all(one.speaker is not None for row in rows if isinstance(row, Row) for one in row.segments):
        labelled = list(_one_each(list(_of_other_kinds(folder, recordings, {*others}))))
    if files := tuple(Path(row.place).name for row in labelled if isinstance(row, Row)):
        _report_other_kinds(folder, files)
    yield from labelled
    for file in recordings.others([*rows, *labelled]):
        place = printable(str(file))
        yield Problem(printable(file.stem), place, "no annotation", "the recording is in no annotation file")


@cache
def _report_other_kinds(folder: Path, files: tuple[str, ...]) -> None:
    logger.info("%s: read as well, for recordings without other labels: %s", printable(str(folder)), some(files))


def _of_other_kinds(folder: Path, recordings: Recordings, audio: Collection[Path]) -> Iterator[Row | Problem]:
    """Rows of these recordings from files that are labels of one recording each and say who speaks."""
    from phonate.data.label_documents import is_alignment

    kinds = {kind: files for kind, files in label_files(folder).items() if not kind.names_recordings}
    for kind in before_transcripts(kinds):
        for file in kinds[kind]:
            if recordings.of_labels(file.stem, str(file)) not in audio:
                continue
            try:
                words = kind.name == "textgrid" and is_alignment(file)
                listed = [] if words else list(map(of_speakers, kind.read(file)))
            except DataError as error:
                yield Problem(printable(file.stem), str(file), "malformed labels", printable(str(error)))
                continue
            for one in listed:
                if one.segments and all(segment.speaker is not None for segment in one.segments):
                    yield _labelled_row(one, recordings.root, recordings)


def _one_each(rows: list[Row | Problem]) -> Iterator[Row | Problem]:
    """The rows; a problem for those of recordings with several files of labels that do not say the same, such as
    captions of two languages."""
    listed: dict[Path, list[Row]] = {}
    for row in rows:
        if isinstance(row, Row):
            listed.setdefault(row.path, []).append(row)
    for row in rows:
        if isinstance(row, Problem):
            yield row
            continue
        first, *others = listed[row.path]
        names = [Path(one.place).name for one in (first, *others)]
        if not others:
            yield row
        elif not all(_are_equal(first.segments, one.segments) for one in others):
            detail = f"a recording has labels in {' and '.join(names[:3])}; keep one of them"
            yield Problem(row.id, row.place, "several files", detail)
        elif row is first:
            _report_same(row.path, names[0], tuple(names[1:]))
            yield row


def _labelled_row(one: RecordingLabels, root: Path, recordings: Recordings) -> Row | Problem:
    audio = recordings.of_labels(one.recording, one.place)
    if isinstance(audio, Problem):
        return audio
    inside = audio.relative_to(root) if audio.is_relative_to(root) else Path(audio.name)
    id = one.recording if len(recordings.files_named(one.recording)) == 1 else inside.with_suffix("").as_posix()
    return checked_row(Row(id, audio, tuple(by_start(one.segments)), one.place, split=split_of(Path(one.place), root)))


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


(
    ami_rows,
    ass_rows,
    audacity_rows,
    captions_rows,
    chat_rows,
    ctm_rows,
    elan_rows,
    srt_rows,
    textgrid_rows,
    transcript_rows,
    webvtt_rows,
) = map(
    _kind_rows, ("ami", "ass", "audacity", "captions", "chat", "ctm", "elan", "srt", "textgrid", "transcript", "webvtt")
)
