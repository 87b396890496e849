"""Rows and segments, what every corpus format yields, and the files that they name."""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import _lru_cache_wrapper, cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, Literal, TypeVar
from urllib.parse import unquote

from phonate.audio.containers.kinds import AUDIO_SUFFIXES, USUAL_SUFFIXES
from phonate.audio.decoding import (
    BLOCK_SECONDS,
    FloatArray,
    Recording,
    joined,
    normalised_peak,
    open_recording,
    regrouped,
    resample,
    resampled,
)
from phonate.compute.remote import is_remote, read_range
from phonate.compute.system import temporary_file, why_unwritten, write_whole
from phonate.config.errors import DataError, PhonateError

# ----------------------------------------------------------------------- What a task requires of a row

LONGEST_UNLABELLED = 2.0
"""Seconds outside of all segments that a clip of one speaker may have; longer stretches may be anyone's speech."""


@dataclass(frozen=True)
class Requirements:
    """What a row must have for a task; others are refused and counted. The default takes everything that can be read.

    `RecordingData.requirements` states them for the task whose settings it is.
    """

    text: bool = False
    """A text that holds a letter or a digit."""
    one_speaker: bool = False
    """At most one speaker, who talks throughout: no stretch over LONGEST_UNLABELLED outside of the segments."""
    speaker: bool = False
    """A name for the speaker of each segment, and at least one segment."""
    trained_speaker: bool = False
    """A speaker who is in training too: where official splits part the speakers, those of the others are refused. For
    models that learn each speaker's voice, and know no others."""
    min_seconds: float = 0.0
    """Shorter rows are refused."""
    max_seconds: float | None = None
    """Longer rows are refused. None: rows may be of any length."""
    may_be_empty: ClassVar[bool] = False
    """Whether `speaker` also takes rows without a segment, in which nobody speaks."""


@dataclass(frozen=True)
class ConversationRequirements(Requirements):
    """Recordings in which any number of people speak, or nobody: every segment there is names its speaker."""

    speaker: bool = True
    may_be_empty: ClassVar[bool] = True


# --------------------------- Recognising what phonate wrote itself, so that no corpus is built from it

_IN_A_RUN = ("manifest.json", "hyperparameters.json", "metrics.jsonl", "checkpoints")
_SESSION = re.compile(r"session_\d{8}_\d{6}")


def is_output(folder: Path) -> bool:
    """Whether `folder` is a run, an exported model, a session's folder, its logs, or the output folder of sessions.

    Scans for recordings or texts skip such folders below the one they start from: samples, previews and reports in
    them are not part of a corpus.
    """
    if (folder / "recipe.yaml").is_file() and any((folder / name).exists() for name in _IN_A_RUN):
        return True
    if _SESSION.fullmatch(folder.name) and (folder.parent / "logs" / f"{folder.name}.json").is_file():
        return True
    return _holds_session_logs(folder / "logs") or (folder.name == "logs" and _holds_session_logs(folder))


def _holds_session_logs(folder: Path) -> bool:
    try:
        return any(_SESSION.fullmatch(file.stem) for file in folder.glob("session_*.json"))
    except OSError:  # unreadable: whoever reads the folder reports it
        return False


# ------------------------- Rows and segments, what every corpus format yields, and finding audio files

SLACK_SECONDS = 0.5
"""How far the times of a corpus may be from those of its recordings: annotations are often rounded up."""


@dataclass(frozen=True)
class Segment:
    """A stretch of a recording in which one speaker talks. Times are seconds in the file."""

    start: float = 0.0
    end: float | None = None
    """None: to the end of the row."""
    speaker: str | None = None
    text: str | None = None
    id: str | None = None
    """What the corpus calls it, such as an utterance of Kaldi."""
    place: str = field(default="", compare=False)
    """Where it is listed, if not where its row is."""
    no_text: str | None = field(default=None, compare=False, repr=False)
    """Why its text is left out."""


@dataclass(frozen=True)
class Member:
    """Where a recording is in a shard."""

    shard: str
    """The path or address of a tar file."""
    name: str
    offset: int
    """Of its first byte in the tar file."""
    size: int
    """In bytes."""
    stamp: str
    """The state of the tar file."""

    def read(self) -> bytes:
        """The recording as a file has it. Raises DataError where it is not there."""
        if is_remote(self.shard):
            return read_range(self.shard, self.offset, self.offset + self.size)
        try:
            with open(self.shard, "rb") as file:
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError as error:
            raise DataError(f"{self.shard}: {error.strerror}; prepare the corpus again") from error
        if len(data) != self.size:
            raise DataError(f"{self.shard}: cut short at {self.name}; copy it again")
        return data


