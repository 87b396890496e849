"""The network SwiftF0 (Nieradzik 2025, MIT), which finds F0 in three log spectrograms.

Weights and licence are in one file, from scripts/make_f0_network.py.

Shapes: T frames, B bands, P pitches, C channels, N samples.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import FloatArray
from phonate.audio.fourier import rfft
from phonate.audio.settings import HIGHEST_F0

CONTEXT = 7
"""Frames on either side that a frame's pitch depends on."""
PEAK = 0.9
"""Where the waveform should peak: of quiet ones the network hears less."""
FIRST_HZ, BANDS, _PITCHES = 46.875, 128, 95
STEP = float((2093.75 / FIRST_HZ) ** (1 / (_PITCHES - 1)))
"""From one band, and one pitch, to the next."""
LOG_HZ = np.log(FIRST_HZ) + np.log(STEP) * np.arange(_PITCHES)
LOG_HZ = LOG_HZ[np.log(HIGHEST_F0["swift"]) > LOG_HZ]
_FILE = Path(__file__).with_name("swift_f0.safetensors")
_WINDOWS = (0.064, 0.128, 0.032)
"""Seconds, of the three spectrograms."""
_TRAINED_RATE = 16000
_DILATION = (1, 1, 1, 17, 17, 27, 27, 40, 40, 48, 48, 2, 2, 1, 1)
"""Of the filters of each layer, along the bands: distances of harmonics."""


