"""The networks of a voice computed with NumPy: the same numbers as with torch, to rounding errors, without its import,
which takes longer than a sentence. Also the constants of the vocoder, which both share.

Shapes: T frames, M mel bands, D width, K bins, N = (T - 1) * hop samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from phonate.audio.mel_filters import MelFacts

FloatArray = npt.NDArray[np.float32]
ComplexArray = npt.NDArray[np.complex64]
Weights = Mapping[str, FloatArray]
"""By the names that they have in the torch module."""

# ---------------------------------------------------------------- Layers: linear, convolutions, ConvNeXt

_EPSILON = 1e-5  # torch's, of layer norms
_ROWS = 256
"""Frames that pass a feed-forward network together: what it computes stays in the processor's cache."""
_TANH = (math.sqrt(2.0 / math.pi), 0.044715)  # of the approximation of GELU


def part(weights: Weights, name: str) -> dict[str, FloatArray]:
    """The weights of the submodule `name`, under that submodule's own names."""
    return {key[len(name) + 1 :]: value for key, value in weights.items() if key.startswith(f"{name}.")}


def _padded(x: FloatArray, before: int, after: int) -> FloatArray:
    """`x` (T, ...) between zeros. `np.pad` takes the interpreter three times as long, for which other threads wait."""
    padded = np.zeros((before + len(x) + after, *x.shape[1:]), dtype=x.dtype)
    padded[before : before + len(x)] = x
    return padded


class Linear:
    """`nn.Linear`: (T, D) -> (T, out)."""

    def __init__(self, weights: Weights) -> None:
        self.weight_DO = np.ascontiguousarray(weights["weight"].T)
        self.bias_O = weights.get("bias")

    def __call__(self, x_TD: FloatArray) -> FloatArray:
        out_TO: FloatArray = x_TD @ self.weight_DO
        if self.bias_O is not None:
            out_TO += self.bias_O
        return out_TO


class Convolution:
    """A convolution over time of all features, (T, F) -> (T, out): centred, or with `lookahead` frames of the future
    (see `phonate.nn.convolution.LimitedConv1d`)."""

    def __init__(self, weights: Weights, lookahead: int | None = None) -> None:
        weight_OFW = weights["weight"]
        self.past = weight_OFW.shape[2] // 2
        self.future = self.past if lookahead is None else lookahead
        taps_OFW = weight_OFW[:, :, : self.past + 1 + self.future]
        self.weight_FWO = np.ascontiguousarray(taps_OFW.transpose(1, 2, 0).reshape(-1, len(weight_OFW)))
        self.taps, self.bias_O = taps_OFW.shape[2], weights["bias"]

    def __call__(self, x_TF: FloatArray) -> FloatArray:
        padded_TF = _padded(x_TF, self.past, self.future)
        windows_TFW = sliding_window_view(padded_TF, self.taps, axis=0)
        out_TO: FloatArray = windows_TFW.reshape(len(x_TF), -1) @ self.weight_FWO
        out_TO += self.bias_O
        return out_TO


class _Block:
    """`ConvNeXtBlock`. The affine part of its norm and its scale are multiplied into the feed-forward network."""

    def __init__(self, weights: Weights, causal: bool) -> None:
        kernel_WD = np.ascontiguousarray(weights["depthwise.weight"][:, 0].T)
        self.past = len(kernel_WD) // 2
        self.future = 0 if causal else self.past
        self.kernel_WD, self.bias_D = kernel_WD[: self.past + 1 + self.future], weights["depthwise.bias"]
        first_ED, second_DE = weights["feed_forward.0.weight"], weights["feed_forward.3.weight"]
        self.first_DE = np.ascontiguousarray((first_ED * weights["norm.weight"]).T)
        self.first_E = first_ED @ weights["norm.bias"] + weights["feed_forward.0.bias"]
        scale_D = weights["scale"]
        self.second_ED = np.ascontiguousarray((np.float32(0.5) * scale_D[:, None] * second_DE).T)
        self.second_D = scale_D * weights["feed_forward.3.bias"]

    def __call__(self, x_TD: FloatArray) -> FloatArray:
        frames = len(x_TD)
        padded_TD = _padded(x_TD, self.past, self.future)
        out_TD = np.empty_like(x_TD)
        for start in range(0, frames, _ROWS):
            rows = slice(start, min(start + _ROWS, frames))
            mixed_RD = self.bias_D + self.kernel_WD[0] * padded_TD[rows]
            for tap, weight_D in enumerate(self.kernel_WD[1:], start=1):
                mixed_RD += weight_D * padded_TD[rows.start + tap : rows.stop + tap]
            hidden_RE = standardised(mixed_RD) @ self.first_DE
            hidden_RE += self.first_E
            np.add(_gelu_twice(hidden_RE) @ self.second_ED, x_TD[rows], out=out_TD[rows])
        out_TD += self.second_D
        return out_TD


