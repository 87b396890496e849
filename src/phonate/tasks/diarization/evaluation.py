"""Evaluation of a diarization model: error rates, compared with baselines that need no training.

The model is evaluated without voice embeddings (speakers of neighbouring windows are matched by their activity) and
with clustered embeddings, without and with the number of speakers given.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phonate.config.errors import InputError, PhonateError
from phonate.data.annotations import SpeakerTurn
from phonate.data.manifests.manifest import list_corpus
from phonate.data.manifests.rows import Row, official_split
from phonate.data.progress import track
from phonate.evaluation.diarization import DiarizationErrors, score
from phonate.evaluation.tables import Evaluation
from phonate.tasks.diarization.data_settings import has_corpus
from phonate.tasks.diarization.inference import SAME_SPEAKERS, Diarizer
from phonate.tasks.diarization.samples.held_out import HeldOut, conversations_of, kept_for_validation
from phonate.tasks.diarization.segmentation.baseline import Baseline
from phonate.tasks.diarization.segmentation.clustering import SpeakerLimits
from phonate.tasks.diarization.settings import METRICS

logger = logging.getLogger("phonate")

_LEGEND = (
    "DER: seconds of missed speech, false alarm and confusion over seconds of speech, without collar, overlapping "
    "speech included; JER: Jaccard error rate, averaged over speakers; speakers: mean absolute error of the number of "
    "speakers; RTF: seconds of computation per second of audio."
)
_BASELINE_DISTANCE = 0.4
"""A cosine similarity of 0.6, the best of 0.6, 0.65 and 0.7 on extracts of AMI."""
System = Callable[[HeldOut], list[SpeakerTurn]]


@dataclass
class _Tally:
    """Errors and cost of one system over all conversations."""

    errors: DiarizationErrors = field(default_factory=DiarizationErrors)
    off: int = 0
    """Sum of the absolute errors of the number of speakers."""
    seconds: float = 0.0
    """Computation time."""


def evaluate(run: Path, data: str | None = None, *, device: str | None = None) -> Evaluation:
    """Evaluate the model of `run` on the corpus `data` (None: the run's validation set), on `device` (None: cpu).

    Raises InputError if there is nothing to evaluate on, or if the label type is custom.
    """
    diarizer = Diarizer.load(run, device=device)
    if diarizer.label_type == "custom":
        raise InputError(f"{run}: models with label_type custom can't be evaluated: the labels' meaning is not known")
    settings = diarizer.recipe.data
    found = list(kept_for_validation(settings) if data is None else conversations_of(settings, data))
    if not any(one.turns for one in found):
        raise InputError(f"{data or run}: none of the {len(found)} recordings contains labelled speech")
    systems, focus = _systems(diarizer)
    tallies: dict[str, _Tally] = {name: _Tally() for name in systems}
    items: dict[str, dict[str, object]] = {}
    for one in track("diarizing", found):
        reference = diarizer.comparable(one.turns)
        for name, system in systems.items():
            started = time.perf_counter()
            turns = system(one)
            tally = tallies[name]
            tally.seconds += time.perf_counter() - started
            errors = score(reference, turns, regions=[(0.0, one.seconds)])
            tally.errors += errors
            tally.off += abs(_speakers(turns) - _speakers(reference))
            if name == focus:
                items[one.id] = {"speakers": _speakers(reference), "found": _speakers(turns), **_figures(errors)}
    seconds = sum(one.seconds for one in found)
    results = {
        name: {
            **_figures(tally.errors),
            "speakers": tally.off / len(found),
            "rtf": tally.seconds / seconds,
        }
        for name, tally in tallies.items()
    }
    notes: dict[str, object] = {
        "recordings": len(found),
        "seconds": round(seconds, 1),
        "speech": round(tallies[focus].errors.speech, 1),
        "collar": "none",
        "decoding": diarizer.decoding.model_dump(mode="json"),
        "trained_on": 0 if data is None else _trained_on(diarizer, found),
    }
    if diarizer.decoding != diarizer.recipe.model.decoding:
        notes["tuned_on"] = (
            "these recordings, so the figures are slightly optimistic" if data is None else "validation data"
        )
    return Evaluation("diarization", results, focus, _LEGEND, notes, items, columns=METRICS)


def _systems(diarizer: Diarizer) -> tuple[dict[str, System], str]:
    """The systems to evaluate, by name, and the name of the one that the recipe configures."""
    if diarizer.label_type in SAME_SPEAKERS:
        return {"always speech": _one_speaker, "the model": lambda one: _decoded(diarizer, one)}, "the model"
    baseline = Baseline(_BASELINE_DISTANCE)
    rate = diarizer.sample_rate
    alone, clustered = "the model, windows by overlap", "the model, voices clustered"
    systems: dict[str, System] = {
        "one speaker throughout": _one_speaker,
        "voice activity, embeddings, clustering": lambda one: baseline.diarize(one.read(), rate),
        "the same, number of speakers given": lambda one: baseline.diarize(one.read(), rate, _limits(one)),
        alone: lambda one: _decoded(diarizer, one, stitching="overlap"),
        clustered: lambda one: _decoded(diarizer, one, stitching="embeddings"),
        f"{clustered}, number of speakers given": lambda one: _decoded(
            diarizer, one, stitching="embeddings", limits=_limits(one)
        ),
    }
    return systems, alone if diarizer.decoding.stitching == "overlap" else clustered


def _one_speaker(one: HeldOut) -> list[SpeakerTurn]:
    return [SpeakerTurn(0.0, one.seconds, "speaker1")]


def _limits(one: HeldOut) -> SpeakerLimits:
    count = max(1, _speakers(one.turns))
    return SpeakerLimits(count, count)


def _decoded(
    diarizer: Diarizer, one: HeldOut, stitching: str | None = None, limits: SpeakerLimits | None = None
) -> list[SpeakerTurn]:
    settings = diarizer.decoding if stitching is None else diarizer.decoding.model_copy(update={"stitching": stitching})
    analysis = diarizer.analyse_blocks(one.read, limits, settings, one.id)
    return diarizer.decode(analysis, limits, settings).turns


def _speakers(turns: Sequence[SpeakerTurn]) -> int:
    return len({turn.speaker for turn in turns})


def _figures(errors: DiarizationErrors) -> dict[str, float]:
    speech = errors.speech or 1.0
    parts = {name: getattr(errors, name) / speech for name in ("miss", "false_alarm", "confusion")}
    return {"der": errors.der, **parts, "jer": errors.jer}


def _trained_on(diarizer: Diarizer, found: Sequence[HeldOut]) -> int | None:
    """How many of the recordings the model was trained on; None if unknown. Logs a warning if there are any."""
    settings = diarizer.recipe.data
    if not has_corpus(settings):
        return 0
    try:
        rows = [row for row in list_corpus(settings)[0] if isinstance(row, Row)]
    except PhonateError as error:
        logger.warning("can't tell whether the model was trained on these recordings: %s", error)
        return None
    kept = set(diarizer.inference_metadata["validation"])
    trained = {str(row.path.resolve()) for row in rows if row.id not in kept and official_split(row.split) != "test"}
    known = sum(one.file is not None and str(Path(one.file).resolve()) in trained for one in found)
    if known:
        logger.warning("the model was trained on %d of the %d recordings: figures are optimistic", known, len(found))
    return known
