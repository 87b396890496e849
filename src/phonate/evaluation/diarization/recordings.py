"""Scores of several recordings, individually and in total."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from phonate.config.errors import InputError
from phonate.data.annotations import Region, SpeakerTurn
from phonate.evaluation.diarization.errors import DiarizationErrors
from phonate.evaluation.diarization.scoring import score

_MOST_NAMES = 5


@dataclass(frozen=True)
class Scores:
    """The errors of recordings."""

    recordings: dict[str, DiarizationErrors]
    missed: list[str]
    """Recordings without turns in the hypothesis; all of their speech counts as missed."""
    left_out: list[str]
    """Recordings of the reference or the hypothesis that the UEM does not list."""

    @property
    def total(self) -> DiarizationErrors:
        """The accumulated errors; recordings are weighted by their duration."""
        return sum(self.recordings.values(), DiarizationErrors())


def score_recordings(
    reference: Mapping[str, Sequence[SpeakerTurn]],
    hypothesis: Mapping[str, Sequence[SpeakerTurn]],
    *,
    uem: Mapping[str, Sequence[Region]] | None = None,
    collar: float = 0.0,
    skip_overlap: bool = False,
) -> Scores:
    """Score each recording with `score`.

    Args:
        reference, hypothesis: Recording -> turns.
        uem: Recording -> the regions to score. None: all recordings of the reference, entirely.
        collar, skip_overlap: See `score`.

    Raises:
        InputError: there is no recording to score; or, without a `uem`, a recording occurs only in the hypothesis, so
            that it is not known whether it has no speech or was not annotated.
    """
    names = sorted(reference if uem is None else uem)
    others = sorted((reference.keys() | hypothesis.keys()).difference(names))
    if not names or len(others) == len(reference.keys() | hypothesis.keys()):
        raise InputError(f"no recording to score: {'the reference has none' if uem is None else 'the UEM lists none'}")
    if uem is None and others:
        raise InputError(
            f"the hypothesis has {_some(others)}, which the reference does not ({_some(names)}); use the same "
            "recording names, or give a UEM that lists the recordings to score, including those without speech"
        )
    recordings = {
        name: score(
            reference.get(name, ()),
            hypothesis.get(name, ()),
            regions=None if uem is None else uem[name],
            collar=collar,
            skip_overlap=skip_overlap,
        )
        for name in names
    }
    missed = [name for name in names if not hypothesis.get(name) and reference.get(name)]
    return Scores(recordings, missed, others)


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} others"
