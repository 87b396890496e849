"""Data sets from long recordings: segmented at pauses, transcribed by a speech recogniser."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phonate.audio.decoding import (
    FloatArray,
    is_recording,
    joined,
    probe,
    read_audio,
    read_blocks,
    resample,
    write_audio,
)
from phonate.audio.whisper import model_for
from phonate.compute.system import writing
from phonate.config.errors import DataError, InputError, option
from phonate.config.language_codes import primary
from phonate.config.words import number_of, that_many
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import REPORT, SLACK_SECONDS, Problem, Row, by_segment, printable, row_file
from phonate.data.corpora.validation import PIECE_SECONDS, Unusable, has_words, require_part, unique_rows
from phonate.data.parallel import Progress
from phonate.data.settings import RecordingData
from phonate.pretrained import TRANSCRIPTION, Transcriber, require, speech_spans

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("phonate")

SHORTEST, LONGEST = 2.0, PIECE_SECONDS
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


def pieces_of(waveform: FloatArray, rate: int, clip: bool = False) -> tuple[list[Piece], list[Piece]]:
    """The pieces of a waveform (samples,), and isolated speech that is too short for a piece; that of a `clip`, a short
    recording of its own, is one however short, if nothing else is said there."""
    pieces, short = _pieces(speech_in(waveform, rate), waveform, rate)
    if clip and not pieces and len(short) == 1:
        return _with_ends(short, short, len(waveform) / rate), []
    return pieces, short


def windows_of(blocks: Iterator[FloatArray], rate: int, whole: bool = False) -> Iterator[Window]:
    """`pieces_of` a recording (`whole`), or of a part of one, that is read in blocks (samples,). Windows end in pauses,
    where pieces do, too."""
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
        clip = whole and start == 0.0 and len(buffer) <= LONGEST * rate
        yield Window(start, buffer, *pieces_of(buffer, rate, clip))


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
    pieces: list[tuple[str, Row, Piece]] = field(default_factory=list)
    """Id, what it was cut from, and which part of the file."""
    dropped: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    texts: dict[str, str] = field(default_factory=dict)
    """By id, of pieces that the corpus has texts of, or that were transcribed."""

    def drop(self, row: Row, why: str, piece: Piece) -> None:
        self.dropped.append(
            {
                "source": _source(row),
                "start": round(piece.start, 3),
                "end": round(piece.end, 3),
                "seconds": round(piece.seconds, 3),
                "why": why,
            }
        )


def make_dataset(
    data: RecordingData,
    output: str | Path,
    *,
    split: bool,
    transcribe: Transcriber | None,
    sample_rate: int | None = SAMPLE_RATE,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the recordings of a corpus, or the one that `data.path` is, to `output` as `wavs/*.flac`, with
    `metadata.csv` of what the corpus says of them (speakers, official splits and texts) and `report.json`, whose
    content is returned. A recording of several speakers is cut into its segments first.

    Args:
        split: Segment them at pauses into pieces of 2 to 14 s; False: take them whole. Those of at most 14 s that have
            a text stay whole, and keep it; pieces of longer ones have none of their own. A piece may be shorter than
            2 s where it holds all that is said in a recording of at most 14 s.
        transcribe: Transcribes the pieces without a text; those without words, or with words that can't be trusted, are
            left out.
        sample_rate: Highest rate of the written files in Hz; recordings of lower rates keep theirs. None: no limit.

    What is left out is in the report, with times and reasons. Raises DataError if nothing remains.
    """
    if split:
        require("splitting", TRANSCRIPTION)  # before anything is written
    rows, problems = _rows(data)
    folder = _new_folder(Path(output))
    result = _Result(dropped=[{"source": one.place, "why": one.reason, "detail": one.detail} for one in problems])
    names = _names(rows)
    for done, row in enumerate(rows, start=1):
        _cut(row, names[row.id], folder, result, split, sample_rate)
        if progress is not None:
            progress("cutting recordings" if split else "reading recordings", done, len(rows))
    if transcribe is None:
        _tell_of_lost_texts(data.label, result)
    _write_list(folder, result, transcribe, progress)
    root = Path(data.label).resolve()  # a folder, or a list in it: after it a speaker is called whom nothing names
    if data.speaker is None and {row.speaker for row in rows} <= {None, root.name, root.parent.name}:
        logger.warning(
            "%s: all of it is taken to be of one speaker; name them by data.speaker=NAME, or, where several people "
            "speak, cut it by speakers first (phonate diarize)",
            printable(data.label),
        )
    report = _report(folder, result, len(rows) + len(problems), transcribe)
    with writing(folder):
        (folder / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")
    if not report["pieces"]:
        why = ", ".join(f"{count} {reason}" for reason, count in report["why"].items()) or "no speech was found"
        raise DataError(
            f"{data.label}: nothing remains of {number_of(report['recordings'], 'recording')} ({why}); "
            f"details are in {folder / REPORT}"
        )
    return report


def _rows(data: RecordingData) -> tuple[list[Row], list[Problem]]:
    """What is to be cut, of one speaker each, and what can't be."""
    if data.path is not None and is_recording(path := Path(data.path)):
        return [Row.clip(printable(path.stem), path, data.speaker, None, printable(str(path)))], []
    listed, listing = list_corpus(data)
    apart: list[Row | Problem] = []
    for row in listed:
        several = isinstance(row, Row) and len({one.speaker for one in row.segments}) > 1
        apart += by_segment([row], one_speaker=True) if several else [row]
    rows = list(unique_rows(apart, listing))
    return rows, listing.refused


def _source(row: Row) -> str:
    """The file of a row, as reports name it."""
    return printable(str(row.path) if row.member is None else row.source)


def _new_folder(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: already exists and is not empty; give a new {option('output')}")
    try:
        (folder / "wavs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: can't be created ({error.strerror}); give another {option('output')}") from error
    return folder


def _names(rows: Sequence[Row]) -> dict[str, str]:
    """The prefix of the ids of each row's pieces, by the row's id: no two have the same, in capitals or not."""
    names: dict[str, str] = {}
    used_names: set[str] = set()
    for row in rows:
        plain = re.sub(r"[^\w.-]+", "_", row.id.replace("/", "-"))
        numbered = (f"{plain}_{number}" for number in itertools.count(2))
        names[row.id] = next(name for name in itertools.chain([plain], numbered) if name.lower() not in used_names)
        used_names.add(names[row.id].lower())
    return names


def _cut(row: Row, name: str, folder: Path, result: _Result, split: bool, sample_rate: int | None) -> None:
    """Write the pieces of a row; none of one that turns out to be damaged."""
    pieces: list[tuple[str, Row, Piece]] = []
    short: list[Piece] = []
    length = 0.0
    try:
        with row_file(row) as file:
            info = probe(file)
            row = row.of_file(info.duration)
            end = require_part(row.start, row.end, info.duration, SLACK_SECONDS)
            whole = not split or (has_words(row.text) and end - row.start <= LONGEST)
            rate = info.sample_rate
            for window in _windows(row, file, rate, whole):
                for piece in window.pieces:
                    id = name if whole else f"{name}-{len(pieces) + 1:04d}"
                    samples = window.waveform[round(piece.start * rate) : round(piece.end * rate)]
                    write_audio(_file(folder, id), *_at_most(samples, rate, sample_rate))
                    pieces.append((id, row, piece.shifted(row.start + window.start)))
                short += [piece.shifted(row.start + window.start) for piece in window.short]
                length = window.start + len(window.waveform) / rate
    except (DataError, Unusable) as error:
        for id, _, _ in pieces:
            _file(folder, id).unlink()
        why, detail = (error.reason, error.detail) if isinstance(error, Unusable) else ("unreadable", str(error))
        result.dropped.append({"source": _source(row), "why": why, "detail": printable(detail)})
        return
    result.seconds += length
    result.pieces += pieces
    if whole and row.text is not None:
        result.texts[name] = one_line(row.text)
    for piece in short:
        result.drop(row, f"shorter than {SHORTEST:g} s", piece)
    if not pieces and not short:
        result.drop(row, "no speech", Piece(row.start, row.start + length))


def _windows(row: Row, file: Path, rate: int, whole: bool) -> Iterator[Window]:
    """A row with its pieces: whole, or in windows."""
    blocks = read_blocks(file, start=row.start, stop=row.end, channel=row.channel, block_seconds=WINDOW)
    if whole:
        waveform = joined(blocks)
        yield Window(0.0, waveform, [Piece(0.0, len(waveform) / rate)], [])
    else:
        yield from windows_of(blocks, rate, row.start == 0.0 and row.end is None)


def _at_most(samples: FloatArray, rate: int, most: int | None) -> tuple[FloatArray, int]:
    return (samples, rate) if most is None or rate <= most else (resample(samples, rate, most), most)


def _file(folder: Path, id: str) -> Path:
    return folder / "wavs" / f"{id}.flac"


def _tell_of_lost_texts(label: str, result: _Result) -> None:
    """Warn of recordings whose texts are of no piece."""
    cut = {row.id for id, row, _ in result.pieces if has_words(row.text) and id not in result.texts}
    if cut:
        logger.warning(
            "%s: %s; add %s, or cut them to %g s yourself",
            printable(label),
            that_many(len(cut), "recording", "are cut into pieces without the text"),
            option("transcribe"),
            LONGEST,
        )


def _write_list(folder: Path, result: _Result, transcriber: Transcriber | None, progress: Progress | None) -> None:
    """List the pieces with what is known of them, if anything is; those without a text are transcribed, and left out
    where they are not understood. Lines are written one by one, so that an interruption loses none of them."""
    speakers = any(row.speaker is not None for _, row, _ in result.pieces)
    splits = any(row.split is not None for _, row, _ in result.pieces)
    if transcriber is None and not (speakers or splits or result.texts):
        return
    pieces, result.pieces = result.pieces, []
    with writing(folder), (folder / "metadata.csv").open("w", encoding="utf-8") as metadata:
        if speakers or splits:
            metadata.write("|".join(["id", *["speaker_id"] * speakers, *["split"] * splits, "text"]) + "\n")
        for done, (id, row, piece) in enumerate(pieces, start=1):
            why = _transcribed(_file(folder, id), id, piece, transcriber, result)
            if why is not None:
                _file(folder, id).unlink()
                result.drop(row, why, piece)
            else:
                said = [*[row.speaker] * speakers, *[row.split] * splits, result.texts.get(id)]
                metadata.write("|".join([id, *(one_line(one or "") for one in said)]) + "\n")
                metadata.flush()
                result.pieces.append((id, row, piece))
            if transcriber is not None and progress is not None:
                progress("transcribing", done, len(pieces))


def _transcribed(file: Path, id: str, piece: Piece, transcriber: Transcriber | None, result: _Result) -> str | None:
    """Add the text of a piece that has none, if it is to be transcribed; returns why it has none."""
    if transcriber is None or has_words(result.texts.get(id)):
        return None
    if piece.seconds > WHISPER_SECONDS:
        return f"longer than {WHISPER_SECONDS:g} s; use --split"
    outcome = transcribed(transcriber, *read_audio(file))
    if "text" in outcome:
        result.texts[id] = outcome["text"]
    return outcome.get("why")


def _report(folder: Path, result: _Result, recordings: int, transcribe: Transcriber | None) -> dict[str, Any]:
    kept_seconds = sum(piece.seconds for _, _, piece in result.pieces)
    dropped = sum(one.get("seconds", 0.0) for one in result.dropped)
    counts: dict[str, int] = {}
    for one in result.dropped:
        counts[one["why"]] = counts.get(one["why"], 0) + 1
    return {
        "folder": str(folder),
        "recordings": recordings,
        "pieces": len(result.pieces),
        "seconds": {
            "recorded": round(result.seconds, 2),
            "kept": round(kept_seconds, 2),
            "dropped": round(dropped, 2),
            "pauses": round(max(0.0, result.seconds - kept_seconds - dropped), 2),
        },
        "why": counts,
        "report": str(folder / REPORT),
        "cut_within_speech": sum(not piece.in_pause for _, _, piece in result.pieces),
        "recogniser": None if transcribe is None else f"Whisper {transcribe.name}, {transcribe.language}",
        "dropped": result.dropped,
        "made": list(_origins(result)),
    }


def _origins(result: _Result) -> Iterator[dict[str, Any]]:
    for id, row, piece in result.pieces:
        yield {
            "id": id,
            "source": _source(row),
            "start": round(piece.start, 3),
            "end": round(piece.end, 3),
            "text": result.texts.get(id),
        }
