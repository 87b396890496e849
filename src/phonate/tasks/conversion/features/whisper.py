"""Content features from the encoder of a Whisper recogniser.

A recogniser's features describe phones and contain little of the voice, so conversion from them is more intelligible
than from perturbed envelopes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.whisper import FEATURES_PER_SECOND


def at_frames(features_SW: FloatArray, frames_T: npt.NDArray[np.int64], frames_per_second: float) -> FloatArray:
    """Features (S, W) at 50 per second, interpolated at the given mel frames: (T, W)."""
    position_T = np.minimum(frames_T * (FEATURES_PER_SECOND / frames_per_second), len(features_SW) - 1.0)
    lower_T = np.minimum(position_T.astype(int), max(0, len(features_SW) - 2))
    upper_T = np.minimum(lower_T + 1, len(features_SW) - 1)
    weight_T1 = (position_T - lower_T).astype(np.float32)[:, None]
    between_TW = features_SW[lower_T] * (1.0 - weight_T1) + features_SW[upper_T] * weight_T1
    return np.asarray(between_TW, dtype=np.float32)


def normalised(features_SW: FloatArray) -> FloatArray:
    """Features (S, W) with mean 0 and deviation 1 over the utterance."""
    return np.asarray((features_SW - features_SW.mean(axis=0)) / (features_SW.std(axis=0) + 0.1), dtype=np.float32)