def standardised(x_TD: FloatArray) -> FloatArray:
    """Each frame with mean 0 and variance 1, as by a layer norm; in place."""
    x_TD -= x_TD.mean(axis=-1, keepdims=True)
    variance_T = np.einsum("td,td->t", x_TD, x_TD) / np.float32(x_TD.shape[-1])
    x_TD *= (1.0 / np.sqrt(variance_T + np.float32(_EPSILON)))[:, None]
    return x_TD


def _gelu_twice(x: FloatArray) -> FloatArray:
    """Twice GELU in its approximation by tanh; in place."""
    inner = x * x
    inner *= np.float32(_TANH[0] * _TANH[1])
    inner += np.float32(_TANH[0])
    inner *= x
    np.tanh(inner, out=inner)
    inner += np.float32(1.0)
    x *= inner
    return x


class ConvNeXt:
    """`phonate.nn.convolution.ConvNeXt`: (T, D) -> (T, D)."""

    def __init__(self, weights: Weights, causal: bool = False) -> None:
        layers = sum(name.endswith(".scale") for name in weights)
        self.blocks = [_Block(part(weights, f"blocks.{number}"), causal) for number in range(layers)]
        self.weight_D, self.bias_D = weights["last_norm.weight"], weights["last_norm.bias"]

    def __call__(self, x_TD: FloatArray) -> FloatArray:
        for block in self.blocks:
            x_TD = block(x_TD)
        normed_TD = standardised(x_TD if self.blocks else x_TD.copy())
        normed_TD *= self.weight_D
        normed_TD += self.bias_D
        return normed_TD


# ------------------------------------------------------------------------------------- Fourier transform