@dataclass(frozen=True)
class Row:
    """One recording, or a part or channel of one, as its corpus lists it; the file has not been opened yet."""

    id: str
    path: Path
    segments: tuple[Segment, ...]
    """In the order in which they start; none where the corpus says nothing of speakers and texts."""
    place: str
    """Where it is listed, such as `metadata.csv:12`."""
    channel: int | None = None
    """The channel to read, counted from 0. None: all of them, mixed."""
    start: float = 0.0
    """Seconds in the file at which the row begins."""
    end: float | None = None
    """Seconds in the file at which it ends. None: the end of the file."""
    split: str | None = None
    """The official split as the corpus names it, such as "train" or "dev-clean"; see `official_split`."""
    listed_seconds: float | None = None
    """How long the corpus says a whole file is."""
    member: Member | None = None
    """Where it is in a shard; `path` is then no file, and only names it."""

    @cached_property
    def source(self) -> str:
        """The absolute path of its file; of a recording in a shard, the shard's and its name there."""
        return os.path.realpath(self.path) if self.member is None else f"{self.member.shard}/{self.member.name}"

    @property
    def stamp(self) -> tuple[object, ...]:
        """What changes when the recording does: size and time of its file, or its place in a shard of such a stamp;
        empty where there is no such file."""
        if self.member is not None:
            return self.member.stamp, self.member.offset, self.member.size
        try:
            status = self.path.stat()
        except (OSError, ValueError):  # ValueError: a name with a null byte
            return ()
        return status.st_size, status.st_mtime_ns

    @classmethod
    def clip(
        cls,
        id: str,
        path: Path,
        speaker: str | None,
        text: str | None,
        place: str,
        split: str | None = None,
        no_text: str | None = None,
    ) -> Row:
        """A whole file of one speaker and one text. `no_text`: why the text is left out."""
        return cls(id, path, (Segment(speaker=speaker, text=text, no_text=no_text),), place, split=split)

    @property
    def speakers(self) -> tuple[str, ...]:
        """The speakers named in the segments, sorted."""
        return tuple(sorted({one.speaker for one in self.segments if one.speaker is not None}))

    @property
    def speaker(self) -> str | None:
        """The speaker of all segments; None where there are several, or a segment without one."""
        named = {one.speaker for one in self.segments}
        return named.pop() if len(named) == 1 else None

    @property
    def text(self) -> str | None:
        """The texts of the segments in their order, with spaces between; None where there are none."""
        texts = [one.text for one in self.segments if one.text]
        return " ".join(texts) if texts else None

    def of_file(self, seconds: float) -> Row:
        """The row in a file of so many seconds: its beginning, where the corpus lists one that is clearly shorter."""
        shorter = self.listed_seconds is not None and self.listed_seconds < seconds - SLACK_SECONDS
        return replace(self, end=self.listed_seconds) if shorter and self.end is None else self

    def with_speaker(self, name: str) -> Row:
        """The same with `name` as the speaker of every segment."""
        return replace(self, segments=tuple(replace(one, speaker=name) for one in self.segments))


_SPLITS = {
    "train": ("train", "training", "trn", "tr"),
    "validation": ("validation", "valid", "val", "dev", "development", "cv"),
    "test": ("test", "testing", "eval", "evaluation", "tst", "tt"),
}


def official_split(name: str | None) -> str | None:
    """train, validation or test for the names by which corpora call these, also with more behind them (dev-clean,
    train_360, test-00000-of-00002); None for any other name."""
    first = re.split(r"[^a-z]", (name or "").lower(), maxsplit=1)[0]
    return next((split for split, names in _SPLITS.items() if first in names), None)


def split_among(names: Iterable[str]) -> str | None:
    """The first of the names that stands for an official split."""
    return next(filter(official_split, names), None)


def split_of_name(name: str) -> str | None:
    """The official split that a name of several words holds, such as metadata_train or 92_manifest_clean_dev; None
    where it holds none, or several."""
    found = {split: None for word in re.split(r"[^a-z]+", name.lower()) if (split := official_split(word))}
    return next(iter(found)) if len(found) == 1 else None


