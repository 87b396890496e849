"""What names of recordings and folders may say of speakers, where nothing else does. They are told, never believed: a
name may as well be that of a sentence, a chapter or a take."""

from __future__ import annotations

import logging
import random
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from phonate.config.errors import DataError, to_set
from phonate.data.corpora.rows import Problem, Row, nfc, official_split, printable
from phonate.data.labels import some

logger = logging.getLogger("phonate")

# ----------------------------------------------------------------- Folders that are hardly those of people

DATE = re.compile(r"(19|20)\d\d([_.-]?\d\d)*")
_TAKES = (
    "sessions?|sess|takes?|parts?|days?|chapters?|chap|ch|discs?|disks?|cds?|tracks?|sides?|sets?|batch|batches|weeks?|"
    "months?|books?|lessons?|units?|sections?|scenes?|episodes?|blocks?|rounds?|trials?|kapitel|teil|sitzung|tag|"
    "aufnahmen?|folge"
)
_NUMBERED = re.compile(rf"({_TAKES})[\W_]*\d+", re.IGNORECASE)
MOODS = frozenset(
    (
        "amused", "amusement", "angry", "anger", "annoyed", "anxious", "anxiety", "apologetic", "assertive",
        "bored", "boredom", "calm", "cheerful", "concerned", "confused", "contempt", "contemptuous", "default",
        "depressed", "desire", "disgust", "disgusted", "drunk", "embarrassed", "enthusiastic", "excited",
        "excitement", "fast", "fear", "fearful", "friendly", "frustrated", "happiness", "happy", "joyful",
        "laughing", "laughter", "loud", "narration", "neutral", "normal", "pain", "panic", "proud",
        "questioning", "relaxed", "relief", "sad", "sadness", "sarcastic", "scared", "serious", "shame",
        "shouting", "singing", "sleepiness", "sleepy", "slow", "soft", "surprise", "surprised", "tender",
        "terrified", "tired", "triumph", "unfriendly", "whisper", "whispered", "whispering", "worried",
        "wütend", "wut", "ärger", "fröhlich", "freude", "traurig", "trauer", "ekel", "angst", "müde",
        "betrunken", "überrascht", "geflüstert", "langeweile",
    )
)  # fmt: skip


def not_people(folders: Iterable[str]) -> str | None:
    """What several folders seem to be called after, where it is not people; None where they may be."""
    names = set(folders)
    if len(names) < 2:
        return None
    if all(map(_NUMBERED.fullmatch, names)):
        return "sessions or takes"
    if all(map(DATE.fullmatch, names)):
        return "years or days"
    if all(MOODS & set(re.split(r"[\W\d_]+", name.lower())) for name in names):
        return "moods"
    return None


# ------------------------------------------------------------- Names of files that may begin with a speaker

_TOKEN = re.compile(r"[^\W\d_]*\d+|[^\W\d_]+")
_COUNTED = re.compile(
    rf"({_TAKES}|lines?|sentences?|sents?|utterances?|utts?|clips?|recordings?|rec|files?|audios?|segments?|segs?|seg|"
    r"chunks?|samples?|prompts?|texts?|no|nr|num|mics?|voices?|sounds?|wavs?|tests?|untitled|new|img|vid|ptt|wa|memo|"
    r"satz|sätze|id)\d*",
    re.IGNORECASE,
)
"""What is counted, other than people."""
_LOOKED_AT = 20_000
"""Recordings of a corpus whose names are looked at."""
_FEWEST = 2
"""Recordings that each of several speakers has on average."""
_MOST_OF_ALL = 0.9
"""Share of the names that are built alike."""


@dataclass(frozen=True)
class Likeness:
    """What may be the speakers in names of files."""

    speakers: tuple[str, ...]
    pattern: str
    """For `data.speaker_in_name`."""


