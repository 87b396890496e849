"""Settings of simulated conversations and of the acoustics of recordings."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from phonate.config.settings import Settings

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def _ordered(settings: Settings, *names: str) -> None:
    for name in names:
        limits = getattr(settings, name)
        if limits is not None and limits[0] > limits[1]:
            raise ValueError(f"{name} is [lowest, highest], in this order; got {list(limits)}")


class AcousticSettings(Settings):
    """Room, noise and level of a recording, drawn anew for each sample."""

    reverberation: Fraction = 0.5
    """Probability of reverberation."""
    rt60: tuple[PositiveFloat, PositiveFloat] = (0.15, 0.6)
    """Shortest and longest reverberation time (decay by 60 dB), in seconds."""
    direct_to_reverberant_db: tuple[float, float] = (-2.0, 12.0)
    """Lowest and highest ratio of direct sound to reverberation, in dB; drawn for each speaker."""
    noise: Fraction = 0.8
    """Probability of noise."""
    noise_path: str | None = None
    """A folder of noise recordings, read with subfolders. Null: synthetic noise, from white to brown."""
    snr_db: tuple[float, float] = (5.0, 30.0)
    """Lowest and highest ratio of speech to noise, in dB."""
    level_db: tuple[float, float] | None = (-46.0, -16.0)
    """Lowest and highest level (RMS) of the speech, in dB relative to full scale. Null: the level is not changed."""

    @model_validator(mode="after")
    def _limits(self) -> Self:
        _ordered(self, "rt60", "direct_to_reverberant_db", "snr_db", "level_db")
        return self


class SimulationSettings(Settings):
    """Conversations put together from clips of single speakers while training runs.

    Clips are the segments of a corpus in which nobody else talks, or whole recordings of single speakers. Every
    conversation is a function of the seed, the epoch and its number.
    """

    path: str | tuple[str, ...] | None = None
    """Corpora of the clips, in any format; speakers of different corpora are different people. Null: `data.path`."""
    share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the training samples that are simulated. Null: all of them where `path` is null and no recording of
    `data.path` has several speakers, else half."""
    validation_samples: PositiveInt = 100
    """Conversations of speakers who are never in training, simulated for validation where all samples are simulated
    from `data.path`; else validation takes real recordings."""
    speakers: tuple[PositiveInt, PositiveInt] = (2, 4)
    """Fewest and most speakers of a conversation; every number is as likely."""
    overlap: Annotated[float, Field(ge=0.0, le=0.8)] = 0.15
    """Share of the speech in which two or more talk at once, on average."""
    pause_seconds: NonNegativeFloat = 0.5
    """Mean pause between two turns that don't overlap; most are shorter, a few much longer."""
    turn_seconds: PositiveFloat = 3.0
    """Mean length of a turn; many are much shorter, some longer."""
    label_pauses_from: Annotated[float, Field(ge=0.2)] = 0.2
    """Seconds from which a pause within a turn is labelled as silence; shorter ones are labelled as speech. People who
    annotate meetings often pass over pauses of half a second."""
    gain_db: NonNegativeFloat = 5.0
    """Standard deviation of the speakers' levels, in dB."""
    speed: tuple[PositiveFloat, PositiveFloat] | None = (0.9, 1.1)
    """Slowest and fastest speed at which a speaker is played, drawn for each conversation; pitch and formants move with
    it, which makes more voices of few. Null: as recorded."""
    min_clip_seconds: PositiveFloat = 0.5
    """Shorter clips, measured without silence at their ends, are left out."""
    acoustics: AcousticSettings = AcousticSettings()
    """Room, noise and level."""

    @model_validator(mode="after")
    def _limits(self) -> Self:
        _ordered(self, "speakers", "speed")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """The corpora of the clips; none for those of `data.path`."""
        return () if self.path is None else (self.path,) if isinstance(self.path, str) else self.path