REPORT = "report.json"
"""The file of what is left out, in the cache, and in a data set that `phonate data prepare` makes."""


@dataclass(frozen=True)
class Problem:
    """Why a row is refused, or a warning about it. A format yields one in place of a row that it can't read."""

    id: str
    place: str
    reason: str
    """A short category, by which problems are counted."""
    detail: str
    """Without `place`, which stands before it wherever problems are shown."""

    def __post_init__(self) -> None:
        for place in (self.place, " ".join(self.place.split())):  # as errors of readers begin
            for start in (f"{place}: ", f"{place} "):
                object.__setattr__(self, "detail", self.detail.removeprefix(start))


Rows = Callable[..., Iterable[Row | Problem]]
"""Lists the recordings of the corpus at a path; see `CORPORA`."""
RowsFunction = TypeVar("RowsFunction", bound=Rows)


Unit = Literal["recording", "segment", "text"]


@dataclass(frozen=True)
class CorpusFormat:
    """How the corpora of a format are told from others, and what a row of them is."""

    recognises: Callable[[Path], bool]
    priority: int = 100
    """Several formats may recognise the same folder (a list beside recordings, say); the highest counts."""
    unit: Unit = "recording"
    """What `data.unit: auto` means: segment for formats whose lines are utterances; text: segment where some have a
    text."""


FORMATS: dict[Rows, CorpusFormat] = {}
"""Of the formats that `corpus_format` declares."""


def corpus_format(
    recognises: Callable[[Path], bool], priority: int, unit: Unit = "recording"
) -> Callable[[RowsFunction], RowsFunction]:
    """Declares the `CorpusFormat` of the decorated function, which yields its rows."""

    def declared(rows: RowsFunction) -> RowsFunction:
        FORMATS[rows] = CorpusFormat(recognises, priority, unit)
        return rows

    return declared


def malformed(place: str, detail: str) -> Problem:
    """A row that its format can't read."""
    return Problem("", place, "malformed row", detail)


def checked_row(row: Row) -> Row | Problem:
    """The row of a list, which may hold strings that are not UTF-8: other bytes, and escapes of JSON such as \\ud83d.
    In the file's name bytes are kept (such files exist), in the id they become escapes; a speaker or text with them is
    a problem. Speakers are in one form of Unicode."""
    place = printable(row.place)
    try:
        os.fsencode(row.path)
    except UnicodeEncodeError:
        return malformed(place, f"the path {printable(str(row.path))} is no file's name; write it in UTF-8")
    for segment in row.segments:
        for name, value in (("speaker", segment.speaker), ("text", segment.text)):
            if value is not None and printable(value) != value:
                detail = f"the {name} {printable(value)[:80]!r} is not UTF-8; save the list as UTF-8"
                return malformed(place, detail)
    if any(one.speaker is not None and not one.speaker.isascii() for one in row.segments):
        segments = tuple(replace(one, speaker=one.speaker and nfc(one.speaker)) for one in row.segments)
        row = replace(row, segments=segments)
    return replace(row, id=printable(row.id), place=place)


def id_of(name: str) -> str:
    """The id of a recording that has none: its name as listed, without the suffix."""
    path = Path(name.replace("\\", "/"))
    try:
        return path.with_suffix("").as_posix()
    except ValueError:  # "/" and "." have no name
        return path.as_posix()


def as_text(value: object) -> str | None:
    """A JSON value as text; None for null, the empty string and NaN, which pandas has where there is no value. It makes
    floats of the whole numbers beside such ones, which are written without a point again."""
    if isinstance(value, float):
        if math.isnan(value):
            return None
        value = int(value) if value.is_integer() else value
    return None if value is None or value == "" else str(value)


