"""Formats of annotation files, which name recordings that lie somewhere near: RTTM, STM, Kaldi's data directories."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path

from phonate.audio.decoding import probe
from phonate.audio.readers import VIDEO_SUFFIXES
from phonate.config.errors import DataError
from phonate.data.annotations import FIELDS, Region, SpeakerTurn, seconds, speaker_line, uem_region
from phonate.data.corpora.lists import read_lines
from phonate.data.corpora.rows import (
    Problem,
    Row,
    Segment,
    audio_files,
    checked_row,
    composed,
    corpus_format,
    in_any_form,
    is_file,
    malformed,
    printable,
    split_among,
)

logger = logging.getLogger("phonate")

# ------------------------------------------------- Recordings by the names that annotations call them


class Recordings:
    """The audio files under a folder, by the names that annotations call them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[Problem] = []
        """Folders that can't be read."""
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
            self._alike.setdefault(_plain(stem), []).extend(files)

    def _named(self, name: str) -> list[Path]:
        return self._files.get(name) or list(dict.fromkeys(self._alike.get(_plain(name), ())))

    def find(self, name: str, place: str) -> Path | Problem:
        """The file of the recording `name`, in which `_` may stand for a space, or why there is none."""
        files = self._named(name)
        if len(files) > 1:  # a video beside its sound
            files = [file for file in files if file.suffix.lower() not in VIDEO_SUFFIXES] or files
        if len(files) == 1:
            return files[0]
        root = printable(str(self.root))
        if not files:
            return Problem(name, place, "missing file", f"no recording {name!r} under {root}")
        names = ", ".join(printable(str(file.relative_to(self.root))) for file in files[:3])
        return Problem(name, place, "several files", f"recording {name!r} may be {names}; keep one of them")

    def others(self, names: Collection[str]) -> Iterator[Problem]:
        """A problem for each recording that none of `names` stands for."""
        known = {file for name in names for file in self._named(name)}
        for file in sorted({file for files in self._files.values() for file in files} - known):
            place = printable(str(file))
            yield Problem(printable(file.stem), place, "no annotation", "the recording is in no annotation file")


def _plain(name: str) -> str:
    """The name with `_` for spaces, which annotations can't hold, and in one form of Unicode."""
    return re.sub(r"[\s_]+", "_", composed(name))


def annotation_files(path: Path, suffix: str) -> list[Path]:
    """`path` itself, or the files with `suffix` in a folder and its folders."""
    if path.is_file():
        return [path] if path.suffix.lower() == suffix else []
    files = (file for depth in ("*", "*/*") for file in path.glob(depth) if file.suffix.lower() == suffix)
    return sorted(file for file in files if file.is_file() and not file.name.startswith("."))


def root_of(path: Path) -> Path:
    """The folder under which the recordings of annotations at `path` are looked for: that of a file, or the one above
    where there are no recordings in it."""
    if path.is_dir():
        return path
    beside = next(audio_files(path.parent, problems=[]), None)
    return path.parent if beside is not None else path.parent.parent


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


