"""Files that list recordings: which of a folder's files it is, how its lines are read, how its columns are called; and
the format of JSON lists."""

from __future__ import annotations

import csv
import gzip
import json
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from phonate.audio.containers.kinds import AUDIO_SUFFIXES, is_workbook
from phonate.audio.decoding import probe
from phonate.config.errors import DataError, json_mistake
from phonate.config.language_codes import name_of, primary
from phonate.data.annotations import clock_seconds, encoding_of, read_text
from phonate.data.corpora.places import is_recording
from phonate.data.corpora.rows import (
    SLACK_SECONDS,
    Problem,
    Row,
    Segment,
    as_text,
    checked_row,
    id_of,
    malformed,
    official_split,
    printable,
    split_of_name,
)
from phonate.text.language import seems_other

logger = logging.getLogger("phonate")

# -------------------------------------------------------------------------- What lists have in common

_SPEAKERS = ("sprecher", "sprecherin", "locuteur", "locutrice", "hablante", "locutor", "locutora")
COLUMNS = {
    "audio_path": (
        "audio_path",
        "path",
        "file",
        "audio",
        "wav",
        "filename",
        "file_name",
        "audio_filepath",
        "audio_file",
        "audio_filename",
        "file_path",
        "filepath",
        "wav_filename",
        "wav_path",
        "wav_file",
        *("datei", "dateiname", "pfad", "fichier", "chemin", "archivo", "fichero", "ruta", "nombre_de_archivo"),
    ),
    "speaker_id": (
        "speaker_id",
        "speaker",
        "client_id",
        "speaker_name",
        "spk_id",
        "spk",
        "speakerid",
        "user_id",
        *_SPEAKERS,
    ),
    "text": (
        "normalized_text",  # as of LJSpeech's texts the normalised one is taken
        "text_normalized",
        "text",
        "transcript",
        "sentence",
        "transcription",
        "wrd",
        "words",
        "txt",
        "utterance",
        "text_tn",
        "raw_text",
        "body",
        *("satz", "gesprochener_text", "transkript", "transkription", "texte", "phrase", "texto", "frase"),
    ),
    "id": ("id", "sid", "utt_id", "uttid", "utteranceid"),
    "split": ("split", "subset", "partition", "set"),
    "start": ("start", "offset", "start_time", "begin", "begin_time", "starttime", "xmin", "tmin"),
    "end": ("end", "end_time", "endtime", "xmax", "tmax"),
    "stop": ("stop",),
    "duration": ("duration",),
    "start_ms": ("start_ms", "offset_ms"),
    "end_ms": ("end_ms",),
    "duration_ms": ("duration_ms",),
}
"""What a column stands for -> the names that it has in one corpus or another, the first that is there counting."""

SEGMENTS = ("segments", "utterances", "speakers", "chunks", "diarization", "turns", "transcript", "transcription")
"""Keys of lists of segments in objects of JSON."""
BOUNDS = ("start", "end", "start_ms", "end_ms")
"""The columns that say where in its file a row is."""
PART = (*BOUNDS, "duration", "duration_ms", "stop")
"""The columns that make a row a part of its file."""

SEPARATORS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
TABLES = (".csv", ".tsv", ".txt", ".list", ".lst", ".filelist", "")
"""Suffixes of tables; of files without one, those that name recordings that are there."""
OBJECTS = (".json", ".jsonl")
LOOKED_AT = 20
"""Lines of a file that are looked at for names of recordings."""
_LONGEST_LINE = 16 * 2**20
_LARGEST = 64 * 2**20
_MOST_EXPANSION = 100
"""Compressed manifests over _LARGEST bytes may be so much larger than their files; text is 5 to 20 times larger."""
_KNOWN = ("metadata.json", "samples.json", "dataset.json", "metadata.csv", "metadata.jsonl")


SAVE_WORKBOOK = "save it as CSV UTF-8, and give that as data.path"


