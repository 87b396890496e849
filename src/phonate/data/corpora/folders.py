"""Folders that are corpora by their layout: a sub-folder for each speaker; LibriSpeech."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path

from phonate.audio.containers.kinds import WORKBOOKS, is_workbook
from phonate.audio.decoding import AUDIO_SUFFIXES, is_recording
from phonate.config.errors import DataError
from phonate.config.words import number_of, that_many
from phonate.data.corpora.layout import Layout
from phonate.data.corpora.lists import SAVE_WORKBOOK, read_lines, report_left_out
from phonate.data.corpora.rows import (
    REPORT,
    Problem,
    Row,
    audio_files,
    checked_row,
    corpus_format,
    malformed,
    nfc,
    printable,
    split_among,
)
from phonate.data.corpora.transcripts import (
    MOST_LOOKED_AT,
    NOTES,
    OTHER_TEXTS,
    TEXTS,
    Conversation,
    TextEntry,
    Transcripts,
    entry_beside,
    may_hold_words,
    read_text_file,
    report_doubtful,
    text_beside,
    text_of,
)
from phonate.data.labels import LabelFormat, label_format, some

logger = logging.getLogger("phonate")

# -------------------------------------------------------- A folder with a sub-folder for each speaker

_HELD_TEXTS = (
    *(".txt", ".tsv", ".csv", ".trn", ".data", ".text", ".trans", ".json", ".jsonl", ".yaml", ".yml", ".lab", ".stm"),
    *(*WORKBOOKS, ".docx", ".md", ".list", ".textgrid", ".eaf", ".xml", ".mlf", ".trs", ".srt", ".vtt"),
    *(".ass", ".ssa", ".ttml", ".sbv", ".lrc", ".srv3", ".json3", ".exb"),
)

_PLAIN = {".text", ".trans", ".trn", ".md"}
"""Suffixes of plain texts, which count as those of the recordings beside them once they are called .txt."""


def is_folder(path: Path) -> bool:
    """A folder with recordings."""
    return path.is_dir() and next(audio_files(path, problems=[]), None) is not None


@corpus_format(is_folder, priority=10)
def folder_rows(path: Path, speaker_folder: int | None = None, of_others: bool = False) -> Iterator[Row | Problem]:
    """Every audio file under `path`; a folder names its speaker, and a `.txt` or `.lab` beside it holds its text, or a
    file of its name in a folder of texts does, or a line of a transcript. Texts without a recording are told, in
    folders where recordings have texts. `of_others`: the settings say who speaks, and not the folders."""
    folders: dict[Path, set[str]] = {}
    spoken: set[Path] = set()
    unreadable: list[Problem] = []
    unnamed: list[Path] = []
    unread: list[Path] = []
    described: list[Path] = []
    chosen: set[Path | None] = set()
    conversations: dict[Path, str] = {}
    every = list(audio_files(path, None, unreadable))
    listed = [file for file in every if file.suffix.lower() in AUDIO_SUFFIXES]
    transcripts = Transcripts(path, every, listed)
    layout = Layout(path, listed, speaker_folder)
    for file, inside in zip(listed, layout.inside, strict=True):
        text = text_of(file, transcripts.paths)
        chosen.add(text)
        names = folders.setdefault(file.parent, set())
        # Of two files of one name, such as take.flac and take.wav, the second keeps its suffix in its id.
        id = printable((inside if file.stem in names else inside.with_suffix("")).as_posix())
        names.add(file.stem)
        words = None if text is None else _words(text, id, conversations, transcripts.doubtful)
        if words is not None:
            spoken.add(file.parent)
        elif text is not None and text not in conversations:
            unread.append(text)
        if isinstance(words, Problem):
            yield words
            continue
        beside = entry_beside(file, transcripts.paths)
        object = file.with_suffix(".json")
        if beside is None and str(object) in transcripts.paths:
            (unread if words is None and may_hold_words(object) else described).append(object)
        elif beside is not None and words is not None and beside.text not in (None, words):
            described.append(object)  # another text
        said = transcripts.by_recording.get(file) or beside or TextEntry(None)
        text_left_out = transcripts.doubts.get(file) if text is None else conversations.get(text)
        named = said.speaker if said.certain or not layout.is_certain(inside) else None
        unnamed += [] if named else [inside]
        yield checked_row(
            Row.clip(
                id=id,
                path=file,
                speaker=named or printable(layout.speaker(inside)),
                text=said.text if words is None else words,
                place=printable(str(file)),
                split=said.split or layout.split(inside),
                no_text=None if said.text else text_left_out,
            )
        )
    yield from unreadable
    _report_conversations(path, conversations)
    report_doubtful(path, tuple(transcripts.doubtful))
    unspoken = [
        file
        for folder in sorted(spoken)
        for file in _unspoken(folder, {nfc(name) for name in folders[folder]}, transcripts.files)
    ]
    if unspoken:
        _report_unspoken(path, tuple(unspoken))
    others = [
        file
        for file in transcripts.rest
        if file not in transcripts.files and not (file.parent in spoken and file.name.endswith(TEXTS))
    ]
    described += _second_texts(every, transcripts.rest, chosen)
    _report_others(path, (*others, *unread), tuple(described), bool(spoken or transcripts.files))
    if not of_others:
        layout.report(unnamed)


def _second_texts(every: Iterable[Path], rest: Collection[Path], chosen: Collection[Path | None]) -> list[Path]:
    """Texts beside recordings that have another."""
    beside = (file for file in every if file.name.endswith(TEXTS) and not file.name.endswith(OTHER_TEXTS))
    left = {*rest}
    return [file for file in beside if file not in chosen and file not in left]


def _words(text: Path, id: str, conversations: dict[Path, str], doubtful: list[Path]) -> str | Problem | None:
    """The text of a recording, or why it can't be read; what is no text but a transcript of a conversation is added to
    these, and what may be one to `doubtful`."""
    try:
        return read_text_file(text, doubtful)
    except OSError as error:
        return Problem(id, printable(str(text)), "unreadable text", error.strerror or str(error))
    except UnicodeDecodeError:
        return Problem(id, printable(str(text)), "unreadable text", "is not UTF-8; save it as UTF-8")
    except Conversation as error:
        conversations[text] = str(error)
        return None


def _report_conversations(root: Path, conversations: dict[Path, str]) -> None:
    """Warns, once, of texts that are not those of a recording's words alone."""
    if conversations:
        file, why = next(iter(conversations.items()))
        report_left_out(root, len(conversations), str(file.relative_to(root)), why)