class ShortTimeFourier:
    """`phonate.nn.vocoder.ShortTimeFourier` with complex spectra (T, K)."""

    def __init__(self, n_fft: int, hop_length: int) -> None:
        self.n_fft, self.hop_length = n_fft, hop_length
        self.window_N = hann(n_fft)

    def __call__(self, samples_N: FloatArray) -> ComplexArray:
        half = self.n_fft // 2
        windows_TN = sliding_window_view(_padded(samples_N, half, half), self.n_fft)[:: self.hop_length]
        return np.fft.rfft(windows_TN * self.window_N).astype(np.complex64, copy=False)

    def inverse(self, spectrum_TK: ComplexArray) -> FloatArray:
        """(T, K) -> ((T - 1) * hop,), by overlap-add, normalised by the sum of squared windows."""
        half, length = self.n_fft // 2, (len(spectrum_TK) - 1) * self.hop_length
        windows_TN = np.fft.irfft(spectrum_TK, self.n_fft).astype(np.float32, copy=False)
        windows_TN *= self.window_N
        squares_TN = np.broadcast_to(self.window_N * self.window_N, windows_TN.shape)
        inner = slice(half, half + length)
        waveform_N: FloatArray = self._added(windows_TN)[inner]
        waveform_N /= np.maximum(self._added(squares_TN)[inner], np.float32(1e-8))
        return waveform_N

    def _added(self, windows_TN: FloatArray) -> FloatArray:
        """(T, n_fft) -> ((T - 1) * hop + n_fft,)."""
        frames, hop = len(windows_TN), self.hop_length
        blocks = -(-self.n_fft // hop)
        summed_TH = np.zeros((frames + blocks, hop), dtype=np.float32)
        for block in range(blocks):
            part_TH = windows_TN[:, block * hop : (block + 1) * hop]
            summed_TH[block : block + frames, : part_TH.shape[1]] += part_TH
        return summed_TH.reshape(-1)


def hann(n_fft: int) -> FloatArray:
    """The periodic window (n_fft,)."""
    angles_N = 2.0 * np.pi / n_fft * np.arange(n_fft)
    return np.asarray(0.5 - 0.5 * np.cos(angles_N), dtype=np.float32)


# -------------------------- Constants of the vocoder: noise, and matrices that follow from the mel filters

NEPERS = math.log(10.0) / 20.0
"""Of a decibel."""
LOWEST_F0, HIGHEST_F0 = 50.0, 600.0
LOUDEST = 6.0
"""Nepers."""
LEAST_NOISE = 0.05
"""Of the mean level, in a band."""
SHAPE_WAVES, SHAPE_BANDS = 4, 4
INAUDIBLE = 1e-6
"""Magnitude."""
LARGEST_CORRECTION = 0.7
"""Nepers, 6 dB."""
SMALLEST_SINE = 1e-4
_POSTFILTER_REACH = 0.15  # of all mel bands, on either side


def noise_table(samples: int = 1 << 16) -> FloatArray:
    """White noise (samples,) of power 1, always the same: what `torch.randn` draws with seed 0."""
    bits = np.random.RandomState(0).randint(0, 1 << 32, samples, dtype=np.uint32)
    uniform = (bits & np.uint32((1 << 24) - 1)).astype(np.float32) * np.float32(2.0**-24)
    first, second = uniform.reshape(-1, 2, 8).swapaxes(0, 1)
    radius = np.sqrt(np.float32(-2.0) * np.log(np.float32(1.0) - first))
    angle = np.float32(2.0 * np.pi) * second
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)


def interpolation(filters: FloatArray) -> FloatArray:
    """(M, K) weights that interpolate log levels of mel bands to bins."""
    centres = (filters * np.arange(filters.shape[1])).sum(1) / filters.sum(1)
    return _between(np.arange(filters.shape[1]), centres)


def _between(places: npt.NDArray[Any], centres: npt.NDArray[Any]) -> FloatArray:
    """(C, P) weights that interpolate values at C centres to P places."""
    weights = [np.interp(places, centres, one) for one in np.eye(len(centres))]
    return np.asarray(weights, dtype=np.float32)


def regions(filters: FloatArray) -> FloatArray:
    """(R, K) weights that interpolate values of R bands of equal width on the mel scale to bins."""
    bands_RM = _between(np.arange(len(filters)), np.linspace(0.0, len(filters) - 1.0, SHAPE_BANDS))
    return np.asarray(bands_RM @ interpolation(filters), dtype=np.float32)


def postfilter_matrix(bands: int, share: float) -> FloatArray:
    """(M, M) weights, M = bands, that sharpen the formants of log levels (M,): a band moves away from the mean of its
    neighbours by `share` of its distance. Noise is masked under formants and heard between them (Chen and Gersho 1995,
    "Adaptive postfiltering for quality enhancement of coded speech")."""
    reach = round(_POSTFILTER_REACH * bands)
    near = np.clip(np.arange(bands)[:, None] + np.arange(-reach, reach + 1), 0, bands - 1)  # the edges count repeatedly
    mean_MM = np.eye(bands)[:, near].mean(-1)
    return np.asarray((1.0 + share) * np.eye(bands) - share * mean_MM, dtype=np.float32)