def column_names(names: Iterable[str]) -> Mapping[str, str]:
    """What a column stands for -> how it is called among `names`, for those that are there."""
    return _column_names(tuple(names))


@lru_cache(maxsize=1024)
def _column_names(names: tuple[str, ...]) -> Mapping[str, str]:
    """The same, kept: lists have objects with the same keys."""
    called = {column_name(name): name for name in reversed(names)}
    pairs = (
        (meaning, next((one for one in spellings if one in called), None)) for meaning, spellings in COLUMNS.items()
    )
    found = {meaning: called[name] for meaning, name in pairs if name is not None}
    for one, other, unless, meanings in _TOGETHER:
        if {one, other} <= called.keys() and not found.keys() & unless:
            found |= {meanings[0]: called[one], meanings[1]: called[other]}
    return found


_TOGETHER = (
    ("source", "target", {"audio_path", "text"}, ("audio_path", "text")),  # FunASR's
    ("onset", "offset", {"end"}, ("start", "end")),
    ("from", "to", {"start", "end"}, ("start", "end")),
)
"""Names that mean something only beside each other, unless others do, and what they stand for."""
_UNIT = re.compile(r"_(?:(ms|msecs?|milliseconds)|s|secs?|seconds)$")


@lru_cache(maxsize=4096)
def column_name(name: str) -> str:
    """How a column is called in small letters, with `_` between words and without seconds: `Start Time (s)` and
    `startTime` are start_time."""
    words = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).strip("_").lower()
    return _UNIT.sub(lambda unit: "_ms" if unit[1] else "", words)


def listed_in(path: Path, suffixes: Sequence[str]) -> tuple[Path, ...]:
    """The list with one of `suffixes` that `path` is, or those that a folder's recordings are listed in."""
    files = lists_in(path) if path.is_dir() else (path,)
    if any(suffix_of(file) not in suffixes for file in files):
        return ()
    return files if all(file.suffix or (file.is_file() and _names_recordings(file)) for file in files) else ()


@cache
def report_texts(path: Path, names: tuple[str, ...]) -> None:
    """Warns, once, of several columns that are called as texts are, which one is read."""
    called = {column_name(name): printable(name) for name in names}
    read, *others = [called[one] for one in COLUMNS["text"] if one in called] or [""]
    if others:
        where, unread = printable(str(path)), ", ".join(others)
        logger.warning("%s: texts are read from %s, not from %s; to read another, rename %s", where, read, unread, read)


LANGUAGES = ("language", "locale", "lang")
"""Names of a column of languages."""
_CODE = re.compile(r"[A-Za-z]{2,3}([-_]\w+)*")


@cache
def report_language(place: Path, codes: frozenset[str], language: str | None) -> None:
    """Warns, once, that the texts of a list are by its own words in none that `language` stands for, which is
    `data.language`."""
    known = {primary(code) for code in codes if _CODE.fullmatch(code)}
    if language is not None and known and primary(language) not in known:
        logger.warning(
            "%s: says that its texts are in %s, but data.language is %s; set data.language=%s",
            printable(str(place)),
            ", ".join(sorted(known)),
            language,
            min(known),
        )


_TEXTS = 1000
"""Of a corpus, whose letters are looked at."""
_FOREIGN_SHARE = 0.2
"""Of texts with letters that English lacks, from which on they are taken for texts in another language: a café or a
name is in few."""


@dataclass(frozen=True)
class OtherLanguage:
    """What speaks for it that texts are in another language than they are taken to be in."""

    count: int
    total: int
    looks: str
    """What so many of the texts do."""
    code: str | None
    """The language, where it is known."""

    def told(self, reader: str, mend: Callable[[str], str]) -> str:
        """A sentence. `reader`: who takes them to be in what; `mend`: how another language is set."""
        they = "it is" if self.total == 1 else "they are"
        advice = f"if {they}, {mend(self.code)}" if self.code else f"if {they} German, say, {mend('de')}"
        texts = "the text" if self.total == 1 else f"{self.count} of the first {self.total} texts"
        return f"{texts} {self.looks}, but {reader}; {advice}"


