"""One sample of diarization. Shapes: T frames, F features, S speakers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray


@dataclass(frozen=True)
class Item:
    """One sample."""

    features_TF: FloatArray
    activity_TS: NDArray[np.uint8]
    """Speakers in the order in which they begin, those who begin together by name."""
    speakers_S: NDArray[np.int64]
    """Number of each speaker in `Corpus.speakers`; -1 for one who is not in training."""
    source: str = ""
    """The recording it is a piece of; "" for a simulated conversation."""
    start: float = 0.0
    """Seconds in that recording at which it begins."""
