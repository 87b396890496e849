"""Folders that are corpora by their layout: a sub-folder for each speaker; LibriSpeech."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path

from phonate.audio.decoding import AUDIO_SUFFIXES, is_recording
from phonate.config.errors import DataError
from phonate.data.annotations import encoding_of, read_text
from phonate.data.corpora.lists import read_lines
from phonate.data.corpora.rows import (
    Problem,
    Row,
    audio_files,
    checked_row,
    composed,
    corpus_format,
    in_any_form,
    malformed,
    official_split,
    printable,
    split_among,
)

logger = logging.getLogger("phonate")

# -------------------------------------------------------- A folder with a sub-folder for each speaker

TEXTS = (".txt", ".lab", ".normalized.txt")
"""Ends of names of texts beside recordings; the last is LibriTTS's."""
_OTHER_TEXTS = (".original.txt",)
_TRANSCRIPTS = (".txt", ".tsv", ".csv", ".trn")
_LINE = re.compile(r"([^\s|:]+)[\s|:]\s*(\S.*)")
_PINYIN = re.compile(r"(\S [a-z]+[1-5]( |$))+")
_LOOKED_AT = 20
_HELD_TEXTS = (
    *_TRANSCRIPTS,
    ".json",
    ".jsonl",
    ".lab",
    ".stm",
    ".textgrid",
    ".eaf",
    ".xml",
    ".mlf",
    ".trs",
    ".srt",
    ".vtt",
)
_NOTES = re.compile(r"(readme|license|licence|copying|notice|changelog)\b.*", re.IGNORECASE)
_MOST_LOOKED_AT = 1000
_TIMED = re.compile(r"\s*\d+\s+\d+\s+\S+")


def is_folder(path: Path) -> bool:
    """A folder with recordings."""
    return path.is_dir() and next(audio_files(path, problems=[]), None) is not None


@corpus_format(is_folder, priority=10)
def folder_rows(path: Path) -> Iterator[Row | Problem]:
    """Every audio file under `path`; the folder it lies in names its speaker, and a `.txt` or `.lab` beside it holds
    its text, or a line `NAME TEXT` of a transcript does. Texts without a recording are problems in folders where
    recordings have texts."""
    folders: dict[Path, set[str]] = {}
    spoken: set[Path] = set()
    unreadable: list[Problem] = []
    every = list(audio_files(path, None, unreadable))
    listed = [file for file in every if file.suffix.lower() in AUDIO_SUFFIXES]
    transcripts = _Transcripts(path, every, listed)
    splits = _split_folders([file.relative_to(path) for file in listed])
    for file in listed:
        inside = file.relative_to(path)
        text = text_of(file)
        names = folders.setdefault(file.parent, set())
        # Of two files of one name, such as take.flac and take.wav, the second keeps its suffix in its id.
        id = printable((inside if file.stem in names else inside.with_suffix("")).as_posix())
        names.add(file.stem)
        if text is not None:
            spoken.add(file.parent)
        try:
            words = _read(text) if text is not None else transcripts.texts.get(file.stem)
        except OSError as error:
            yield Problem(id, printable(str(text)), "unreadable text", error.strerror or str(error))
            continue
        except UnicodeDecodeError:
            yield Problem(id, printable(str(text)), "unreadable text", "is not UTF-8; save it as UTF-8")
            continue
        yield Row.clip(
            id=id,
            path=file,
            speaker=printable(_speaker_folder(path, inside, splits).name),
            text=words,
            place=printable(str(file)),
            split=_split(inside, splits),
        )
    yield from unreadable
    for folder in sorted(spoken):
        yield from _unspoken(path, folder, {composed(name) for name in folders[folder]}, transcripts.files)
    _report_others(path, transcripts.others(spoken), bool(spoken or transcripts.texts))