def audio_files(
    folder: Path, suffixes: Collection[str] | None = AUDIO_SUFFIXES, problems: list[Problem] | None = None
) -> Iterator[Path]:
    """Audio files under `folder` in a fixed order, or files with any `suffixes` (None: all). Hidden files and what
    phonate wrote itself (runs, models, sessions) are left out; links are followed once.

    Folders that can't be read are added to `problems` and left out; without it they raise DataError. Links that lead
    nowhere are listed as files, so that opening them reports the error.
    """
    visited: set[tuple[int, int]] = set()

    def entries(current: Path) -> Iterator[os.DirEntry[str]]:
        try:
            status = current.stat()
            if (status.st_dev, status.st_ino) in visited:
                return iter(())
            visited.add((status.st_dev, status.st_ino))
            with os.scandir(current) as scan:
                return iter(sorted(scan, key=lambda entry: entry.name))
        except OSError as error:
            place = printable(str(current))
            if problems is None:
                raise DataError(f"{place}: {error.strerror}") from error
            detail = f"{error.strerror}; what is in it is left out"
            problems.append(Problem("", place, "unreadable folder", detail))
            return iter(())

    below = [entries(folder)]  # a stack, for folders may be deeper than Python's
    while below:
        entry = next(below[-1], None)
        if entry is None:
            below.pop()
        elif entry.name.startswith("."):
            continue
        elif _is_source(entry):
            below.append(entries(Path(entry.path)))
        elif suffixes is None or os.path.splitext(entry.name)[1].lower() in suffixes:
            yield Path(entry.path)


def _is_source(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder that may hold recordings of a corpus."""
    try:
        return entry.is_dir() and not is_output(Path(entry.path))
    except OSError:  # links that form a loop
        return False


MAGIC = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3"}
"""The first bytes of a recording -> the suffix of its file."""


def cached_recording(content: bytes, cache: Path) -> Path:
    """The file of the cache with a recording that is inside another file, named by what it holds."""
    suffix = next((suffix for magic, suffix in MAGIC.items() if content.startswith(magic)), ".wav")
    file = cache / f"{hashlib.sha256(content).hexdigest()[:32]}{suffix}"
    if not file.is_file():
        store(file, content)
    return file


def unwritable_cache(folder: Path, error: OSError) -> DataError:
    """What to raise where a cache can't be written."""
    return DataError(
        f"{folder}: can't write the cache ({why_unwritten(folder, error)}); free space there, or name another folder "
        "by data.cache_dir"
    )


class StoreError(PhonateError):
    """The cache can't be written, which says nothing against the recording: no row is left out for it."""


def store(file: Path, content: bytes) -> None:
    """Write a file of the cache."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
    except OSError as error:
        raise StoreError(str(unwritable_cache(file.parent, error))) from error


def printable(name: str) -> str:
    """`name` with bytes that are no UTF-8 written as escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def one_line(text: str) -> str:
    """`text`, with line feeds and other characters that steer a terminal, which names may hold, as escapes, too."""
    escaped = re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: match[0].encode("unicode_escape").decode(), text)
    return printable(escaped)


_LIKELY = sorted({*USUAL_SUFFIXES, ".aac", ".opus"})
"""Suffixes that are tried first, so that long lists are read fast."""


_FILE_NAME = re.compile(r"\.\w{2,4}$")
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/|\$?\{\w+\}/|\$\w+/")
"""Paths of another place: absolute, or below a folder that a recipe fills in, as SpeechBrain's `$data_root/`."""


def listed_file(root: Path, name: str) -> Path:
    """The file that a list calls `name`: as it stands, under wavs/, from the folder above, or with a suffix it left
    out; also where the list was made on Windows (`wavs\\a.wav`), spells accents in the other way that Unicode has (NFC
    and NFD), or has the absolute paths of a corpus that was moved since, whose last parts name a file here."""
    file = _listed_file(root, name)
    if file is None and "\\" in name:
        name = name.replace("\\", "/")
        file = _listed_file(root, name)
    if file is None and "%" in name:  # as addresses are written
        file = _listed_file(root, unquote(name))
    first = name.partition("/")[0]
    if file is None and first not in ("", name) and not os.path.isdir(root / first):
        file = _listed_file(root.parent, name)  # the list is in a folder beside those of recordings
    tails = [name]
    if file is None and _ABSOLUTE.match(name):
        parts = Path(name).parts
        tails += ["/".join(parts[start:]) for start in range(1, len(parts))]
        file = next(filter(None, (_listed_file(root, tail) for tail in tails[1:])), None)
    if file is None and (len(tails) > 1 or not name.isascii() or _FILE_NAME.search(name)):
        pairs = ((folder, tail) for tail in tails for folder in _folders(root))
        file = next(filter(None, (in_any_form(folder, tail) for folder, tail in pairs)), None)
    return file or root / name


def _folders(root: Path) -> tuple[Path, ...]:
    """Where the recordings of a list in `root` may be."""
    try:
        return _read(_usual_folders, root)
    except (OSError, ValueError):
        return (root,)


