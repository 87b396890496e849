"""Distances of synthesised speech from a natural recording of the same text: spectrum, pitch and voicing.

The two differ in timing, so frames are first paired by dynamic time warping, and all distances are computed along that
path. They are means over pairs with speech in at least one of the two.

Kubichek 1993, "Mel-cepstral distance measure for objective speech quality assessment".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.mel_filters import mel_filters
from phonate.audio.pitch import f0
from phonate.audio.processor import MelSpectrum
from phonate.config.errors import DataError, optional_package

COEFFICIENTS = 13
_BANDS = 80
_HIGHEST_HZ = 8000.0
_FRAMES_PER_SECOND = 100
_WINDOW_SECONDS = 0.04
_FLOOR_DB = -60.0  # mel magnitudes are clipped this far below the maximum of a recording
_SPEECH_DB = -40.0  # frames above this level relative to the maximum are speech
_DECIBELS = 10.0 / math.log(10.0) * math.sqrt(2.0)

Cepstra = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Distances:
    """Distances of a synthesised recording from a natural one; all are 0 for the same sound."""

    mel_cepstral_distortion: float
    """In dB (Kubichek 1993): 10 / ln 10 * sqrt(2 * sum over d = 1..13 of (c_d - c'_d)^2), without c_0, the level.

    c are the cosine coefficients of the log magnitudes of 80 mel bands to 8 kHz: ln X(w) = sum of c_d cos(d w). With
    these, the result is the root mean square difference of two smooth spectra in dB. Other cepstra (SPTK's or WORLD's
    mcep, 24 coefficients) give values on another scale: do not compare them with figures of other programs."""
    f0_rmse: float
    """Root mean square difference of pitch, in cents, over pairs voiced in both; NaN when there are none."""
    voicing_error: float
    """Share (0..1) of pairs in which only one is voiced."""


def distances(synthesised: FloatArray, natural: FloatArray, sample_rate: int, name: str = "a recording") -> Distances:
    """All distances of two waveforms (samples,) of the same text, both at `sample_rate`.

    Raises DataError with the recording's `name` if either is silent or empty.
    """
    dtw = optional_package("librosa", "aligning two recordings").sequence.dtw
    own_cepstra, own_speech = _cepstra(synthesised, sample_rate, f"{name} as synthesised")
    natural_cepstra, natural_speech = _cepstra(natural, sample_rate, f"{name} as recorded")
    _, path = dtw(own_cepstra.T, natural_cepstra.T, metric="euclidean")
    path = path[own_speech[path[:, 0]] | natural_speech[path[:, 1]]]
    difference = own_cepstra[path[:, 0]] - natural_cepstra[path[:, 1]]
    hop = sample_rate // _FRAMES_PER_SECOND
    own_f0, natural_f0 = f0(synthesised, sample_rate, hop)[path[:, 0]], f0(natural, sample_rate, hop)[path[:, 1]]
    both = (own_f0 > 0) & (natural_f0 > 0)
    cents = 1200.0 * np.log2(own_f0[both] / natural_f0[both])
    return Distances(
        mel_cepstral_distortion=_DECIBELS * float(np.sqrt(np.square(difference).sum(axis=1)).mean()),
        f0_rmse=float(np.sqrt(np.square(cents).mean())) if both.any() else math.nan,
        voicing_error=float(((own_f0 > 0) != (natural_f0 > 0)).mean()),
    )


def _cepstra(waveform: FloatArray, sample_rate: int, name: str) -> tuple[Cepstra, npt.NDArray[np.bool_]]:
    """Mel cepstra c_1..c_13 (frames, 13), one frame per 10 ms, and a mask of the speech frames (frames,)."""
    from scipy.fft import dct

    window = int(_WINDOW_SECONDS * sample_rate)
    n_fft = 1 << (window - 1).bit_length()
    samples = np.asarray(waveform, dtype=np.float32)
    if not np.isfinite(samples).all() or not samples.any():
        raise DataError(f"{name}: is silent, empty or not finite, so distances can't be computed")
    filters = mel_filters(sample_rate, n_fft, _BANDS, 0.0, min(_HIGHEST_HZ, sample_rate / 2))
    spectrum = MelSpectrum(filters, n_fft, sample_rate // _FRAMES_PER_SECOND, window)
    mel_TM = spectrum(samples).astype(np.float64)
    loudness = np.sqrt(np.square(mel_TM).sum(axis=1))
    speaks = loudness > 10.0 ** (_SPEECH_DB / 20.0) * loudness.max()
    log_TM = np.log(np.maximum(mel_TM / mel_TM.max(), 10.0 ** (_FLOOR_DB / 20.0)))
    cosines = dct(log_TM, type=2, norm="ortho", axis=1) * math.sqrt(2.0 / _BANDS)
    return np.asarray(cosines[:, 1 : COEFFICIENTS + 1]), speaks
