"""Data sets from long recordings: segmented at pauses, transcribed by a speech recogniser."""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.audio.decoding import (
    USUAL_SUFFIXES,
    FloatArray,
    is_recording,
    read_audio,
    read_blocks,
    resample,
    sample_rate_of,
    write_audio,
)
from phonate.audio.whisper import model_for
from phonate.config.errors import DataError, InputError
from phonate.config.language_codes import primary
from phonate.config.packages import optional_package
from phonate.data.manifests.rows import audio_files, printable
from phonate.data.manifests.text_checks import has_words
from phonate.data.manifests.validation import Progress
from phonate.workflows.datasets.pauses import WINDOW, Piece, Window, windows_of

if TYPE_CHECKING:
    from phonate.evaluation.transcription import Recogniser

logger = logging.getLogger("phonate")

SAMPLE_RATE = 22050
_WHISPER_SECONDS = 30.0
"""The longest recording that Whisper transcribes at once."""


@dataclass
class _Result:
    """What was made of the recordings."""

    pieces: list[tuple[str, Path, Piece]] = field(default_factory=list)
    """Id, source file, and which part of it."""
    dropped: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    texts: dict[str, str] = field(default_factory=dict)

    def drop(self, source: Path, why: str, piece: Piece) -> None:
        self.dropped.append(
            {
                "source": printable(str(source)),
                "start": round(piece.start, 3),
                "end": round(piece.end, 3),
                "seconds": round(piece.seconds, 3),
                "why": why,
            }
        )


def recogniser(model: str | None, language: str) -> Recogniser:
    """Whisper for a language: `model`, or by default tiny.en for English and base for other languages.

    Raises InputError for an English model and another language, and for a language that the model does not know.
    """
    from phonate.evaluation.transcription import Recogniser

    name, code = model or model_for(language), primary(language)
    if name.endswith(".en") and code != "en":
        raise InputError(f"--model {name}: an English-only model; use base or small, for example, for {language!r}")
    found = Recogniser(name, code)
    if code not in found.languages:
        raise InputError(f"language {language!r}: Whisper {name} does not know it; give a code such as en or de")
    return found


def make_dataset(
    source: str | Path,
    output: str | Path,
    *,
    split: bool,
    transcribe: Recogniser | None,
    sample_rate: int | None = SAMPLE_RATE,
    progress: Progress | None = None,
    speaker: str | None = None,
) -> dict[str, Any]:
    """Write the recordings of `source`, a file or a folder, to `output` as `wavs/*.flac`, with `metadata.csv`
    (`id|text`, or with a header `id|speaker_id|text` where several folders are speakers, or a speaker is given) if they
    are transcribed or a speaker is given, and with `report.json`, whose content is returned.

    Args:
        split: Segment them at pauses into pieces of 2 to 14 s; False: take them whole.
        transcribe: Transcribes the pieces; those without words are left out.
        sample_rate: Highest rate of the written files in Hz; recordings of lower rates keep theirs. None: no limit.
        speaker: Who speaks in all of them, whatever the folders are called. None: each folder names a speaker; a
            warning says so where that makes one of all.

    What is left out is in the report, with times and reasons. Raises DataError if nothing remains.
    """
    if split:
        optional_package("faster_whisper", "splitting")  # before anything is written
    files = _recordings(Path(source))
    folder = _new_folder(Path(output))
    result = _Result()
    names = _names(files, Path(source))
    for done, file in enumerate(files, start=1):
        _cut(file, names[file], folder, result, split, sample_rate)
        if progress is not None:
            progress("cutting recordings" if split else "reading recordings", done, len(files))
    speakers = _speakers(files, Path(source)) if speaker is None else dict.fromkeys(files, speaker)
    if transcribe is not None:
        _transcribe(folder, result, transcribe, speakers, progress)
    elif speaker is not None:
        lines = [f"{id}|{_one_line(speaker)}|\n" for id, _, _ in result.pieces]
        (folder / "metadata.csv").write_text("".join(["id|speaker_id|text\n", *lines]), encoding="utf-8")
    if not speakers:
        logger.warning(
            "%s: all of it is taken to be of one speaker; name them by data.speaker=NAME, or, where several people "
            "speak, cut it by speakers first (phonate diarize)",
            printable(str(source)),
        )
    report = _report(folder, result, files, transcribe)
    (folder / "report.json").write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")
    if not report["pieces"]:
        why = ", ".join(f"{count} {reason}" for reason, count in report["why"].items()) or "no speech was found"
        raise DataError(
            f"{source}: nothing remains of {len(files)} recordings ({why}); details are in {folder / 'report.json'}"
        )
    return report


def _recordings(source: Path) -> list[Path]:
    if is_recording(source):
        return [source]
    if not source.is_dir():
        found = "not a recording" if source.exists() else "no such file or folder"
        raise DataError(f"{source}: {found}; give a recording ({', '.join(USUAL_SUFFIXES)}, ...), or a folder of them")
    files = list(audio_files(source))
    if not files:
        raise DataError(f"{source}: no recordings in this folder; give a recording, or a folder of recordings")
    return files