def _speaker_folder(root: Path, inside: Path, splits: set[Path]) -> Path:
    """The folder that names the speaker of a recording: the one that it lies in, but in LibriTTS and MLS, where it lies
    in SPEAKER/CHAPTER and is called after both, the one above."""
    if inside.parent in {Path(), *splits}:
        return root.resolve()
    speaker, chapter = inside.parent.parent.name, inside.parent.name
    above = speaker.isdecimal() and chapter.isdecimal() and not _YEAR.fullmatch(speaker)
    return inside.parent.parent if above and inside.name.startswith(f"{speaker}_{chapter}_") else inside.parent


class _Transcripts:
    """Files of a folder with lines `NAME TEXT` for its recordings (as of MLS, JSUT, AISHELL, or with bars as in lists,
    whose last column counts)."""

    def __init__(self, root: Path, every: Sequence[Path], listed: Sequence[Path]) -> None:
        self.files: dict[Path, None] = {}
        self.texts: dict[str, str] = {}
        """Text by the name of the recording, without suffix."""
        counts = Counter(file.stem for file in listed)
        self._names = {stem for stem, count in counts.items() if count == 1}
        beside = {(file.parent, composed(file.stem)) for file in listed}
        ends = (*TEXTS, *_OTHER_TEXTS)
        self._rest = [
            file
            for file in every
            if file.suffix.lower() not in AUDIO_SUFFIXES
            and not any(
                file.name.endswith(end) and (file.parent, composed(file.name.removesuffix(end))) in beside
                for end in ends
            )
        ]
        likely = [
            file for file in self._rest if file.suffix.lower() in _TRANSCRIPTS and not _NOTES.fullmatch(file.name)
        ]
        for file in likely[:_MOST_LOOKED_AT]:
            texts = self._read(file)
            if texts and not any(self.texts.get(name, text) != text for name, text in texts.items()):
                self.texts |= texts
                self.files[file] = None
        if self.files:
            _report_transcripts(root, tuple(self.files), len(self.texts))

    def others(self, spoken: Collection[Path]) -> tuple[Path, ...]:
        """The files that are neither recordings nor texts, but for texts in the folders of `spoken` recordings."""
        return tuple(
            file
            for file in self._rest
            if file not in self.files and not (file.parent in spoken and file.name.endswith(TEXTS))
        )

    def _read(self, file: Path) -> dict[str, str]:
        """Name -> text; none where it is no transcript of these recordings."""
        try:
            with file.open("rb") as opened:
                encoding = encoding_of(opened.read(2))
            with file.open(encoding=encoding) as opened_text:
                first = [
                    line for line in islice(iter(lambda: opened_text.readline(10_000), ""), _LOOKED_AT) if line.strip()
                ]
            texts = [entry[1] for line in first if (entry := self._entry(line)) is not None]
            spoken = sum(any(letter.isalpha() for letter in text) for text in texts)
            sentences = sum(" " in text or not text.isascii() for text in texts)
            # many the same: what recordings have in common, such as "native speaker"
            if 2 * min(spoken, sentences, len(set(texts))) < len(first) or all(map(_PINYIN.fullmatch, texts)):
                return {}
            return dict(entry for line in read_lines(file) if (entry := self._entry(line)) is not None)
        except (OSError, UnicodeDecodeError, DataError):
            return {}  # it is among the files that are left alone, which are told

    def _entry(self, line: str) -> tuple[str, str] | None:
        match = _LINE.fullmatch(line.strip())
        if match is None:
            return None
        text = match[2].split("|")[-1].split("\t")[-1].strip()
        for name in (match[1], Path(match[1]).stem):
            if name in self._names:
                return name, text
        return None


@cache
def _report_transcripts(root: Path, files: tuple[Path, ...], texts: int) -> None:
    """Says, once, where texts are taken from."""
    names = ", ".join(printable(str(file.relative_to(root))) for file in files[:3]) + (
        ", ..." if len(files) > 3 else ""
    )
    logger.info("%s: the texts of %d recordings are those of %s", printable(str(root)), texts, names)