class Spectrograms:
    """What the network reads of frames of a waveform at its own rate, `hop` apart. It was trained on 16 kHz and frames
    of 16 ms; its spectra are the same at other rates, and from frames that are closer it is no less exact."""

    def __init__(self, sample_rate: int, hop_length: int) -> None:
        self.rate, self.hop = sample_rate, hop_length
        self.sizes = [2 * round(seconds * sample_rate / 2) for seconds in _WINDOWS]
        self.half = max(self.sizes) // 2
        """Samples before and after a frame's centre that its spectra are of."""

    def spectra(self, padded: FloatArray, count: int) -> FloatArray:
        """(3, B, T) log magnitudes of `count` frames of samples that begin `half` before the first frame's centre."""
        out_3BT = np.empty((len(self.sizes), BANDS, count), dtype=np.float32)
        for log_BT, size in zip(out_3BT, self.sizes, strict=True):
            frames_TN = np.lib.stride_tricks.sliding_window_view(padded[self.half - size // 2 :], size)
            windowed_TN = frames_TN[:: self.hop][:count] * _window(size, self.rate)
            magnitude_TF = np.abs(rfft(windowed_TN))
            np.log((magnitude_TF @ _filters(size, self.rate)).T + np.float32(1e-8), out=log_BT)
        return out_3BT

    def loudness(self, padded: FloatArray, count: int) -> FloatArray:
        """(T,) root mean square of the shortest window of each frame."""
        size = min(self.sizes)
        energy = np.cumsum(np.square(padded[self.half - size // 2 :], dtype=np.float64))
        energy = np.concatenate([[0.0], energy])
        starts = np.arange(count) * self.hop
        squares = np.maximum(energy[starts + size] - energy[starts], 0.0)
        return np.asarray(np.sqrt(squares / size), dtype=np.float32)


def network(spectra_3BT: FloatArray, begins: bool, ends: bool) -> tuple[FloatArray, FloatArray]:
    """Logits of pitches (P, T') and of voicing (T',) of log spectra (3, B, T). Where the recording neither `begins`
    nor `ends`, the first and the last seven frames are context, and have no pitch of their own."""
    around = (int(begins), int(ends))

    def inner(values: FloatArray, frames: int) -> FloatArray:
        return values[..., 0 if begins else frames : values.shape[-1] - (0 if ends else frames)]

    hidden = _rectified(_convolved(spectra_3BT, 0, around))
    for layer in range(1, 13, 2):
        out = _convolved(_rectified(_convolved(hidden, layer, around)), layer + 1, around)
        out += inner(hidden, 2 if layer in (1, 11) else 0)
        hidden = _rectified(out)
    hidden = _rectified(_convolved(np.ascontiguousarray(hidden[:, : _PITCHES + 1]), 13, around))
    weight, bias = _layers()[15]
    logits_PT = np.tensordot(weight[0, :, 0, 0], hidden, 1) + bias
    facts_CT = np.concatenate([_convolved(hidden, 14, around).max(axis=1), inner(spectra_3BT.mean((0, 1))[None], 6)])
    weight, bias = _layers()[16]
    facts_CT = np.pad(facts_CT, ((0, 0), around))
    count = facts_CT.shape[1] - 2
    facts_CT = np.stack([weight[:, :, tap] @ facts_CT[:, tap : tap + count] for tap in range(3)]).sum(0) + bias[:, None]
    weight, bias = _layers()[17]
    voicing_T = weight[0, :, 0] @ _rectified(facts_CT) + bias
    return inner(logits_PT, 1)[: len(LOG_HZ)], voicing_T


def hertz(logits_PT: FloatArray, best_T: npt.NDArray[np.intp]) -> FloatArray:
    """(T,) Hz, between pitch number `best_T` and its neighbours."""
    around_3T = np.clip(best_T + np.array([[-1], [0], [1]]), 0, len(logits_PT) - 1)
    share_3T = np.take_along_axis(logits_PT, around_3T, axis=0)
    share_3T = np.exp(share_3T - share_3T.max(axis=0))
    hertz_T = np.exp((share_3T * LOG_HZ[around_3T]).sum(axis=0) / share_3T.sum(axis=0))
    return np.asarray(hertz_T, dtype=np.float32)


def _convolved(values_CBT: FloatArray, layer: int, around: tuple[int, int]) -> FloatArray:
    """The convolution of a layer. Along the bands there are zeros beyond both ends, in time so many as `around` says.

    All taps are one matrix product, whose parts are shifted and summed: faster than copies of shifted values.
    """
    weight, bias = _layers()[layer]
    taps, bands, dilation = weight.shape[2], values_CBT.shape[1], _DILATION[layer]
    below = 1 if layer == 13 else dilation * (taps // 2)
    out_bands = _PITCHES if layer == 13 else bands
    if weight.shape[3] == 3:  # filters are symmetric in time
        values_CBT = np.pad(values_CBT, ((0, 0), (0, 0), around))
        values_CBT = np.concatenate([values_CBT[..., :-2] + values_CBT[..., 2:], values_CBT[..., 1:-1]])
    frames = values_CBT.shape[2]
    parts = (_stacked(layer) @ values_CBT.reshape(len(values_CBT), -1)).reshape(taps, len(bias), bands, frames)
    out_CBT = np.empty((len(bias), out_bands, frames), dtype=np.float32)
    out_CBT[:] = bias[:, None, None]
    for tap, part_CBT in enumerate(parts):
        shift = tap * dilation - below
        first, last = max(0, -shift), min(out_bands, bands - shift)
        out_CBT[:, first:last] += part_CBT[:, first + shift : last + shift]
    return out_CBT


def _rectified(values: FloatArray) -> FloatArray:
    np.maximum(values, 0.0, out=values)
    return values


@cache
def _layers() -> list[tuple[FloatArray, FloatArray]]:
    """Weight and bias of each layer."""
    from safetensors.numpy import load_file

    tensors = load_file(_FILE)
    return [(tensors[f"{layer:02d}.weight"], tensors[f"{layer:02d}.bias"]) for layer in range(len(tensors) // 2)]


@cache
def _stacked(layer: int) -> FloatArray:
    """The filters of a layer (taps * C out, C in), those for the sum of the frames before and after first."""
    weight = _layers()[layer][0]
    weight = weight[..., :2] if weight.shape[3] == 3 else weight
    return np.ascontiguousarray(weight.transpose(2, 0, 3, 1).reshape(weight.shape[2] * len(weight), -1))


@cache
def _window(size: int, rate: int) -> FloatArray:
    """Hann's window, as strong as of as many seconds at the rate of training."""
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(size) / size)
    return (window * (_TRAINED_RATE / rate)).astype(np.float32)


@cache
def _filters(size: int, rate: int) -> FloatArray:
    """(bins, B) triangles between the bands' neighbours, with the sum 1; of bands without a bin, the nearest one."""
    hertz = np.arange(size // 2 + 1) * (rate / size)
    edges = FIRST_HZ * STEP ** np.arange(-1, BANDS + 1)
    filters = np.zeros((len(hertz), BANDS))
    for band, (low, middle, high) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        filters[:, band] = np.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle)).clip(0.0)
        if not filters[:, band].any() and middle <= rate / 2:
            filters[np.abs(hertz - middle).argmin(), band] = 1.0
    return np.asarray(filters / np.maximum(filters.sum(axis=0), 1e-9), dtype=np.float32)
