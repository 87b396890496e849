"""The power of each frequency of the transform, as Kaldi computes it."""

from __future__ import annotations

from phonate.data.features._kaldi import KaldiFrames


class SpectrogramFeatures(KaldiFrames):
    """Power spectra: `audio.feature_type: spectrogram`."""