@lru_cache(maxsize=16)
def _usual_folders(root: Path, changed: int) -> tuple[Path, ...]:
    below = (root / name for name in ("wavs", "wav", "audio", "clips"))
    return (root, *(folder for folder in below if folder.is_dir()))


def _listed_file(root: Path, name: str) -> Path | None:
    folders = _folders(root)
    for folder in folders:
        if is_file(path := os.path.join(folder, name)):
            return Path(path)
    stems = [stem for folder in folders if _begins_a_name(stem := os.path.join(folder, name))]
    for suffixes in (_LIKELY, sorted(AUDIO_SUFFIXES.difference(_LIKELY))):
        for stem in stems:
            for suffix in suffixes:
                for spelled in (suffix, suffix.upper()):
                    if os.path.isfile(f"{stem}{spelled}"):
                        return Path(f"{stem}{spelled}")
    return None


def _begins_a_name(stem: str) -> bool:
    """Whether its folder may hold `stem` with a suffix. Most cells of a list are text: those are not looked for under
    every suffix. Where capitals and forms of Unicode differ, the file system decides."""
    folder, last = os.path.split(stem)
    try:
        return nfc(last).casefold() in _read(_stems, Path(folder))
    except ValueError:  # no name at all
        return False
    except OSError:  # it may be a folder that may be entered and not read
        return os.path.isdir(folder)


def in_any_form(folder: Path, name: str) -> Path | None:
    """The file under `folder` whose path is `name`, with or without a suffix, in whichever form of Unicode; also where
    the list was made on a system that takes capitals and small letters for the same."""
    *above, last = Path(name).parts or ("",)
    for part in above:
        try:
            folder = folder / (_entry(_read(_entries, folder), part) or part)
        except (OSError, ValueError):
            return None
    try:
        entries = _read(_entries, folder)
    except (OSError, ValueError):
        return None
    spellings = [
        last,
        *(f"{last}{one}" for suffix in (*_LIKELY, *sorted(AUDIO_SUFFIXES)) for one in (suffix, suffix.upper())),
    ]
    return next(filter(is_file, (folder / entry for one in spellings if (entry := _entry(entries, one)))), None)


def _entry(entries: tuple[Mapping[str, str], Mapping[str, str]], name: str) -> str:
    """How what a list calls `name` is called in its folder; "" where it is not there."""
    names, small = entries
    key = nfc(name)
    return names.get(key) or small.get(key.casefold(), "")


_Names = TypeVar("_Names")
_TICK = 20_000_000
"""Nanoseconds in which a folder may change twice without a later time of its last change."""


def _read(read: _lru_cache_wrapper[_Names], folder: Path) -> _Names:
    """What `read` says of a folder, which is read again once it has changed. Raises OSError where it can't be read."""
    changed = folder.stat().st_mtime_ns
    just_now = abs(time.time_ns() - changed) < _TICK
    return (read.__wrapped__ if just_now else read)(folder, changed)


@lru_cache(maxsize=16)
def _stems(folder: Path, changed: int) -> frozenset[str]:
    """What is before the suffixes of the names in a folder, in one form and in small letters."""
    return frozenset(nfc(os.path.splitext(name)[0]).casefold() for name in os.listdir(folder))


@lru_cache(maxsize=64)
def _entries(folder: Path, changed: int) -> tuple[dict[str, str], dict[str, str]]:
    """Name in one form -> name, of what is in a folder that was last changed at `changed`; and the same in small
    letters, where only one is meant."""
    names = {nfc(entry.name): entry.name for entry in os.scandir(folder)}
    count = Counter(name.casefold() for name in names)
    return names, {small: entry for name, entry in names.items() if count[small := name.casefold()] == 1}


def nfc(name: str) -> str:
    """`name` in the form of Unicode (NFC) in which names are compared."""
    return unicodedata.normalize("NFC", name)


def is_file(path: Path | str) -> bool:
    """Whether there is a plain file of this name, which may be no name at all."""
    try:
        return os.path.isfile(path)
    except (OSError, ValueError):  # a name that is too long, say, as when a list has its columns mixed up
        return False


# --------------------------------------------- Rows of recordings, or a row for each of their segments

OVERLAP_SECONDS = 0.1


