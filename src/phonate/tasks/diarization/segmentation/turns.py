"""From activity probabilities to speaker turns. Shapes: U output frames, G speakers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from phonate.audio.decoding import FloatArray
from phonate.data.annotations import SpeakerTurn, turns_from_activity
from phonate.tasks.diarization.decoding_settings import DecodingSettings

_ROUNDING = 1e-6


def active(probabilities_UG: FloatArray, threshold: float, median: int) -> NDArray[np.uint8]:
    """(U, G): 1 where the probability is above `threshold`, smoothed by a median filter of `median` frames (odd)."""
    active_UG = (probabilities_UG > threshold).astype(np.uint8)
    if median == 1 or not active_UG.size:
        return active_UG
    return np.asarray(median_filter(active_UG, size=(median, 1), mode="constant"))


def speaker_turns(
    probabilities_UG: FloatArray, frames_per_second: float, settings: DecodingSettings
) -> list[list[SpeakerTurn]]:
    """The turns of each of the G speakers, named by index; times in seconds from the start of frame 0."""
    active_UG = active(probabilities_UG, settings.threshold, settings.median)
    found = []
    for column in range(active_UG.shape[1]):
        turns = turns_from_activity(active_UG[:, column : column + 1], frames_per_second, [str(column)])
        turns = _without_gaps(turns, settings.min_silence - _ROUNDING)
        found.append([turn for turn in turns if turn.duration >= settings.min_speech - _ROUNDING])
    return found


def _without_gaps(turns: list[SpeakerTurn], least: float) -> list[SpeakerTurn]:
    """Merges successive turns of one speaker with gaps shorter than `least` seconds."""
    found: list[SpeakerTurn] = []
    for turn in turns:
        if found and turn.start - found[-1].end < least:
            turn = SpeakerTurn(found.pop().start, turn.end, turn.speaker)
        found.append(turn)
    return found


class TurnStream:
    """`speaker_turns` for probabilities that arrive in blocks: the same turns, each as soon as its end is known."""

    def __init__(self, frames_per_second: float, settings: DecodingSettings) -> None:
        self._rate, self._settings = frames_per_second, settings
        self._half = settings.median // 2
        self._wait = max(settings.min_silence, 1.0 / frames_per_second) + self._half / frames_per_second
        """Seconds of silence after which the end of a turn is known."""
        self._kept_UG: FloatArray | None = None
        self._first = 0
        """First frame of `_kept_UG`."""
        self._done: list[float] = []
        """End of the last returned turn of each speaker, in seconds."""

    def push(self, probabilities_UG: FloatArray) -> list[tuple[int, SpeakerTurn]]:
        """Add frames (U, G). Returns the turns whose end is now known, with their speakers."""
        if self._kept_UG is None:
            self._kept_UG, self._done = probabilities_UG[:0], [-1.0] * probabilities_UG.shape[1]
        self._kept_UG = np.concatenate([self._kept_UG, probabilities_UG])
        return self._ended(self._wait)

    def end(self) -> list[tuple[int, SpeakerTurn]]:
        """The remaining turns."""
        return [] if self._kept_UG is None else self._ended(0.0)

    def _ended(self, wait: float) -> list[tuple[int, SpeakerTurn]]:
        assert self._kept_UG is not None
        offset, now = self._first / self._rate, (self._first + len(self._kept_UG)) / self._rate
        settled = now - self._wait
        found = []
        growing = self._settings.model_copy(update={"min_speech": 0.0})
        for speaker, turns in enumerate(speaker_turns(self._kept_UG, self._rate, growing)):
            for turn in turns:
                turn = SpeakerTurn(offset + turn.start, offset + turn.end, turn.speaker)
                if turn.end <= self._done[speaker] + _ROUNDING:
                    continue
                if turn.end > now - wait + _ROUNDING:
                    settled = min(settled, turn.start)
                    continue
                self._done[speaker] = turn.end
                if turn.duration >= self._settings.min_speech - _ROUNDING:
                    found.append((speaker, turn))
        # the median filter looks at frames before those that are decided
        first = max(self._first, round(settled * self._rate) - self._half)
        self._kept_UG = self._kept_UG[first - self._first :]
        self._first = first
        return sorted(found, key=lambda one: one[1])