@cache
def _report_others(root: Path, files: tuple[Path, ...], with_texts: bool) -> None:
    """Warns, once, of files that are not taken for recordings: of those that hold sound by name, else by kind."""
    sounds = [file for file in files[:_MOST_LOOKED_AT] if is_recording(file)]
    if sounds:
        names = ", ".join(printable(file.name) for file in sounds[:3]) + (", ..." if len(sounds) > 3 else "")
        logger.warning(
            "%s: %s%d files hold sound, but are not called as recordings are, and are left out (%s); to use them, give "
            "them a suffix such as .wav",
            printable(str(root)),
            "at least " if len(files) > _MOST_LOOKED_AT else "",
            len(sounds),
            names,
        )
    told = set(sounds)
    kinds = Counter(
        file.suffix.lower() or "no suffix" for file in files if file not in told and not _NOTES.fullmatch(file.name)
    )
    if kinds:
        counts = ", ".join(f"{count} {printable(kind)}" for kind, count in kinds.most_common(6))
        message = f"{printable(str(root))}: not called as recordings are, and left alone: {counts}"
        held = next((file for file in files if file not in told and file.name.lower().endswith(_HELD_TEXTS)), None)
        if held is None or with_texts or _NOTES.fullmatch(held.name):
            logger.info(message)
        else:
            name = printable(str(held.relative_to(root)))
            logger.warning(
                "%s (such as %s); no recording has a text: if they hold them, give the list as data.path", message, name
            )


def _split_folders(listed: list[Path]) -> set[Path]:
    """The folders with recordings of one speaker, where all of them are called after splits and one is for training
    (train/1.wav, test/2.wav); else such names are those of speakers."""
    direct = {inside.parent for inside in listed if len(inside.parts) == 2}
    named = {official_split(folder.name) for folder in direct}
    return direct if "train" in named and None not in named else set()


def _split(inside: Path, splits: set[Path]) -> str | None:
    """The official split of a recording: of train/1.wav where these folders are `splits`, and of train/ann/1.wav."""
    above_speakers = len(inside.parts) > 2 and official_split(inside.parts[0]) is not None
    return inside.parts[0] if above_speakers or inside.parent in splits else None


def text_of(file: Path) -> Path | None:
    """The file with the text of a recording: one of its name beside it, in whichever form of Unicode."""
    for end in TEXTS:
        if (beside := file.with_suffix(end)).is_file():
            return beside
    if file.stem.isascii():
        return None
    return next(filter(None, (in_any_form(file.parent, f"{file.stem}{end}") for end in TEXTS)), None)


def text_beside(recording: Path) -> str | None:
    """What the file with the text of a recording holds; None where there is none. Raises OSError and
    UnicodeDecodeError."""
    file = text_of(recording)
    return None if file is None else _read(file)


def _read(file: Path) -> str | None:
    """The text of a recording in one line; None for a file of labels with times (as HTK writes them), which is none."""
    content = read_text(file).strip()
    lines = [line.strip() for line in content.split("\n") if line.strip()]
    if file.suffix.lower() == ".lab" and lines and all(_TIMED.match(line) for line in lines):
        return None
    return " ".join(lines)