def other_language(texts: Iterable[str], language: str) -> OtherLanguage | None:
    """Whether many texts are in another language than `language`: have its words, or letters that no English word has
    where that is English."""
    first = list(islice(texts, _TEXTS))
    others = Counter(other for text in first if (other := seems_other(text, language)))
    most = max(min(2, len(first)), _FOREIGN_SHARE * len(first))
    if first and (count := others.total()) >= most:
        other = others.most_common(1)[0][0]
        seem = "seems" if len(first) == 1 else "seem"
        return OtherLanguage(count, len(first), f"{seem} to be {name_of(other)}", other)
    if primary(language) != "en":
        return None
    foreign = [{letter for letter in text.lower() if letter.isalpha() and not letter.isascii()} for text in first]
    if (count := sum(map(bool, foreign))) < max(2, most):
        return None
    letters = Counter(letter for one in foreign for letter in one)
    usual = ", ".join(sorted(letter for letter, _ in letters.most_common(5)))
    return OtherLanguage(count, len(first), f"have letters that English lacks ({usual})", None)


def report_letters(place: str, texts: Iterable[str], language: str | None) -> None:
    """Warns, once, that many of a corpus's `texts` are in another language than `language`, its `data.language`."""
    if language is not None and (other := other_language(texts, language)) is not None:
        _warn_of_language(printable(place), other, language)


@cache
def _warn_of_language(place: str, other: OtherLanguage, language: str) -> None:
    reader = f"training reads them as {name_of(language)} (data.language={language})"
    logger.warning("%s: %s", place, other.told(reader, lambda code: f"train with data.language={code}"))


_REPORTED = set[tuple[Path, str | None, bool, tuple[str, ...]]]()


def unknown_columns(names: Sequence[str]) -> list[str]:
    """The columns whose names mean nothing here."""
    known = {name for spellings in COLUMNS.values() for name in spellings}
    meant = {*column_names(names).values()}
    return [name for name in names if name and name not in meant and column_name(name) not in known]


def report_unread(
    path: Path, names: Sequence[str], speaker: str | None, texts: bool, labels: Collection[str] | None = None
) -> None:
    """Warns, once for the lists of a folder, where a column that means nothing here may be the speakers, who else are
    one, `speaker`, or the texts, which no column is. `labels`: the columns that may be speakers; None: any."""
    unknown = unknown_columns(names)
    doubts = []
    if speaker is not None and (may_be := [name for name in unknown if labels is None or name in labels]):
        doubts.append((f"all recordings are taken to be of one speaker, {speaker}", "speakers", "speaker_id", may_be))
    if not texts and unknown:
        doubts.append(("no column is called as texts are", "texts", "text", unknown))
    about = (path.parent, speaker, texts, tuple(names))
    if not doubts or about in _REPORTED:
        return
    _REPORTED.add(about)
    facts = " and ".join(fact for fact, *_ in doubts)
    mends = "; ".join(f"if {_columns_of(may_be)} the {what}, rename it {column}" for _, what, column, may_be in doubts)
    logger.warning("%s: %s; %s", printable(str(path)), facts, mends)


def _columns_of(names: Sequence[str]) -> str:
    shown = ", ".join(map(printable, names))
    return f"the column {shown} has" if len(names) == 1 else f"one of the columns {shown} has"


def first_object(path: Path) -> dict[str, Any]:
    """The first object of a file of JSON lines; an empty one where the first line is none."""
    first = next((entry for _, entry in json_lines(path)), None)
    return first if isinstance(first, dict) else {}


