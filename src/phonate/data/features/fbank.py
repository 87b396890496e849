"""Log mel filter banks, as computed by Kaldi."""

from __future__ import annotations

from phonate.data.features._kaldi import KaldiFrames


class FbankFeatures(KaldiFrames):
    """Mel filter banks: `audio.feature_type: fbank`."""
