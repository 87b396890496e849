"""Logarithms of mel bands, as Kaldi computes them."""

from __future__ import annotations

from phonate.data.features._kaldi import KaldiFrames


class FbankFeatures(KaldiFrames):
    """Mel filter banks: `audio.feature_type: fbank`."""
