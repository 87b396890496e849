"""Scores of diarization: DER with its components and JER, of one recording or several.

Overlapping speech counts for each of its speakers. Speakers are mapped one to one such that their common duration is
maximal (Hungarian algorithm). A collar of S seconds excludes S before and S after each reference boundary
(pyannote.metrics calls this a collar of 2 S). Overlapping turns of one speaker are merged. Other scorers differ in edge
cases, which a `Convention` follows.

Shapes: R speakers of the reference, H of the hypothesis, I intervals between neighbouring boundaries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from operator import attrgetter
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.data.annotations import Region, SpeakerTurn, Zones
from phonate.data.labels import require_same_names, some

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
Counts = NDArray[np.int64]
Convention = Literal["phonate", "md-eval", "pyannote", "dscore"]
"""Whose edge cases a score follows:

- md-eval 22: without regions, the time from the first to the last label of the reference is scored; `Zones` of the
  reference are not; speakers are mapped before the collar and overlaps are excluded; overlapping turns of one speaker
  are an overlap, too, where these are skipped.
- pyannote.metrics 4: overlapping turns of one speaker count several times, and are an overlap.
- dscore: as md-eval, but without regions all turns of both sides are scored, and zones are, too; overlapping turns of
  one speaker are merged, and turns are clipped to the regions, before collars are set; JER has a mapping of its own,
  that with the lowest JER, and no collar.
