"""Settings of features and of augmentation."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from phonate.audio.mel_scale import empty_bands
from phonate.config.settings import Settings

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

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
