"""From probabilities of a recording to turns of its speakers. Shapes: U output frames, G speakers."""

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
    """The turns of each of the G speakers, named by their numbers; times from the start of frame 0."""
    active_UG = active(probabilities_UG, settings.threshold, settings.median)
    found = []
    for column in range(active_UG.shape[1]):
        turns = turns_from_activity(active_UG[:, column : column + 1], frames_per_second, [str(column)])
        turns = _without_gaps(turns, settings.min_silence - _ROUNDING)
        found.append([turn for turn in turns if turn.duration >= settings.min_speech - _ROUNDING])
    return found


def _without_gaps(turns: list[SpeakerTurn], least: float) -> list[SpeakerTurn]:
    """Successive turns of a speaker, as one where less than `least` seconds are between them."""
    found: list[SpeakerTurn] = []
    for turn in turns:
        if found and turn.start - found[-1].end < least:
            turn = SpeakerTurn(found.pop().start, turn.end, turn.speaker)
        found.append(turn)
    return found