@cache
def _report_others(root: Path, files: tuple[Path, ...], described: tuple[Path, ...], with_texts: bool) -> None:
    """Warns, once, of files that are not taken for recordings: of those that hold sound by name, else by kind; of those
    in which recordings are `described`, only how many there are."""
    sounds = [file for file in files[:MOST_LOOKED_AT] if is_recording(file)]
    if sounds:
        names = ", ".join(printable(str(file.relative_to(root))) for file in sounds[:3]) + (
            ", ..." if len(sounds) > 3 else ""
        )
        logger.warning(
            "%s: %s%s (%s); to use them, give them a suffix such as .wav",
            printable(str(root)),
            "at least " if len(files) > MOST_LOOKED_AT else "",
            that_many(len(sounds), "file", "hold sound without a suffix of recordings, and are left out"),
            names,
        )
    told = {*sounds, root / REPORT}
    kinds = Counter(file.suffix.lower() or "no suffix" for file in (*files, *described) if file not in told)
    if any(file not in told and not NOTES.fullmatch(file.name) for file in (*files, *described)):
        counts = ", ".join(f"{count} {printable(kind)}" for kind, count in kinds.most_common(6))
        message = f"{printable(str(root))}: ignored, not recordings: {counts}"
        labels = _kinds(file for file in files[:MOST_LOOKED_AT] if file not in told)
        message += "".join(f"; data.format={kind.name} reads {kind.suffixes[0]}" for kind in labels)
        held = next((file for file in files if file not in told and file.name.lower().endswith(_HELD_TEXTS)), None)
        if held is None or with_texts or NOTES.fullmatch(held.name):
            logger.info(message)
        else:
            name = printable(str(held.relative_to(root)))
            mend = "set it" if labels else "give the list as data.path, or write one"
            mend = SAVE_WORKBOOK if is_workbook(held) else mend
            if held.suffix.lower() in _PLAIN and any(held.with_suffix(one).is_file() for one in AUDIO_SUFFIXES):
                mend = "rename them to .txt"
            logger.warning(
                "%s (such as %s); no recording has a text: if these files hold the texts, %s", message, name, mend
            )


def _kinds(files: Iterable[Path]) -> list[LabelFormat]:
    """The formats of labels among files, without TextGrids that an aligner wrote beside texts."""
    first: dict[LabelFormat, Path] = {}
    for file in files:
        if (kind := label_format(file)) is not None:
            first.setdefault(kind, file)
    from phonate.data.label_documents import is_alignment

    return [kind for kind, file in first.items() if not (kind.name == "textgrid" and is_alignment(file))]


