"""A diarization sample. Shapes: T frames, F features, S speakers."""

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
    """1 where a speaker is active. Speakers are in order of arrival, simultaneous ones sorted by name."""
    speakers_S: NDArray[np.int64]
    """Index of each speaker in `Corpus.speakers`; -1 if it is not in the training set."""
    source: str = ""
    """Id of the recording it is cut from; "" for a simulated conversation."""
    start: float = 0.0
    """Start in that recording, in seconds."""
