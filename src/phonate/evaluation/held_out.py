"""Held-out recordings to evaluate a run on: the run's validation recordings, or another corpus."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from phonate.audio.decoding import FloatArray
from phonate.config.errors import PhonateError, fixed_recipe
from phonate.data.corpora.manifest import check_corpus, list_corpus
from phonate.data.corpora.rows import Row, load_row, official_split
from phonate.data.corpora.validation import CheckedRow, warn_refused
from phonate.data.prepared import prepare
from phonate.data.settings import RecordingData, VoiceData

logger = logging.getLogger("phonate")


@dataclass(frozen=True)
class Sentence:
    """A text that was not trained on."""

    id: str
    speaker: str
    text: str
    """The text; "" if unknown."""


@dataclass(frozen=True)
class Clip(Sentence):
    """A recording that was not trained on."""

    waveform: FloatArray
    """Samples (N,) at the model's rate."""
    path: Path | None = None
    """Its file; None for a recording of the run's own corpus."""
    start: float = 0.0
    """Seconds in the file at which it begins."""


@dataclass(frozen=True)
class Overlap:
    """Overlap of an evaluation corpus with the training data."""

    recordings: int
    speakers: int


def kept_for_validation(data: VoiceData, ids: Collection[str]) -> Iterator[Clip]:
    """The recordings with these `ids` from a run's own corpus `data`, loaded one at a time."""
    # a run may be evaluated where the cluster is not that prepared its corpus
    prepared, validation_ids = prepare(data.model_copy(update={"executor": "local"})), set(ids)
    index = prepared.index
    for position in range(len(index)):
        if index.id[position] in validation_ids:
            speaker = prepared.speakers[int(index.speaker[position])]
            yield Clip(index.id[position], speaker, index.text[position] or "", prepared.cache.waveform(position))


Corpus = TypeVar("Corpus", bound=RecordingData)


def check_other(data: Corpus, corpus: str) -> list[CheckedRow]:
    """The usable recordings of another `corpus`, by what a run's `data` require of one, with a warning that names the
    others. Raises DataError if there are none."""
    others = {"path": corpus, "format": "auto", "speaker": None, "drop": None, "limit": None}
    others["executor"] = "local"  # the cluster that prepared the corpus of the run may not be here
    with fixed_recipe():
        checked, report = check_corpus(data.model_copy(update=others))
    warn_refused([vars(problem) for problem in report.refused], f"`phonate data check {shlex.quote(corpus)}`")
    return checked


def clips_of(data: VoiceData, corpus: str) -> Iterator[Clip]:
    """The usable recordings of another `corpus`, loaded one at a time at the sample rate of a run's `data`."""
    for one in check_other(data, corpus):
        row = one.row
        waveform = load_row(row, data.audio.sample_rate)
        yield Clip(row.id, str(row.speaker), row.text or "", waveform, row.path, row.start)


def trained_on(data: VoiceData, validation_ids: Collection[str], clips: Sequence[Clip]) -> Overlap | None:
    """The number of `clips` and speakers that a run was trained on, with a warning if there are any.

    Args:
        data: The run's corpus.
        kept: Ids of its validation recordings.
        clips: The evaluation clips.

    Returns None, with a warning, if the run's corpus is no longer available.
    """
    try:
        rows = [row for row in list_corpus(data)[0] if isinstance(row, Row)]
    except PhonateError as error:
        warn_unknown(error)
        return None
    held_out = set(validation_ids) | {row.id for row in rows if official_split(row.split) == "test"}
    trained = [row for row in rows if row.id not in held_out]
    paths = {row.path.resolve() for row in trained}
    count = sum(clip.path is not None and clip.path.resolve() in paths for clip in clips)
    warn_trained_on(count, len(clips))
    return Overlap(count, len({clip.speaker for clip in clips} & {str(row.speaker) for row in trained}))


def warn_unknown(error: PhonateError) -> None:
    """Say that the corpus of a run can't be compared with what it is evaluated on."""
    logger.warning("can't tell whether these recordings were trained on: %s", error)


def warn_trained_on(count: int, evaluated: int) -> None:
    """Say how many of the `evaluated` recordings were trained on, if any were."""
    if count:
        logger.warning("%d of %d evaluation recordings were trained on, so the figures are too good", count, evaluated)