def _unspoken(root: Path, folder: Path, recordings: set[str], transcripts: Collection[Path]) -> Iterator[Problem]:
    """A problem for each text beside which there is no recording."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        file = Path(entry.path)
        listed = file.suffix.lower() in TEXTS and not file.name.startswith(".") and not _NOTES.fullmatch(file.name)
        ends = [end for end in (*_OTHER_TEXTS, *reversed(TEXTS)) if file.name.endswith(end)]
        stem = file.name.removesuffix(ends[0]) if ends else file.stem
        if listed and file not in transcripts and entry.is_file() and composed(stem) not in recordings:
            id = printable(file.relative_to(root).with_suffix("").as_posix())
            yield Problem(id, printable(str(file)), "missing file", "a text beside which there is no recording")


# --------- LibriSpeech: SPEAKER/CHAPTER/SPEAKER-CHAPTER-UTTERANCE.flac with SPEAKER-CHAPTER.trans.txt

NAME = re.compile(r"(\d+)-(\d+)-\d+")
_NUMBERED = re.compile(r"\d+-\d+-0\d{3}")
"""Names whose last part is like an utterance of LibriSpeech, which no day or year is."""
_YEAR = re.compile(r"(19|20)\d\d")
_DATE = re.compile(r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
_PART = re.compile(r"(train|dev|test)-(clean|other)(-\d+)?")


def is_librispeech(path: Path) -> bool:
    """A folder whose recordings all have such names, where transcripts or folders say that they are no dates or takes:
    `SPEAKER-CHAPTER.trans.txt` beside one, or, for all, a folder of the speaker or a part such as train-clean-100."""
    if not path.is_dir():
        return False
    files = list(audio_files(path, problems=[]))
    names = [NAME.fullmatch(file.stem) for file in files]
    if not files or not all(names):
        return False
    pairs = [(file, name) for file, name in zip(files, names, strict=True) if name is not None]
    if any(_transcript(file, name).is_file() for file, name in pairs):
        return True
    if all(_DATE.fullmatch(file.stem) for file in files):  # folders such as 2024/01 are then years and months
        return False
    if all(_in_its_folder(path, file, name) for file, name in pairs):
        return True
    if all(_NUMBERED.fullmatch(file.stem) for file in files):
        speakers = {(file.parent, name[1]) for file, name in pairs}
        if any(len({one[side] for one in speakers}) < len(speakers) for side in (0, 1)):  # else it is the same
            _report_likeness(path.resolve())
    return False


@cache
def _report_likeness(path: Path) -> None:
    """Says, once, that names may be those of LibriSpeech."""
    logger.warning(
        "%s: folders name the speakers; if the files are SPEAKER-CHAPTER-UTTERANCE, set data.format=librispeech",
        printable(str(path)),
    )


def _in_its_folder(root: Path, file: Path, name: re.Match[str]) -> bool:
    """Whether the folders above a recording, `root` among them, are its speaker's (and chapter's), or a part of
    LibriSpeech."""
    above = [*reversed(file.relative_to(root).parts[:-1]), *reversed(root.resolve().parts)][:3]
    return any(folder == name[1] for folder in above[:2]) or any(map(_PART.fullmatch, above))


def _transcript(file: Path, name: re.Match[str]) -> Path:
    return file.with_name(f"{name[1]}-{name[2]}.trans.txt")


@corpus_format(is_librispeech, priority=20)
def librispeech_rows(path: Path) -> Iterator[Row | Problem]:
    """Every audio file under `path`: its name begins with its speaker and chapter, and `SPEAKER-CHAPTER.trans.txt`, or
    a `.txt` of its own, beside it may hold its text."""
    transcripts = lru_cache(maxsize=1)(_transcripts)  # files come folder by folder, and sorted
    unreadable: list[Problem] = []
    for file in audio_files(path, problems=unreadable):
        named = NAME.fullmatch(file.stem)
        if named is None:
            yield malformed(printable(str(file)), "not called SPEAKER-CHAPTER-UTTERANCE; is `format: folder` meant?")
            continue
        try:
            text = transcripts(_transcript(file, named)).get(file.stem) or text_beside(file)
        except (DataError, OSError, UnicodeDecodeError) as error:
            yield Problem(file.stem, printable(str(file)), "unreadable text", printable(str(error)))
            continue
        yield checked_row(
            Row.clip(file.stem, file, named[1], text, str(file), split_among(file.relative_to(path).parts[:-1]))
        )
    yield from unreadable


def _transcripts(path: Path) -> dict[str, str]:
    """Utterance -> text, of lines `UTTERANCE TEXT`."""
    if not path.is_file():
        return {}
    fields = (line.partition(" ") for line in read_lines(path))
    return {name: text.strip() for name, _, text in fields if text.strip()}