def ordered(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Segments by their starts."""
    return tuple(sorted(segments, key=lambda one: (one.start, one.end or 0.0)))


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
    for name, recording in sorted(annotated.items()):
        yield from _recording_rows(name, recording, recordings, regions.get(name))
    if path.is_dir():
        yield from recordings.others(annotated.keys())


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
        spoken: tuple[str, SpeakerTurn] | None = None
        mistake: str | None = None
        try:
            spoken = speaker_line(fields)
        except ValueError as error:
            mistake = f"{error}; correct it"
            if len(fields) > FIELDS and isinstance(recordings.find(fields[1], place), Problem):  # a name with spaces
                yield malformed(place, mistake)
                continue
        recording = annotated.setdefault(fields[1], _Recording(place, split, file))
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


def _rttm_lines(file: Path) -> list[tuple[str, list[str]]]:
    """Place and fields of each line but comments. Raises DataError for a file without a line of RTTM in it."""
    lines = [(f"{file}:{number}", line.split()) for number, line in enumerate(read_lines(file), start=1)]
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
                regions.setdefault(fields[0], []).append(uem_region(fields))
                first.setdefault(fields[0], file)
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
    segments = ordered(recording.segments)
    if regions is None:
        yield checked_row(Row(name, audio, segments, recording.place, split=recording.split))
        return
    for start, end in sorted(set(regions)):
        inside = tuple(one for one in segments if one.start < end and (one.end or end) > start)
        id = name if len(regions) == 1 else f"{name}-{round(1000 * start):08d}"
        yield checked_row(Row(id, audio, inside, recording.place, None, start, end, recording.split))


# ------------------------------------ STM: segments with speakers and texts (NIST SCTK, `stm` format)

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
        for row in _stm_rows(file, root, recordings):
            names.add(row.id.partition("/")[0] if isinstance(row, Row) else row.id)
            yield row
    if path.is_dir():
        yield from recordings.others(names)


def _stm_rows(file: Path, root: Path, recordings: Recordings) -> Iterator[Row | Problem]:
    try:
        lines = read_lines(file)
    except DataError as error:
        yield Problem("", str(file), "unreadable", str(error))
        return
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
            channel, segment = _stm_segment(line)
        except (ValueError, IndexError):
            detail = "expected recording, channel, speaker, start, end, labels and text; correct it"
            bad.setdefault(name, Problem(name, place, "malformed row", detail))
            continue
        segments_of.setdefault((name, channel.lower()), []).extend([segment] if segment is not None else [])
        marked += segment is not None and (segment.text or "") not in line
    if marked:
        report_marks(file, marked)
    yield from bad.values()
    several = {
        name for name, _ in segments_of if any({(name, one), (name, two)} <= segments_of.keys() for one, two in _SIDES)
    }
    for (name, channel), segments in segments_of.items():
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


def _stm_segment(line: str) -> tuple[str, Segment | None]:
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
    while (first := _ALTERNATIVES.sub(lambda match: f" {match[1].split(' / ')[0]} ", plain)) != plain:
        plain = first  # alternatives may hold others
    plain = _MARKS.sub(" ", plain)
    return text if plain == text else " ".join(plain.split())


# ----------------- Kaldi: wav.scp, segments, text, utt2spk (https://kaldi-asr.org/doc/data_prep.html)

_PARENTS = 4


def is_kaldi(path: Path) -> bool:
    """A folder with wav.scp, or with folders (train, dev, test) that have one."""
    return path.is_dir() and bool(_kaldi_folders(path))


@corpus_format(is_kaldi, priority=70, unit="segment")
def kaldi_rows(path: Path) -> Iterator[Row | Problem]:
    """A row for each recording of wav.scp, with its utterances as segments; without `segments` the recording is one
    utterance. `reco2file_and_channel` chooses channels. Recordings that a command makes are refused: a list is data,
    and may not run a shell. Of several folders, each is read, and the ids begin with its name."""
    folders = _kaldi_folders(path)
    if not folders:
        raise DataError(f"{path}: no wav.scp in it")
    for folder in folders:
        for row in _KaldiFolder(folder).rows():
            if isinstance(row, Row) and folder != path:
                inside = printable(folder.relative_to(path).as_posix())
                segments = tuple(replace(one, id=one.id and f"{inside}/{one.id}") for one in row.segments)
                row = replace(row, id=f"{inside}/{row.id}", segments=segments)
            yield row


def _kaldi_folders(path: Path) -> list[Path]:
    if (path / "wav.scp").is_file():
        return [path]
    return sorted(file.parent for file in path.glob("*/wav.scp"))


class _KaldiFolder:
    """One data directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._split = split_among([folder.name])
        self._speakers = self._table("utt2spk")
        self._texts = self._table("text")
        self._channels = self._table("reco2file_and_channel")
        self._sources = self._table("wav.scp")

    def _table(self, name: str) -> dict[str, str]:
        """Key -> the rest of its line; nothing where there is no such file."""
        if not (self._folder / name).is_file():
            return {}
        lines = (line.split(maxsplit=1) for line in read_lines(self._folder / name))
        return {fields[0]: fields[1].strip() if len(fields) > 1 else "" for fields in lines if fields}

    def rows(self) -> Iterator[Row | Problem]:
        """The recordings, and what is wrong with some."""
        utterances, bad = self._utterances()
        yield from bad.values()
        refused = {problem.id for problem in bad.values()}
        names = set()
        for number, line in enumerate(read_lines(self._folder / "wav.scp"), start=1):
            place, fields = f"{self._folder / 'wav.scp'}:{number}", line.split(maxsplit=1)
            if not fields:
                continue
            if len(fields) < 2:
                yield malformed(place, "expected a recording and its file")
                continue
            name, source = fields[0], fields[1].strip()
            names.add(name)
            if name not in refused:
                segments = utterances.get(name, []) if utterances is not None else [self._utterance(name)]
                yield self._row(name, source, ordered(segments), place)
        for name in (utterances or {}).keys() - names:
            place = str(self._folder / "segments")
            yield Problem(name, place, "missing file", f"recording {name!r} is not in wav.scp")

    def _row(self, name: str, source: str, segments: tuple[Segment, ...], place: str) -> Row | Problem:
        if source.endswith("|") or source == "-":
            detail = f"made by a command ({source[:60]}); run it once and list the file that it makes"
            return Problem(name, place, "command", detail)
        channel = None
        if name in self._channels:
            fields = self._channels[name].split()
            channel = _CHANNELS.get(fields[-1].lower()) if len(fields) == 2 else None
            if channel is None:
                return malformed(place, f"reco2file_and_channel has {self._channels[name]!r}; give a file and A or B")
            # Most recipes make a file of each channel; the list then only says where it was once.
            if not is_stereo(self._file(source)):
                channel = None
        return checked_row(Row(name, self._file(source), segments, place, channel, split=self._split))

    def _utterances(self) -> tuple[dict[str, list[Segment]] | None, dict[str, Problem]]:
        """Recording -> utterances, None without a file `segments`; and for recordings with a bad line, the line."""
        if not (self._folder / "segments").is_file():
            return None, {}
        utterances: dict[str, list[Segment]] = {}
        bad: dict[str, Problem] = {}
        for number, line in enumerate(read_lines(self._folder / "segments"), start=1):
            fields, place = line.split(), f"{self._folder / 'segments'}:{number}"
            if not fields:
                continue
            try:
                id, recording, start = fields[0], fields[1], seconds(fields[2])
                end = None if float(fields[3]) == -1.0 else seconds(fields[3])  # -1: to the end of the recording
                if end is not None and start >= end:
                    raise ValueError
            except (IndexError, ValueError):
                name = fields[1] if len(fields) > 1 else place
                bad[name] = Problem(name, place, "malformed row", "expected utterance, recording, start and end")
                continue
            utterances.setdefault(recording, []).append(replace(self._utterance(id), start=start, end=end))
        return utterances, bad

    def _utterance(self, id: str) -> Segment:
        return Segment(speaker=self._speakers.get(id) or None, text=self._texts.get(id) or None, id=id)

    def _file(self, source: str) -> Path:
        """The file of wav.scp: relative to the folder, or to one above it, as Kaldi's recipes run there."""
        file = Path(source)
        if file.is_absolute():
            return file
        roots = [self._folder, *list(self._folder.resolve().parents)[:_PARENTS]]
        files = (root / file for root in roots if is_file(root / file))
        spelled = (in_any_form(root, source) for root in roots if not source.isascii())
        return next(filter(None, chain(files, spelled)), self._folder / file)