def speaker_of(path: Path) -> str:
    """The one speaker of a list that names none: the folder that it is in."""
    return printable(path.resolve().parent.name)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file in UTF-8, or in UTF-16 with a mark. Other bytes become surrogates, as in names of files;
    `checked_row` refuses the rows that hold them. Raises DataError where the file can't be read."""
    try:
        if is_workbook(path, TABLES):
            raise DataError(f"{path}: a workbook, not text; save it as CSV UTF-8")
        # Not splitlines: a text may hold U+2028 and its like, which end no row.
        lines = read_text(path, "surrogateescape").split("\n")
        return lines if lines[-1] else lines[:-1]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:  # of what begins as UTF-16
        raise DataError(f"{path}: not text (byte {error.start}); save it as UTF-8") from error


_FOREIGN_BYTE = re.compile("[\udc80-\udcff]")
_FOREIGN_LETTER = re.compile("[^\0-\x7f\udc80-\udcff]")
_UNLIKELY = re.compile("[a-zß-ÿ][À-ÖØ-ÞŒŠŽŸ¡-¦§-¶¸-¿×÷†‡ˆ‰˜™€ƒ][a-zß-ÿ]|ÿ")
"""What Windows-1252 makes of Mac Roman's ä and ü, of Polish ł, and so on."""
_FEW_DAMAGED = 3
"""Lines from which on they are not those that were damaged, which are refused each."""
_MOST_FOREIGN = 0.3
"""Share of the letters of texts in western languages that ASCII lacks; Cyrillic and Greek have nearly all."""


def in_windows_1252(path: Path, lines: list[str]) -> list[str]:
    """Lines that `read_lines` gave, read as Windows-1252, which Excel calls CSV, where that may be, and told. Raises
    DataError where all that is not ASCII is in another encoding."""
    read, share = None, 1.0
    foreign = [line for line in lines if not line.isascii()]
    if not any(map(_FOREIGN_BYTE.search, foreign)) or any(map(_FOREIGN_LETTER.search, foreign)):
        return lines
    cells = (cell for line in foreign for separator in SEPARATORS for cell in cells_of(line, separator))
    if any(is_recording(path.parent, cell) for cell in cells if _FOREIGN_BYTE.search(cell)):
        return lines  # which name files of such names
    where = printable(str(path))
    with suppress(UnicodeDecodeError):
        read = "\n".join(lines).encode("utf-8", "surrogateescape").decode("cp1252")
        letters = [character for character in read if character.isalpha()]
        share = sum(not letter.isascii() for letter in letters) / max(1, len(letters))
    if read is None or share > _MOST_FOREIGN or _UNLIKELY.search(read):
        if len(foreign) < _FEW_DAMAGED:
            return lines
        raise DataError(f"{where}: neither UTF-8 nor Windows-1252; save it as CSV UTF-8")
    at = next(at for at, character in enumerate(read) if not character.isascii())
    before, behind = re.split(r"\W", read[max(0, at - 20) : at])[-1], re.split(r"\W", read[at + 1 : at + 20])[0]
    _report_encoding(where, f"{before}{read[at]}{behind}")
    return read.split("\n")