"""
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
DER = "seconds of missed speech, false alarm (FA) and confusion over seconds of speech, each summed over speakers"
JER = (
    "Jaccard error rate, the errors of each speaker over the time that the reference or the hypothesis gives that "
    "speaker, averaged, so that those who say little count as much"
)
"""What they mean, in words."""


def score(
    reference: Sequence[SpeakerTurn],
    hypothesis: Sequence[SpeakerTurn],
    *,
    regions: Sequence[Region] | None = None,
    collar: float = 0.0,
    skip_overlap: bool = False,
    convention: Convention = "phonate",
    zones: Zones | None = None,
) -> DiarizationErrors:
    """The errors of a hypothesis for one recording.

    Args:
        reference, hypothesis: Turns, in any order.
        regions: Regions to score, (start, end) in seconds. None: everything.
        collar: Seconds excluded before and after each start and end of a reference turn.
        skip_overlap: Exclude regions in which the reference has several speakers.
        convention: Whose edge cases to follow.
        zones: What the reference says of noises and of what is not to be scored; only md-eval uses it.

    Raises InputError for a negative or infinite collar, and for an unknown convention.
    """
    if not 0.0 <= collar < math.inf:
        raise InputError(f"collar {collar:g}: must be a number of seconds, 0 or more")
    if convention not in CONVENTIONS:
        raise InputError(f"convention {convention!r}: {nearest(convention, list(CONVENTIONS))}")
    nist = convention in ("md-eval", "dscore")
    zones = zones if zones is not None and convention == "md-eval" else Zones()
    if convention == "md-eval" and regions is None:
        regions = zones.extent(reference)
    if convention == "dscore":
        reference = merged(reference) if regions is None else _clipped(merged(reference), regions)
    ref, hyp = _Turns.of(reference), _Turns.of(hypothesis)
    left_out = _collars(ref, collar) if collar else _NOTHING
    scored = _NOTHING if regions is None else _bounds(regions)
    unscored, noises = _bounds(zones.unscored), _bounds(zones.noises)
    bounds = (ref.starts, ref.ends, hyp.starts, hyp.ends, *left_out, *scored, *unscored, *noises)
    cuts_I = np.unique(np.concatenate(bounds))
    if len(cuts_I) < 2:
        return DiarizationErrors()
    reference_RI, hypothesis_HI = ref.counts(cuts_I), hyp.counts(cuts_I)
    if convention in ("phonate", "dscore"):
        overlap_I = (reference_RI > 0).sum(axis=0) > 1
    else:
        overlap_I = reference_RI.sum(axis=0) > 1
    if convention != "pyannote":
        reference_RI, hypothesis_HI = reference_RI.clip(max=1), hypothesis_HI.clip(max=1)
    mapped_I = np.ones(len(cuts_I) - 1, dtype=bool) if regions is None else _covered(scored, cuts_I)
    mapped_I &= ~_covered(unscored, cuts_I)
    scored_I = mapped_I & ~_covered(noises, cuts_I)
    if collar:
        scored_I &= ~_covered(left_out, cuts_I)
    if skip_overlap:
        scored_I &= ~overlap_I
    return _errors(
        reference_RI,
        hypothesis_HI,
        np.diff(cuts_I),
        scored_I,
        mapped_I if nist else scored_I,
        own_jaccard=convention == "dscore",
    )


def merged(turns: Iterable[SpeakerTurn]) -> list[SpeakerTurn]:
    """The turns, those of one speaker that overlap as one."""
    joined: list[SpeakerTurn] = []
    for turn in sorted(turns, key=lambda one: (one.speaker, one.start)):
        if joined and joined[-1].speaker == turn.speaker and turn.start < joined[-1].end:
            last = joined.pop()
            turn = SpeakerTurn(last.start, max(last.end, turn.end), turn.speaker)
        joined.append(turn)
    return joined


def _clipped(turns: Iterable[SpeakerTurn], regions: Sequence[Region]) -> list[SpeakerTurn]:
    """What of the turns lies in the regions."""
    parts = ((max(one.start, start), min(one.end, end), one.speaker) for one in turns for start, end in regions)
    return [SpeakerTurn(start, end, speaker) for start, end, speaker in parts if start < end]


def score_activity(
    reference_TR: NDArray[np.generic], hypothesis_TH: NDArray[np.generic], frames_per_second: float
) -> DiarizationErrors:
    """`score` for arrays (T, R) and (T, H) of T frames that are nonzero where a speaker is active."""
    seconds_T = np.full(len(reference_TR), 1.0 / frames_per_second)
    every_T = np.ones(len(seconds_T), dtype=bool)
    reference_RT, hypothesis_HT = ((array != 0).T.astype(np.int64) for array in (reference_TR, hypothesis_TH))
    return _errors(reference_RT, hypothesis_HT, seconds_T, every_T, every_T)


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

    def counts(self, cuts_I: Times) -> Counts:
        """(speakers, I): how many turns of each speaker there are between neighbouring `cuts_I`."""
        shape = (self.count, len(cuts_I))
        first, last = (self.speakers * shape[1] + np.searchsorted(cuts_I, times) for times in (self.starts, self.ends))
        changes = np.bincount(first, minlength=shape[0] * shape[1]) - np.bincount(last, minlength=shape[0] * shape[1])
        return np.asarray(changes.reshape(shape).cumsum(axis=1)[:, :-1], np.int64)


_TIE = 1e-9
"""Weight of the Jaccard index relative to seconds in the speaker mapping: among mappings with the same common duration,
that with the lowest JER is chosen, so that names and order of speakers do not matter."""
_NOTHING = (np.zeros(0), np.zeros(0))


def _bounds(regions: Iterable[Region]) -> tuple[Times, Times]:
    bounds = np.array(list(regions), float).reshape(-1, 2)
    return bounds[:, 0], bounds[:, 1]


def _collars(turns: _Turns, collar: float) -> tuple[Times, Times]:
    boundaries = np.unique(np.concatenate([turns.starts, turns.ends]))
    return boundaries - collar, boundaries + collar


def _covered(spans: tuple[Times, Times], cuts_I: Times) -> NDArray[np.bool_]:
    """(I,) whether each interval lies in one of the spans (starts, ends)."""
    first, last = (np.bincount(np.searchsorted(cuts_I, times), minlength=len(cuts_I)) for times in spans)
    return np.asarray((first - last).cumsum()[:-1] > 0)


def _errors(
    reference_RI: Counts,
    hypothesis_HI: Counts,
    seconds_I: Times,
    scored_I: NDArray[np.bool_],
    mapped_I: NDArray[np.bool_],
    own_jaccard: bool = False,
) -> DiarizationErrors:
    """The errors in the intervals `scored_I`, with speakers mapped by what they have in common in `mapped_I`.
    `own_jaccard`: JER by the mapping with the highest Jaccard indices, over `mapped_I`."""
    overlap_RH = _overlaps(reference_RI[:, mapped_I], hypothesis_HI[:, mapped_I], seconds_I[mapped_I])
    common_RH = (reference_RI * (seconds_I * mapped_I)) @ hypothesis_HI.T
    rows, columns = linear_sum_assignment(common_RH + _TIE * overlap_RH, maximize=True)
    jaccard_rows, jaccard_columns = rows, columns
    if own_jaccard:
        jaccard_rows, jaccard_columns = linear_sum_assignment(overlap_RH, maximize=True)
    else:
        overlap_RH = _overlaps(reference_RI[:, scored_I], hypothesis_HI[:, scored_I], seconds_I[scored_I])
    seconds_I = seconds_I * scored_I
    reference_I, hypothesis_I = reference_RI.sum(axis=0), hypothesis_HI.sum(axis=0)
    both = float(np.minimum(reference_I, hypothesis_I) @ seconds_I)
    correct = float((np.minimum(reference_RI[rows], hypothesis_HI[columns]) @ seconds_I).sum())
    speakers = int(np.count_nonzero((reference_RI > 0) @ (seconds_I if not own_jaccard else 1.0 * mapped_I)))
    return DiarizationErrors(
        speech=float(reference_I @ seconds_I),
        miss=float(np.maximum(reference_I - hypothesis_I, 0) @ seconds_I),
        false_alarm=float(np.maximum(hypothesis_I - reference_I, 0) @ seconds_I),
        confusion=max(0.0, both - correct),
        jaccard=float(speakers - overlap_RH[jaccard_rows, jaccard_columns].sum()),
        speakers=speakers,
        scored=float(seconds_I.sum()),
    )


def _overlaps(reference_RI: Counts, hypothesis_HI: Counts, seconds_I: Times) -> Times:
    """(R, H) the Jaccard indices of speakers."""
    active_RI, active_HI = reference_RI > 0, hypothesis_HI > 0
    common_RH = (active_RI * seconds_I) @ active_HI.T.astype(float)
    either_RH = (active_RI @ seconds_I)[:, None] + active_HI @ seconds_I - common_RH
    return np.asarray(np.divide(common_RH, either_RH, out=np.zeros_like(common_RH), where=common_RH > 0.0))


# --------------------------------------------- Scores of several recordings, individually and in total

BEYOND = 10.0
"""Seconds of a hypothesis after the last label of the reference, from which only a part may be labelled."""


@dataclass(frozen=True)
class Scores:
    """The errors of recordings."""

    recordings: dict[str, DiarizationErrors]
    missed: list[str]
    """Recordings without turns in the hypothesis; all of their speech counts as missed."""
    left_out: list[str]
    """Recordings of the reference or the hypothesis that the UEM does not list."""
    beyond: list[str] = field(default_factory=list)
    """Recordings whose hypothesis goes on `BEYOND` seconds after the last label; it is scored as false alarm."""

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
    convention: Convention = "phonate",
    zones: Mapping[str, Zones] | None = None,
) -> Scores:
    """Score each recording with `score`.

    Args:
        reference, hypothesis: Recording -> turns.
        uem: Recording -> the regions to score. None: all recordings of the reference, entirely.
        collar, skip_overlap, convention: See `score`.
        zones: Recording -> the zones of the reference.

    Raises:
        InputError: there is no recording to score; or, without a `uem`, a recording occurs only in the hypothesis, so
            that it is not known whether it has no speech or was not annotated.
    """
    names = sorted(reference if uem is None else uem)
    others = sorted((reference.keys() | hypothesis.keys()).difference(names))
    if not names:
        raise InputError(f"no recording to score: {'the reference has none' if uem is None else 'the UEM lists none'}")
    if len(others) == len(reference.keys() | hypothesis.keys()):
        raise InputError(f"no recording to score: the UEM lists {some(names)}, the labels {some(others)}")
    if uem is None:
        require_same_names(names, hypothesis, "give a UEM that lists what is to be scored, also without speech")
    recordings = {
        name: score(
            reference.get(name, ()),
            hypothesis.get(name, ()),
            regions=None if uem is None else uem[name],
            collar=collar,
            skip_overlap=skip_overlap,
            convention=convention,
            zones=(zones or {}).get(name),
        )
        for name in names
    }
    missed = [name for name in names if not hypothesis.get(name) and reference.get(name)]
    to_the_end = uem is None and convention != "md-eval"  # which scores up to the last label
    beyond = [name for name in names if to_the_end and _beyond(reference.get(name, ()), hypothesis.get(name, ()))]
    return Scores(recordings, missed, others, beyond)


def _beyond(reference: Sequence[SpeakerTurn], hypothesis: Sequence[SpeakerTurn]) -> bool:
    last = max((turn.end for turn in reference), default=math.inf)
    return any(turn.end > last + BEYOND for turn in hypothesis)
