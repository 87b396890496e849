"""The texts of recordings in a folder: in a file beside each, in folders of texts, or in transcripts and lists."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from phonate.audio.decoding import AUDIO_SUFFIXES
from phonate.config.errors import DataError
from phonate.config.words import number_of
from phonate.data.annotations import clock_seconds, encoding_of, read_text
from phonate.data.corpora.lists import (
    BOUNDS,
    COLUMNS,
    OBJECTS,
    audio_name,
    cells_of,
    column_names,
    json_lines,
    read_lines,
    report_left_out,
    samples_of,
    samples_of_columns,
    suffix_of,
)
from phonate.data.corpora.places import Below, Within
from phonate.data.corpora.rows import Problem, as_text, in_any_form, nfc, printable, split_of_name
from phonate.data.corpora.tables import Table, header_of
from phonate.data.labels import NAME, NO_NAME, label_format
from phonate.text.patterns import lazy

logger = logging.getLogger("phonate")

# --------------------------------------------------------------------- A file with the text of each

TEXTS = (".txt", ".lab", ".normalized.txt")
"""Ends of names of texts beside recordings; the last is LibriTTS's."""
OTHER_TEXTS = (".original.txt",)
_ENDS = (*TEXTS, ".TXT", ".LAB", ".transcript.txt", ".transcription.txt")
_BEHIND = (".txt", ".trn")
"""Ends that stand behind the suffix of a recording: a.wav.trn."""
NOTES = re.compile(r"(readme|license|licence|copying|notice|changelog)\b.*", re.IGNORECASE)
_TIME = r"(?:\d{1,2}:)?\d{1,2}:\d\d(?:[.,]\d+)?"
_CLOCK = rf"[\[(]?({_TIME})(?:\s*-->\s*{_TIME})?[\])]?:?"
_AT = re.compile(
    rf"(?:[\[(]?(?P<name>{NAME})[\])]?:?\s{{1,3}}{_CLOCK}|{_CLOCK}|{_CLOCK}\s+{NAME}:)"
    rf"|(?:[\[(]({_TIME})[\])]|(\d+:\d\d:\d\d(?:[.,]\d+)?))\s+{NAME}:\s.*"
    rf"|{NAME}:\s+[\[(]({_TIME})[\])]\s.*|\[({_TIME})\s*-->\s*{_TIME}\]\s.*"
)
"""When somebody begins to speak: `0:04`, `Ann  0:04`, `Ann (00:00:04):`, `[00:00:04] Ann: hello`, `Ann: [0:04] hello`,
`[00:00.000 --> 00:04.000] hello`."""
_NAMED = re.compile(r"[\[(]?([^\W\d_a-z][\w.'-]*(?: (?:[^\W_a-z][\w.'-]*))?)[\])]?:\s+\S.*")
"""A line that says who speaks: `ANN: hello`, `Speaker 1: hello`."""
_LIKE_TIMES = re.compile(r"[\[(]?\d{1,2}:\d\d.*|.*\d{1,2}:\d\d[\])]?:?")
_TABLE = re.compile(r"\d+([.,]\d+)?\t\d+([.,]\d+)?\t")
_NAMES_WITHIN = re.compile(rf"(?:^|(?<=[.!?…\"”] ))({NAME}):(?= \S)")
_LIKE_NAMES = re.compile(r"[\[(]?([^\W_][^:\[\]()]{0,30})[\])]?:\s+\S.*")
_TIMED = re.compile(r"\s*\d+(\.\d+)?\s+\d+(\.\d+)?\s+\S+")
_SAMPLES = re.compile(r"0 \d{4,} (?=\S)")
"""What TIMIT has before a text: where it begins and ends."""
_TAKE = re.compile(r"[ _.-](mic|mix|ch|channel|headset|take|try)[\w-]*$", re.IGNORECASE)
"""Behind the name of one of several recordings of a text: its microphone, or which take it is."""


