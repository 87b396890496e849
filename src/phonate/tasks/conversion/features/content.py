"""Content features with little speaker information: perturbed and normalised spectral envelopes.

In training, the formants of the envelope are shifted at random, its timbre is equalised at random and noise is added,
so that only the speaker embedding identifies the speaker reliably (information perturbation: Choi et al. 2021, "Neural
analysis and synthesis", section 3.1, here on mel envelopes). Conversion uses the same features without perturbation.

Shapes: T frames, M mel bands. Features are on `AudioProcessor`'s decibel scale, 0 to 1.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.mel_scale import band_edges
from phonate.audio.settings import AudioConfig
from phonate.tasks.conversion.features.running import Expected, RunningContent
from phonate.tasks.conversion.settings import PerturbationSettings

_LOUD_PERCENTILE = 95.0
_SPEECH_RANGE = 0.35  # frames at most this far below the loud ones count as speech (35 dB at the default levels)
_LEAST_DEVIATION = 0.02
_KNEE_HZ = 6000.0  # formants are scaled below this; above, the axis is compressed to keep its end fixed
_WARP_STEPS = 64
_RIPPLES = 5
_QUIETER = 0.3  # live speech is not brought to one level before: in training it is up to 30 dB quieter


class Content:
    """Computes content features (T, M) from mel features (T, M) with the settings `audio`."""

    def __init__(
        self, audio: AudioConfig, cepstral_coefficients: int | None, normalise: bool, causal: bool = False
    ) -> None:
        """`cepstral_coefficients`: number kept, for a smooth envelope; None: all. `normalise`: per utterance, or, if
        `causal`, by what was heard so far, from `expected` on."""
        self.bands = audio.n_mels
        self.causal = causal
        self.expected: Expected | None = None
        """The statistics of the training corpus, which a causal normalisation starts from."""
        self.normalise = normalise
        self._decibels = -audio.min_level_db
        self._centres = np.array(band_edges(self.bands, audio.fmin, audio.fmax)[1:-1])
        self._smoothing_MM: FloatArray | None = None
        if cepstral_coefficients is not None:
            basis = cosine_basis(self.bands)[:cepstral_coefficients]
            self._smoothing_MM = basis.T @ basis
        self._warp = lru_cache(maxsize=None)(self._warp_matrix)

    def __call__(self, mel_TM: FloatArray) -> FloatArray:
        """Content (T, M) of the mel (T, M) of a whole utterance."""
        return self._normalised(self.smoothed(mel_TM), mel_TM)

    def running(self) -> RunningContent:
        """Normalisation of one utterance in blocks."""
        if self.expected is None:
            raise ValueError("causal normalisation needs the statistics of the training corpus: set `expected`")
        return RunningContent(self.expected, _LEAST_DEVIATION)

    def perturbed(self, mel_TM: FloatArray, settings: PerturbationSettings, rng: np.random.Generator) -> FloatArray:
        """Content (T, M) of a mel (T, M) after a random formant shift, equalisation and noise."""
        if rng.random() < settings.noise_probability:
            mel_TM = self._noisy(mel_TM, settings, rng)
        if self.causal:
            mel_TM = mel_TM - np.float32(rng.uniform(0.0, _QUIETER))
        content_TM = mel_TM @ self._warp(_random_warp(settings, rng))
        return self._normalised(content_TM + self._ripple(settings.equaliser_db, rng), mel_TM)

    def smoothed(self, mel_TM: FloatArray) -> FloatArray:
        """The envelope: only the first cepstral coefficients."""
        return mel_TM if self._smoothing_MM is None else np.asarray(mel_TM @ self._smoothing_MM, dtype=np.float32)

    def _normalised(self, content_TM: FloatArray, spectrum_TM: FloatArray) -> FloatArray:
        """Normalise each band to mean 0 and deviation 1 over the utterance's speech (as in CMVN)."""
        if not self.normalise:
            return content_TM
        if self.causal:
            return self.running().push(spectrum_TM, content_TM)
        speech_T = speech_frames(spectrum_TM)
        mean_M = content_TM[speech_T].mean(axis=0)
        deviation_M = content_TM[speech_T].std(axis=0) + _LEAST_DEVIATION
        return np.asarray((content_TM - mean_M) / deviation_M, dtype=np.float32)

    def _warp_matrix(self, factor: float) -> npt.NDArray[np.float32]:
        """(M, M) smoothing, then scaling of the formants by `factor` (piecewise linear VTLN)."""
        top, knee = self._centres[-1], min(_KNEE_HZ, _KNEE_HZ * factor)
        above = knee / factor + (top - knee / factor) / (top - knee) * (self._centres - knee)
        source = np.where(self._centres <= knee, self._centres / factor, above)
        position = np.interp(source, self._centres, np.arange(self.bands))
        lower = np.minimum(position.astype(int), self.bands - 2)
        matrix = np.zeros((self.bands, self.bands), dtype=np.float32)
        matrix[lower, np.arange(self.bands)] = 1.0 - (position - lower)
        matrix[lower + 1, np.arange(self.bands)] += position - lower
        return matrix if self._smoothing_MM is None else np.asarray(self._smoothing_MM @ matrix, np.float32)

    def _ripple(self, decibels: float, rng: np.random.Generator) -> FloatArray:
        """(M,) a smooth random equalisation, stronger in the lower orders."""
        orders = np.arange(1, _RIPPLES + 1)
        amplitude = rng.normal(size=_RIPPLES) * decibels / self._decibels / orders
        return np.asarray(
            amplitude @ (cosine_basis(self.bands)[1 : _RIPPLES + 1] * np.sqrt(self.bands / 2)), np.float32
        )

    def _noisy(self, mel_TM: FloatArray, settings: PerturbationSettings, rng: np.random.Generator) -> FloatArray:
        """`mel_TM` with coloured stationary noise added to the magnitudes."""
        loud = np.percentile(mel_TM.mean(axis=1), _LOUD_PERCENTILE)
        level_M = loud - rng.uniform(*settings.noise_snr_db) / self._decibels + self._ripple(8.0, rng)
        flutter_TM = rng.standard_normal(mel_TM.shape, dtype=np.float32) * np.float32(3.5 / self._decibels)
        scale = np.float32(np.log(10.0) * self._decibels / 20.0)
        magnitude = np.exp(scale * (mel_TM - 1.0)) + np.exp(scale * (level_M + flutter_TM - 1.0))
        return np.asarray(1.0 + np.log(magnitude) / scale, dtype=np.float32)


def _random_warp(settings: PerturbationSettings, rng: np.random.Generator) -> float:
    """One of a few dozen formant factors, evenly spaced on a log scale, so that their matrices can be cached."""
    low, high = np.log(settings.formants)
    return float(np.exp(low + (high - low) * rng.integers(_WARP_STEPS + 1) / _WARP_STEPS))


def speech_frames(mel_TM: FloatArray) -> npt.NDArray[np.bool_]:
    """(T,) True where an utterance is loud enough to be speech."""
    loudness_T = mel_TM.mean(axis=1)
    return np.asarray(loudness_T > np.percentile(loudness_T, _LOUD_PERCENTILE) - _SPEECH_RANGE)


@lru_cache(maxsize=4)
def cosine_basis(bands: int) -> npt.NDArray[np.float32]:
    """(bands, bands) orthonormal DCT-II; row k is the cosine of order k."""
    order, band = np.arange(bands)[:, None], np.arange(bands)[None, :]
    basis = np.sqrt(2.0 / bands) * np.cos(np.pi * order * (band + 0.5) / bands)
    basis[0] /= np.sqrt(2.0)
    return np.asarray(basis, dtype=np.float32)