def _new_folder(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: already exists and is not empty; give a new folder by --output")
    try:
        (folder / "wavs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be created ({error.strerror}); give another folder by --output") from error
    return folder


def _names(files: Sequence[Path], source: Path) -> dict[Path, str]:
    """The prefix of the ids of each recording's pieces: no two have the same, in capitals or not."""
    alike = Counter(file.with_suffix("") for file in files)
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for file in files:
        inside = file.relative_to(source) if source.is_dir() else Path(file.name)
        whole = inside if alike[file.with_suffix("")] > 1 else inside.with_suffix("")
        plain = re.sub(r"[^\w.-]+", "_", printable(whole.as_posix()).replace("/", "-"))
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        names[file] = next(name for name in itertools.chain([plain], numbered) if name.lower() not in taken)
        taken.add(names[file].lower())
    return names


def _speakers(files: Sequence[Path], source: Path) -> dict[Path, str]:
    """The folder that each recording lies in, which names its speaker; empty where it is the same for all."""
    folders = {file: printable(file.parent.name if file.parent != source else source.resolve().name) for file in files}
    return folders if len({*folders.values()}) > 1 else {}


def _cut(file: Path, name: str, folder: Path, result: _Result, split: bool, sample_rate: int | None) -> None:
    """Write the pieces of a recording; none of one that turns out to be damaged."""
    pieces: list[tuple[str, Path, Piece]] = []
    short: list[Piece] = []
    length = 0.0
    try:
        rate = sample_rate_of(file)
        for window in _windows(file, rate, split):
            for piece in window.pieces:
                id = f"{name}-{len(pieces) + 1:04d}" if split else name
                samples = window.waveform[round(piece.start * rate) : round(piece.end * rate)]
                write_audio(_file(folder, id), *_at_most(samples, rate, sample_rate))
                pieces.append((id, file, piece.shifted(window.start)))
            short += [piece.shifted(window.start) for piece in window.short]
            length = window.start + len(window.waveform) / rate
    except DataError as error:
        for id, _, _ in pieces:
            _file(folder, id).unlink()
        result.dropped.append({"source": printable(str(file)), "why": "unreadable", "detail": printable(str(error))})
        return
    result.seconds += length
    result.pieces += pieces
    for piece in short:
        result.drop(file, "too short", piece)
    if not pieces and not short:
        result.drop(file, "no speech", Piece(0.0, length))


def _windows(file: Path, rate: int, split: bool) -> Iterator[Window]:
    """A recording with its pieces: in windows, or whole."""
    if split:
        yield from windows_of(read_blocks(file, block_seconds=WINDOW), rate)
    else:
        waveform, _ = read_audio(file)
        yield Window(0.0, waveform, [Piece(0.0, len(waveform) / rate)], [])


def _at_most(samples: FloatArray, rate: int, most: int | None) -> tuple[FloatArray, int]:
    return (samples, rate) if most is None or rate <= most else (resample(samples, rate, most), most)


def _file(folder: Path, id: str) -> Path:
    return folder / "wavs" / f"{id}.flac"


def _transcribe(
    folder: Path, result: _Result, transcribe: Recogniser, speakers: dict[Path, str], progress: Progress | None
) -> None:
    """Transcribe all pieces and leave out those without words. Lines are written one by one, so that an interruption
    loses none of them."""
    kept = []
    with (folder / "metadata.csv").open("w", encoding="utf-8") as metadata:
        if speakers:
            metadata.write("id|speaker_id|text\n")
        for done, (id, source, piece) in enumerate(result.pieces, start=1):
            text = (
                ""
                if piece.seconds > _WHISPER_SECONDS
                else _one_line(transcribe.transcribe(*read_audio(_file(folder, id))))
            )
            if has_words(text):
                fields = [id, _one_line(speakers[source]), text] if speakers else [id, text]
                metadata.write("|".join(fields) + "\n")
                metadata.flush()
                result.texts[id] = text
                kept.append((id, source, piece))
            else:
                _file(folder, id).unlink()
                long = f"longer than {_WHISPER_SECONDS:g} s; use --split"
                result.drop(source, long if piece.seconds > _WHISPER_SECONDS else "no words", piece)
            if progress is not None:
                progress("transcribing", done, len(result.pieces))
    result.pieces = kept


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", " ").split())


def _report(folder: Path, result: _Result, files: list[Path], transcribe: Recogniser | None) -> dict[str, Any]:
    kept = sum(piece.seconds for _, _, piece in result.pieces)
    dropped = sum(one.get("seconds", 0.0) for one in result.dropped)
    counts: dict[str, int] = {}
    for one in result.dropped:
        counts[one["why"]] = counts.get(one["why"], 0) + 1
    return {
        "folder": str(folder),
        "recordings": len(files),
        "pieces": len(result.pieces),
        "seconds": {
            "recorded": round(result.seconds, 2),
            "kept": round(kept, 2),
            "dropped": round(dropped, 2),
            "pauses": round(max(0.0, result.seconds - kept - dropped), 2),
        },
        "why": counts,
        "cut_within_speech": sum(not piece.in_pause for _, _, piece in result.pieces),
        "recogniser": None if transcribe is None else f"Whisper {transcribe.name}, {transcribe.language}",
        "dropped": result.dropped,
        "made": list(_origins(result)),
    }


def _origins(result: _Result) -> Iterator[dict[str, Any]]:
    for id, source, piece in result.pieces:
        yield {
            "id": id,
            "source": printable(str(source)),
            "start": round(piece.start, 3),
            "end": round(piece.end, 3),
            "text": result.texts.get(id),
        }