class Conversation(DataError):
    """A text is a transcript of a conversation, with more in it than the words that are spoken; and the mend."""


@dataclass(frozen=True)
class TextEntry:
    """What files beside or above a recording say of it."""

    text: str | None
    speaker: str | None = None
    split: str | None = None
    certain: bool = False
    """Whether a header or a key says that it is the speaker, and not the values of a column."""


def text_of(file: Path, among: Collection[str] | None = None) -> Path | None:
    """The file with the text of a recording: one of its name beside it, in whichever form of Unicode. `among`: the
    paths that there are, where these are known."""
    whole = str(file)
    stem = whole.removesuffix(file.suffix)
    is_there = os.path.isfile if among is None else among.__contains__
    for beside in (*(stem + end for end in _ENDS), *(whole + end for end in _BEHIND)):
        if is_there(beside):
            return Path(beside)
    if file.stem.isascii():
        return None
    return next(filter(None, (in_any_form(file.parent, f"{file.stem}{end}") for end in TEXTS)), None)


def text_beside(recording: Path, doubtful: list[Path] | None = None) -> str | None:
    """What the file with the text of a recording holds; None where there is none. Raises as `read_text_file`."""
    file = text_of(recording)
    return None if file is None else read_text_file(file, doubtful)


def read_text_file(file: Path, doubtful: list[Path] | None = None) -> str | None:
    """The text of a recording in one line; None for a file of labels with times (as HTK writes them), which is none.
    One that looks somewhat like a transcript of a conversation is added to `doubtful`. Raises OSError,
    UnicodeDecodeError, and Conversation for such a transcript."""
    content = read_text(file).strip()
    lines = [line.strip() for line in content.split("\n") if line.strip()]
    if file.suffix.lower() == ".lab" and lines and all(_TIMED.match(line) for line in lines):
        return None
    if file.suffix.lower() == ".trn":  # of THCHS-30: the words, then syllables and phones; or where these are
        linked = bool(lines) and _is_link(file, lines)
        return read_text_file(file.parent / lines[0], doubtful) if linked else next(iter(lines), "")
    if kind := _conversation(lines):
        labels = "" if label_format(file) is None else ", or read it as labels with data.format=labels"
        raise Conversation(
            f"a transcript with {kind}; save the words alone, or the whole as captions (.srt, .vtt){labels}"
        )
    if doubtful is not None and _is_doubtful(lines):
        doubtful.append(file)
    return _without_name(_SAMPLES.sub("", " ".join(lines), count=1), file.name.partition(".")[0])


_ID = re.compile(r"(?=.*\d)(?!\d+$).{3,}|0\d+")
"""Names of recordings that are no words: 0001 or p225_001, but not 1984."""


def _without_name(text: str, stem: str) -> str:
    """The text of a recording without its name before it, with a tab between, or with a space where it is no word."""
    name, tab, rest = text.partition("\t")
    if not tab and _ID.fullmatch(stem):
        name, _, rest = text.partition(" ")
    return rest.strip() if name.strip() == stem and rest.strip() else text


def _conversation(lines: Sequence[str]) -> str | None:
    """What the lines of a text have besides words that are spoken: times that rise, or the names of speakers in turn;
    None where they have neither. A text with times of day, verses, or questions and answers is read by one voice."""
    found = [match for match in map(_AT.fullmatch, lines) if match is not None]
    found = [match for match in found if not NO_NAME.fullmatch(match["name"] or "")]
    times = [clock_seconds(next(one for one in match.groups() if one and one[0].isdigit())) for match in found]
    rising = len(times) > 1 and times == sorted(times) and times[0] < times[-1]
    of_one = len({match["name"] for match in found}) == 1 and bool(found[0]["name"])  # verses: John 3:16, John 3:17
    if (rising and 4 * len(times) >= len(lines) and not of_one) or any(map(_TABLE.match, lines)):
        return "times"
    names = [match[1] for match in map(_NAMED.fullmatch, lines) if match is not None]
    in_turn = all(one != following for one, following in pairwise(names))
    common = any(map(NO_NAME.fullmatch, names))
    if len(names) > 3 and 2 * len(names) > len(lines) and in_turn and not common and len({*names}) < len(names):
        return f"names of speakers ({', '.join(sorted({*names})[:3])})"
    return None