def band_weights(filters: FloatArray, n_fft: int) -> FloatArray:
    """(K, M) weights from the magnitudes of noise of power 1 to the levels of mel bands, whose mean is 1."""
    return np.ascontiguousarray((filters / filters.sum(1, keepdims=True) / _noise_magnitude(n_fft)).T, dtype=np.float32)


def _noise_magnitude(n_fft: int) -> float:
    """Mean magnitude of white noise of power 1 in a bin."""
    return math.sqrt(math.pi / 4.0 * np.square(np.hanning(n_fft + 1)[:-1]).sum())


def emphasis(bins: int, preemphasis: float) -> npt.NDArray[np.float64]:
    """(K,) magnitude response of the pre-emphasis."""
    omega = np.pi * np.arange(bins) / (bins - 1)
    return np.asarray(np.abs(1.0 - preemphasis * np.exp(-1j * omega)))


def levels(filters: FloatArray, n_fft: int, preemphasis: float) -> FloatArray:
    """(K,) offsets in nepers from the mel's level to the gain at which the sum of two sources of power 1 has that level
    after pre-emphasis."""
    centres = (filters * np.arange(filters.shape[1])).sum(1) / filters.sum(1)
    area = np.interp(np.arange(filters.shape[1]), centres, np.log(filters.sum(1)))
    source = math.log(_noise_magnitude(n_fft))
    log_emphasis = np.log(emphasis(filters.shape[1], preemphasis))
    return np.asarray(-area - source - log_emphasis - 0.5 * math.log(2.0), dtype=np.float32)


# ------------------------------------------------------------------------------------------- The vocoder


class Features(TypedDict):
    """What a vocoder must know of the features, beside their filters."""

    sample_rate: int
    hop_length: int
    floor_db: float
    reference_db: float
    preemphasis: float


def features_of(audio: MelFacts) -> Features:
    """Those of `audio`."""
    return {
        "sample_rate": audio.sample_rate,
        "hop_length": audio.hop_length,
        "floor_db": audio.min_level_db,
        "reference_db": audio.offset_db,
        "preemphasis": audio.preemphasis,
    }


