"""The errors of a diarization, as sums that can be added up."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class DiarizationErrors:
    """Seconds of speaker time, and Jaccard errors of speakers; add those of several recordings with +."""

    speech: float = 0.0
    """Seconds of speech in the reference; a second of two speakers counts as two."""
    miss: float = 0.0
    """Seconds of speech for which the hypothesis has no speaker."""
    false_alarm: float = 0.0
    """Seconds of speakers in the hypothesis beyond those in the reference."""
    confusion: float = 0.0
    """Seconds of speech attributed to the wrong speaker."""
    jaccard: float = 0.0
    """Sum of the Jaccard errors of the reference's speakers."""
    speakers: int = 0
    """Speakers of the reference, counted in each recording."""
    scored: float = 0.0
    """Seconds of the recordings that were scored."""

    def __add__(self, other: DiarizationErrors) -> DiarizationErrors:
        return DiarizationErrors(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    @property
    def wrong(self) -> float:
        """Seconds missed, falsely detected, and confused."""
        return self.miss + self.false_alarm + self.confusion

    @property
    def der(self) -> float:
        """Diarization error rate: wrong seconds over seconds of speech. Without any speech 0, or 1 with false alarms,
        as in pyannote.metrics."""
        return self.wrong / self.speech if self.speech else float(self.wrong > 0.0)

    @property
    def jer(self) -> float:
        """Jaccard error rate: one minus the Jaccard index of each reference speaker and the speaker mapped to it,
        averaged over the reference's speakers (Ryant et al. 2019, "The Second DIHARD Diarization Challenge"). Without
        any speaker as `der`."""
        return self.jaccard / self.speakers if self.speakers else float(self.wrong > 0.0)
