"""Data sets from long recordings: segmented at pauses, transcribed by a speech recogniser."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phonate.audio.containers.kinds import USUAL_SUFFIXES
from phonate.audio.decoding import (
    FloatArray,
    is_recording,
    read_audio,
    read_blocks,
    resample,
    sample_rate_of,
    write_audio,
)
from phonate.audio.whisper import model_for
from phonate.compute.system import writing
from phonate.config.errors import DataError, InputError, option
from phonate.config.language_codes import primary
from phonate.config.words import number_of
from phonate.data.corpora.names import not_people
from phonate.data.corpora.rows import REPORT, audio_files, printable
from phonate.data.corpora.validation import has_words
from phonate.data.parallel import Progress
from phonate.pretrained import TRANSCRIPTION, Transcriber, require, speech_spans

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("phonate")

SHORTEST, LONGEST = 2.0, 14.0
"""Length of a piece in seconds."""
# --------------- Segmentation of long recordings at pauses, into pieces of a length suited to training

MARGIN = 0.15
"""Seconds of a pause that are kept at either end of a piece, but no more than half of the pause."""
WINDOW = 600.0
"""Seconds of a recording that are segmented at a time, so that memory does not grow with its length."""

_MIN_PAUSE_MS = 100
_MAX_PAUSE = 2.0  # seconds, within a piece; a longer pause always ends it
_COMMON_PAUSE = 0.8
_GOOD_PAUSE = 0.5
_QUIET_SECONDS = 0.1
_SEARCHED = 60.0  # seconds at the end of a window in which its last pause is looked for


@dataclass(frozen=True)
class Piece:
    """A part of a recording; times in seconds."""

    start: float
    end: float
    in_pause: bool = True
    """False if it ends within speech: speech without a pause was too long, and was cut at its quietest point."""

    @property
    def seconds(self) -> float:
        """Its length in seconds."""
        return self.end - self.start

    def shifted(self, seconds: float) -> Piece:
        """The same piece, `seconds` later."""
        return dataclasses.replace(self, start=self.start + seconds, end=self.end + seconds)


@dataclass(frozen=True)
class Window:
    """Part of a recording, with its pieces."""

    start: float
    """In seconds."""
    waveform: FloatArray
    """(samples,)"""
    pieces: list[Piece]
    """Times are from the start of the window."""
    short: list[Piece]
    """Isolated speech that is too short for a piece."""


def speech_in(waveform: FloatArray, rate: int) -> list[Piece]:
    """The stretches of speech in a waveform (samples,), found by Silero's voice activity detector.

    Raises MissingPackageError without faster-whisper, which includes the detector.
    """
    return [Piece(start, end) for start, end in speech_spans(waveform, rate, _MIN_PAUSE_MS)]


def pieces_of(waveform: FloatArray, rate: int) -> tuple[list[Piece], list[Piece]]:
    """The pieces of a waveform (samples,), and isolated speech that is too short for a piece."""
    return _pieces(speech_in(waveform, rate), waveform, rate)


def windows_of(blocks: Iterator[FloatArray], rate: int) -> Iterator[Window]:
    """`pieces_of` a recording that is read in blocks (samples,). Windows end in pauses, where pieces do, too."""
    start, buffer = 0.0, np.zeros(0, np.float32)
    for block in blocks:
        buffer = np.concatenate([buffer, block])
        if len(buffer) < WINDOW * rate:
            continue
        speech = speech_in(buffer, rate)
        end = _last_pause(speech, len(buffer) / rate)
        before = [one for one in speech if one.end <= end]
        size = round(end * rate)
        yield Window(start, buffer[:size], *_pieces(before, buffer[:size], rate))
        start, buffer = start + size / rate, buffer[size:]
    if len(buffer):
        yield Window(start, buffer, *pieces_of(buffer, rate))


def _last_pause(speech: Sequence[Piece], length: float) -> float:
    """The middle of the longest pause in the last `_SEARCHED` seconds; the end itself if there is no pause."""
    edges = [0.0, *(time for one in speech for time in (one.start, one.end)), length]
    pauses = [(after - before, (after + before) / 2) for before, after in zip(edges[::2], edges[1::2], strict=True)]
    return max((pause for pause in pauses if pause[1] > length - _SEARCHED and pause[0] > 0), default=(0.0, length))[1]


def _pieces(speech: Sequence[Piece], waveform: FloatArray, rate: int) -> tuple[list[Piece], list[Piece]]:
    speech = [part for one in speech for part in _divided(one, waveform, rate)]
    joined = [Piece(group[0].start, group[-1].end, group[-1].in_pause) for group in _grouped(speech)]
    long_enough = [one for one in joined if one.seconds >= SHORTEST]
    return _with_ends(long_enough, joined, len(waveform) / rate), [one for one in joined if one.seconds < SHORTEST]


def _divided(speech: Piece, waveform: FloatArray, rate: int) -> list[Piece]:
    """A stretch of speech, cut at quiet points if it is too long for one piece."""
    longest = LONGEST - 2 * MARGIN
    parts = []
    while speech.seconds > longest:
        # not in the first half, and so that the rest is long enough for a piece
        earliest, latest = speech.start + longest / 2, min(speech.start + longest, speech.end - SHORTEST)
        size = int(_QUIET_SECONDS * rate)
        power = np.cumsum(np.square(waveform[int(earliest * rate) : int(latest * rate)], dtype=np.float64))
        at = earliest + (int(np.argmin(power[size:] - power[:-size])) + size / 2) / rate
        parts.append(Piece(speech.start, at, in_pause=False))
        speech = Piece(at, speech.end, speech.in_pause)
    return [*parts, speech]


def _grouped(speech: Sequence[Piece]) -> list[Sequence[Piece]]:
    """Stretches of speech grouped into pieces, at the least total cost (dynamic programming)."""
    best: list[tuple[float, int]] = [(0.0, 0)]  # for the first n stretches: cost, and start of the last group
    for end in range(1, len(speech) + 1):
        options = []
        inner = 0.0
        for start in range(end - 1, -1, -1):
            if start < end - 1:
                inner += _cost_inside(speech[start + 1].start - speech[start].end)
            seconds = speech[end - 1].end - speech[start].start
            alone = start == end - 1
            if not alone and (seconds > LONGEST - 2 * MARGIN or math.isinf(inner)):
                break
            pause = speech[start].start - speech[start - 1].end if start else _GOOD_PAUSE
            cost = inner + _cost_of_cut(pause) + (100.0 if seconds < SHORTEST else 0.3)
            options.append((best[start][0] + cost, start))
        best.append(min(options))
    groups: list[Sequence[Piece]] = []
    end = len(speech)
    while end:
        start = best[end][1]
        groups.append(speech[start:end])
        end = start
    return groups[::-1]


def _cost_inside(pause: float) -> float:
    """The cost of a pause within a piece."""
    return math.inf if pause > _MAX_PAUSE else 3.0 * max(0.0, pause - _COMMON_PAUSE)


def _cost_of_cut(pause: float) -> float:
    """The cost of cutting in a pause: short ones risk cutting words, and long ones end sentences."""
    return 4.0 * max(0.0, _GOOD_PAUSE - pause)


def _with_ends(pieces: Sequence[Piece], every: Sequence[Piece], length: float) -> list[Piece]:
    """The pieces with up to `MARGIN` of the pauses around them, and no more than half of each pause."""
    ends = [0.0, *(one.end for one in every)]
    starts = [*(one.start for one in every), length]
    padded = []
    for one in pieces:
        at = every.index(one)
        before = one.start - ends[at] if at == 0 else (one.start - ends[at]) / 2
        after = starts[at + 1] - one.end if at + 1 == len(every) else (starts[at + 1] - one.end) / 2
        padded.append(Piece(one.start - min(MARGIN, before), one.end + min(MARGIN, max(after, 0.0)), one.in_pause))
    return padded


# ------------------------------------------------------------------------------------- Transcription

WHISPER_SECONDS = 30.0
"""The longest recording that Whisper transcribes at once."""


def load_transcriber(
    model: str | None,
    language: str,
    options: tuple[str, str] | None = None,
    device: str | torch.device = "cpu",
) -> Transcriber:
    """Whisper for a language: `model`, or by default tiny.en for English and base for other languages. `options`: what
    chooses them in a recipe, for messages. `device`: to compute on.

    Raises InputError for a language that the model does not know.
    """
    name, code = model or model_for(language), primary(language)
    transcriber = Transcriber(name, code, device=device)
    languages = transcriber.languages
    if code not in languages:
        by_model = options[0] if options else option("model")
        by_language = f"{options[1]} {language!r}" if options else option("language", language)
        raise InputError(
            f"Whisper {name} does not know {by_language}, only "
            + (
                f"English; choose another model by {by_model}, such as base or small"
                if languages == ("en",)
                else f"{len(languages)} others; give a code such as en or de"
            )
        )
    return transcriber


def transcribed(transcriber: Transcriber, waveform: FloatArray, rate: int) -> dict[str, str]:
    """The `text` of a waveform (samples,) in one line; or `why` it has none, and `detail`."""
    transcript = transcriber.transcript(waveform, rate)
    text = one_line(transcript.text)
    if not has_words(text):
        return {"why": "no words", "detail": "the recogniser found no words in it"}
    if not transcript.is_reliable:
        measures = f"mean log probability {transcript.log_probability:.2f}, compression {transcript.compression:.1f}"
        return {"why": "low confidence", "detail": f"{measures}; heard: {text}"}
    return {"text": text}


def one_line(text: str) -> str:
    """`text` with single spaces, and without the bars that separate columns."""
    return " ".join(text.replace("|", " ").split())


# ------------------------------------------------ A data set in a folder: pieces and their texts


SAMPLE_RATE = 22050


@dataclass
class _Result:
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


def make_dataset(
    source: str | Path,
    output: str | Path,
    *,
    split: bool,
    transcribe: Transcriber | None,
    sample_rate: int | None = SAMPLE_RATE,
    progress: Progress | None = None,
    speaker: str | None = None,
) -> dict[str, Any]:
    """Write the recordings of `source`, a file or a folder, to `output` as `wavs/*.flac`, with `metadata.csv`
    (`id|text`, or with a header `id|speaker_id|text` where several folders are speakers, or a speaker is given) if they
    are transcribed or a speaker is given, and with `report.json`, whose content is returned.

    Args:
        split: Segment them at pauses into pieces of 2 to 14 s; False: take them whole.
        transcribe: Transcribes the pieces; those without words, or with words that can't be trusted, are left out.
        sample_rate: Highest rate of the written files in Hz; recordings of lower rates keep theirs. None: no limit.
        speaker: Who speaks in all of them, whatever the folders are called. None: each folder names a speaker; a
            warning says so where that makes one of all.

    What is left out is in the report, with times and reasons. Raises DataError if nothing remains.
    """
    if split:
        require("splitting", TRANSCRIPTION)  # before anything is written
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
        lines = [f"{id}|{one_line(speaker)}|\n" for id, _, _ in result.pieces]
        with writing(folder):
            (folder / "metadata.csv").write_text("".join(["id|speaker_id|text\n", *lines]), encoding="utf-8")
    if not speakers:
        logger.warning(
            "%s: all of it is taken to be of one speaker; name them by data.speaker=NAME, or, where several people "
            "speak, cut it by speakers first (phonate diarize)",
            printable(str(source)),
        )
    report = _report(folder, result, files, transcribe)
    with writing(folder):
        (folder / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")
    if not report["pieces"]:
        why = ", ".join(f"{count} {reason}" for reason, count in report["why"].items()) or "no speech was found"
        raise DataError(
            f"{source}: nothing remains of {number_of(len(files), 'recording')} ({why}); "
            f"details are in {folder / REPORT}"
        )
    return report


def _recordings(source: Path) -> list[Path]:
    if is_recording(source):
        return [source]
    if not source.is_dir():
        problem = "not a recording" if source.exists() else "no such file or folder"
        raise DataError(
            f"{source}: {problem}; give a recording ({', '.join(USUAL_SUFFIXES)}, ...), or a folder of them"
        )
    files = list(audio_files(source))
    if not files:
        raise DataError(f"{source}: no recordings in this folder; give a recording, or a folder of recordings")
    return files


def _new_folder(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: already exists and is not empty; give a new {option('output')}")
    try:
        (folder / "wavs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be created ({error.strerror}); give another {option('output')}") from error
    return folder


def _names(files: Sequence[Path], source: Path) -> dict[Path, str]:
    """The prefix of the ids of each recording's pieces: no two have the same, in capitals or not."""
    alike = Counter(file.with_suffix("") for file in files)
    names: dict[Path, str] = {}
    used_names: set[str] = set()
    for file in files:
        inside = file.relative_to(source) if source.is_dir() else Path(file.name)
        whole = inside if alike[file.with_suffix("")] > 1 else inside.with_suffix("")
        plain = re.sub(r"[^\w.-]+", "_", printable(whole.as_posix()).replace("/", "-"))
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        names[file] = next(name for name in itertools.chain([plain], numbered) if name.lower() not in used_names)
        used_names.add(names[file].lower())
    return names