def _is_doubtful(lines: Sequence[str]) -> bool:
    """Whether lines begin or end with times, begin with several names that return or look like names, or have several
    that return within."""
    times = sum(_LIKE_TIMES.fullmatch(line) is not None for line in lines)
    names = [match[1] for match in map(_LIKE_NAMES.fullmatch, lines) if match is not None]
    alike = all(re.fullmatch(NAME, one) and not NO_NAME.fullmatch(one) for one in names)
    within = [one for line in lines for one in _NAMES_WITHIN.findall(line) if not NO_NAME.fullmatch(one)]
    return (
        (times > 1 and 4 * times >= len(lines))
        or (2 * len(names) > len(lines) and 1 < len({*names}) < len(names) + alike)
        or 1 < len({*within}) < len(within)
    )


@cache
def report_doubtful(root: Path, files: tuple[Path, ...]) -> None:
    """Warns, once, of texts that may be transcripts of conversations, and are used."""
    if files:
        logger.warning(
            "%s: %d %s like a conversation's transcript, such as %s: take out names and times, if they are not spoken",
            printable(str(root)),
            len(files),
            "text looks" if len(files) == 1 else "texts look",
            printable(str(files[0].relative_to(root))),
        )


def _is_link(file: Path, lines: Sequence[str]) -> bool:
    return len(lines) == 1 and lines[0].endswith(".trn") and (file.parent / lines[0]).resolve() != file.resolve()


def entry_beside(recording: Path, among: Collection[str]) -> TextEntry | None:
    """What the object in a .json beside a recording, if that is `among` paths, says of it: a text, or a speaker."""
    beside = os.path.splitext(recording)[0] + ".json"
    if beside not in among:
        return None
    try:
        document = json.loads(read_text(Path(beside)))
    except (OSError, ValueError, RecursionError):
        return None
    return _entry_of(document, None) if isinstance(document, dict) else None


def may_hold_words(file: Path) -> bool:
    """Whether a .json has words under a key that texts have, or can't be read. Other objects describe a recording."""
    try:
        return _has_words(json.loads(read_text(file)))
    except (OSError, ValueError, RecursionError):
        return True


def _has_words(value: Any) -> bool:
    if isinstance(value, dict):
        texts = (one for key, one in value.items() if key.lower() in _TEXT_KEYS and isinstance(one, str))
        return any(any(map(str.isalpha, text)) for text in texts) or any(map(_has_words, value.values()))
    return isinstance(value, list) and any(map(_has_words, value))


def _entry_of(listed: Mapping[str, Any], split: str | None) -> TextEntry | None:
    columns = {meaning: listed[key] for meaning, key in column_names(listed).items()}
    text, speaker = columns.get("text"), columns.get("speaker_id")
    text = text.strip() if isinstance(text, str) else None
    speaker = as_text(speaker) if isinstance(speaker, (str, int)) else None
    if not text and speaker is None:
        return None
    return TextEntry(text or None, speaker, as_text(columns.get("split")) or split, speaker is not None)


_TEXT_KEYS = frozenset((*COLUMNS["text"], "utf8", "word"))
"""Under which JSON of recognisers and video sites has what is said."""

# --------------------------------------------------------------- Texts and lists elsewhere in the folder

