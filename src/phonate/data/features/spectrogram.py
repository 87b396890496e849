"""Power spectra, as computed by Kaldi."""

from __future__ import annotations

from phonate.data.features._kaldi import KaldiFrames


class SpectrogramFeatures(KaldiFrames):
    """Power spectra: `audio.feature_type: spectrogram`."""
