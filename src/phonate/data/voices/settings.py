"""Settings of the validation of voice recordings. Torch-free and light, so that a mistake is reported at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat

from phonate.config.settings import Settings


class VoiceRules(Settings):
    """Which recordings are used."""

    sample_rate: Annotated[int, Field(ge=8000)] = 16_000
    """Rate in Hz at which recordings are judged, mixed to mono."""
    min_seconds: NonNegativeFloat = 2.0
    """Shorter recordings are refused."""
    max_seconds: PositiveFloat = 30.0
    """Only the beginning of longer recordings is used."""
    min_quality: Annotated[float, Field(ge=0.0, le=1.0)] = 0.7
    """Recordings with a lower score (0 to 1) are refused."""