_TRANSCRIPTS = (".txt", ".tsv", ".csv", ".trn", ".data", ".list", ".lst", *OBJECTS, "")
_LINE = re.compile(r"(?:[^\s,|:]+,\s*)?(\"[^\"]+\"|[^\s|:,]+?)[.)]?[\s|:,]\s*(\S.*)")
_FESTIVAL = re.compile(r"\(\s*(\S+)\s+\"(.*)\"\s*\)")
_PINYIN = re.compile(r"(\S [a-z]+[1-6]( |$))+")
_CHINESE = lazy("[\u4e00-\u9fff]")
_PROSODY = re.compile(r"(?<=\w)#[1-4]")
_LOOKED_AT = 20
_LARGEST = 64 * 2**20
MOST_LOOKED_AT = 1000


def _lists_of_splits(files: Iterable[Path]) -> dict[Path, str | None]:
    """Lists and the splits that they are called after. Beside train.tsv and dev.tsv others, as invalidated.tsv, are
    no lists of the corpus."""
    folders: dict[tuple[Path, str], list[Path]] = {}
    for file in files:
        folders.setdefault((file.parent, file.suffix), []).append(file)
    lists: dict[Path, str | None] = {}
    for group in folders.values():
        splits = {file: split for file in group if (split := split_of_name(file.stem)) is not None}
        several = "train" in splits.values() and len(set(splits.values())) > 1
        lists |= splits if several else dict.fromkeys(group)
    return lists