def speakers_in(stems: Sequence[str]) -> Likeness | None:
    """The part of names that looks like a speaker's (A11_7, A12_7; 2017P001A0001), where most of them are built alike:
    it varies, returns, and another part behind it tells the recordings apart."""
    shapes = Counter(map(_shape, stems))
    shape, count = shapes.most_common(1)[0] if shapes else ((), 0)
    if len(shape) < 2 or count < _MOST_OF_ALL * len(stems):
        return None
    alike = [stem for stem in stems if _shape(stem) == shape]
    columns = [*zip(*map(_TOKEN.findall, alike), strict=True)]
    varying = [at for at, column in enumerate(columns) if len({*column}) > 1]
    for at in varying[:-1]:
        values = sorted({*columns[at]})
        lettered = any(any(map(_is_lettered, {*column})) for column in columns[at + 1 :])
        if len(alike) >= _FEWEST * len(values) and all(_may_be_speaker(value, lettered) for value in values):
            pattern = next(filter(lambda one: _finds(one, alike, columns[at]), _patterns(shape, columns, at)), None)
            return Likeness(tuple(values), pattern) if pattern is not None else None
    return None


def _shape(stem: str) -> tuple[str, ...]:
    """What is between the parts of a name; one more than these."""
    return tuple(_TOKEN.split(stem))


def _may_be_speaker(value: str, lettered: bool) -> bool:
    """Whether a part of names may be a speaker: a word, or a letter or some with a number; a number alone where letters
    follow, and it is no year."""
    if value.isdecimal():
        return lettered and 2 <= len(value) <= 5 and not DATE.fullmatch(value)
    if _COUNTED.fullmatch(value) or value.lower() in MOODS or official_split(value) is not None:
        return False
    return len(value) > 1


def _is_lettered(part: str) -> bool:
    """Whether a part has letters that count nothing, as `take` does."""
    return any(map(str.isalpha, part)) and not _COUNTED.fullmatch(part)


def _patterns(shape: Sequence[str], columns: Sequence[Sequence[str]], at: int) -> Iterable[str]:
    """Patterns that may find a part of names, the plainest first."""
    behind = shape[at + 1][:1]
    if at == 0 and behind:
        yield f"^[^{re.escape(behind)}]+"
    letters = {re.sub(r"\d+", "", value) for value in columns[at]}
    if len(letters) == 1 and (word := letters.pop()):
        yield rf"{re.escape(word)}\d+"
    before = "".join(f"{re.escape(shape[n])}{_part(columns[n])}" for n in range(at)) + re.escape(shape[at])
    yield f"^{before}({_part(columns[at])})"


def _part(column: Iterable[str]) -> str:
    values = {*column}
    if len(values) == 1:
        return re.escape(values.pop())
    return r"[^\W\d_]+" if all(map(str.isalpha, values)) else r"[^\W\d_]*\d+"


def _finds(pattern: str, stems: Iterable[str], values: Iterable[str]) -> bool:
    return all(speaker_by(pattern, stem) == value for stem, value in zip(stems, values, strict=True))


def speaker_by(pattern: str, stem: str) -> str | None:
    """What a pattern finds in a name: its first group, or all of it."""
    match = re.search(pattern, stem)
    return None if match is None else match[1 if match.re.groups else 0] or None


def tell_speakers_in_names(path: Path, name: str, rows: Sequence[Row | Problem]) -> None:
    """Tells, once, where all recordings are of one speaker, called after a folder, and their names look like those of
    several. That LJSpeech's layout has one speaker is known to who uses it."""
    speakers: set[str | None] = set()
    for row in rows:
        if isinstance(row, Row):
            speakers.update(one.speaker for one in row.segments)
        if len(speakers) > 1:
            return
    found = [row for row in rows if isinstance(row, Row)]
    speaker = speakers.pop() if speakers else None
    if speaker is None or speaker not in map(_speaker, _folders(path, found)):
        return
    some = random.Random(0).sample(found, min(_LOOKED_AT, len(found)))
    likeness = speakers_in(sorted({printable(row.path.stem) for row in some}))
    if likeness is not None:
        _report(path, logging.INFO if name == "ljspeech" else logging.WARNING, speaker, likeness)
    elif name == "folder" and are_participants(found):
        _report_participants(path, speaker, tuple(sorted({printable(row.path.stem) for row in found})))


_MOST_PARTICIPANTS = 12
FOLDERS = "give each speaker a folder"
"""How speakers are told apart where no options can be set."""


