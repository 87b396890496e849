"""Conversion without a model, as a baseline.

The pitch is shifted by the ratio of the two speakers' medians, and the mean spectrum of the source is
equalised to the target's. Words remain clear; formants, breathiness and style remain those of the source.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import median_f0
from phonate.audio.processor import AudioProcessor
from phonate.config.packages import optional_package
from phonate.tasks.conversion.voices import long_term


class Baseline:
    """Converts any voice towards that of the `target` recordings."""

    def __init__(self, processor: AudioProcessor, target: Sequence[FloatArray]) -> None:
        self._processor = processor
        self._rate = processor.config.sample_rate
        self._pitch = float(np.nanmedian([median_f0(waveform, self._rate) for waveform in target]))
        self._spectrum_M = np.mean([long_term(processor.mel(waveform))[0] for waveform in target], axis=0)

    def __call__(self, waveform: FloatArray) -> FloatArray:
        """Convert samples (N,) at the processor's rate; returns about N samples."""
        own = median_f0(waveform, self._rate)
        if np.isfinite(own) and np.isfinite(self._pitch):
            semitones = 12.0 * float(np.log2(self._pitch / own))
            waveform = optional_package("librosa", "the pitch-shift baseline").effects.pitch_shift(
                waveform, sr=self._rate, n_steps=semitones
            )
        mel_TM = self._processor.mel(waveform)
        equalised_TM = mel_TM + (self._spectrum_M - long_term(mel_TM)[0])
        # Keep silence silent.
        equalised_TM = np.where(mel_TM > 0.0, equalised_TM, 0.0)
        return self._processor.waveform(np.clip(equalised_TM, 0.0, 1.0))
