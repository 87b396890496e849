"""The errors of a diarization, as sums that can be accumulated."""

from __future__ import annotations

from dataclasses import astuple, dataclass


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