@cache
def _report_encoding(where: str, example: str) -> None:
    logger.warning(
        "%s: not UTF-8, so read as Windows-1252 (%s); if that is wrong, save it as CSV UTF-8", where, example
    )


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Each object of a file of JSON lines, also compressed, with its place; a Problem in the place of a line that is
    not JSON, and of the rest of a file that ends in the middle.

    Raises DataError for files that can't be opened, and for those that expand to far more than text does.
    """
    compressed = path.suffix.lower() == ".gz"
    limit = max(_LARGEST, _MOST_EXPANSION * path.stat().st_size) if compressed else float("inf")
    read = number = 0
    try:
        with gzip.open(path, "rb") if compressed else path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                number, read = number + 1, read + len(line)
                place = f"{path}:{number}"
                if read > limit or len(line) == _LONGEST_LINE:
                    raise DataError(
                        f"{place}: a line or a file larger than a manifest's ({read // 2**20} MiB read); "
                        "is it the right file?"
                    )
                if line.strip():
                    yield place, _parsed(line, place)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        place = f"{path}:{number + 1}"
        yield place, Problem("", place, "damaged file", f"can't be read from here on ({error}); copy it again")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def _parsed(line: bytes, place: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # among them UnicodeDecodeError
        return malformed(place, f"not readable as JSON ({json_mistake(error)})")


def suffix_of(file: Path) -> str:
    """The suffix of a list; .jsonl where a table's suffix is that of a file of objects, such as WeNet's data.list."""
    suffix = file.suffix.lower()
    if suffix not in TABLES or not file.is_file():
        return suffix
    with file.open("rb") as opened:
        return ".jsonl" if opened.read(4).removeprefix(b"\xef\xbb\xbf").startswith(b"{") else suffix


def lists_in(folder: Path, suffixes: Sequence[str] = (*OBJECTS, *TABLES)) -> tuple[Path, ...]:
    """The files in `folder` that list its recordings: metadata.json, metadata.csv and their like, or else those whose
    first lines name a recording that is there. Of several those called after official splits (train.tsv, dev.tsv), or
    all. Raises DataError when these name a recording twice."""
    for name in _KNOWN:
        if Path(name).suffix in suffixes and (folder / name).is_file():
            _report_other_lists(folder, folder / name)
            return (folder / name,)
    try:
        others = (name for name in os.listdir(folder) if os.path.splitext(name)[1].lower() not in AUDIO_SUFFIXES)
        files = sorted(file for name in others if suffix_of(file := folder / name) in suffixes)
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}") from error
    lists = [file for file in files if not file.name.startswith(".") and file.is_file() and _names_recordings(file)]
    if len(lists) < 2:
        return tuple(lists)
    stamps = tuple((file, status.st_mtime_ns, status.st_size) for file in lists if (status := file.stat()))
    return _chosen_of(folder, stamps)


@cache
def _report_other_lists(folder: Path, read: Path) -> None:
    """Tells, once, of lists called after splits beside the one that is read."""
    files = [file for file in folder.iterdir() if file != read and file.suffix.lower() in (*OBJECTS, *TABLES)]
    others = [printable(file.name) for file in sorted(files) if split_of_name(file.stem) and _names_recordings(file)]
    if others:
        logger.info(
            "%s: recordings are those of %s; not read: %s", printable(str(folder)), read.name, ", ".join(others)
        )


@cache
def _chosen_of(folder: Path, stamps: tuple[tuple[Path, int, int], ...]) -> tuple[Path, ...]:
    """Which of several lists, with their times and sizes, are the corpus."""
    lists = [file for file, *_ in stamps]
    of_splits = [file for file in lists if split_of_name(file.stem)]
    chosen = of_splits if "train" in {official_split(split_of_name(file.stem)) for file in of_splits} else lists
    kinds = {suffix_of(file) in OBJECTS for file in chosen}
    names = Counter(name for file in chosen for name in _names_in(file))
    where = printable(str(folder))
    if len(kinds) > 1 or max(names.values(), default=0) > 1:
        listed = ", ".join(printable(file.name) for file in lists[:5])
        raise DataError(f"{where}: several lists of recordings ({listed}); give the one that is meant as data.path")
    left = [printable(file.name) for file in lists if file not in chosen]
    logger.info(
        "%s: recordings are those of %s%s",
        where,
        ", ".join(printable(file.name) for file in chosen),
        f"; not read: {', '.join(left)}" if left else "",
    )
    _report_readers(where, chosen)
    return tuple(chosen)


def _report_readers(where: str, chosen: Sequence[Path]) -> None:
    """Warns where lists that are not only called after splits name no speakers, as those of Hi-Fi TTS' readers."""
    words = (re.split(r"[_\W]+", file.stem) for file in chosen)
    called = {"_".join(word for word in some if official_split(word) is None) for some in words}
    silent = all(
        "speaker_id" not in column_names(list(first_object(file))) for file in chosen if suffix_of(file) in OBJECTS
    )
    if len(called) > 1 and silent and all(suffix_of(file) in OBJECTS for file in chosen):
        logger.warning(
            "%s: no speakers are named in %s, so all recordings are taken to be of one; if these are of several, put "
            "the lists of each into a folder of its own, and give that as data.path",
            where,
            ", ".join(sorted(map(printable, called))[:5]),
        )