def _unspoken(folder: Path, recordings: set[str], transcripts: Collection[Path]) -> Iterator[Path]:
    """The texts beside which there is no recording."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        file = Path(entry.path)
        listed = file.suffix.lower() in TEXTS and not file.name.startswith(".") and not NOTES.fullmatch(file.name)
        ends = [end for end in (*OTHER_TEXTS, *reversed(TEXTS)) if file.name.endswith(end)]
        stem = file.name.removesuffix(ends[0]) if ends else file.stem
        spoken = nfc(stem) in recordings or nfc(Path(stem).stem) in recordings  # a.txt, a.wav.txt
        if listed and file not in transcripts and entry.is_file() and not spoken:
            yield file


@cache
def _report_unspoken(root: Path, files: tuple[Path, ...]) -> None:
    """Warns, once, of texts that are no recording's: notes, or those of recordings that are lost."""
    names = some([str(file.relative_to(root)) for file in files])
    what = "1 text has" if len(files) == 1 else f"{len(files)} texts have"
    logger.warning("%s: %s no recording of the same name: %s", printable(str(root)), what, names)


# --------- LibriSpeech: SPEAKER/CHAPTER/SPEAKER-CHAPTER-UTTERANCE.flac with SPEAKER-CHAPTER.trans.txt

NAME = re.compile(r"(\d+)-(\d+)-\d+")
_NUMBERED = re.compile(r"\d+-\d+-0\d{3}")
"""Names whose last part is like an utterance of LibriSpeech, which no day or year is."""
_DATE = re.compile(r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
_PART = re.compile(r"(train|dev|test)-(clean|other)(-\d+)?")


def is_librispeech(path: Path) -> bool:
    """A folder whose recordings all have such names, where transcripts or folders say that they are no dates or takes:
    `SPEAKER-CHAPTER.trans.txt` beside one, or, for all, a folder of the speaker or a part such as train-clean-100."""
    if not path.is_dir():
        return False
    pairs = []
    for file in audio_files(path, problems=[]):
        if (name := NAME.fullmatch(file.stem)) is None:
            return False
        pairs.append((file, name))
    files = [file for file, _ in pairs]
    if not files:
        return False
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
    conversations: dict[Path, str] = {}
    doubtful: list[Path] = []
    every = list(audio_files(path, None, unreadable))
    listed = [file for file in every if file.suffix.lower() in AUDIO_SUFFIXES]
    # LibriSpeech has .trans.txt; other corpora of such names have other transcripts.
    own = any(file.name.endswith(".trans.txt") for file in every)
    others = None if own else Transcripts(path, every, listed)
    doubts: dict[str, str] = {}
    unplaced: dict[Path, set[str]] = {}
    for file in listed:
        named = NAME.fullmatch(file.stem)
        if named is None:
            yield malformed(printable(str(file)), "not called SPEAKER-CHAPTER-UTTERANCE; is `format: folder` meant?")
            continue
        try:
            lines, differ = transcripts(transcript := _transcript(file, named))
            if transcript not in unplaced:
                unplaced[transcript] = {*lines}
                doubts |= differ
            unplaced[transcript].discard(file.stem)
            no_text = differ.get(file.stem)
            text = None if no_text else lines.get(file.stem) or text_beside(file, doubtful)
            if text is None and others is not None:
                text = others.by_recording[file].text if file in others.by_recording else None
                no_text = others.doubts.get(file)
        except Conversation as error:
            text, no_text = None, str(error)
            conversations[text_of(file) or file] = no_text
        except (DataError, OSError, UnicodeDecodeError) as error:
            yield Problem(file.stem, printable(str(file)), "unreadable text", printable(str(error)))
            continue
        yield checked_row(
            Row.clip(
                file.stem, file, named[1], text, str(file), split_among(file.relative_to(path).parts[:-1]), no_text
            )
        )
    yield from unreadable
    if doubts:
        report_left_out(path, len(doubts), *next(iter(doubts.items())))
    if count := sum(map(len, unplaced.values())):
        _report_unplaced(path, count)
    _report_conversations(path, conversations)
    report_doubtful(path, tuple(doubtful))


@cache
def _report_unplaced(path: Path, count: int) -> None:
    lines = number_of(count, "line")
    logger.info("%s: left alone: %s of .trans.txt for which there is no recording", printable(str(path)), lines)


def _transcripts(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Utterance -> text, of lines `UTTERANCE TEXT`; and of those of which lines differ, why none is its text."""
    texts: dict[str, tuple[list[str], int]] = {}
    doubts: dict[str, str] = {}
    for number, line in enumerate(read_lines(path) if path.is_file() else (), start=1):
        name, *words = line.split() or ("",)
        if words:
            first, above = texts.setdefault(name, (words, number))
            if first != words:
                doubts[name] = f"lines {above} and {number} of {path} differ; keep one of them"
    return {name: " ".join(words) for name, (words, _) in texts.items()}, doubts
