"""Settings of features and of augmentation, Kaldi's among them. No torch and no numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    model_validator,
)

from phonate.audio.mel_filters import MelFacts, empty_bands
from phonate.config.settings import Settings

# ------------------------------------------------------------ Settings of features and of augmentation

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

Denoiser = Literal["deepfilternet"]
F0Method = Literal["swift", "yin"]
HIGHEST_F0: dict[F0Method, float] = {"swift": 1100.0, "yin": 500.0}
"""Hz."""

_NOT_FEATURES = {"min_seconds", "max_seconds"}
_LENGTHS = {"min_audio_length": "min_seconds", "max_audio_length": "max_seconds"}


class AudioConfig(Settings):
    """Waveform and mel spectrogram settings.

    The defaults are those common for 22.05 kHz speech models: a mel frame every 11.6 ms, up to 8 kHz.
    """

    sample_rate: PositiveInt = 22050
    """Sample rate in Hz; recordings of other rates are resampled."""
    n_fft: PositiveInt = 1024
    """FFT size in samples."""
    hop_length: PositiveInt = 256
    """Hop between frames, in samples."""
    win_length: PositiveInt = 1024
    """Length of the Hann window, in samples."""
    n_mels: PositiveInt = 80
    """Number of mel bands."""
    fmin: NonNegativeFloat = 0.0
    """Lower edge of the lowest mel band, in Hz."""
    fmax: PositiveFloat = 8000.0
    """Upper edge of the highest mel band, in Hz."""
    preemphasis: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.97
    """Coefficient a of the pre-emphasis y[t] = x[t] - a x[t-1]. 0: none."""
    ref_level_db: float = 20.0
    """The mel level that counts as 0 dB, in dB over a magnitude of 0.1: 20 is a magnitude of 1. Higher levels are
    clipped to 1; raise it if loud bands are clipped."""
    min_level_db: Annotated[float, Field(lt=0.0)] = -100.0
    """The level that becomes 0, in dB relative to the reference; lower levels are clipped."""
    min_seconds: NonNegativeFloat = 0.05
    """Shorter recordings are refused when a corpus is prepared (they hold less than one window)."""
    max_seconds: PositiveFloat = 95.0
    """Longer recordings are refused when a corpus is prepared (95 s are 8192 frames)."""

    _loudness: float | None = PrivateAttr(default=None)
    _denoise: Denoiser | None = PrivateAttr(default=None)

    @property
    def loudness(self) -> float | None:
        """What `data.loudness` says: LUFS to which recordings are brought. None: their peak is brought to 1."""
        return self._loudness

    @property
    def denoise(self) -> Denoiser | None:
        """What `data.denoise` says: by what noise is removed. None: it is kept."""
        return self._denoise

    def at_loudness(self, target: float | None) -> Self:
        """The same settings for recordings of this loudness, in LUFS."""
        copy = self.model_copy()
        copy._loudness = target
        return copy

    def denoised_by(self, name: Denoiser | None) -> Self:
        """The same settings for recordings without noise."""
        copy = self.model_copy()
        copy._denoise = name
        return copy

    @model_validator(mode="before")
    @classmethod
    def _lengths_are_seconds(cls, values: Any) -> Any:
        for old, new in _LENGTHS.items():
            if isinstance(values, dict) and old in values:
                raise ValueError(f"{old} could mean samples or frames; give {new}, in seconds")
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.win_length > self.n_fft:
            raise ValueError(f"win_length {self.win_length} is over n_fft {self.n_fft}: a window must fit into it")
        if self.hop_length > self.win_length:
            raise ValueError(
                f"hop_length {self.hop_length} is over win_length {self.win_length}: samples between windows "
                "would be lost"
            )
        if self.fmax > self.sample_rate / 2:
            raise ValueError(
                f"fmax {self.fmax:g} Hz is over half the sample_rate ({self.sample_rate / 2:g} Hz), "
                "where there is no sound; lower fmax or raise sample_rate"
            )
        if self.fmin >= self.fmax:
            raise ValueError(f"fmin {self.fmin:g} Hz must be under fmax {self.fmax:g} Hz")
        empty = empty_bands(self.sample_rate, self.n_fft, self.n_mels, self.fmin, self.fmax)
        if empty:
            raise ValueError(
                f"n_mels {self.n_mels} is too many for n_fft {self.n_fft} at sample_rate {self.sample_rate}: {empty} "
                "bands would hold no frequency of the transform; lower n_mels or raise n_fft"
            )
        if self.min_seconds >= self.max_seconds:
            raise ValueError(f"min_seconds {self.min_seconds:g} must be under max_seconds {self.max_seconds:g}")
        return self

    @property
    def frames_per_second(self) -> float:
        """Mel frames in a second."""
        return self.sample_rate / self.hop_length

    @property
    def facts(self) -> MelFacts:
        """What tells these features from others."""
        return MelFacts(**self.model_dump(exclude=_NOT_FEATURES), loudness=self.loudness)


class SpecAugmentSettings(Settings):
    """SpecAugment (Park et al. 2019, section 2): one mask of each kind."""

    freq: Annotated[int, Field(ge=0)] = 8
    """Maximum width of the frequency mask, in mel bands (F in the paper)."""
    time: Annotated[int, Field(ge=0)] = 10
    """Maximum width of the time mask, in frames (T in the paper)."""


class AugmentationSettings(Settings):
    """Random augmentation, drawn anew in each epoch. An effect set to null is off."""

    time_stretch: tuple[PositiveFloat, PositiveFloat] | None = (0.8, 1.2)
    """Lowest and highest speed, at the same pitch; 1.2 is 20 % faster."""
    time_stretch_probability: Fraction = 0.5
    """Probability of time stretching."""
    pitch_shift: tuple[float, float] | None = (-2.0, 2.0)
    """Lowest and highest shift in semitones, at the same length."""
    pitch_shift_probability: Fraction = 0.5
    """Probability of pitch shifting."""
    noise: PositiveFloat | None = 0.02
    """Standard deviation of added white noise, relative to the waveform's peak."""
    noise_probability: Fraction = 0.5
    """Probability of added noise."""
    spec_augment: SpecAugmentSettings | None = SpecAugmentSettings()
    """SpecAugment masks on the mel spectrogram."""
    spec_augment_probability: Fraction = 0.5
    """Probability of masking."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in ("time_stretch", "pitch_shift"):
            limits = getattr(self, name)
            if limits is not None and limits[0] > limits[1]:
                raise ValueError(f"{name} is [lowest, highest], in this order; got {list(limits)}")
        return self


# -------------------------------------------------------------------------------- Settings of features

FeatureType = Literal["fbank", "mfcc", "samples", "spectrogram", "whisper"]
WindowType = Literal["povey", "hanning", "hamming", "blackman", "rectangular"]

_FRAMES: Mapping[str, Mapping[str, Any]] = {
    "samples": {"sampling_rate": 16000, "frame_length": 0.016875, "frame_shift": 0.016875, "snip_edges": False},
    "whisper": {"sampling_rate": 16000, "frame_shift": 0.02, "snip_edges": False},
}
"""What feature types whose frames are those of a network require; frame lengths and shifts are set unless given."""
_TIMES = {"frame_length", "frame_shift", "snip_edges", "sampling_rate", "min_seconds", "max_seconds"}
_READ: Mapping[str, Set[str]] = {
    "samples": {"feature_type", "dither", *_TIMES},
    "whisper": {"feature_type", "whisper_model", "whisper_with_voices", *_TIMES},
}
"""The options that feature types read which read none of Kaldi's features."""
_ROUNDING = 1e-6
"""Tolerance of products of floats: 0.035 s at 16 kHz are 560 samples."""