def _names_in(file: Path) -> set[str]:
    """How a list calls its recordings: what its objects say, or the column of a table that most often names one."""
    if suffix_of(file) not in TABLES:
        return {name for cells in _cells_of_file(file, None) for name in cells}
    lines = [line for line in read_lines(file) if line.strip()]
    counts = Counter(
        (separator, column)
        for line in lines[:LOOKED_AT]
        for separator in SEPARATORS
        for column, cell in enumerate(cells_of(line, separator))
        if is_recording(file.parent, cell)
    )
    (separator, column), _ = counts.most_common(1)[0]
    rows = (cells_of(line, separator) for line in lines)
    return {row[column] for row in rows if column < len(row) and row[column].lower() not in COLUMNS["audio_path"]}


def _names_recordings(file: Path) -> bool:
    """Whether one of the first two lines, of which the very first may be a header, or half of the first 20 name a
    recording that is there."""
    beside = file.suffix.lower() == ".txt" and any(file.with_suffix(end).is_file() for end in AUDIO_SUFFIXES)
    if beside:  # the text of that recording
        return False
    named = [any(is_recording(file.parent, cell) for cell in cells) for cells in _cells_of_file(file, LOOKED_AT)]
    return any(named[:2]) or (bool(named) and 2 * sum(named) >= len(named))


def _cells_of_file(file: Path, limit: int | None) -> list[list[str]]:
    """What may be the name of a recording in each of the first rows: the cells of a table by any separator, or what an
    object says."""
    with file.open("rb") as opened:
        encoding = encoding_of(opened.read(2))
    with file.open(encoding=encoding, errors="replace") as text:
        lines = list(islice(iter(lambda: text.readline(10_000), ""), limit))
    filled = [line.strip() for line in lines if line.strip()]
    if suffix_of(file) in TABLES:
        return [
            [cell for separator in SEPARATORS if separator in line for cell in cells_of(line, separator)]
            for line in filled
        ]
    objects = [document for line in filled if isinstance(document := document_of(line), dict)]
    one_document = len(objects) < len(filled) or len(filled) == 1
    if one_document and file.suffix.lower() == ".json" and file.stat().st_size <= _LARGEST:
        document = document_of(read_text(file, "replace"))
        samples = samples_of(document)
        listed = samples[:limit] if isinstance(samples, list) else objects
        objects = [sample for sample in listed if isinstance(sample, dict)]
    samples = [sample for document in objects for sample in samples_of_columns(document)]
    return [[name] if (name := audio_name(sample)) else [] for sample in samples]


def samples_of(document: Any) -> Any:
    """The samples of a JSON document: the list that it is, that under "samples" or the only other key with a list of
    recordings (`audios` in GigaSpeech and WenetSpeech), or objects by their ids, as SpeechBrain writes them. Segments
    that name their session (SegLST, as CHiME and MeetEval write it) are recordings with these."""
    if not isinstance(document, dict) or "samples" in document:
        samples = document["samples"] if isinstance(document, dict) else document
        return _of_sessions(samples) if isinstance(samples, list) else samples
    if document and all(isinstance(one, dict) and audio_name(one) for one in document.values()):
        return [{"id": name, **one} for name, one in document.items()]
    lists = {key: value for key, value in document.items() if isinstance(value, list) and _lists_recordings(value)}
    if len(lists) > 1 and all(map(official_split, lists)):
        pairs = ((split, one) for split, listed in lists.items() for one in listed)
        return [{"split": split, **one} if isinstance(one, dict) else one for split, one in pairs]
    return next(iter(lists.values())) if len(lists) == 1 else None


