"""No features: only waveforms are cached."""

from __future__ import annotations

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.data.features._base import Features, Frames


class NoneFeatures(Features):
    """Frames of width 0, whose number still follows from the hop length."""

    @property
    def width(self) -> int:
        """0."""
        return 0

    @property
    def fingerprint(self) -> str:
        """Sample rate and hop length."""
        return f"none-{self.audio.sample_rate}-{self.audio.hop_length}"

    def compute(self, waveform_N: FloatArray) -> Frames:
        """(T, 0)."""
        return np.zeros((self.frames(len(waveform_N)), 0), dtype=self.dtype)
