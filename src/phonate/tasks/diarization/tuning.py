"""Tuning of the decoding settings for the lowest error rate on validation data.

The model runs once over each conversation. Then the cluster distance, the threshold with the median filter, and the
minimum pause and turn are optimised in this order by grid search, each for the lowest DER over all conversations.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phonate.config.errors import InputError
from phonate.data.annotations import SpeakerTurn
from phonate.data.progress import track
from phonate.evaluation.diarization import DiarizationErrors, score
from phonate.tasks.diarization.decoding_settings import DecodingSettings
from phonate.tasks.diarization.inference import TUNED, Analysis, Diarizer
from phonate.tasks.diarization.samples.held_out import HeldOut, kept_for_validation
from phonate.training.run import Run

logger = logging.getLogger("phonate")

_DISTANCES = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)
_THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(3, 18))
_MEDIANS = (1, 3, 5, 7, 11)
_PAUSES = (0.0, 0.1, 0.2, 0.3, 0.5, 1.0)
_TURNS = (0.0, 0.1, 0.2, 0.3, 0.5)


def tune(run: Path, *, device: str | None = None) -> dict[str, Any]:
    """Tune on the run's validation set and write the values to the run, from which inference reads them.

    Returns the values that differ from the recipe's. Raises InputError if the run has no validation set.
    """
    diarizer = Diarizer.load(run, device=device)
    if diarizer.label_type == "custom":
        raise InputError(f"{run}: models with label_type custom can't be tuned: the labels' meaning is not known")
    recipe = diarizer.recipe
    settings = tuned(diarizer, list(kept_for_validation(recipe.data)), recipe.model.decoding)
    chosen = {
        name: value
        for name, value in settings.model_dump(mode="json").items()
        if value != getattr(recipe.model.decoding, name)
    }
    Run(run).write_json(TUNED, chosen)
    shown = ", ".join(f"{key} {value}" for key, value in chosen.items())
    logger.info("tuned on validation data: %s", shown or "no changes")
    return chosen


@dataclass(frozen=True)
class _Trial:
    reference: list[SpeakerTurn]
    analysis: Analysis
    seconds: float


def tuned(diarizer: Diarizer, conversations: Sequence[HeldOut], start: DecodingSettings) -> DecodingSettings:
    """`start` with the values that have the lowest DER on the conversations; of equal ones the first."""
    trials = [
        _Trial(
            diarizer.comparable(one.turns), diarizer.analyse_blocks(one.read, settings=start, name=one.id), one.seconds
        )
        for one in track("tuning", conversations)
    ]
    best = start
    if any(trial.analysis.voices is not None for trial in trials):
        best = _best(diarizer, trials, best, ({"cluster_distance": one} for one in _DISTANCES))
    grid = itertools.product(_THRESHOLDS, _MEDIANS)
    best = _best(diarizer, trials, best, ({"threshold": one, "median": two} for one, two in grid))
    shortest = itertools.product(_PAUSES, _TURNS)
    return _best(diarizer, trials, best, ({"min_silence": one, "min_speech": two} for one, two in shortest))


def _best(
    diarizer: Diarizer, trials: Sequence[_Trial], start: DecodingSettings, changes: Iterable[dict[str, Any]]
) -> DecodingSettings:
    tried = [start, *(start.model_copy(update=change) for change in changes)]
    return min(tried, key=lambda settings: round(_errors(diarizer, trials, settings).wrong, 6))


def _errors(diarizer: Diarizer, trials: Sequence[_Trial], settings: DecodingSettings) -> DiarizationErrors:
    return sum(
        (
            score(
                trial.reference,
                diarizer.decode(trial.analysis, settings=settings).turns,
                regions=[(0.0, trial.seconds)],
            )
            for trial in trials
        ),
        DiarizationErrors(),
    )