def _of_sessions(samples: list[Any]) -> list[Any]:
    if not samples or not all(isinstance(one, dict) and "session_id" in one for one in samples):
        return samples
    if any(audio_name(one) for one in samples):
        return samples
    sessions: dict[str, list[object]] = {}
    for one in samples:
        sessions.setdefault(str(one["session_id"]), []).append(one)
    return [{"audio_path": name, "segments": parts} for name, parts in sessions.items()]


def samples_of_columns(sample: Any) -> list[Any]:
    """The samples of an object with lists of names and texts side by side, as in People's Speech; else itself."""
    for value in sample.values() if isinstance(sample, dict) else ():
        names, texts = (value.get("name"), value.get("label")) if isinstance(value, dict) else (None, None)
        if isinstance(names, list) and isinstance(texts, list) and len(names) == len(texts):
            return [{"audio_path": name, "text": text} for name, text in zip(names, texts, strict=True)]
    return [sample]


def _lists_recordings(value: list[object]) -> bool:
    return bool(value) and all(isinstance(one, dict) and audio_name(one) for one in value[:LOOKED_AT])


def document_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def cells_of(line: str, separator: str) -> list[str]:
    """The cells of a line. Only commas and semicolons need quotes around a text; between tabs and bars quotes are a
    part of it, unless they are around all of it."""
    if separator not in ",;":
        return [_unquoted(cell.strip()) for cell in line.split(separator)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:  # a cell of over 128 KiB
        return [cell.strip() for cell in line.split(separator)]


_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def _unquoted(cell: str) -> str:
    quoted = _QUOTED.fullmatch(cell)
    return quoted[1].replace('""', '"').strip() if quoted is not None else cell


def clip_of(listed: Mapping[str, object], name: str, file: Path, speaker: str | None, place: str) -> Row | Problem:
    """The row of a recording that a list calls `name`, from the values of the list's columns: the whole file, or the
    part between `start` and `end` or `start` and `start` plus `duration`, in seconds. A duration alone is that of the
    whole file, or of a part at its beginning (`Row.of_file`)."""
    if all(_is_language(listed.get(key)) for key in ("start", "end")):  # of columns `from` and `to`
        listed = {key: value for key, value in listed.items() if key not in BOUNDS}
    try:
        start, end = part_of(_in_seconds(listed, file))
    except (TypeError, ValueError):
        times = ", ".join(f"{key} {listed[key]!r}" for key in PART if listed.get(key) is not None)
        detail = f"{times}: must be seconds (_ms: milliseconds), with the end after the start; correct them"
        return malformed(place, detail)
    part = f"-{round(1000 * start):08d}" if as_text(listed.get("start")) or as_text(listed.get("start_ms")) else ""
    id = as_text(listed.get("id")) or id_of(name) + part
    segment = Segment(start, end, speaker, as_text(listed.get("text")))
    whole = start == 0.0 and end is None
    seconds = _file_seconds(listed) if whole else None
    split = as_text(listed.get("split"))
    return checked_row(Row(id, file, (segment,), place, None, start, end, split, seconds))


def _is_language(value: object) -> bool:
    return isinstance(value, str) and _CODE.fullmatch(value) is not None and value.lower() not in ("nan", "inf")


def _file_seconds(listed: Mapping[str, object]) -> float | None:
    """The duration of a file in seconds; None where none is given, or no sensible one."""
    thousandths = as_text(listed.get("duration_ms"))
    try:
        seconds = float(thousandths) / 1000.0 if thousandths else float(as_text(listed.get("duration")) or 0.0)
    except ValueError:
        return None
    return seconds if 0.0 < seconds < float("inf") else None


def _in_seconds(listed: Mapping[str, object], file: Path) -> Mapping[str, object]:
    """The columns, `start` and `stop` as `start` and `end`: SpeechBrain gives them in samples, which they are where
    `stop` is over the length of the file in seconds."""
    stop = as_text(listed.get("stop"))
    if stop is None or as_text(listed.get("end")) is not None:
        return listed
    rate = 1
    if float(stop).is_integer():
        with suppress(DataError):  # reported when the file is checked
            info = probe(file)
            rate = info.sample_rate if float(stop) > info.duration + SLACK_SECONDS else 1
    start = float(as_text(listed.get("start")) or 0.0) / rate
    return {**listed, "start": start, "end": float(stop) / rate}


def bounds_of(listed: Mapping[str, object]) -> tuple[float | None, float | None]:
    """Start and end, as far as columns have them, in seconds. Raises ValueError."""
    start, end = (_part_seconds(listed, key) for key in ("start", "end"))
    if end is None and start is not None and (duration := _part_seconds(listed, "duration")) is not None:
        end = start + duration
    return start, end


def part_of(listed: Mapping[str, object]) -> tuple[float, float | None]:
    begins, ends = bounds_of(listed)
    if begins is None and ends is None:
        return 0.0, None
    begins = begins or 0.0
    if not 0.0 <= begins < float("inf") or not (ends is None or begins < ends < float("inf")):
        raise ValueError
    return begins, ends


def _part_seconds(listed: Mapping[str, object], key: str) -> float | None:
    if (thousandths := as_text(listed.get(f"{key}_ms"))) is not None:
        return float(thousandths) / 1000.0
    text = as_text(listed.get(key))
    return None if text is None else clock_seconds(text)


def audio_name(sample: Mapping[str, object]) -> str | None:
    """What an object calls its recording; `{"path": ...}` in the place of a name is one, too."""
    key = column_names(sample).get("audio_path")
    name = sample[key] if key else None
    if isinstance(name, dict):
        name = name.get("path")
    return str(name) if name else None


@cache
def report_left_out(place: Path, count: int, example: str, why: str) -> None:
    """Warns, once, of texts that are not used, of which one is the example."""
    texts = "text is" if count == 1 else "texts are"
    where, example, why = map(printable, (str(place), example, why))
    logger.warning("%s: %d %s left out, such as %s: %s", where, count, texts, example, why)


def of_lists(files: Sequence[Path], rows: Callable[[Path], Iterator[Row | Problem]]) -> Iterator[Row | Problem]:
    """The rows of a list; of several, each of the split that its list is called after, unless it says another. Rows
    with different texts of the whole of one recording are without a text; with different speakers they are problems."""
    listed = list[Row | Problem]()
    texts: dict[Path, dict[str, str]] = {}
    speakers: dict[Path, dict[str, str]] = {}
    for file in files:
        split = split_of_name(file.stem) if len(files) > 1 else None
        for row in rows(file):
            listed.append(replace(row, split=split) if isinstance(row, Row) and row.split is None else row)
            if isinstance(row, Row) and _is_whole(row) and row.text:
                texts.setdefault(row.path, {}).setdefault(row.text, row.place)
            if isinstance(row, Row) and _is_whole(row) and row.speaker:
                speakers.setdefault(row.path, {}).setdefault(row.speaker, row.place)
    doubts = {path: _differ(*islice(places.values(), 2)) for path, places in texts.items() if len(places) > 1}
    if doubts:
        path, why = next(iter(doubts.items()))
        report_left_out(files[0].parent, len(doubts), path.name, why)
    for row in listed:
        if isinstance(row, Row) and _is_whole(row) and len(said := speakers.get(row.path, {})) > 1:
            both = " and to ".join(f"{name} ({place})" for name, place in islice(said.items(), 2))
            detail = f"the recording is given to {both}; keep one of them, or give parts of it a start and an end"
            yield Problem(row.id, row.place, "several speakers", printable(detail))
            continue
        if isinstance(row, Row) and _is_whole(row) and row.path in doubts:
            row = replace(row, segments=(replace(row.segments[0], text=None, no_text=doubts[row.path]),))
        yield row


def _differ(first: str, second: str) -> str:
    return f"{first} and {second} differ; keep one of them, or give those of parts a start and an end"


def _is_whole(row: Row) -> bool:
    return row.start == 0.0 and row.end is None and len(row.segments) == 1