def are_participants(rows: Sequence[Row]) -> bool:
    """Whether the recordings may be those of the participants of a conversation, a file of each, as Zoom and others
    save them: a few in one folder, without texts, each with words of its own in its name."""
    if not 1 < len(rows) <= _MOST_PARTICIPANTS or len({row.path.parent for row in rows}) > 1:
        return False
    words = [{*re.findall(r"[^\W\d_]{2,}", row.path.stem.lower())} for row in rows]
    shared = set.intersection(*words)
    own = {" ".join(sorted(some - shared)) for some in words}
    counted = any(_COUNTED.fullmatch(word) or word in MOODS for some in words for word in some - shared)
    return not counted and "" not in own and len(own) == len(rows) and not any(row.text for row in rows)


@cache
def _report_participants(path: Path, speaker: str, names: tuple[str, ...]) -> None:
    logger.warning(
        "%s: one speaker: %s; if each of its %d recordings is of another (%s), %s",
        printable(str(path)),
        speaker,
        len(names),
        ", ".join(names[:3]) + (", ..." if len(names) > 3 else ""),
        to_set(f"data.speaker_in_name=.+, else data.speaker={speaker}", FOLDERS),
    )


def _speaker(folder: str) -> str:
    """What the speaker called after a folder is called in rows."""
    return nfc(printable(folder))


def _folders(path: Path, rows: Sequence[Row]) -> Collection[str]:
    return {*path.resolve().parts, *(part for row in rows[:1] for part in row.path.parts[:-1])}


@cache
def _report(path: Path, level: int, speaker: str, likeness: Likeness) -> None:
    names = ", ".join(likeness.speakers[:3]) + (", ..." if len(likeness.speakers) > 3 else "")
    logger.log(
        level,
        "%s: one speaker: %s; if names of files hold the speaker (%s: %d), %s",
        printable(str(path)),
        speaker,
        names,
        len(likeness.speakers),
        to_set(f"data.speaker_in_name={shlex.quote(likeness.pattern)}, else data.speaker={speaker}", FOLDERS),
    )


def tell_speakers_alike(path: Path, rows: Sequence[Row | Problem]) -> None:
    """Warns, once, of speakers who differ only in capitals or spaces."""
    names = {one.speaker for row in rows if isinstance(row, Row) for one in row.segments if one.speaker is not None}
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(re.sub(r"[\s_-]+", " ", name.casefold()), []).append(name)
    several = tuple(" and ".join(some) for some in alike.values() if len(some) > 1)
    if several:
        _report_alike(path, several)


@cache
def _report_alike(path: Path, several: tuple[str, ...]) -> None:
    more = f" (and {len(several) - 1} more such)" if len(several) > 1 else ""
    logger.warning(
        "%s: %s%s are taken for different speakers; if they are one, write the name alike",
        *(printable(str(path)), printable(several[0]), more),
    )


# ------------------------------------------------------------ Speakers who are numbered in each recording anew

_NUMBER = re.compile(r"(speaker|spkr?|s)?[ _-]?\d{1,2}", re.IGNORECASE)
"""What diarizers call speakers: SPEAKER_00, spk00, speaker_1."""


def tell_numbered_speakers(path: Path, rows: Sequence[Row | Problem]) -> None:
    """Warns, once, where recordings of several people share a speaker with a number for a name."""
    heard: dict[Path, set[str]] = {}
    for row in rows:
        if isinstance(row, Row) and (row.end is not None or len(row.segments) > 1):
            heard.setdefault(row.path, set()).update(row.speakers)
    counts = Counter(name for names in heard.values() if len(names) > 1 for name in names if _NUMBER.fullmatch(name))
    if shared := tuple(sorted(name for name, count in counts.items() if count > 1)):
        _report_numbered(path, shared)


@cache
def _report_numbered(path: Path, speakers: tuple[str, ...]) -> None:
    logger.warning(
        "%s: speakers in several recordings of several people, each taken for one person: %s; if each recording "
        "numbers its speakers anew, give them names of their own there",
        printable(str(path)),
        some(speakers),
    )


def named_by(pattern: str, row: Row | Problem) -> Row | Problem:
    """The row with the speaker that a pattern finds in the name of its file. Raises DataError where it finds none."""
    if isinstance(row, Problem):
        return row
    speaker = speaker_by(pattern, row.path.stem)
    if speaker is None:
        raise DataError(f"data.speaker_in_name={pattern}: finds nothing in {printable(str(row.path))}; correct it")
    return row.with_speaker(printable(speaker))