class KaldiSettings(Settings):
    """Short-time features as computed by Kaldi, from samples in [-1, 1] without level normalisation.

    Names and defaults are those of Lhotse's `FbankConfig`, `MfccConfig` and `SpectrogramConfig`.
    """

    feature_type: FeatureType = "fbank"
    """fbank: log mel filter banks. mfcc: mel-frequency cepstral coefficients. spectrogram: power spectrum. whisper: the
    output of a Whisper encoder, 50 frames per second (needs phonate[eval]). samples: the samples, 270 in a frame, for
    model.network sincnet."""
    whisper_model: str = "tiny.en"
    """whisper: the model, a faster-whisper name or a folder."""
    whisper_with_fbank: bool = False
    """whisper: append the fbank values to each frame; they carry more information on voice and level."""
    whisper_with_voices: bool = False
    """whisper: append to each frame the embedding of the voice in the 1.6 s around it (resemblyzer), five a second; it
    tells speakers apart, and speech from other sounds."""
    sampling_rate: PositiveInt = 16000
    """Sample rate in Hz; recordings of other rates are resampled."""
    frame_length: Annotated[float, Field(gt=0.0, le=1.0)] = 0.025
    """Length of the window, in seconds."""
    frame_shift: Annotated[float, Field(gt=0.0, le=1.0)] = 0.01
    """Time from one frame to the next, in seconds. whisper has 0.02 and samples 0.016875, and support no other."""
    num_mel_bins: PositiveInt | None = None
    """Mel bands of fbank, and of mfcc if num_filters is null. Null: num_filters, or 80 for fbank, 23 for mfcc."""
    num_filters: PositiveInt | None = None
    """Mel bands of mfcc, and of fbank if num_mel_bins is null. Null: num_mel_bins."""
    num_ceps: PositiveInt = 13
    """mfcc: number of coefficients."""
    cepstral_lifter: NonNegativeInt = 22
    """mfcc: liftering parameter L; coefficient i is multiplied by 1 + L/2 sin(pi i / L). 0: none."""
    low_freq: NonNegativeFloat = 20.0
    """Lower edge of the lowest mel band, in Hz."""
    high_freq: float = -400.0
    """Upper edge of the highest mel band, in Hz. Zero or negative: relative to half the sampling rate."""
    window_type: WindowType = "povey"
    """Window function; povey is hanning to the power of 0.85."""
    preemph_coeff: Annotated[float, Field(ge=0.0, le=1.0)] = 0.97
    """Coefficient a of the pre-emphasis y[t] = x[t] - a x[t-1] in each frame. 0: none."""
    remove_dc_offset: bool = True
    """Subtract the mean of each frame."""
    dither: NonNegativeFloat = 0.0
    """Standard deviation of Gaussian noise added to samples in [-1, 1]; 3e-5 is one 16-bit step. The noise is seeded by
    the recording's id, so features are reproducible. 0: none."""
    snip_edges: bool = False
    """True: only frames that lie entirely within the recording. False: one frame per shift; the recording is mirrored
    at both ends."""
    round_to_power_of_two: bool = True
    """Zero-pad frames to a power of two before the FFT."""
    use_energy: bool = False
    """Include the log energy of the frame: before the bands of fbank, in place of the first value of mfcc and
    spectrogram."""
    raw_energy: bool = True
    """Compute the energy before pre-emphasis and windowing."""
    energy_floor: NonNegativeFloat = 1e-10
    """Lower bound of the frame energy. Values below 1.2e-7 have no effect, as in Kaldi."""
    use_fft_mag: bool = False
    """Use magnitudes instead of power in mel bands and spectrogram."""
    norm_filters: bool = False
    """Divide each mel filter by its sum."""
    torchaudio_compatible_mel_scale: bool = True
    """True: the mel filters of Kaldi and torchaudio. False: those of Lhotse's original implementation, whose bin
    frequencies are slightly higher."""
    min_seconds: NonNegativeFloat = 0.05
    """Minimum length of a recording; shorter ones are rejected during preparation."""
    max_seconds: PositiveFloat | None = None
    """Maximum length of a recording; longer ones are rejected during preparation. Null: no limit."""

    @model_validator(mode="after")
    def _frames_of_networks(self) -> Self:
        if self.feature_type != "whisper":
            for name in ("whisper_with_fbank", "whisper_with_voices"):
                if getattr(self, name):
                    raise ValueError(f"{name} is only for feature_type whisper; leave it out")
        for name, value in _FRAMES.get(self.feature_type, {}).items():
            if name.startswith("frame_") and name not in self.model_fields_set:
                self.__dict__[name] = value
            if getattr(self, name) != value:
                raise ValueError(f"feature_type {self.feature_type} needs {name} {str(value).lower()}; leave it out")
        read = None if self.whisper_with_fbank else _READ.get(self.feature_type)
        for name, info in type(self).model_fields.items():
            if read is not None and name not in read and getattr(self, name) != info.default:
                raise ValueError(f"{name} has no effect with feature_type {self.feature_type}; leave it out")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.hop_length < 1:
            raise ValueError(f"frame_shift {self.frame_shift:g} s is less than one sample at {self.sampling_rate} Hz")
        if self.hop_length > self.window_length:
            raise ValueError(
                f"frame_shift {self.frame_shift:g} exceeds frame_length {self.frame_length:g}: samples between frames "
                "would be skipped"
            )
        if self.max_seconds is not None and self.min_seconds >= self.max_seconds:
            raise ValueError(f"min_seconds {self.min_seconds:g} must be below max_seconds {self.max_seconds:g}")
        if self.feature_type not in ("samples", "spectrogram"):
            self._check_bands()
        return self

    def _check_bands(self) -> None:
        nyquist = self.sampling_rate / 2
        if not self.low_freq < self.highest_frequency <= nyquist:
            raise ValueError(
                f"low_freq {self.low_freq:g} and high_freq {self.high_freq:g} mean a range from {self.low_freq:g} to "
                f"{self.highest_frequency:g} Hz; it must not be empty, and end at {nyquist:g} Hz, half the "
                "sampling_rate, or below"
            )
        edges, step = self.band_edges, self.bin_hertz
        empty = sum((math.floor(low / step) + 1) * step >= high for low, high in zip(edges, edges[2:], strict=False))
        if empty:
            raise ValueError(
                f"{empty} of {self.mel_bands} mel bands contain no frequency of an FFT of {self.n_fft} samples; "
                "lower num_mel_bins or raise frame_length"
            )
        if self.feature_type == "mfcc" and self.num_ceps > self.mel_bands:
            raise ValueError(f"num_ceps {self.num_ceps} exceeds the {self.mel_bands} mel bands; raise num_filters")

    @property
    def sample_rate(self) -> int:
        """The sampling rate, in Hz."""
        return self.sampling_rate

    @property
    def hop_length(self) -> int:
        """Samples from one frame to the next; Kaldi rounds down."""
        return math.floor(self.frame_shift * self.sampling_rate + _ROUNDING)

    @property
    def loudness(self) -> None:
        """None: recordings keep the level of their files."""
        return None

    @property
    def denoise(self) -> None:
        """None: recordings keep their noise."""
        return None

    @property
    def window_length(self) -> int:
        """Samples per frame; Kaldi rounds down."""
        return math.floor(self.frame_length * self.sampling_rate + _ROUNDING)

    @property
    def n_fft(self) -> int:
        """Size of the FFT in samples."""
        return 1 << (self.window_length - 1).bit_length() if self.round_to_power_of_two else self.window_length

    @property
    def frames_per_second(self) -> float:
        """Frames per second."""
        return self.sampling_rate / self.hop_length

    @property
    def highest_frequency(self) -> float:
        """Upper edge of the highest mel band, in Hz."""
        return self.high_freq if self.high_freq > 0 else self.sampling_rate / 2 + self.high_freq

    @property
    def mel_bands(self) -> int:
        """Number of mel filters."""
        if self.feature_type == "mfcc":
            return self.num_filters or self.num_mel_bins or 23
        return self.num_mel_bins or self.num_filters or 80

    @property
    def band_edges(self) -> list[float]:
        """Frequencies in Hz, equidistant in mel = 1127 ln(1 + f / 700): band i starts at [i], peaks at [i + 1] and ends
        at [i + 2] (Kaldi's feat/mel-computations.cc)."""
        low, high = (1127.0 * math.log1p(hertz / 700.0) for hertz in (self.low_freq, self.highest_frequency))
        steps = self.mel_bands + 1
        return [700.0 * math.expm1((low + (high - low) * edge / steps) / 1127.0) for edge in range(steps + 1)]

    @property
    def bin_hertz(self) -> float:
        """Distance between FFT bins in Hz, as assumed by the mel filters. Lhotse's original filters divide the sampling
        rate by n_fft - 1."""
        return self.sampling_rate / (self.n_fft if self.torchaudio_compatible_mel_scale else self.n_fft - 1)

    @property
    def width(self) -> int:
        """Values per frame of Kaldi's features. The width of a Whisper encoder depends on its model."""
        if self.feature_type == "mfcc":
            return self.num_ceps
        if self.feature_type == "samples":
            return self.window_length
        if self.feature_type == "spectrogram":
            return self.n_fft // 2 + 1
        return self.mel_bands + self.use_energy
