"""A data set made of long recordings: cut at pauses, written out by a speech recogniser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.audio.decoding import AUDIO_SUFFIXES, FloatArray, read_audio, resample, write_audio
from phonate.config.errors import DataError, InputError
from phonate.data.manifests.rows import audio_files, printable
from phonate.data.manifests.text_checks import has_words
from phonate.data.manifests.validation import Progress
from phonate.evaluation.packages import judge_package
from phonate.workflows.datasets.pauses import Piece, pieces_of

if TYPE_CHECKING:
    from phonate.evaluation.transcription import Recogniser

SAMPLE_RATE = 22050
_WHISPERS_SECONDS = 30.0


@dataclass
class _Made:
    """What came of the recordings."""

    pieces: list[tuple[str, Path, Piece]] = field(default_factory=list)
    """Id, where it is from, and which part."""
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
    """Whisper for a language: `model`, or else tiny.en for English and base for others."""
    from phonate.evaluation.transcription import Recogniser

    name = model or ("tiny.en" if language == "en" else "base")
    if name.endswith(".en") and language != "en":
        raise InputError(f"--model {name}: understands English only; for {language!r} take base, small, ...")
    return Recogniser(name, language)


def make_dataset(
    source: str | Path,
    output: str | Path,
    *,
    split: bool,
    transcribe: Recogniser | None,
    sample_rate: int | None = SAMPLE_RATE,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the recordings of `source`, a file or a folder, into `output` as `wavs/*.flac`, with `metadata.csv`
    (`id|text`) if they are transcribed and with `report.json`, which is returned.

    Args:
        split: cut them at pauses into pieces of 2 to 14 s; without, they are taken whole.
        transcribe: writes down what is said; pieces without a word are left out.
        sample_rate: of what is written. Recordings of lower rates keep their own, and with None all do.

    What is left out is in the report, with its times and why. Raises DataError if nothing is left at all.
    """
    if split:
        judge_package("faster_whisper", "splitting")  # before anything is written
    files = _recordings(Path(source))
    folder = _new_folder(Path(output))
    made = _Made()
    for done, file in enumerate(files, start=1):
        _cut(file, _name(file, files, Path(source)), folder, made, split, sample_rate)
        if progress is not None:
            progress("cutting recordings" if split else "reading recordings", done, len(files))
    if transcribe is not None:
        _write_down(folder, made, transcribe, progress)
    report = _report(folder, made, files, transcribe)
    (folder / "report.json").write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")
    if not report["pieces"]:
        why = ", ".join(f"{count} {reason}" for reason, count in report["why"].items()) or "no speech was found"
        raise DataError(
            f"{source}: nothing is left of {len(files)} recordings ({why}); {folder / 'report.json'} has all"
        )
    return report


def _recordings(source: Path) -> list[Path]:
    if source.is_file() and source.suffix.lower() in AUDIO_SUFFIXES:
        return [source]
    if not source.is_dir():
        found = "no recording" if source.exists() else "no such file or folder"
        raise DataError(
            f"{source}: {found}; give a recording ({', '.join(sorted(AUDIO_SUFFIXES))}), or a folder of them"
        )
    files = list(audio_files(source))
    if not files:
        raise DataError(f"{source}: no recordings in it; give a recording, or a folder of recordings")
    return files


def _new_folder(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is there already, and not empty; give a new folder by --output")
    try:
        (folder / "wavs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be made ({error.strerror}); give another folder by --output") from error
    return folder


def _name(file: Path, files: list[Path], source: Path) -> str:
    """What the ids of a recording's pieces begin with."""
    inside = file.relative_to(source) if source.is_dir() else Path(file.name)
    alike = sum(other.with_suffix("") == file.with_suffix("") for other in files) > 1
    whole = inside if alike else inside.with_suffix("")
    return re.sub(r"[^\w.-]+", "_", printable(whole.as_posix()).replace("/", "-"))


def _cut(file: Path, name: str, folder: Path, made: _Made, split: bool, sample_rate: int | None) -> None:
    """Write the pieces of a recording."""
    try:
        waveform, rate = read_audio(file)
    except DataError as error:
        made.dropped.append({"source": printable(str(file)), "why": "unreadable", "detail": printable(str(error))})
        return
    length = len(waveform) / rate
    made.seconds += length
    pieces, short = pieces_of(waveform, rate) if split else ([Piece(0.0, length)], [])
    for one in short:
        made.drop(file, "too short", one)
    if not pieces and not short:
        made.drop(file, "no speech", Piece(0.0, length))
    for number, piece in enumerate(pieces, start=1):
        id = f"{name}-{number:04d}" if split else name
        samples = waveform[round(piece.start * rate) : round(piece.end * rate)]
        write_audio(_file(folder, id), *_at_most(samples, rate, sample_rate))
        made.pieces.append((id, file, piece))


def _at_most(samples: FloatArray, rate: int, most: int | None) -> tuple[FloatArray, int]:
    return (samples, rate) if most is None or rate <= most else (resample(samples, rate, most), most)


def _file(folder: Path, id: str) -> Path:
    return folder / "wavs" / f"{id}.flac"


def _write_down(folder: Path, made: _Made, transcribe: Recogniser, progress: Progress | None) -> None:
    """Transcribe all pieces, line by line, so that an interruption leaves what was done; leave out those without a
    word."""
    kept = []
    with (folder / "metadata.csv").open("w", encoding="utf-8") as metadata:
        for done, (id, source, piece) in enumerate(made.pieces, start=1):
            text = (
                ""
                if piece.seconds > _WHISPERS_SECONDS
                else _one_line(transcribe.transcribe(*read_audio(_file(folder, id))))
            )
            if has_words(text):
                metadata.write(f"{id}|{text}\n")
                metadata.flush()
                made.texts[id] = text
                kept.append((id, source, piece))
            else:
                _file(folder, id).unlink()
                long = f"longer than {_WHISPERS_SECONDS:g} s; use --split"
                made.drop(source, long if piece.seconds > _WHISPERS_SECONDS else "no words", piece)
            if progress is not None:
                progress("transcribing", done, len(made.pieces))
    made.pieces = kept


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", " ").split())


def _report(folder: Path, made: _Made, files: list[Path], transcribe: Recogniser | None) -> dict[str, Any]:
    kept = sum(piece.seconds for _, _, piece in made.pieces)
    dropped = sum(one.get("seconds", 0.0) for one in made.dropped)
    counts: dict[str, int] = {}
    for one in made.dropped:
        counts[one["why"]] = counts.get(one["why"], 0) + 1
    return {
        "folder": str(folder),
        "recordings": len(files),
        "pieces": len(made.pieces),
        "seconds": {
            "recorded": round(made.seconds, 2),
            "kept": round(kept, 2),
            "dropped": round(dropped, 2),
            "pauses": round(max(0.0, made.seconds - kept - dropped), 2),
        },
        "why": counts,
        "cut_within_speech": sum(not piece.in_pause for _, _, piece in made.pieces),
        "recogniser": None if transcribe is None else f"Whisper {transcribe.name}, {transcribe.language}",
        "dropped": made.dropped,
        "made": list(_origins(made)),
    }


def _origins(made: _Made) -> Iterator[dict[str, Any]]:
    for id, source, piece in made.pieces:
        yield {
            "id": id,
            "source": printable(str(source)),
            "start": round(piece.start, 3),
            "end": round(piece.end, 3),
            "text": made.texts.get(id),
        }
