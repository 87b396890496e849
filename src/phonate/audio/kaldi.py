"""Kaldi's filter banks, cepstra and spectrograms, fast on a CPU, for whole recordings, parts and blocks.

For each frame: subtract the mean, pre-emphasise, apply the window, compute the FFT, sum the power in mel bands, take
the logarithm (https://kaldi-asr.org/doc/feat.html). Frames are processed in blocks of 128, which fit the CPU cache.

Shapes: N samples, T frames, L samples per frame, F frequencies, M mel bands, W values per frame.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from phonate.audio.decoding import FloatArray
from phonate.audio.settings import KaldiSettings, WindowType
from phonate.config.randomness import derived_seed, generator

BLOCK_FRAMES = 128
"""Frames computed together. Features are bitwise equal however a recording is cut at multiples of it."""
_VERSION = 1  # increment when a change alters the features, so that cached ones are recomputed
_NOT_FEATURES = {"min_seconds", "max_seconds", "whisper_model", "whisper_with_fbank", "whisper_with_voices"}
_QUIETEST = float(np.finfo(np.float32).eps)
"""Lower bound of the energy of a band or a frame, as in Kaldi."""
_NOISE_SAMPLES = 1 << 14
_MOST_SAMPLES = 1 << 20


class KaldiFeatures:
    """Computes the features described by `settings` of recordings at `settings.sampling_rate`."""

    def __init__(self, settings: KaldiSettings, seed: int = 0) -> None:
        """`seed`: that of the dither. Raises ValueError for features that are not Kaldi's."""
        if settings.feature_type == "whisper":
            raise ValueError("feature_type whisper is computed by phonate.data.features, not by KaldiFeatures")
        self.settings = settings
        self._seed = seed
        length = settings.window_length
        self._window_L = torch.from_numpy(window(settings.window_type, length))
        if settings.feature_type not in ("samples", "spectrogram"):
            self._set_filters()

    def _set_filters(self) -> None:
        settings = self.settings
        filters_MF = mel_filters(settings)
        used = np.flatnonzero(filters_MF.any(axis=0))
        self._bins = slice(int(used.min()), int(used.max()) + 1)
        self._filters_FM = torch.from_numpy(np.ascontiguousarray(filters_MF[:, self._bins].T))
        if settings.feature_type == "mfcc":
            self._cosines_MW = torch.from_numpy(cosines(settings))

    @property
    def fingerprint(self) -> str:
        """A hash (16 hex digits) of everything that affects the features."""
        facts = {"kaldi": _VERSION, **self.settings.model_dump(mode="json", exclude=_NOT_FEATURES)}
        return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()

    def of_recording(self, id: str) -> KaldiFeatures:
        """These features with the dither of the recording with this id."""
        if not self.settings.dither:
            return self
        mine = copy.copy(self)
        mine._seed = derived_seed("dither", id)
        return mine

    def frames(self, samples: int) -> int:
        """Number of frames of a waveform of `samples` samples."""
        hop, length = self.settings.hop_length, self.settings.window_length
        if self.settings.snip_edges:
            return 0 if samples < length else 1 + (samples - length) // hop
        return (samples + hop // 2) // hop

    def __call__(self, waveform_N: npt.ArrayLike) -> FloatArray:
        """Features (T, W) of a waveform (N,), T = frames(N)."""
        waveform = np.asarray(waveform_N, dtype=np.float32)
        if waveform.ndim != 1:
            raise ValueError(f"a waveform must be one-dimensional (mono), got shape {waveform.shape}")
        return self.part(lambda start, stop: waveform[start:stop], len(waveform), 0, self.frames(len(waveform)))

    def part(self, read: Callable[[int, int], FloatArray], samples: int, first: int, last: int) -> FloatArray:
        """Features (T, W) of frames `first` to `last` (exclusive) of a recording, bitwise equal to those of the whole.

        Args:
            read: `read(start, stop)` returns the samples (N,) from `start` to `stop` (exclusive).
            samples: Length of the recording.
        """
        settings = self.settings
        last = min(last, self.frames(samples))
        if first >= last:
            return np.zeros((0, settings.width), dtype=np.float32)
        begin = first // BLOCK_FRAMES * BLOCK_FRAMES
        end = min(-(-last // BLOCK_FRAMES) * BLOCK_FRAMES, self.frames(samples))
        start = begin * settings.hop_length - self.before
        stop = (end - 1) * settings.hop_length - self.before + settings.window_length
        # One more window on the left, as the mirrored right end needs its samples.
        low, high = max(0, start - settings.window_length), min(samples, stop)
        read_N = self.dithered(np.asarray(read(low, high), dtype=np.float32), low)
        padded_N = np.pad(read_N, (max(0, -start), max(0, stop - samples)), mode="symmetric")
        features_TW = self.of_frames(torch.from_numpy(padded_N[max(0, start - low) :])).numpy()
        return features_TW[first - begin : last - begin]

    @property
    def before(self) -> int:
        """Number of samples of the first frame that precede the recording."""
        settings = self.settings
        return 0 if settings.snip_edges else settings.window_length // 2 - settings.hop_length // 2

    def blocks(self, waveform: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """Features in blocks (T, W) of a waveform in blocks (N,), bitwise equal to those of the whole."""
        stream = FeatureStream(self, BLOCK_FRAMES)
        for block in waveform:
            for start in range(0, len(block), _MOST_SAMPLES):
                features_TW = stream.push(block[start : start + _MOST_SAMPLES])
                if len(features_TW):
                    yield features_TW
        features_TW = stream.end()
        if len(features_TW):
            yield features_TW

    @torch.no_grad()
    def of_frames(self, samples_N: torch.Tensor) -> torch.Tensor:
        """Features (T, W) of samples (N,) that start with the first frame and end with the last one."""
        length, hop = self.settings.window_length, self.settings.hop_length
        if self.settings.feature_type == "samples":
            return samples_N.unfold(0, length, hop).contiguous()
        frames = (len(samples_N) - length) // hop + 1
        out_TW = torch.empty(frames, self.settings.width)
        for start in range(0, frames, BLOCK_FRAMES):
            end = min(start + BLOCK_FRAMES, frames)
            # Double precision up to the power: float rounding errors of loud bands would be visible in quiet ones.
            samples = samples_N[start * hop : (end - 1) * hop + length].double()
            out_TW[start:end] = self._block(samples.unfold(0, length, hop))
        return out_TW

    def _block(self, frames_TL: torch.Tensor) -> torch.Tensor:
        settings, length = self.settings, self.settings.window_length
        padded_TN = torch.zeros(len(frames_TL), settings.n_fft, dtype=frames_TL.dtype)
        windowed_TL = padded_TN[:, :length]
        if settings.remove_dc_offset:
            frames_TL = frames_TL - frames_TL.mean(1, keepdim=True)
        energy_T = self._log_energy(frames_TL) if settings.use_energy and settings.raw_energy else None
        if settings.preemph_coeff:
            torch.sub(frames_TL[:, 1:], frames_TL[:, :-1], alpha=settings.preemph_coeff, out=windowed_TL[:, 1:])
            windowed_TL[:, 0] = frames_TL[:, 0] * (1 - settings.preemph_coeff)
            windowed_TL.mul_(self._window_L)
        else:
            torch.mul(frames_TL, self._window_L, out=windowed_TL)
        if settings.use_energy and not settings.raw_energy:
            energy_T = self._log_energy(windowed_TL)
        return self._features(torch.fft.rfft(padded_TN), energy_T)

    def _features(self, spectrum_TF: torch.Tensor, energy_T: torch.Tensor | None) -> torch.Tensor:
        settings = self.settings
        if settings.feature_type == "spectrogram":
            power_TF = _power(spectrum_TF)
            values_TW = power_TF.sqrt_() if settings.use_fft_mag else power_TF
        else:
            power_TF = _power(spectrum_TF[:, self._bins])
            bands_TM = torch.mm(power_TF.sqrt_() if settings.use_fft_mag else power_TF, self._filters_FM)
            values_TW = bands_TM.clamp_min_(_QUIETEST).log_()
        if settings.feature_type == "mfcc":
            values_TW = torch.mm(values_TW, self._cosines_MW)
        if energy_T is None:
            return values_TW
        if settings.feature_type == "fbank":
            return torch.cat([energy_T[:, None], values_TW], dim=1)
        values_TW[:, 0] = energy_T
        return values_TW

    def _log_energy(self, frames_TL: torch.Tensor) -> torch.Tensor:
        floor = max(self.settings.energy_floor, _QUIETEST)
        return frames_TL.square().sum(1).clamp_min_(floor).log_().float()

    def dithered(self, samples_N: FloatArray, start: int) -> FloatArray:
        """Adds the dither to samples (N,), the first of which is number `start` of the recording."""
        if not self.settings.dither or not len(samples_N):
            return samples_N
        first, last = start // _NOISE_SAMPLES, (start + len(samples_N) - 1) // _NOISE_SAMPLES
        parts = [
            generator(self._seed, number).standard_normal(_NOISE_SAMPLES, dtype=np.float32)
            for number in range(first, last + 1)
        ]
        noise = np.concatenate(parts)[start - first * _NOISE_SAMPLES :][: len(samples_N)]
        return samples_N + np.float32(self.settings.dither) * noise


class FeatureStream:
    """Features of a waveform that arrives in blocks."""

    def __init__(self, features: KaldiFeatures, least: int = 1) -> None:
        """`least`: number of frames computed together, except for the last ones. With BLOCK_FRAMES, features are
        bitwise equal to those of the whole; with 1 they are returned as soon as possible, and may differ by rounding.
        """
        self._features = features
        self._least = least
        self._hop, self._length = features.settings.hop_length, features.settings.window_length
        self._held = np.zeros(0, dtype=np.float32)
        """Samples from the start of the next frame on; before the first frame, the whole recording."""
        self._end = self._held
        """The last window of samples, which is mirrored at the end of the recording."""
        self._samples = self._frames = 0

    def push(self, block: FloatArray) -> FloatArray:
        """The next samples (N,) -> the features (T, W) of the frames they complete; T may be 0."""
        block = self._features.dithered(np.asarray(block, dtype=np.float32), self._samples)
        started = self._samples >= self._length
        self._samples += len(block)
        self._held = np.concatenate([self._held, block])
        self._end = np.concatenate([self._end, block])[-self._length :]
        if self._samples < self._length:
            return self._computed(0)
        if not started:
            self._held = np.pad(self._held, (self._features.before, 0), mode="symmetric")
        complete = max(0, (len(self._held) - self._length) // self._hop + 1)
        return self._computed(complete // self._least * self._least)

    def end(self) -> FloatArray:
        """The features (T, W) of the remaining frames."""
        left = self._features.frames(self._samples) - self._frames
        if not left:
            return self._computed(0)
        if self._samples < self._length:
            self._held = np.pad(self._held, (self._features.before, 0), mode="symmetric")
        missing = max(0, (left - 1) * self._hop + self._length - len(self._held))
        mirrored = np.pad(self._end, (0, missing), mode="symmetric")[len(self._end) :]
        self._held = np.concatenate([self._held, mirrored])
        return self._computed(left)

    def _computed(self, frames: int) -> FloatArray:
        if not frames:
            return np.zeros((0, self._features.settings.width), dtype=np.float32)
        span = torch.from_numpy(self._held[: (frames - 1) * self._hop + self._length])
        self._held = self._held[frames * self._hop :]
        self._frames += frames
        return self._features.of_frames(span).numpy()


def _power(spectrum_TF: torch.Tensor) -> torch.Tensor:
    # Not abs(): its overflow guard takes longer than the FFT.
    parts = torch.view_as_real(spectrum_TF)
    return parts[..., 0].square().addcmul_(parts[..., 1], parts[..., 1]).float()


def window(kind: WindowType, length: int) -> npt.NDArray[np.float64]:
    """Kaldi's window function of this name, (length,) (feat/feature-window.cc)."""
    angle = 2 * np.pi / max(1, length - 1) * np.arange(length)
    hanning = 0.5 - 0.5 * np.cos(angle)
    values = {
        "povey": hanning**0.85,
        "hanning": hanning,
        "hamming": 0.54 - 0.46 * np.cos(angle),
        "blackman": 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle),
        "rectangular": np.ones(length),
    }[kind]
    return np.asarray(values, dtype=np.float64)


def mel_filters(settings: KaldiSettings) -> FloatArray:
    """Filters (M, F), triangular on the mel scale with a peak of 1 (feat/mel-computations.cc)."""
    n_fft = settings.n_fft
    mel_F = _mel(np.arange(n_fft // 2 + 1) * settings.bin_hertz)
    if n_fft % 2 == 0:
        mel_F[-1] = np.inf  # Kaldi excludes the Nyquist bin
    edges = _mel(settings.band_edges)[:, None]
    step = edges[1] - edges[0]
    filters_MF = np.maximum(0.0, np.minimum((mel_F - edges[:-2]) / step, (edges[2:] - mel_F) / step))
    if settings.norm_filters:
        filters_MF /= filters_MF.sum(axis=1, keepdims=True)
    return np.asarray(filters_MF, dtype=np.float32)


def cosines(settings: KaldiSettings) -> FloatArray:
    """The orthonormal discrete cosine transform (M, W) from mel bands to cepstra, including the lifter."""
    bands, coefficients = settings.mel_bands, np.arange(settings.num_ceps)
    cosines_MW = np.cos(np.pi / bands * (np.arange(bands)[:, None] + 0.5) * coefficients) * np.sqrt(2.0 / bands)
    cosines_MW[:, 0] = np.sqrt(1.0 / bands)
    lifter = settings.cepstral_lifter
    if lifter:
        cosines_MW *= 1 + lifter / 2 * np.sin(np.pi * coefficients / lifter)
    return np.asarray(cosines_MW, dtype=np.float32)


def _mel(hertz: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return 1127.0 * np.log1p(np.asarray(hertz, dtype=np.float64) / 700.0)
