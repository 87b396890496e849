"""Settings of inference: from window-level probabilities to the speaker turns of a recording."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from phonate.config.settings import Settings

Stitching = Literal["embeddings", "overlap"]


class SmoothingSettings(Settings):
    """Smoothing of a powerset model's class probabilities by a hidden Markov model, whose states are the sets of
    simultaneous speakers."""

    change_seconds: PositiveFloat = 2.0
    """Mean time between two changes: somebody starts or stops. 2.0 in the meetings of AMI."""
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Exponent of the model's probabilities. Below 1, as those of neighbouring frames are not independent."""


class DecodingSettings(Settings):
    """From probabilities to turns. `phonate evaluate RUN --tune` optimises these values on validation data."""

    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """A speaker is active in frames whose probability is above this."""
    median: PositiveInt = 1
    """Length of the median filter that smooths the activity, in output frames; an odd number. 1: no filter."""
    smoothing: SmoothingSettings | None = None
    """Label type powerset: smoothing of the probabilities of each window before the threshold. Null: none."""
    min_silence: NonNegativeFloat = 0.0
    """Pauses between two turns of a speaker shorter than this are filled, in seconds."""
    min_speech: NonNegativeFloat = 0.0
    """Turns shorter than this are dropped, in seconds."""
    window_seconds: PositiveFloat | None = None
    """Length of the windows in which a recording is processed. Null: `data.chunk_seconds`, as in training."""
    window_overlap: Annotated[float, Field(ge=0.0, le=0.95)] = 0.5
    """Fraction of a window that overlaps with the next one."""
    stitching: Stitching = "embeddings"
    """How speakers are matched across windows: embeddings clusters voice embeddings and handles any number of
    speakers; overlap compares the activity where windows overlap, and finds at most `num_speakers`."""
    cluster_distance: Annotated[float, Field(gt=0.0, lt=2.0)] = 0.4
    """Distance (1 - cosine similarity, averaged over embeddings of 1.6 s segments) above which clusters are not merged,
    unless the number of speakers is given."""

    reassignment_margin: Annotated[float, Field(ge=0.0, lt=2.0)] | None = None
    """With stitching embeddings: segments of half a second and more in which one speaker is active go to the speaker of
    the recording whose voice they are nearest to, if its cosine similarity is higher by more than this. Null: they stay
    where the model puts them."""

    @model_validator(mode="after")
    def _odd_median(self) -> Self:
        if self.median % 2 == 0:
            raise ValueError(f"median {self.median} must be odd; an even filter would shift the turns")
        return self