class Transcripts:
    """Texts of a folder's recordings that do not lie beside them: in files of the same names in other folders (as of
    VCTK), and in files with lines `NAME TEXT` (as of MLS, JSUT, AISHELL), with columns, or with objects."""

    def __init__(self, root: Path, every: Sequence[Path], listed: Sequence[Path]) -> None:
        self.paths = frozenset(map(str, every))
        self.by_recording: dict[Path, TextEntry] = {}
        self.doubts: dict[Path, str] = {}
        """Recording -> why its text is left out."""
        self.files: dict[Path, None] = {}
        self.doubtful: list[Path] = []
        self._unplaced: Counter[Path] = Counter()
        self._below = Below(listed)
        beside = {(file.parent, nfc(file.stem)) for file in listed}
        ends = (*_ENDS, *OTHER_TEXTS, ".json")
        names = {(file.parent, file.name) for file in listed}
        self.rest = [
            file
            for file in every
            if file.suffix.lower() not in AUDIO_SUFFIXES
            and not any(
                file.name.endswith(end) and (file.parent, nfc(file.name.removesuffix(end))) in beside for end in ends
            )
            and not any(
                file.name.endswith(end) and (file.parent, file.name.removesuffix(end)) in names for end in _BEHIND
            )
        ]
        likely = [file for file in self.rest if file.suffix.lower() in _TRANSCRIPTS and not NOTES.fullmatch(file.name)]
        self._parallel(likely, listed)
        lists = _lists_of_splits(file for file in likely if file not in self.files)
        for file, split in islice(lists.items(), MOST_LOOKED_AT):
            said = self._read(file)
            if split is not None:
                said = {one: replace(other, split=other.split or split) for one, other in said.items()}
            differ = [one for one, other in said.items() if self.by_recording.get(one, other).text != other.text]
            if said and not differ:
                self.by_recording |= {one: other for one, other in said.items() if one not in self.by_recording}
                self.files[file] = None
            elif differ:
                _report_other_texts(root, file, differ[0])
        self.doubts = {one: why for one, why in self.doubts.items() if one not in self.by_recording}
        if self.doubts:
            recording, why = next(iter(self.doubts.items()))
            report_left_out(root, len(self.doubts), str(recording.relative_to(root)), why)
        if self.files:
            _report(root, tuple(self.files), len(self.by_recording), sum(map(self._unplaced.__getitem__, self.files)))

    def _parallel(self, likely: Sequence[Path], listed: Sequence[Path]) -> None:
        """Texts in files called as recordings are, in folders without any."""
        spoken = {file.parent for file in listed}
        stems: dict[str, list[Path]] = {}
        for recording in listed:
            stems.setdefault(nfc(_TAKE.sub("", recording.stem)), []).append(recording)
        for file in likely:
            end = next((end for end in _ENDS[::-1] if file.name.endswith(end)), None)
            if end is None:
                continue
            stem = nfc(file.name.removesuffix(end))
            found = self._below.of_stem(stem) or stems.get(stem, [])
            if file.parent in spoken:
                found = [recording for recording in stems.get(stem, []) if recording.parent == file.parent]
            try:
                text = read_text_file(file, self.doubtful) if found else None
            except (OSError, UnicodeDecodeError, DataError):
                continue  # it is among the files that are left alone, which are told
            for recording in self._below.nearest(found, file) if text else ():
                if recording not in self.by_recording and text_of(recording, self.paths) is None:
                    self.by_recording[recording] = TextEntry(text)
                    self.files[file] = None

    def _read(self, file: Path) -> dict[Path, TextEntry]:
        """What a file says of recordings; nothing where it is no transcript of these."""
        try:
            if suffix_of(file) in OBJECTS:
                return self._agreed(self._of_objects(file), file)
            with file.open("rb") as opened:
                encoding = encoding_of(opened.read(2))
            with file.open(encoding=encoding) as text:
                first = [line for line in islice(iter(lambda: text.readline(10_000), ""), _LOOKED_AT) if line.strip()]
            table = self._table(file, first)
            entries = self._of_table(table) if table is not None else self._of_lines(read_lines(file), file)
            headed = table is not None and table.header is not None
            return self._agreed(entries, file, None if headed else len(first))
        except (OSError, UnicodeDecodeError, DataError):
            return {}  # it is among the files that are left alone, which are told

    def _named(self, name: str, file: Path) -> list[Path]:
        return self._below.files_named(name.strip('"'), file)

    def _table(self, file: Path, first: Sequence[str]) -> Table | None:
        """The table that a file is, with a header or with bars or tabs between names and more."""
        header = header_of(first[0]) if first else None
        if header is not None and "text" in header[1] and len(header[2]) > 1:
            table = Table.read(file, Within(self._below, file))
            return table if table.header is not None and not {*BOUNDS} & table.header[1].keys() else None
        rows = [[cells_of(line, separator) for line in first] for separator in ("|", "\t")]
        if not any(
            sum(len(cells) > 1 and self._has(cells, file) for cells in some) > 0.5 * len(first) for some in rows
        ):
            return None
        table = Table.read(file, Within(self._below, file))
        return table if table.width > 1 and table.separator in "|\t" else None

    def _has(self, cells: Iterable[str], file: Path) -> bool:
        return any(self._named(cell, file) for cell in cells)

    def _of_table(self, table: Table) -> Iterator[tuple[Path, TextEntry]]:
        if table.header is not None:
            names, columns = table.header[2], table.header[1]
            for _, cells in islice(table.rows(), 1, None):
                if not isinstance(cells, Problem) and len(cells) <= len(names):
                    listed = {meaning: cells[at] for meaning, at in columns.items() if at < len(cells)}
                    said = _entry_of(listed, None)
                    called = [name for name in (listed.get("audio_path"), listed.get("id")) if name]
                    fallback = called[0] if called else None
                    name = next((one for one in called if self._has([one], table.path)), fallback)
                    yield from self._each(name, table.path, said)
            return
        roles = table.roles
        if roles.refusal is not None or roles.text is None:
            return
        rows = [cells for _, cells in table.rows() if not isinstance(cells, Problem) and len(cells) == table.width]
        speakers = {cells[roles.speaker] for cells in rows} if roles.speaker is not None else set()
        for cells in rows:
            speaker = cells[roles.speaker] if roles.speaker is not None and len(speakers) > 1 else None
            yield from self._each(cells[roles.path], table.path, TextEntry(_words(cells[roles.text]), speaker or None))

    def _of_lines(self, lines: Iterable[str], file: Path) -> Iterator[tuple[Path, TextEntry]]:
        for line in lines:
            match = _FESTIVAL.fullmatch(line.strip()) or _LINE.fullmatch(line.strip())
            if match is not None:
                yield from self._each(match[1], file, TextEntry(_words(match[2].strip('"'))))

    def _of_objects(self, file: Path) -> Iterator[tuple[Path, TextEntry]]:
        if file.stat().st_size > _LARGEST and file.suffix.lower() == ".json":
            return
        for name, sample in ((name, one) for name, value in _objects(file) for one in samples_of_columns(value)):
            if isinstance(sample, str):
                yield from self._each(name, file, TextEntry(_words(sample)))
            elif isinstance(sample, dict) and not {*BOUNDS} & column_names(sample).keys():
                yield from self._each(audio_name(sample) or name, file, _entry_of(sample, None))

    def _agreed(
        self, entries: Iterable[tuple[Path, TextEntry]], file: Path, lines: int | None = None
    ) -> dict[Path, TextEntry]:
        """What is said of each recording, without those of which several texts are told. `lines`: nothing where these
        are no texts of as many of the first lines."""
        said: dict[Path, TextEntry] = {}
        doubts: dict[Path, str] = {}
        for recording, one in entries:
            if said.setdefault(recording, one).text != one.text:
                doubts[recording] = f"{file} has several; keep one of them"
        for recording in doubts:
            del said[recording]
        if lines is not None and not _are_texts([one.text for one in said.values()], lines):
            return {}
        self.doubts |= doubts
        return said

    def _each(self, name: str | None, file: Path, said: TextEntry | None) -> Iterator[tuple[Path, TextEntry]]:
        if name and said is not None:
            recordings = self._named(name, file)
            self._unplaced[file] += not recordings
            for recording in recordings:
                yield recording, said


