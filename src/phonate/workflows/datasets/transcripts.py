"""Texts for the recordings of a corpus that have none (`data.transcribe`), written once by a speech recogniser."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phonate.audio.decoding import FloatArray, probe, sample_rate_of
from phonate.audio.whisper import weights_fingerprint
from phonate.compute.system import lock
from phonate.config.errors import DataError, all_packages, require_modules
from phonate.config.words import duration, number_of
from phonate.data.cluster import RayCluster, executor_of
from phonate.data.corpora.manifest import HEARD, LEFT_OUT, TEXTS, Entry, list_corpus, needs_transcript, read_entries
from phonate.data.corpora.rows import Row, part_blocks, read_part
from phonate.data.corpora.validation import file_of, source_of
from phonate.data.parallel import Here, report_progress
from phonate.data.settings import SpokenData, cache_root
from phonate.workflows.datasets.from_recordings import Piece, load_transcriber, speech_in, transcribed, windows_of

if TYPE_CHECKING:
    import torch

    from phonate.pretrained import Transcriber

logger = logging.getLogger("phonate")

WHOLE_SECONDS = 15.0
"""Longer recordings are cut at pauses."""


def transcribe(data: object, device: Callable[[], str | torch.device] = lambda: "cpu") -> str:
    """Transcribe the recordings of a corpus that lack a text, where `data.transcribe` asks for it, and say in one line
    where the texts are; "" where it does not ask, or every recording has a text.

    What was transcribed before stays as it is, corrected or not, unless the recording has changed. `device` says where
    to compute, once there is something to transcribe.

    Raises MissingPackageError without faster-whisper, InputError for a model that there is not or a language that it
    does not know, DataError for transcripts that can't be read.
    """
    if not isinstance(data, SpokenData) or (folder := data.transcripts) is None:
        return ""
    all_rows, _ = list_corpus(data.model_copy(update={"transcribe": False, "drop": None}))
    rows = [row for row in all_rows if isinstance(row, Row) and needs_transcript(row)]
    if not rows:
        return ""
    with lock(folder / "lock"):  # of all processes that train on the corpus one transcribes
        done = {str(entry["source"]): entry for _, entry in read_entries(folder / HEARD)}
        if due := [row for row in rows if _is_due(row, done.get(row.id))]:
            with all_packages():  # before the work, all that the recipe lacks
                require_modules("transcription", "faster_whisper")
                data.require_packages()
            _Transcribing(folder, data, device()).all(due)
    return _summary(folder, {row.id for row in rows})


def _is_due(row: Row, done: Entry | None) -> bool:
    """Whether a recording is new, or no longer what it was when it was transcribed."""
    if done is None or done.get("part") != _part(row):
        return True
    try:
        return _status(row.path) != done.get("file") and _digest(row.path) != done.get("sha256")
    except OSError:  # gone, which validation reports
        return False


def _summary(folder: Path, ids: set[str]) -> str:
    clips = sum(entry["source"] in ids for _, entry in read_entries(folder / TEXTS))
    why = Counter(str(one.get("why")) for _, one in read_entries(folder / LEFT_OUT) if one["source"] in ids)
    left_out = ", ".join(f"{count} {reason}" for reason, count in why.items())
    return f"{clips} transcribed clips; correct their texts in {folder / TEXTS} and train anew" + (
        f"; left out: {left_out}, listed in {folder / LEFT_OUT}" if why else ""
    )


@dataclass(frozen=True)
class _Due:
    """A recording to be transcribed."""

    row: Row
    seconds: float
    before: float
    """Seconds of those before it."""
    total: int
    """Seconds of all."""

    def report(self, done: float) -> None:
        """Report that `done` seconds of it are done; in a process to which nobody listens, nothing happens."""
        report_progress("transcribing, seconds", min(self.total, round(self.before + done)), self.total)


class _Transcribing:
    def __init__(self, folder: Path, data: SpokenData, device: str | torch.device) -> None:
        self._folder = folder
        self._executor = executor_of(data.executor, Here(lambda due: source_of(due.row), cache_root(data)))
        self._arguments = data.whisper_model, data.spoken_language, str(device)
        if isinstance(self._executor, RayCluster) and str(device).startswith("cuda"):
            self._executor = RayCluster(gpus=1)
            self._arguments = data.whisper_model, data.spoken_language, "cuda"  # Ray says which one

    @cached_property
    def _fingerprint(self) -> str:
        name = self._arguments[0]
        return f"Whisper {name}, weights {weights_fingerprint(name)}"

    def all(self, rows: Sequence[Row]) -> None:
        """Transcribe recordings; an interruption loses no more than those at work."""
        self._forget({row.id for row in rows})
        lengths = [_seconds(row) for row in rows]
        total = round(sum(lengths))
        logger.info(
            "transcribing %s, %s, with %s",
            number_of(len(rows), "recording"),
            duration(total),
            self._fingerprint,
        )
        befores = [0.0, *accumulate(lengths)]
        due = [_Due(*one, total) for one in zip(rows, lengths, befores, strict=False)]
        try:
            results = self._executor.map(
                partial(_texts_of, *self._arguments), due, _crashed, lambda one: file_of(one.row)
            )
            for one, (texts, left_out) in zip(due, results, strict=True):
                self._keep(one.row, texts, left_out)
                one.report(one.seconds)
        finally:
            _transcriber.cache_clear()

    def _keep(self, row: Row, texts: list[Entry], left_out: list[Entry]) -> None:
        _append(self._folder / TEXTS, texts)
        _append(self._folder / LEFT_OUT, left_out)
        if any(one["why"] == _CRASHED for one in left_out):  # perhaps for want of memory: the next call tries again
            _append(self._folder / HEARD, [])
        elif row.path.is_file():
            facts = {"file": _status(row.path), "sha256": _digest(row.path), "recogniser": self._fingerprint}
            _append(self._folder / HEARD, [{"source": row.id, "part": _part(row), **facts}])

    def _forget(self, ids: set[str]) -> None:
        """Remove what there is of these recordings: they have changed, or were interrupted."""
        for name in (TEXTS, LEFT_OUT):
            entries = [entry for _, entry in read_entries(self._folder / name)]
            others = [entry for entry in entries if entry["source"] not in ids]
            if len(others) < len(entries):
                beside = self._folder / f".{name}.tmp"
                beside.write_bytes(_lines(others))
                beside.replace(self._folder / name)


@lru_cache(maxsize=1)
def _transcriber(model: str, language: str, device: str) -> Transcriber:
    """The one of this process."""
    return load_transcriber(model, language, ("data.transcribe", "data.language"), device)


def _texts_of(model: str, language: str, device: str, due: _Due) -> tuple[list[Entry], list[Entry]]:
    """The clips of a recording with their texts, and what is left out of it, with reasons."""
    transcriber, row = _transcriber(model, language, device), due.row
    texts: list[Entry] = []
    left_out: list[Entry] = []
    try:
        for number, (piece, waveform, rate) in enumerate(_pieces(row, due.seconds), start=1):
            outcome = transcribed(transcriber, waveform, rate)
            (left_out if "why" in outcome else texts).append(_entry(row, piece, number, outcome))
            due.report(due.seconds if piece is None else piece.end)
    except (DataError, OSError) as error:
        return [], [_entry(row, None, 1, {"why": "unreadable", "detail": str(error)})]
    if not texts and not left_out:
        left_out = [_entry(row, None, 1, {"why": "silence", "detail": "no speech was found in it"})]
    return texts, left_out


_CRASHED = "crashed"


def _crashed(due: _Due) -> tuple[list[Entry], list[Entry]]:
    detail = "the processes that transcribed it died; free some memory and try again, or export it again"
    return [], [_entry(due.row, None, 1, {"why": _CRASHED, "detail": detail})]


def _pieces(row: Row, seconds: float) -> Iterator[tuple[Piece | None, FloatArray, int]]:
    """The parts of a recording in which somebody speaks, each with its waveform (samples,) and rate; None: the whole.
    Times are from the row's start."""
    if seconds <= WHOLE_SECONDS:
        waveform, rate = read_part(row)
        if speech_in(waveform, rate):
            yield None, waveform, rate
        return
    rate = sample_rate_of(row.path)
    for window in windows_of(part_blocks(row), rate):
        for piece in sorted([*window.pieces, *window.short], key=lambda one: one.start):
            samples = window.waveform[round(piece.start * rate) : round(piece.end * rate)]
            yield piece.shifted(window.start), samples, rate


