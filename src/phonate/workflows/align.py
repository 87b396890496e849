"""Alignment of recordings with their texts: when each word is said."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phonate.audio.containers.kinds import is_workbook
from phonate.audio.decoding import AUDIO_SUFFIXES, Audio, as_waveform
from phonate.config.errors import DataError, InputError, option, unreadable
from phonate.config.language_codes import is_english, name_of
from phonate.config.registry import looked_in, nearest_path
from phonate.data.corpora.lists import other_language
from phonate.data.corpora.places import Below, Within
from phonate.data.corpora.rows import Problem, audio_files
from phonate.data.corpora.tables import Table, table_in
from phonate.data.labels import same_name
from phonate.data.progress import Stage, progress_of_each
from phonate.data.transcripts import Alignment

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("phonate")

POCKETSPHINX = "pocketsphinx"


@dataclass(frozen=True)
class Choice:
    """What aligns."""

    align: Callable[[Audio, str], Alignment]
    """A recording and its text -> the alignment."""
    sentence: str
    """What it is, for people."""


def aligner_for(
    texts: Sequence[str], language: str = "en-us", by: str | None = None, device: str | torch.device | None = None
) -> Choice:
    """What aligns `texts`: `by` pocketsphinx (English alone), whisper, whisper/NAME, or a run of the task recognition;
    None: pocketsphinx for English, Whisper for other languages.

    Raises InputError for texts that can't be spoken, a language that the aligner does not know, and the errors of
    `phonate.load`."""
    if (other := other_language(texts, language)) is not None:
        reader = f"the aligner reads {name_of(language)}"
        logger.warning("%s", other.told(reader, lambda code: f"give {option('language', code)}"))
    chosen = by or (POCKETSPHINX if is_english(language) else "whisper")
    if chosen == POCKETSPHINX:
        if not is_english(language):
            raise InputError(
                f"pocketsphinx aligns English, not {language}; leave {option('by')} out, or give whisper or a run"
            )
        from phonate.tasks.recognition.alignment import EnglishAligner

        return Choice(EnglishAligner(texts), "by pocketsphinx (English: words and phones)")
    from phonate.workflows.load import load

    recogniser = load(chosen, "recognition", device=device)
    name = getattr(recogniser, "name", None)
    what = f"Whisper {name}" if name else chosen
    return Choice(
        lambda audio, text: recogniser.align(audio, text, language=language),
        f"by {what} ({language}: words, no phones)",
    )


def align(
    audio: Audio,
    text: str,
    *,
    language: str = "en-us",
    by: str | None = None,
    sample_rate: int | None = None,
    device: str | torch.device | None = None,
) -> Alignment:
    """When the words of `text`, and in English their phones, are said in a recording.

    The recording may be long, such as a chapter of a book, and the text may have errors: words of it that are not said
    are in `missing`, what is said beside it in `extra`.

    Args:
        audio: The path of a recording of any format, rate and length; or samples (N,).
        text: What is said in it.
        language: Of the text.
        by: pocketsphinx, whisper, whisper/NAME or a run of the task recognition; None: chosen by language.
        sample_rate: Hz of samples; None: 16,000.
        device: Of a recogniser, such as "cuda:0"; None: cpu.

    Raises InputError as `aligner_for`, and where nothing of the text is said; DataError for audio that can't be read.
    """
    choice = aligner_for([text], language, by, device)
    return choice.align(audio if sample_rate is None else as_waveform(audio, 16000, sample_rate), text)


# ------------------------------------------------------------------------ Recordings and texts of a command


@dataclass(frozen=True)
class Pair:
    """A recording and its text."""

    name: str
    """The recording's path below the folder of all, without its suffix."""
    recording: Path
    text: str


