"""The feature extractor: recording -> waveform -> mel, and mel -> waveform by Griffin-Lim.

Libraries write the whole complex spectrogram before anything is done with it. Here blocks of 128 frames go from samples
to mel while they are in the processor's cache. No torch, which takes longer to import than minutes of sound to prepare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from phonate.audio.decoding import PEAK as PEAK
from phonate.audio.decoding import FloatArray, read_audio
from phonate.audio.decoding import normalised_peak as normalised_peak
from phonate.audio.fourier import rfft, small_buffers
from phonate.audio.mel_filters import MelFacts
from phonate.audio.quality import LOUDNESS_SECONDS, hann, loudness
from phonate.audio.settings import AudioConfig

# ------------------------------------------------- Short-time spectra under mel filters, fast on a CPU

_FRAMES_PER_BLOCK = 128
_FILTER_SIZE = 2048
"""Of the part of the filters in one product: one with a block of frames is too small for OpenBLAS to start threads."""


class MelSpectrum:
    """Mel spectrogram of a waveform; frames are centred, beyond both ends there is silence."""

    def __init__(
        self,
        filters: npt.NDArray[np.float32],
        n_fft: int,
        hop_length: int,
        win_length: int,
        power: Literal[1, 2] = 1,
    ) -> None:
        """`filters` is (n_mels, n_fft // 2 + 1), as from `mel_filters`; `power` 1 sums magnitudes, 2 their squares."""
        self.n_fft, self.hop_length, self._power = n_fft, hop_length, power
        before = (n_fft - win_length) // 2
        self.window = np.pad(hann(win_length), (before, n_fft - win_length - before))
        self._mels = len(filters)
        # For power, one product sums the squares of real and imaginary parts and the bins of a band.
        filters_FM = np.repeat(filters.T, power, axis=0)
        self._parts = _filter_parts(filters_FM)
        # Bins over fmax take part in no filter: their magnitudes are never computed.
        self._bins = max(bins.stop for _, bins, _ in self._parts) // power

    def __call__(self, waveform: FloatArray) -> FloatArray:
        """Waveform (samples,) float32 -> (frames, n_mels), where frames = 1 + samples // hop_length."""
        return self.of_padded(np.pad(waveform, self.n_fft // 2))

    def of_padded(self, padded: FloatArray) -> FloatArray:
        """Samples (samples,), among them those before the first frame's centre and after the last's -> (T, n_mels)."""
        # as sliding_window_view gives them, which for a short clip takes as long as its transform
        count, size = (len(padded) - self.n_fft) // self.hop_length + 1, padded.itemsize
        frames_TN = np.ndarray((count, self.n_fft), padded.dtype, padded, strides=(self.hop_length * size, size))
        mel_TM = np.empty((len(frames_TN), self._mels), dtype=np.float32)
        windowed_BN = np.empty((min(len(frames_TN), _FRAMES_PER_BLOCK), self.n_fft), dtype=np.float32)
        with small_buffers():
            for start in range(0, len(frames_TN), _FRAMES_PER_BLOCK):
                block_BN = frames_TN[start : start + _FRAMES_PER_BLOCK]
                part_BN = np.multiply(block_BN, self.window, out=windowed_BN[: len(block_BN)])
                spectrum_BF = rfft(part_BN)[:, : self._bins]
                summed_BF = np.abs(spectrum_BF) if self._power == 1 else np.square(spectrum_BF.view(np.float32))
                for mels, bins, filters_FM in self._parts:
                    np.matmul(summed_BF[:, bins], filters_FM, out=mel_TM[start : start + len(block_BN), mels])
        return mel_TM


def _filter_parts(filters_FM: FloatArray) -> list[tuple[slice, slice, FloatArray]]:
    """The filters in parts of neighbours (bins, mels), behind the numbers of their mels and bins. A filter sums few
    bins: the product of all bins and all filters takes three times as long as those of the parts."""
    parts, first = [], 0
    for end in range(1, filters_FM.shape[1] + 1):
        wider = _summed_bins(filters_FM[:, first : end + 1])
        if end < filters_FM.shape[1] and (wider.stop - wider.start) * (end + 1 - first) <= _FILTER_SIZE:
            continue
        bins = _summed_bins(filters_FM[:, first:end])
        parts.append((slice(first, end), bins, np.ascontiguousarray(filters_FM[bins, first:end])))
        first = end
    return parts


def _summed_bins(filters_FM: FloatArray) -> slice:
    summed = np.flatnonzero(filters_FM.any(axis=1))
    return slice(int(summed[0]), int(summed[-1]) + 1) if len(summed) else slice(0, 0)


# ------------------------ The one feature extractor: recording -> waveform -> mel, and mel -> waveform

_BLOCK_FRAMES = 2048  # a multiple of the 128 that `MelSpectrum` works on, so that results are bit-identical


class AudioProcessor:
    """Converts recordings to normalised log-mel features and back.

    Features do not depend on how loud a recording is: its peak is brought to 1 after pre-emphasis, or with
    `data.loudness` the recording to that loudness.
    """

    def __init__(self, config: AudioConfig | None = None) -> None:
        self.config = config or AudioConfig()
        self.offset_db = self.config.facts.offset_db
        """The level that is 1 in features, in dB over a magnitude of 1."""

    @cached_property
    def filters(self) -> FloatArray:
        """(n_mels, n_fft // 2 + 1) mel filters."""
        return self.config.facts.filters()

    @cached_property
    def _spectrum(self) -> MelSpectrum:
        return _spectrum_of(self.config.facts)

    @property
    def fingerprint(self) -> str:
        """See `MelFacts.fingerprint`."""
        return self.config.facts.fingerprint

    @property
    def scale_fingerprint(self) -> str:
        """See `MelFacts.scale_fingerprint`."""
        return self.config.facts.scale_fingerprint

    def load(self, path: str | Path, offset: float = 0.0, duration: float | None = None) -> FloatArray:
        """The recording as mono (samples,) float32 at the configured rate, its peak brought to 1, or with
        `data.loudness` the recording to that.

        `offset` and `duration` are in seconds. Raises DataError as `read_audio` does.
        """
        waveform, rate = read_audio(path, self.config.sample_rate, offset, duration)
        return waveform / full_scale(lambda: [waveform], rate, self.config.loudness)[0]

    def frames(self, samples: int) -> int:
        """Number of frames that `mel` returns for this many samples."""
        return 1 + samples // self.config.hop_length

    def mel(self, waveform: npt.ArrayLike) -> FloatArray:
        """Waveform (samples,) -> features (frames, n_mels) float32 from 0 to 1, frames = 1 + samples // hop.

        Pre-emphasis, peak to 1, magnitude mel, then (dB - min_level_db) / -min_level_db clipped to 0..1;
        dB is 20 log10(max(1e-5, mel)) at the default levels.
        """
        samples = np.asarray(waveform, dtype=np.float32)
        if samples.ndim != 1 or samples.size == 0:
            raise ValueError(f"a waveform must be one-dimensional (mono) and not empty, got shape {samples.shape}")
        around = self.config.n_fft // 2
        padded = np.empty(len(samples) + 2 * around, dtype=np.float32)
        padded[:around] = padded[len(padded) - around :] = 0.0
        emphasised = preemphasised(samples, self.config.preemphasis, padded[around : around + len(samples)])
        if not math.isfinite(peak := _peak(emphasised)):
            raise ValueError("the waveform holds NaN or infinite samples")
        full = np.float32(peak or 1.0)
        if self.config.loudness is not None:
            full, _ = full_scale(lambda: [samples], self.config.sample_rate, self.config.loudness)
        emphasised /= full
        return self.normalise(self._spectrum.of_padded(padded))

    def mel_blocks(self, read: Callable[[], Iterable[FloatArray]]) -> Iterator[FloatArray]:
        """The features that `mel` returns, bit for bit, for a recording too long to hold in memory.

        `read()` iterates over its waveform in blocks (samples,), and is called several times; the features come in
        blocks (frames, n_mels).
        """
        full = self.full_scale(read)
        hop, n_fft = self.config.hop_length, self.config.n_fft
        whole = (_BLOCK_FRAMES - 1) * hop + n_fft
        held = np.zeros(n_fft // 2, dtype=np.float32)
        silence = np.zeros(n_fft // 2, dtype=np.float32)
        for block in chain(self._emphasised(read()), [silence]):
            held = np.concatenate([held, block / full])
            while len(held) >= whole:
                yield self.normalise(self._spectrum.of_padded(held[:whole]))
                held = held[_BLOCK_FRAMES * hop :]
        if len(held) >= n_fft:
            yield self.normalise(self._spectrum.of_padded(held))

    def full_scale(self, read: Callable[[], Iterable[FloatArray]]) -> np.float32:
        """What `mel` divides a waveform by. `read()` iterates over it in blocks (samples,), and may be called twice."""
        if self.config.loudness is None:
            return full_scale(lambda: self._emphasised(read()), self.config.sample_rate)[0]
        return full_scale(read, self.config.sample_rate, self.config.loudness)[0]

    def mel_stream(self) -> MelStream:
        """`mel` of a waveform that comes in blocks, at the level that it has: its peak is not known yet."""
        return MelStream(self, self._spectrum)

    def _emphasised(self, blocks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        last = np.zeros(0, dtype=np.float32)
        for block in blocks:
            yield preemphasised(np.concatenate([last, block]), self.config.preemphasis)[len(last) :]
            last = block[-1:]

    def normalise(self, magnitudes: npt.NDArray[np.float32]) -> FloatArray:
        """Mel magnitudes -> 0..1 on the decibel scale, of the same shape."""
        floor_db = self.config.min_level_db
        quietest = np.float32(10.0 ** ((floor_db + self.offset_db) / 20.0))
        # np.clip, also of one end: in numpy 2.4 np.maximum takes four times as long
        values = np.clip(magnitudes, quietest, np.inf, dtype=np.float32)
        np.log10(values, out=values)
        values -= np.log10(quietest)
        values *= -20.0 / floor_db
        return np.asarray(np.clip(values, 0.0, 1.0, out=values))

    def denormalise(self, mel: npt.ArrayLike) -> FloatArray:
        """Features from 0 to 1 -> mel magnitudes, of the same shape; 0, the floor, becomes silence."""
        features = np.clip(np.asarray(mel, dtype=np.float32), 0.0, 1.0)
        floor_db = self.config.min_level_db
        magnitudes = 10.0 ** ((features * -floor_db + floor_db + self.offset_db) / 20.0)
        return np.asarray(np.where(features > 0.0, magnitudes, 0.0), dtype=np.float32)

    def waveform(self, mel: npt.ArrayLike, iterations: int = 32) -> FloatArray:
        """Features (frames, n_mels) -> waveform ((frames - 1) * hop,), peak 0.95, by Griffin-Lim.

        The same features give the same samples: the first phases come from a fixed seed.
        """
        return PEAK * normalised_peak(self.render(mel, iterations))

    def render(self, mel: npt.ArrayLike, iterations: int = 32) -> FloatArray:
        """As `waveform`, ((frames - 1) * hop,), but at the level of the features, so that pieces of one recording
        can be joined."""
        features = np.asarray(mel, dtype=np.float32)
        if features.ndim != 2 or features.shape[1] != self.config.n_mels or len(features) < 2:
            raise ValueError(
                f"features are (frames, {self.config.n_mels}) with at least 2 frames, got {features.shape}"
            )
        from phonate.audio.griffin_lim import griffin_lim, magnitudes_under  # torch

        magnitudes_TF = magnitudes_under(self.denormalise(features), self.filters)
        emphasised = griffin_lim(
            magnitudes_TF, self.config.n_fft, self.config.hop_length, self.config.win_length, iterations
        )
        return deemphasised(emphasised, self.config.preemphasis)


@lru_cache(maxsize=4)
def _spectrum_of(facts: MelFacts) -> MelSpectrum:
    return MelSpectrum(facts.filters(), facts.n_fft, facts.hop_length, facts.win_length)


class MelStream:
    """The features of a waveform that comes in blocks."""

    def __init__(self, processor: AudioProcessor, spectrum: MelSpectrum) -> None:
        self._processor, self._spectrum = processor, spectrum
        self._last = np.zeros(0, dtype=np.float32)
        self._held = np.zeros(spectrum.n_fft // 2, dtype=np.float32)

    def push(self, samples: FloatArray) -> FloatArray:
        """The features (frames, n_mels), maybe of no frame, that the next samples (n,) complete."""
        emphasised = preemphasised(np.concatenate([self._last, samples]), self._processor.config.preemphasis)
        self._held = np.concatenate([self._held, emphasised[len(self._last) :]])
        self._last = samples[-1:] if len(samples) else self._last
        return self._ready()

    def finish(self) -> FloatArray:
        """The features of the last frames, behind which there is silence."""
        self._held = np.concatenate([self._held, np.zeros(self._spectrum.n_fft // 2, dtype=np.float32)])
        return self._ready()

    def _ready(self) -> FloatArray:
        hop, n_fft = self._spectrum.hop_length, self._spectrum.n_fft
        count = max(0, (len(self._held) - n_fft) // hop + 1)
        if count == 0:
            return np.zeros((0, self._processor.config.n_mels), dtype=np.float32)
        held = self._held
        # One by one: a transform of several frames at once rounds weak bands otherwise.
        frames = [self._spectrum.of_padded(held[start : start + n_fft]) for start in range(0, count * hop, hop)]
        self._held = self._held[count * hop :]
        return self._processor.normalise(np.concatenate(frames))


def full_scale(
    read: Callable[[], Iterable[FloatArray]], sample_rate: int, target: float | None = None
) -> tuple[np.float32, str]:
    """What to divide the samples of a recording by, so that its peak is 1, or its loudness `target` LUFS; and in words
    why it has another loudness all the same, "" where it has not.

    `read()` iterates over its waveform in blocks (samples,), and may be called twice.
    """
    peak = max((_peak(block) for block in read()), default=0.0)
    if target is None:
        return np.float32(peak if peak > 0.0 else 1.0), ""
    level = loudness(read(), sample_rate)
    if level is None:
        return np.float32(1.0), f"it is silent or shorter than {LOUDNESS_SECONDS:g} s, and keeps its level"
    scale = 10.0 ** ((level - target) / 20.0)
    if scale >= peak:
        return np.float32(scale), ""
    reached = level - 20.0 * np.log10(peak)
    return np.float32(peak), f"at full scale it has {reached:.1f} LUFS, and no more"


def _peak(block: FloatArray) -> float:
    # max and min allocate nothing
    return max(float(block.max(initial=0.0)), -float(block.min(initial=0.0)))


def preemphasised(waveform: FloatArray, coefficient: float, out: FloatArray | None = None) -> FloatArray:
    """Of a waveform x (samples,): y[t] = x[t] - coefficient * x[t - 1], (samples,), with x[-1] = 0; in `out`, which is
    other memory, where it is given."""
    emphasised = np.empty_like(waveform) if out is None else out
    emphasised[:1] = waveform[:1]
    np.multiply(waveform[:-1], np.float32(-coefficient), out=emphasised[1:])
    emphasised[1:] += waveform[1:]
    return emphasised


def deemphasised(waveform: FloatArray, coefficient: float) -> FloatArray:
    """The inverse of `preemphasised`, (samples,)."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -coefficient], waveform), dtype=np.float32)
