"""The feature extractor: recording -> waveform -> mel, and mel -> waveform by Griffin-Lim.

torch.stft writes the whole complex spectrogram before anything is done with it. Here blocks of 128 frames go
from samples to mel while they are in the processor's cache, which takes half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from phonate.audio.decoding import PEAK as PEAK
from phonate.audio.decoding import FloatArray, read_audio
from phonate.audio.decoding import normalised_peak as normalised_peak
from phonate.audio.quality import LOUDNESS_SECONDS, loudness
from phonate.audio.settings import AudioConfig

# ------------------------------------------------- Short-time spectra under mel filters, fast on a CPU

_FRAMES_PER_BLOCK = 128


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
        self.n_fft, self.hop_length = n_fft, hop_length
        before = (n_fft - win_length) // 2
        window = torch.hann_window(win_length, dtype=torch.float64)
        self.window = torch.nn.functional.pad(window, (before, n_fft - win_length - before)).float()
        # Bins over fmax take part in no filter: their magnitudes are never computed.
        self.bins = int(np.flatnonzero(filters.any(axis=0)).max()) + 1
        self.filters_FM = torch.from_numpy(np.ascontiguousarray(filters[:, : self.bins].T))
        # For power, one product sums the squares of real and imaginary parts and the bins of a band.
        self.parts_FM = self.filters_FM.repeat_interleave(2, dim=0) if power == 2 else None

    def __call__(self, waveform: torch.Tensor) -> torch.Tensor:
        """Waveform (samples,) float32 -> (frames, n_mels), where frames = 1 + samples // hop_length."""
        return self.of_padded(torch.nn.functional.pad(waveform, (self.n_fft // 2, self.n_fft // 2)))

    @torch.no_grad()
    def of_padded(self, padded: torch.Tensor) -> torch.Tensor:
        """Samples (samples,), among them those before the first frame's centre and after the last's -> (T, n_mels)."""
        frames_TN = padded.unfold(0, self.n_fft, self.hop_length)
        count = frames_TN.shape[0]
        mel_TM = torch.empty(count, self.filters_FM.shape[1])
        for start in range(0, count, _FRAMES_PER_BLOCK):
            block = slice(start, start + _FRAMES_PER_BLOCK)
            spectrum_TF = torch.fft.rfft(frames_TN[block] * self.window)[:, : self.bins]
            # Not abs(): its guard against overflow takes longer than the transform.
            parts = torch.view_as_real(spectrum_TF).square_()
            if self.parts_FM is not None:
                torch.mm(parts.flatten(1), self.parts_FM, out=mel_TM[block])
            else:
                torch.mm((parts[..., 0] + parts[..., 1]).sqrt_(), self.filters_FM, out=mel_TM[block])
        return mel_TM


# ----------------------------------------- From mel magnitudes to a waveform without a trained vocoder

_MOMENTUM = 0.99
_SEED = 0
_UPDATES = 12  # leaves 0.05 dB on speech
_SMALL = 1e-10


@torch.no_grad()
def magnitudes_under(mel_TM: torch.Tensor, filters_MF: torch.Tensor) -> torch.Tensor:
    """Linear magnitudes (frames, bins) >= 0 whose mel is nearest to (frames, n_mels).

    Multiplicative updates for non-negative least squares (Lee and Seung 2000, with the filters fixed), from
    each band's level spread evenly over its bins.
    """
    target_TF = mel_TM @ filters_MF
    gram_FF = filters_MF.T @ filters_MF
    magnitudes_TF = target_TF / filters_MF.sum(dim=1).square().mean().clamp(min=_SMALL)
    for _ in range(_UPDATES):
        magnitudes_TF *= target_TF / (magnitudes_TF @ gram_FF).clamp(min=_SMALL)
    return magnitudes_TF


@torch.no_grad()
def griffin_lim(
    magnitudes_TF: torch.Tensor, n_fft: int, hop_length: int, win_length: int, iterations: int = 32
) -> torch.Tensor:
    """Magnitudes (frames, n_fft // 2 + 1) -> waveform ((frames - 1) * hop_length,).

    Fast Griffin-Lim (Perraudin, Balazs and Sondergaard 2013) with momentum 0.99. Deterministic.
    """
    window = torch.hann_window(win_length)
    magnitudes_FT = magnitudes_TF.T.contiguous()
    length = (magnitudes_FT.shape[1] - 1) * hop_length

    def to_waveform(spectrum_FT: torch.Tensor) -> torch.Tensor:
        return torch.istft(spectrum_FT, n_fft, hop_length, win_length, window, length=length)

    def to_spectrum(waveform: torch.Tensor) -> torch.Tensor:
        return torch.stft(waveform, n_fft, hop_length, win_length, window, pad_mode="constant", return_complex=True)

    generator = torch.Generator().manual_seed(_SEED)
    phase_FT = torch.rand(magnitudes_FT.shape, generator=generator) * (2 * torch.pi)
    spectrum_FT = torch.polar(magnitudes_FT, phase_FT)
    before_FT = torch.zeros_like(spectrum_FT)
    for _ in range(iterations):
        consistent_FT = to_spectrum(to_waveform(spectrum_FT))
        ahead_FT = consistent_FT + _MOMENTUM * (consistent_FT - before_FT)
        before_FT = consistent_FT
        spectrum_FT = ahead_FT * (magnitudes_FT / ahead_FT.abs().clamp(min=_SMALL))
    return to_waveform(spectrum_FT)


# ------------------------ The one feature extractor: recording -> waveform -> mel, and mel -> waveform

_BLOCK_FRAMES = 2048  # a multiple of the 128 that `MelSpectrum` works on, so that results are bit-identical


class AudioProcessor:
    """Converts recordings to normalised log-mel features and back.

    Features do not depend on how loud a recording is: its peak is brought to 1 after pre-emphasis, or with
    `data.loudness` the recording to that loudness.
    """

    def __init__(self, config: AudioConfig | None = None) -> None:
        self.config = config = config or AudioConfig()
        filters = self.filters = config.facts.filters()
        """(n_mels, n_fft // 2 + 1) mel filters."""
        self._spectrum = MelSpectrum(filters, config.n_fft, config.hop_length, config.win_length)
        self.offset_db = config.facts.offset_db
        """The level that is 1 in features, in dB over a magnitude of 1."""

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
        if not np.isfinite(samples).all():
            raise ValueError("the waveform holds NaN or infinite samples")
        emphasised = preemphasised(samples, self.config.preemphasis)
        if self.config.loudness is None:
            emphasised /= full_scale(lambda: [emphasised], self.config.sample_rate)[0]
        else:
            emphasised /= full_scale(lambda: [samples], self.config.sample_rate, self.config.loudness)[0]
        return self.normalise(self._spectrum(torch.from_numpy(emphasised)).numpy())

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
                yield self.normalise(self._spectrum.of_padded(torch.from_numpy(held[:whole])).numpy())
                held = held[_BLOCK_FRAMES * hop :]
        if len(held) >= n_fft:
            yield self.normalise(self._spectrum.of_padded(torch.from_numpy(held)).numpy())

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
        quietest = 10.0 ** ((floor_db + self.offset_db) / 20.0)
        decibels = 20.0 * np.log10(np.maximum(magnitudes, quietest, dtype=np.float32)) - self.offset_db
        return np.asarray(np.clip((decibels - floor_db) / -floor_db, 0.0, 1.0), dtype=np.float32)

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
        magnitudes_TF = magnitudes_under(torch.from_numpy(self.denormalise(features)), torch.from_numpy(self.filters))
        emphasised = griffin_lim(
            magnitudes_TF, self.config.n_fft, self.config.hop_length, self.config.win_length, iterations
        )
        return deemphasised(emphasised.numpy(), self.config.preemphasis)


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
        held = torch.from_numpy(self._held)
        # One by one: a transform of several frames at once rounds weak bands otherwise.
        frames = [self._spectrum.of_padded(held[start : start + n_fft]) for start in range(0, count * hop, hop)]
        self._held = self._held[count * hop :]
        return self._processor.normalise(torch.cat(frames).numpy())


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


def preemphasised(waveform: FloatArray, coefficient: float) -> FloatArray:
    """Of a waveform x (samples,): y[t] = x[t] - coefficient * x[t - 1], (samples,), with x[-1] = 0."""
    emphasised = np.empty_like(waveform)
    emphasised[:1] = waveform[:1]
    np.multiply(waveform[:-1], np.float32(-coefficient), out=emphasised[1:])
    emphasised[1:] += waveform[1:]
    return emphasised


def deemphasised(waveform: FloatArray, coefficient: float) -> FloatArray:
    """The inverse of `preemphasised`, (samples,)."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -coefficient], waveform), dtype=np.float32)