def pairs_of(recordings: Path, texts: Path) -> list[Pair]:
    """The recordings and their texts.

    Args:
        recordings: A file, or a folder.
        texts: For a file a text file. For a folder one with a .txt file of the same name for each recording (it may be
            the same folder), or a table: in each line the name of a recording, a bar, tab or comma, and the text; of
            more columns a header says what they are, or else their values.

    Raises InputError for what is not there, or has no text.
    """
    for path in (recordings, texts):
        if not path.exists():
            raise InputError(f"{path}: no such file or folder{looked_in(path)}{nearest_path(path)}")
    if recordings.is_file():
        if texts.is_dir():
            texts = texts / f"{recordings.stem}.txt"
        if texts.suffix.lower() != ".txt":
            return [_listed(recordings.parent, [recordings], texts)[0]]
        return [Pair(recordings.stem, recordings, _text(texts))]
    files = list(audio_files(recordings))
    if not files:
        raise InputError(f"{recordings}: has no recordings")
    if texts.is_file():
        return _listed(recordings, files, texts)
    pairs: list[Pair] = []
    without: list[str] = []
    for file in files:
        name = file.relative_to(recordings).with_suffix("").as_posix()
        places = [texts / f"{name}.txt", texts / f"{file.stem}.txt"]
        place = next((one for one in places if one.is_file()), None)
        if place is None:
            without.append(name)
        else:
            pairs.append(Pair(name, file, _text(place)))
    _require_all(pairs, without, texts)
    return pairs


def _listed(folder: Path, files: Sequence[Path], file: Path) -> list[Pair]:
    if is_workbook(file):
        raise InputError(f"{file}: a workbook; save it as CSV UTF-8, and give that")
    table = table_in(file, Within(Below(files), file))
    name_at, text_at = _columns(table)
    by_name: dict[str, str] = {}
    for place, cells in table.rows():
        if isinstance(cells, Problem):
            raise InputError(f"{place}: {cells.detail}")
        if len(cells) == table.width > 1:  # a text with a bar in it would be cut
            suffix = Path(cells[name_at]).suffix
            name = cells[name_at].removesuffix(suffix if suffix.lower() in AUDIO_SUFFIXES else "")
            by_name[same_name(name)] = cells[text_at]
    pairs: list[Pair] = []
    without: list[str] = []
    for recording in files:
        name = recording.relative_to(folder).with_suffix("").as_posix()
        text = by_name.get(same_name(name)) or by_name.get(same_name(recording.stem))
        if not text:
            without.append(name)
        else:
            pairs.append(Pair(name, recording, text))
    _require_all(pairs, without, file)
    return pairs


def _columns(table: Table) -> tuple[int, int]:
    """Where the names of recordings and the texts are, counted from 0."""
    if table.header is not None:
        columns = table.header[1]
        if "text" not in columns:
            raise InputError(f"{table.path}: has no column of texts; call it text")
        return columns.get("audio_path", columns.get("id", 0)), columns["text"]
    if table.width < 3:
        return 0, table.width - 1
    if table.roles.text is None:
        raise InputError(f"{table.path}: no column is like texts; begin it with the line audio_path|text|speaker_id")
    return table.roles.path, table.roles.text


def _require_all(pairs: Sequence[Pair], without: Sequence[str], place: Path) -> None:
    if without:
        others = f" and {len(without) - 3} more" if len(without) > 3 else ""
        them = "them" if len(without) > 1 else "it"
        raise InputError(f"{place}: no text for {', '.join(without[:3])}{others}; add {them}")
    names = Counter(pair.name for pair in pairs)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise InputError(f"{twice}: two recordings have this name; give them different ones")


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read as UTF-8 text ({unreadable(error)})") from error
    if not any(map(str.isalnum, text)):
        raise InputError(f"{path}: has no text")
    return text


def aligned(choice: Choice, pairs: Sequence[Pair]) -> Iterator[tuple[Alignment | None, str]]:
    """The alignment of each pair; None, and why, where there is none."""
    each = progress_of_each(Stage.ALIGNING, [pair.recording for pair in pairs])
    for pair, reported in zip(pairs, each, strict=True):
        try:
            with reported:
                alignment = choice.align(pair.recording, pair.text)
        except (DataError, InputError) as error:
            yield None, str(error)
        else:
            yield alignment, ""