def _objects(file: Path) -> Iterator[tuple[str | None, Any]]:
    """Name and value of each object of a file."""
    document = None
    if file.suffix.lower() == ".json":
        try:
            document = json.loads(read_text(file))
        except (ValueError, RecursionError):
            document = None  # an object a line
    if isinstance(document, dict) and samples_of_columns(document) != [document]:
        yield None, document
    elif isinstance(document, dict) and samples_of(document) is None:
        yield from document.items()
    elif document is not None:
        samples = samples_of(document)
        yield from ((None, one) for one in (samples if isinstance(samples, list) else ()))
    else:
        yield from ((None, one) for _, one in json_lines(file))


def _words(text: str) -> str:
    """A text without what Chinese transcripts say of sounds: a syllable behind each character, #1 to #4 for pauses."""
    if _PINYIN.fullmatch(text):
        return "".join(text.split()[::2])
    return (_PROSODY.sub("", text) if _CHINESE.search(text) else text).strip()


def _are_texts(texts: Sequence[str | None], lines: int) -> bool:
    """Whether these are texts of as many of the first lines of a file: many the same are what recordings have in
    common, such as "native speaker"."""
    some = [text for text in texts[:lines] if text]
    spoken = sum(any(letter.isalpha() for letter in text) for text in some)
    sentences = sum(" " in text or not text.isascii() for text in some)
    return 0 < lines <= 2 * min(spoken, sentences, len(set(some)))


@cache
def _report_other_texts(root: Path, file: Path, recording: Path) -> None:
    """Warns, once, of a file whose texts are not those of others."""
    logger.warning(
        "%s: %s is left alone, for it has another text of %s than other files; keep one of them",
        *(printable(str(root)), printable(str(file.relative_to(root))), printable(str(recording.relative_to(root)))),
    )


@cache
def _report(root: Path, files: tuple[Path, ...], texts: int, unplaced: int) -> None:
    """Says, once, where texts are taken from, and how many have no recording."""
    names = ", ".join(printable(str(file.relative_to(root))) for file in files[:3]) + (
        ", ..." if len(files) > 3 else ""
    )
    others = f"; {unplaced} there are of no recording" if unplaced else ""
    many = number_of(texts, "recording")
    logger.info("%s: the texts of %s are those of %s%s", printable(str(root)), many, names, others)
