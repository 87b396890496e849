"""Settings of inference: how probabilities of windows become turns of a recording's speakers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from phonate.config.settings import Settings

Stitching = Literal["embeddings", "overlap"]


class DecodingSettings(Settings):
    """From probabilities to turns. `phonate evaluate RUN --tune` finds the best values on validation data."""

    threshold: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """A speaker is active in frames with a higher probability."""
    median: PositiveInt = 1
    """Frames of the model, an odd number, over which a median filter smooths the activity. 1: none."""
    min_silence: NonNegativeFloat = 0.0
    """Shorter pauses between two turns of a speaker are filled, in seconds."""
    min_speech: NonNegativeFloat = 0.0
    """Shorter turns are dropped, in seconds."""
    window_seconds: PositiveFloat | None = None
    """Length of the windows in which a recording is read. Null: that of the training samples, `data.chunk_seconds`."""
    window_overlap: Annotated[float, Field(ge=0.0, le=0.95)] = 0.5
    """Share of a window that the next one has, too."""
    stitching: Stitching = "embeddings"
    """How speakers of different windows are found to be the same: by clustering embeddings of their voices, which
    handles any number of speakers; or by their activity where windows overlap, with at most `num_speakers`."""
    cluster_distance: Annotated[float, Field(gt=0.0, lt=2.0)] = 0.4
    """Voices with a larger distance (1 - cosine, mean over pieces of 1.6 s) are different speakers, unless the number
    of speakers is given."""

    @model_validator(mode="after")
    def _odd_median(self) -> Self:
        if self.median % 2 == 0:
            raise ValueError(f"median {self.median} must be odd, so that turns keep their places")
        return self
