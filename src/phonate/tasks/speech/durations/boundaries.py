"""From times to whole frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from phonate.text.phonemes import Word

Durations = NDArray[np.int64]
Aligner = Callable[[int, Sequence[Word]], Durations]
"""Position of a recording in the corpus, its words -> frames of each token. Raises DataError where it can't."""

_ROUNDING = 1e-6
"""Seconds by which times may fall."""


def frames_between(seconds: Sequence[float], frames: int, frames_per_second: float) -> Durations:
    """Frames (L,) of each of L tokens, of which number i + 1 begins at `seconds[i]` (L - 1 times that never fall).

    The first token begins with the first frame and the last ends with the last, so they sum to `frames`.
    """
    starts = np.asarray(seconds, dtype=np.float64)
    if (np.diff(starts) < -_ROUNDING).any():
        raise ValueError("a token begins before the one in front of it")
    # of two times that are the same but for rounding, one may lie just under a half frame and the other on it
    inner = np.rint(np.maximum.accumulate(starts) * frames_per_second).astype(np.int64)
    return np.diff(np.concatenate([[0], np.clip(inner, 0, frames), [frames]]))
