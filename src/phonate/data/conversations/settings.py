"""Settings of simulated conversations and of acoustic augmentation."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from phonate.config.settings import Settings

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def _ordered(settings: Settings, *names: str) -> None:
    for name in names:
        limits = getattr(settings, name)
        if limits is not None and limits[0] > limits[1]:
            raise ValueError(f"{name} must be [minimum, maximum], in this order; got {list(limits)}")


class AcousticSettings(Settings):
    """Room, noise and level, drawn at random for each sample."""

    reverberation: Fraction = 0.5
    """Probability of reverberation."""
    rt60: tuple[PositiveFloat, PositiveFloat] = (0.15, 0.6)
    """Minimum and maximum reverberation time (decay by 60 dB), in seconds."""
    direct_to_reverberant_db: tuple[float, float] = (-2.0, 12.0)
    """Minimum and maximum direct-to-reverberant ratio, in dB; drawn for each speaker."""
    noise: Fraction = 0.8
    """Probability of noise."""
    noise_path: str | None = None
    """A folder of noise recordings, including subfolders. Null: synthetic noise, from white to brown."""
    snr_db: tuple[float, float] = (5.0, 30.0)
    """Minimum and maximum signal-to-noise ratio, in dB."""
    level_db: tuple[float, float] | None = (-46.0, -16.0)
    """Minimum and maximum level (RMS) of the speech, in dB relative to full scale. Null: the level is not changed."""

    @model_validator(mode="after")
    def _limits(self) -> Self:
        _ordered(self, "rt60", "direct_to_reverberant_db", "snr_db", "level_db")
        return self


class SimulationSettings(Settings):
    """Conversations simulated during training from single-speaker clips.

    Clips are the parts of a corpus with a single active speaker, or whole single-speaker recordings. Every conversation
    is a function of the seed, the epoch and its number.
    """

    path: str | tuple[str, ...] | None = None
    """One or several clip corpora, in any format; equal speaker names in different corpora are different people. Null:
    `data.path`."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Fraction of the training samples that is simulated. Null: 1 if `path` is null and every recording of `data.path`
    has a single speaker, otherwise 0.5."""
    validation_samples: PositiveInt = 100
    """Number of simulated validation conversations, of speakers not used in training. Used only if all training samples
    are simulated from `data.path`; otherwise validation uses real recordings."""
    speakers: tuple[PositiveInt, PositiveInt] = (2, 4)
    """Minimum and maximum number of speakers in a conversation, uniformly distributed."""
    turns_from: str | None = None
    """An RTTM file of real conversations, whose recordings are not needed. Each simulated conversation has the turns of
    a random part of one of them, with other speakers; `overlap`, `pause_seconds` and `turn_seconds` don't apply. Null:
    random turns."""
    overlap: Annotated[float, Field(ge=0.0, le=0.8)] = 0.15
    """Mean fraction of the speech in which several speakers are active."""
    pause_seconds: NonNegativeFloat = 0.5
    """Mean pause between non-overlapping turns, in seconds (gamma distribution)."""
    turn_seconds: PositiveFloat = 3.0
    """Mean length of a turn, in seconds (gamma distribution)."""
    label_pauses_from: Annotated[float, Field(ge=0.2)] = 0.2
    """Minimum length in seconds of a pause within a turn to be labelled as silence; shorter pauses are labelled as
    speech. Annotations of meetings often ignore pauses of up to half a second."""
    gain_db: NonNegativeFloat = 5.0
    """Standard deviation of the speakers' levels, in dB."""
    speed: tuple[PositiveFloat, PositiveFloat] | None = (0.9, 1.1)
    """Minimum and maximum speed factor of a speaker, drawn for each conversation. Speed also changes pitch and
    formants, which increases the number of different voices. Null: no change."""
    min_clip_seconds: PositiveFloat = 0.5
    """Minimum length of a clip without silence at its ends; shorter ones are not used."""
    acoustics: AcousticSettings = AcousticSettings()
    """Room, noise and level."""

    @model_validator(mode="after")
    def _limits(self) -> Self:
        _ordered(self, "speakers", "speed")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """The clip corpora; empty if clips are taken from `data.path`."""
        return () if self.path is None else (self.path,) if isinstance(self.path, str) else self.path
