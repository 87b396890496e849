"""Mel-frequency cepstral coefficients, as computed by Kaldi."""

from __future__ import annotations

from phonate.data.features._kaldi import KaldiFrames


class MfccFeatures(KaldiFrames):
    """Cepstral coefficients: `audio.feature_type: mfcc`."""