def receptive_field(layers: int, n_fft: int, hop_length: int, corrects: bool) -> int:
    """Frames on either side that a frame of the waveform depends on: by convolutions over 7 frames, of the mel and in
    each layer, and a Fourier transform, two where the waveform is corrected to the mel."""
    return 3 * (1 + layers) + -(-n_fft // hop_length) * (2 if corrects else 1)


class ArrayVocoder:
    """`phonate.nn.vocoder.Vocoder` of one mel (T, M), from 0 to 1, with the weights of a checkpoint.

    Args as for `Vocoder`. Raises KeyError where a weight is missing.
    """

    def __init__(
        self,
        weights: Weights,
        filters: FloatArray,
        *,
        sample_rate: int,
        hop_length: int,
        floor_db: float,
        reference_db: float,
        preemphasis: float,
        lookahead: int | None = None,
        postfilter: float = 0.0,
    ) -> None:
        self.sample_rate, self.hop_length, self.lookahead = sample_rate, hop_length, lookahead
        bands, bins = filters.shape
        self.n_fft = 2 * (bins - 1)
        self.fourier = ShortTimeFourier(self.n_fft, hop_length)
        self._level_scale = np.float32(-floor_db * NEPERS), np.float32((floor_db + reference_db) * NEPERS)
        self._postfilter_MM = postfilter_matrix(bands, postfilter)
        self._interpolation_MK = interpolation(filters)
        self._spread_MK = self._postfilter_MM @ self._interpolation_MK
        self._filters_KM = np.ascontiguousarray((filters * emphasis(bins, preemphasis)).T, dtype=np.float32)
        self._regions_RK, self._bands_KM = regions(filters), band_weights(filters, self.n_fft)
        self._level_K = levels(filters, self.n_fft, preemphasis)
        self._noise = noise_table()
        causal = lookahead is not None
        self._embedding = Convolution(part(weights, "embedding"), lookahead)
        self._pitch_network = ConvNeXt(part(weights, "pitch_network"), causal)
        self._pitch_head = Linear(part(weights, "pitch_head"))
        self._pitch_embedding = Linear(part(weights, "pitch_embedding"))
        self._network = ConvNeXt(part(weights, "network"), causal)
        self._head, self._shape_head = Linear(part(weights, "head")), Linear(part(weights, "shape_head"))

    @classmethod
    def of(cls, audio: MelFacts, weights: Weights, lookahead: int | None, postfilter: float) -> ArrayVocoder:
        """A vocoder for the features of `audio`. Raises KeyError where a weight is missing."""
        return cls(weights, audio.filters(), **features_of(audio), lookahead=lookahead, postfilter=postfilter)

    @property
    def context(self) -> int:
        """Frames on either side that a frame of the waveform depends on."""
        return receptive_field(len(self._network.blocks), self.n_fft, self.hop_length, self.lookahead is None)

    def predicted_f0(self, mel_TM: FloatArray) -> FloatArray:
        """F0 (T,) in Hz, 0 where unvoiced, predicted from the mel."""
        pitch_T2 = self._pitch_head(self._pitch_network(self._embedded(mel_TM)))
        f0_T = np.clip(np.float32(200.0) * np.exp(pitch_T2[:, 0]), LOWEST_F0, HIGHEST_F0)
        return np.where(pitch_T2[:, 1] > 0, f0_T, np.float32(0.0))

    def source(self, f0_T: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Pulses and noise, each (N,) with power 1."""
        pulses_N = pulses(f0_T, self.hop_length, self.sample_rate)
        return pulses_N, np.resize(self._noise, len(pulses_N))

    def filtered(self, mel_TM: FloatArray, f0_T: FloatArray, pulses_N: FloatArray, noise_N: FloatArray) -> FloatArray:
        """The waveform (N,): pulses and noise filtered according to the mel, and corrected to it, unless the vocoder
        was trained to run incrementally."""
        voiced_T = f0_T > 0
        log_f0_T = np.where(voiced_T, np.log(np.maximum(f0_T, 1.0) / np.float32(200.0)), np.float32(0.0))
        pitch_T2 = np.stack([log_f0_T, voiced_T.astype(np.float32)], axis=-1)
        hidden_TD = self._network(self._embedded(mel_TM) + self._pitch_embedding(pitch_T2))
        waveform_N = self.fourier.inverse(self._spectrum(hidden_TD, mel_TM, pulses_N, noise_N))
        return self._corrected(waveform_N, mel_TM) if self.lookahead is None else waveform_N

    def _embedded(self, mel_TM: FloatArray) -> FloatArray:
        return self._embedding(np.float32(2.0) * mel_TM - np.float32(1.0))

    def _nepers(self, mel_TM: FloatArray) -> FloatArray:
        scale, offset = self._level_scale
        return mel_TM * scale + offset

    def _spectrum(
        self, hidden_TD: FloatArray, mel_TM: FloatArray, pulses_N: FloatArray, noise_N: FloatArray
    ) -> ComplexArray:
        """(T, K): those of pulses and noise, filtered as the hidden frames say."""
        pulse_log_TK, phase_TK, noise_log_TK = np.split(self._head(hidden_TD), 3, axis=-1)
        estimate_TK = self._nepers(mel_TM) @ self._spread_MK
        estimate_TK += self._level_K
        noise_TK = self._shaped(self.fourier(noise_N), self._shape_head(hidden_TD))
        pulse_log_TK += estimate_TK
        noise_log_TK += estimate_TK
        levels_TM = np.log(np.maximum(np.abs(noise_TK) @ self._bands_KM, np.float32(LEAST_NOISE)))
        noise_log_TK -= levels_TM @ self._interpolation_MK
        gains_TK = [np.exp(np.minimum(one, np.float32(LOUDEST))) for one in (pulse_log_TK, noise_log_TK)]
        turns_TK = np.empty(phase_TK.shape, dtype=np.complex64)
        np.multiply(gains_TK[0], np.cos(phase_TK), out=turns_TK.real)
        np.multiply(gains_TK[0], np.sin(phase_TK), out=turns_TK.imag)
        noise_TK *= gains_TK[1]
        turns_TK *= self.fourier(pulses_N)
        turns_TK += noise_TK
        return turns_TK

    def _shaped(self, noise_TK: ComplexArray, shape_TS: FloatArray) -> ComplexArray:
        """Noise with an envelope within the window of each frame: sums of shifted bins (`Vocoder.shaped`)."""
        bins = noise_TK.shape[1]
        # in one product they would leave the processor's cache before they are used
        amplitudes = (shape_TR @ self._regions_RK for shape_TR in np.split(shape_TS, 2 * SHAPE_WAVES, axis=1))
        padded_TK = np.pad(noise_TK, ((0, 0), (SHAPE_WAVES, SHAPE_WAVES)))
        for periods in range(1, SHAPE_WAVES + 1):
            below_TK = padded_TK[:, SHAPE_WAVES - periods :][:, :bins]
            above_TK = padded_TK[:, SHAPE_WAVES + periods :][:, :bins]
            noise_TK += next(amplitudes) * (below_TK + above_TK)
            turned_TK = above_TK - below_TK
            turned_TK *= np.complex64(1j)
            turned_TK *= next(amplitudes)
            noise_TK += turned_TK
        return noise_TK

    def _corrected(self, waveform_N: FloatArray, mel_TM: FloatArray) -> FloatArray:
        """The waveform with the levels of its mel bands moved to those of the mel, by 6 dB at most."""
        spectrum_TK = self.fourier(waveform_N)
        heard_TM = np.abs(spectrum_TK) @ self._filters_KM
        missing_TM = self._nepers(mel_TM) @ self._postfilter_MM
        missing_TM -= np.log(np.maximum(heard_TM, np.float32(INAUDIBLE)))
        np.clip(missing_TM, -LARGEST_CORRECTION, LARGEST_CORRECTION, out=missing_TM)
        spectrum_TK *= np.exp(missing_TM @ self._interpolation_MK)
        return self.fourier.inverse(spectrum_TK)


def pulses(f0_T: FloatArray, hop_length: int, sample_rate: int) -> FloatArray:
    """`phonate.nn.vocoder.pulses` of one pitch contour (T,)."""
    voiced_T = f0_T > 0
    last_T = np.maximum.accumulate(np.where(voiced_T, np.arange(len(f0_T)), -1))
    filled_T = np.where(last_T >= 0, f0_T[np.maximum(last_T, 0)], np.float32(100.0))
    share_H = np.arange(hop_length, dtype=np.float32) / np.float32(hop_length)
    f0_N = (filled_T[:-1, None] + np.diff(filled_T)[:, None] * share_H).reshape(-1)
    cycles_N = np.cumsum(f0_N.astype(np.float64) / sample_rate)
    half_angle_N = np.float32(math.pi) * (cycles_N - np.floor(cycles_N)).astype(np.float32)
    harmonics_N = np.floor(
        (np.float32(1.0) / np.maximum(f0_N, np.float32(1.0))) * np.float32(0.5 * sample_rate)
    )  # as torch does
    below_N = np.sin(half_angle_N)
    near_N = np.abs(below_N) < np.float32(SMALLEST_SINE)
    orders_N = np.float32(2.0) * harmonics_N + np.float32(1.0)
    kernel_N = np.sin(orders_N * half_angle_N) / np.where(near_N, np.float32(1.0), below_N)
    kernel_N = np.where(near_N, orders_N, kernel_N) - np.float32(1.0)
    kernel_N /= np.sqrt(np.maximum(np.float32(2.0) * harmonics_N, np.float32(1.0)))
    half = hop_length // 2
    voiced_N = np.repeat(voiced_T, hop_length)[half : half + len(kernel_N)]
    return np.where(voiced_N, kernel_N, np.float32(0.0))
