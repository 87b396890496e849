"""The level of sound that is streamed, whose loudest sample is not known yet."""

from __future__ import annotations

import numpy as np

from phonate.audio.decoding import FloatArray

_GAIN = 0.4
"""Speech that is rendered peaks at 1.7 in the median sentence, and at 3.2 in the loudest of forty."""
_KNEE = 0.7
"""Of full scale: samples below are not changed."""


def streamed(rendered: FloatArray) -> FloatArray:
    """Rendered samples (n,) at the level of streams, within -1 to 1: louder ones are bent smoothly, never cut off.

    Each sample is mapped by itself, so pieces of a sound are what the whole of it would be.
    """
    samples = np.asarray(_GAIN * rendered, dtype=np.float32)
    loud = np.abs(samples)
    bent = _KNEE + (1.0 - _KNEE) * np.tanh((loud - _KNEE) / (1.0 - _KNEE))
    return np.where(loud > _KNEE, np.copysign(bent, samples), samples).astype(np.float32)
