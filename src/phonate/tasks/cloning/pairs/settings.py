"""Settings of the data that voices are cloned from."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from phonate.config.settings import Settings
from phonate.text.arabic_settings import ArabicText


class CloningData(Settings):
    """Pairs of recordings of one voice with their texts, and how they become sequences of tokens."""

    refused_keys: ClassVar = {
        "validate_on_init": "every row is checked before the first step; leave it out",
        "target_sample_rate": "recordings may have any rate, and are read at the codec's; leave it out",
        "teacher_forcing": "training always reads the target's own codes; leave it out",
        "return_labels": "training always has labels; leave it out",
    }

    path: str
    """A .json or .jsonl file of conversations (ChatML), or a folder of them: see the page on data for voice cloning.
    Recordings are found as they are written: absolute, or relative to the current directory."""
    validation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the pairs that is kept for validation. The side of a pair depends on what its target sounds like, so
    that no target is on both sides."""
    min_seconds: Annotated[float, Field(ge=0.1)] = 0.5
    """Shorter recordings are refused."""
    max_seconds: Annotated[float, Field(le=600.0)] = 30.0
    """Longer recordings are refused."""
    min_characters: PositiveInt = 5
    """Pairs whose text to speak is shorter are refused."""
    max_tokens: PositiveInt = 512
    """Pairs with a text of more tokens are left out."""
    arabic: ArabicText = ArabicText()
    """What is changed in Arabic texts, in training and when speaking."""
    cache_dir: str | None = None
    """Folder for the codes of recordings. Null: ~/.cache/phonate."""
    max_length: Annotated[int, Field(ge=64)] = 2048
    """Tokens of a sequence, at most; pairs must fit."""
    packing: bool = True
    """Fill each row with several pairs, which do not attend to each other, instead of padding it."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Threads that check and encode recordings. 0: one for each core, and up to four for encoding."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_seconds <= self.min_seconds:
            raise ValueError(f"max_seconds {self.max_seconds:g} must be more than min_seconds {self.min_seconds:g}")
        return self