def _entry(row: Row, piece: Piece | None, number: int, outcome: Mapping[str, str]) -> Entry:
    """A line of the files, in the words of a JSON corpus."""
    entry: dict[str, Any] = {
        "id": row.id if piece is None else f"{row.id}-{number:04d}",
        "source": row.id,
        "audio_filepath": str(row.path.absolute()),
    }
    if piece is not None:
        entry |= {"offset": round(row.start + piece.start, 3), "duration": round(piece.seconds, 3)}
    elif row.start > 0.0 or row.end is not None:
        entry |= {"offset": row.start, **({} if row.end is None else {"duration": row.end - row.start})}
    named = {"speaker_id": row.speaker, "split": row.split}
    return {**entry, **{name: value for name, value in named.items() if value is not None}, **outcome}


def _part(row: Row) -> list[float | None]:
    return [row.channel, row.start, row.end]


def _seconds(row: Row) -> float:
    """Length of a recording; 0 for one that can't be read, which is left out when its turn comes."""
    try:
        return (probe(row.path).duration if row.end is None else row.end) - row.start
    except (DataError, OSError):
        return 0.0


def _status(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lines(entries: Sequence[Entry]) -> bytes:
    lines = "".join(json.dumps(dict(entry), ensure_ascii=False) + "\n" for entry in entries)
    return lines.encode("utf-8", "surrogateescape")


def _append(file: Path, entries: Sequence[Entry]) -> None:
    with file.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read() != b"\n":  # an editor left it out
                stream.write(b"\n")
        stream.write(_lines(entries))