def _speakers(files: Sequence[Path], source: Path) -> dict[Path, str]:
    """The folder that each recording lies in, which names its speaker; empty where it is the same for all."""
    folders = {file: printable(file.parent.name if file.parent != source else source.resolve().name) for file in files}
    if (kind := not_people(folders.values())) is not None:
        logger.warning(
            "%s: the folders name the speakers (%s), but seem to be %s; if all are of one, set data.speaker=NAME",
            printable(str(source)),
            ", ".join(sorted({*folders.values()})[:3]),
            kind,
        )
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
    folder: Path, result: _Result, transcriber: Transcriber, speakers: dict[Path, str], progress: Progress | None
) -> None:
    """Transcribe all pieces and leave out those that are not understood. Lines are written one by one, so that an
    interruption loses none of them."""
    pieces, result.pieces = result.pieces, []
    with writing(folder), (folder / "metadata.csv").open("w", encoding="utf-8") as metadata:
        if speakers:
            metadata.write("id|speaker_id|text\n")
        for done, (id, source, piece) in enumerate(pieces, start=1):
            if piece.seconds > WHISPER_SECONDS:
                outcome = {"why": f"longer than {WHISPER_SECONDS:g} s; use --split"}
            else:
                outcome = transcribed(transcriber, *read_audio(_file(folder, id)))
            if "why" in outcome:
                _file(folder, id).unlink()
                result.drop(source, outcome["why"], piece)
            else:
                fields = [id, *([one_line(speakers[source])] if speakers else []), outcome["text"]]
                metadata.write("|".join(fields) + "\n")
                metadata.flush()
                result.texts[id] = outcome["text"]
                result.pieces.append((id, source, piece))
            if progress is not None:
                progress("transcribing", done, len(pieces))


def _report(folder: Path, result: _Result, files: list[Path], transcribe: Transcriber | None) -> dict[str, Any]:
    kept_seconds = sum(piece.seconds for _, _, piece in result.pieces)
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
            "kept": round(kept_seconds, 2),
            "dropped": round(dropped, 2),
            "pauses": round(max(0.0, result.seconds - kept_seconds - dropped), 2),
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
