"""Summary statistics of a voice recording: timbre, pitch, spectrum and energy.

The definitions are librosa's with its defaults (frames of 2048 samples, 512 apart, centred), over one spectrum for all
of them. Shapes: T frames, F = 1025 frequencies, M = 128 mel bands, N samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import scipy.fft

from phonate.audio.decoding import FloatArray
from phonate.audio.mel_filters import mel_filters
from phonate.audio.pitch import f0

N_FFT, HOP = 2048, 512
N_MFCC = 13
N_MELS = 128
_ROLLOFF = 0.85
_FLOOR = 1e-10
_RANGE_DB = 80.0
_ZERO = 1e-10  # librosa's threshold for zero crossings
_FRAMES_PER_BLOCK = 32  # fits into the CPU cache
_PITCH_HOP_SECONDS = 0.01


@dataclass(frozen=True)
class VoiceFeatures:
    """Statistics over the frames of one recording. Pitch is None where there is no voice."""

    duration: float
    """Seconds."""
    frames: int
    """Frames over which all statistics but pitch are taken."""
    mfcc_mean: tuple[float, ...]
    """Mean of each of 13 mel-frequency cepstral coefficients."""
    mfcc_std: tuple[float, ...]
    voiced_frames: int
    """Frames of 10 ms that have a pitch."""
    pitch_mean: float | None
    """Hz, over voiced frames."""
    pitch_std: float | None
    pitch_min: float | None
    pitch_max: float | None
    spectral_centroid: float
    """Mean over frames of the mean frequency, weighted by magnitude, in Hz."""
    spectral_centroid_std: float
    spectral_rolloff: float
    """Mean of the frequency under which 85 % of the magnitude lies, in Hz."""
    zero_crossing_rate: float
    """Share of neighbouring samples that differ in sign."""
    rms: float
    """Mean over frames of the root mean square, in units of full scale."""
    rms_std: float

    @property
    def pitch_range(self) -> float | None:
        """Highest less lowest pitch in Hz."""
        if self.pitch_min is None or self.pitch_max is None:
            return None
        return self.pitch_max - self.pitch_min


def voice_features(waveform: FloatArray, sample_rate: int) -> VoiceFeatures:
    """The features of a waveform (N,), at least one sample."""
    magnitude_TF = magnitudes(waveform)
    centroid_T = centroids(magnitude_TF, sample_rate)
    mfcc_TC = mfcc(magnitude_TF, sample_rate)
    rms_T = _rms(waveform)
    pitch = f0(waveform, sample_rate, round(_PITCH_HOP_SECONDS * sample_rate))
    voiced = pitch[pitch > 0.0]
    heard = voiced.size > 0
    return VoiceFeatures(
        duration=len(waveform) / sample_rate,
        frames=len(magnitude_TF),
        mfcc_mean=tuple(mfcc_TC.mean(axis=0).tolist()),
        mfcc_std=tuple(mfcc_TC.std(axis=0).tolist()),
        voiced_frames=int(voiced.size),
        pitch_mean=float(voiced.mean()) if heard else None,
        pitch_std=float(voiced.std()) if heard else None,
        pitch_min=float(voiced.min()) if heard else None,
        pitch_max=float(voiced.max()) if heard else None,
        spectral_centroid=float(centroid_T.mean()),
        spectral_centroid_std=float(centroid_T.std()),
        spectral_rolloff=float(_rolloffs(magnitude_TF, sample_rate).mean()),
        zero_crossing_rate=float(_crossing_rates(waveform).mean()),
        rms=float(rms_T.mean()),
        rms_std=float(rms_T.std()),
    )


def magnitudes(waveform: FloatArray) -> FloatArray:
    """(T, F) magnitudes of the short-time Fourier transform, T = 1 + N // 512, with silence beyond both ends."""
    frames_TN = _frames(np.pad(waveform, N_FFT // 2))
    magnitude_TF = np.empty((len(frames_TN), N_FFT // 2 + 1), dtype=np.float32)
    windowed = np.empty((_FRAMES_PER_BLOCK, N_FFT), dtype=np.float32)
    for start in range(0, len(frames_TN), _FRAMES_PER_BLOCK):
        block = frames_TN[start : start + _FRAMES_PER_BLOCK]
        part = np.multiply(block, hann(N_FFT), out=windowed[: len(block)])
        np.abs(scipy.fft.rfft(part, overwrite_x=True), out=magnitude_TF[start : start + len(block)])
    return magnitude_TF


def centroids(magnitude_TF: FloatArray, sample_rate: int) -> FloatArray:
    """(T,) mean frequency of each frame, weighted by magnitude, in Hz; 0 in digital silence."""
    moment_T = magnitude_TF @ _frequencies(sample_rate)
    return np.asarray(moment_T / np.maximum(magnitude_TF.sum(axis=1), np.finfo(np.float32).tiny), dtype=np.float32)


def mfcc(magnitude_TF: FloatArray, sample_rate: int) -> FloatArray:
    """(T, 13) mel-frequency cepstral coefficients: the cosine transform of 128 mel bands in dB, at most 80 under the
    loudest."""
    decibels_TM = mel_decibels(magnitude_TF, sample_rate)
    return np.asarray(scipy.fft.dct(decibels_TM, type=2, norm="ortho", axis=1)[:, :N_MFCC], dtype=np.float32)


def mel_decibels(magnitude_TF: FloatArray, sample_rate: int) -> FloatArray:
    """(T, 128) power in mel bands from 0 Hz to half the sample rate, in dB, at most 80 under the loudest."""
    power_TM = np.square(magnitude_TF) @ _mel(sample_rate)
    decibels_TM = 10.0 * np.log10(np.maximum(power_TM, _FLOOR))
    return np.asarray(np.maximum(decibels_TM, decibels_TM.max() - _RANGE_DB), dtype=np.float32)


def envelopes(mfcc_RC: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """(R, 128) the mel bands in dB that coefficients (R, 13) stand for: the inverse of `mfcc`'s cosine transform. The
    coefficients that `mfcc` leaves out are the finer ripple, which is missing here."""
    return np.asarray(scipy.fft.idct(np.asarray(mfcc_RC, np.float64), type=2, norm="ortho", axis=-1, n=N_MELS))


def _rolloffs(magnitude_TF: FloatArray, sample_rate: int) -> FloatArray:
    """(T,) Hz."""
    below_TF = np.cumsum(magnitude_TF, axis=1)
    first_T = (below_TF >= _ROLLOFF * below_TF[:, -1:]).argmax(axis=1)
    return np.asarray(_frequencies(sample_rate)[first_T])


def _rms(waveform: FloatArray) -> FloatArray:
    """(T,) root mean square of each frame."""
    frames_TN = _frames(np.pad(waveform, N_FFT // 2))
    return np.asarray(np.sqrt(np.einsum("tn,tn->t", frames_TN, frames_TN) / N_FFT))


def _crossing_rates(waveform: FloatArray) -> FloatArray:
    """(T,) share of the samples of each frame that differ in sign from the one before; ends are held on."""
    held = np.pad(waveform, N_FFT // 2, mode="edge")
    negative = held < -_ZERO
    until = np.concatenate([[0], np.cumsum(negative[1:] != negative[:-1])])
    starts = np.arange(0, len(held) - N_FFT + 1, HOP)
    return np.asarray((until[starts + N_FFT - 1] - until[starts]) / N_FFT, dtype=np.float32)


def _frames(padded: FloatArray) -> FloatArray:
    """(T, N_FFT) a view of overlapping frames."""
    return np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]


@cache
def hann(size: int) -> FloatArray:
    """(size,) Hann's window, periodic."""
    return (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(size) / size)).astype(np.float32)


@cache
def _frequencies(sample_rate: int) -> FloatArray:
    """(F,) Hz."""
    return np.fft.rfftfreq(N_FFT, 1.0 / sample_rate).astype(np.float32)


@cache
def _mel(sample_rate: int) -> FloatArray:
    """(F, M)."""
    return np.ascontiguousarray(mel_filters(sample_rate, N_FFT, N_MELS, 0.0, sample_rate / 2).T)