def by_segment(rows: Sequence[Row | Problem], one_speaker: bool) -> Iterator[Row | Problem]:
    """A row for each segment, cut out of its recording. If the task takes one speaker, segments that another speaker
    overlaps become problems. A row whose only segment has no times stays as it is."""
    for row in rows:
        if isinstance(row, Problem):
            yield row
            continue
        if not row.segments:
            yield Problem(row.id, row.place, "no segment", "the recording has no segment to cut out")
        for segment in row.segments:
            alone = len(row.segments) == 1 and (segment.end is None or _times(segment) == (row.start, row.end))
            id = segment.id or (row.id if alone else f"{row.id}-{round(1000 * segment.start):08d}")
            other = _other_speaker(segment, row.segments) if one_speaker else None
            if other is not None:
                yield Problem(id, row.place, "overlapped speech", f"{other} speaks during this segment")
                continue
            yield _cut_out(row, segment, id)


def _times(segment: Segment) -> tuple[float, float | None]:
    return segment.start, segment.end


def _cut_out(row: Row, segment: Segment, id: str) -> Row:
    """The part of a row that a segment takes. One that reaches beyond the row keeps its times, so that validation can
    refuse it where its text would be cut."""
    start, end = max(segment.start, row.start), segment.end if segment.end is not None else row.end
    if end is not None and row.end is not None:
        end = min(end, row.end)
    inside = segment.end is None or (start, end) == (segment.start, segment.end)
    return replace(row, id=id, segments=(replace(segment, end=None) if inside else segment,), start=start, end=end)


def _end(segment: Segment) -> float:
    return float("inf") if segment.end is None else segment.end


def _other_speaker(segment: Segment, segments: Sequence[Segment]) -> str | None:
    """A speaker other than that of `segment`, who speaks in it."""
    for one in segments:
        overlap = min(_end(segment), _end(one)) - max(segment.start, one.start)
        if one.speaker != segment.speaker and overlap > OVERLAP_SECONDS:
            return one.speaker or "somebody without a name"
    return None


# ------------------- The samples of a row: of its whole file, or of the part and channel that it names

LONG_SECONDS = 120.0
"""Longer rows are read in blocks."""


@contextmanager
def row_file(row: Row, data: bytes | None = None) -> Iterator[Path]:
    """The file of a row, for as long as the block runs. `data`: what `row.member.read()` would read."""
    if row.member is None:
        yield row.path
        return
    with temporary_file(row.member.read() if data is None else data, Path(row.member.name).suffix) as file:
        try:
            yield file
        except DataError as error:
            raise DataError(str(error).replace(str(file), row.source)) from error


def read_part(row: Row, sample_rate: int | None = None, data: bytes | None = None) -> tuple[FloatArray, int]:
    """The waveform (samples,) of a row, resampled to `sample_rate` (its own by default), and its rate.

    Raises DataError as `read_audio` does.
    """
    with row_file(row, data) as file, open_recording(file) as recording:
        waveform = joined(blocks_of(row, recording))
        return at_rate(row, waveform, recording.sample_rate, sample_rate or recording.sample_rate)


def at_rate(row: Row, waveform: FloatArray, rate: int, new_rate: int) -> tuple[FloatArray, int]:
    """The waveform (samples,) of a row at another rate, and that rate."""
    if rate == new_rate:
        return waveform, rate
    if row.channel is not None:  # as `part_blocks`, to the bit
        return joined(resampled([waveform], rate, new_rate)), new_rate
    return resample(waveform, rate, new_rate), new_rate


def load_row(row: Row, sample_rate: int) -> FloatArray:
    """The waveform (samples,) of a row at `sample_rate`, its peak brought to 1, as it is cached."""
    return normalised_peak(read_part(row, sample_rate)[0])


def part_blocks(row: Row, sample_rate: int | None = None, data: bytes | None = None) -> Iterator[FloatArray]:
    """The same waveform in blocks of about 30 s."""
    with row_file(row, data) as file, open_recording(file) as recording:
        rate = recording.sample_rate if sample_rate is None else sample_rate
        blocks = resampled(blocks_of(row, recording), recording.sample_rate, rate)
        yield from regrouped(blocks, round(BLOCK_SECONDS * rate))


def blocks_of(row: Row, recording: Recording) -> Iterator[FloatArray]:
    """The waveform of a row in blocks (samples,), at the rate of its recording, which is open."""
    return recording.blocks(row.start, None if row.end is None else row.end - row.start, row.channel)
