"""Features of waveforms that are not cached."""

from __future__ import annotations

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import normalised_peak
from phonate.tasks.diarization.corpus import Corpus


def samples_of(corpus: Corpus, frames: int) -> int:
    """Number of samples of a waveform with `frames` feature frames."""
    audio = corpus.data.audio
    return (frames - 1) * audio.hop_length + audio.window_length if audio.snip_edges else frames * audio.hop_length


def features_of(corpus: Corpus, waveform_N: FloatArray) -> FloatArray:
    """The features (T, F) of a waveform (N,), with the level normalised as in the corpus."""
    if corpus.features.normalises_level:
        waveform_N = normalised_peak(waveform_N)
    return np.asarray(corpus.features.compute(waveform_N), dtype=np.float32)
