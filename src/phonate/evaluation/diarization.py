"""Scores of diarization: DER with its components and JER, of one recording or several.

The conventions are those of NIST's md-eval, pyannote.metrics and dscore. Overlapping speech counts for each of its
speakers. Speakers are mapped one to one such that their common duration is maximal (Hungarian algorithm). A collar of S
seconds excludes S before and S after each reference boundary (pyannote.metrics calls this a collar of 2 S). Overlapping
turns of one speaker are merged.

Shapes: R speakers of the reference, H of the hypothesis, I intervals between neighbouring boundaries.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from phonate.config.errors import InputError
from phonate.data.annotations import Region, SpeakerTurn

# ---------------------------------------- The errors of a diarization, as sums that can be accumulated


@dataclass(frozen=True)
class DiarizationErrors:
    """Durations of errors in seconds, and Jaccard errors; those of several recordings are accumulated with +."""

    speech: float = 0.0
    """Seconds of speech in the reference; overlapping speech counts once per speaker."""
    miss: float = 0.0
    """Seconds of speech with fewer speakers in the hypothesis than in the reference, times their difference."""
    false_alarm: float = 0.0
    """Seconds with more speakers in the hypothesis than in the reference, times their difference."""
    confusion: float = 0.0
    """Seconds of speech attributed to the wrong speaker."""
    jaccard: float = 0.0
    """Sum of the Jaccard errors of the reference's speakers."""
    speakers: int = 0
    """Number of reference speakers, counted per recording."""
    scored: float = 0.0
    """Seconds of scored regions."""

    def __add__(self, other: DiarizationErrors) -> DiarizationErrors:
        return DiarizationErrors(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    @property
    def wrong(self) -> float:
        """Seconds of missed speech, false alarm and confusion."""
        return self.miss + self.false_alarm + self.confusion

    @property
    def der(self) -> float:
        """Diarization error rate: `wrong` over `speech`. Without speech it is 0, or 1 if there are false alarms, as in
        pyannote.metrics."""
        return self.wrong / self.speech if self.speech else float(self.wrong > 0.0)

    @property
    def jer(self) -> float:
        """Jaccard error rate: one minus the Jaccard index of each reference speaker and the speaker mapped to it,
        averaged over reference speakers (Ryant et al. 2019, "The Second DIHARD Diarization Challenge"). Without
        speakers it is defined as for `der`."""
        return self.jaccard / self.speakers if self.speakers else float(self.wrong > 0.0)


# ------- DER and JER of a recording, computed exactly from the boundaries of all turns, without frames

Times = NDArray[np.float64]


def score(
    reference: Sequence[SpeakerTurn],
    hypothesis: Sequence[SpeakerTurn],
    *,
    regions: Sequence[Region] | None = None,
    collar: float = 0.0,
    skip_overlap: bool = False,
) -> DiarizationErrors:
    """The errors of a hypothesis for one recording.

    Args:
        reference, hypothesis: Turns, in any order.
        regions: Regions to score, (start, end) in seconds. None: everything.
        collar: Seconds excluded before and after each start and end of a reference turn.
        skip_overlap: Exclude regions in which the reference has several speakers.

    Raises InputError for a negative or infinite collar.
    """
    if not 0.0 <= collar < math.inf:
        raise InputError(f"collar {collar:g}: must be a number of seconds, 0 or more")
    ref, hyp = _Turns.of(reference), _Turns.of(hypothesis)
    left_out = _collars(ref, collar) if collar else _NOTHING
    scored = _NOTHING if regions is None else _bounds(regions)
    cuts_I = np.unique(np.concatenate([ref.starts, ref.ends, hyp.starts, hyp.ends, *left_out, *scored]))
    if len(cuts_I) < 2:
        return DiarizationErrors()
    reference_RI, hypothesis_HI = ref.active(cuts_I), hyp.active(cuts_I)
    scored_I = np.ones(len(cuts_I) - 1, dtype=bool) if regions is None else _covered(scored, cuts_I)
    if collar:
        scored_I &= ~_covered(left_out, cuts_I)
    if skip_overlap:
        scored_I &= reference_RI.sum(axis=0) < 2
    return _errors(reference_RI[:, scored_I], hypothesis_HI[:, scored_I], np.diff(cuts_I)[scored_I])


def score_activity(
    reference_TR: NDArray[np.generic], hypothesis_TH: NDArray[np.generic], frames_per_second: float
) -> DiarizationErrors:
    """`score` for arrays (T, R) and (T, H) of T frames that are nonzero where a speaker is active."""
    seconds_T = np.full(len(reference_TR), 1.0 / frames_per_second)
    return _errors((reference_TR != 0).T, (hypothesis_TH != 0).T, seconds_T)


@dataclass(frozen=True)
class _Turns:
    """Turns as arrays."""

    starts: Times
    ends: Times
    speakers: NDArray[np.int64]
    """Indices of the speakers."""
    count: int
    """Number of speakers."""

    @classmethod
    def of(cls, turns: Sequence[SpeakerTurn]) -> _Turns:
        numbers: dict[str, int] = {}
        speakers = [numbers.setdefault(turn.speaker, len(numbers)) for turn in turns]
        starts, ends = (list(map(attrgetter(name), turns)) for name in ("start", "end"))
        return cls(np.array(starts, float), np.array(ends, float), np.array(speakers, np.int64), len(numbers))

    def active(self, cuts_I: Times) -> NDArray[np.bool_]:
        """(speakers, I): the activity in each interval between neighbouring `cuts_I`."""
        shape = (self.count, len(cuts_I))
        first, last = (self.speakers * shape[1] + np.searchsorted(cuts_I, times) for times in (self.starts, self.ends))
        changes = np.bincount(first, minlength=shape[0] * shape[1]) - np.bincount(last, minlength=shape[0] * shape[1])
        return np.asarray(changes.reshape(shape).cumsum(axis=1)[:, :-1] > 0)


_TIE = 1e-9
"""Weight of the Jaccard index relative to seconds in the speaker mapping: among mappings with the same common duration,
that with the lowest JER is chosen, so that names and order of speakers do not matter."""
_NOTHING = (np.zeros(0), np.zeros(0))


def _bounds(regions: Iterable[Region]) -> tuple[Times, Times]:
    """The starts and the ends of regions."""
    bounds = np.array(list(regions), float).reshape(-1, 2)
    return bounds[:, 0], bounds[:, 1]


def _collars(turns: _Turns, collar: float) -> tuple[Times, Times]:
    boundaries = np.unique(np.concatenate([turns.starts, turns.ends]))
    return boundaries - collar, boundaries + collar


def _covered(spans: tuple[Times, Times], cuts_I: Times) -> NDArray[np.bool_]:
    """(I,) whether each interval lies in one of the spans (starts, ends)."""
    first, last = (np.bincount(np.searchsorted(cuts_I, times), minlength=len(cuts_I)) for times in spans)
    return np.asarray((first - last).cumsum()[:-1] > 0)


def _errors(reference_RI: NDArray[np.bool_], hypothesis_HI: NDArray[np.bool_], seconds_I: Times) -> DiarizationErrors:
    common_RH = (reference_RI * seconds_I) @ hypothesis_HI.T.astype(float)
    reference_R, hypothesis_H = reference_RI @ seconds_I, hypothesis_HI @ seconds_I
    either_RH = reference_R[:, None] + hypothesis_H - common_RH
    overlap_RH = np.divide(common_RH, either_RH, out=np.zeros_like(common_RH), where=common_RH > 0.0)
    rows, columns = linear_sum_assignment(common_RH + _TIE * overlap_RH, maximize=True)
    reference_I, hypothesis_I = reference_RI.sum(axis=0), hypothesis_HI.sum(axis=0)
    both = float(np.minimum(reference_I, hypothesis_I) @ seconds_I)
    return DiarizationErrors(
        speech=float(reference_R.sum()),
        miss=float(np.maximum(reference_I - hypothesis_I, 0) @ seconds_I),
        false_alarm=float(np.maximum(hypothesis_I - reference_I, 0) @ seconds_I),
        confusion=max(0.0, both - float(common_RH[rows, columns].sum())),
        jaccard=float(np.count_nonzero(reference_R) - overlap_RH[rows, columns].sum()),
        speakers=int(np.count_nonzero(reference_R)),
        scored=float(seconds_I.sum()),
    )


# --------------------------------------------- Scores of several recordings, individually and in total

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
