"""What a task requires of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

LONGEST_UNLABELLED = 2.0
"""Seconds outside of all segments that a clip of one speaker may have; longer stretches may be anyone's speech."""


@dataclass(frozen=True)
class Requirements:
    """What a row must have for a task; others are refused and counted. The default takes everything that can be read.

    `RecordingData.requirements` states them for the task whose settings it is.
    """

    text: bool = False
    """A text that holds a letter or a digit."""
    one_speaker: bool = False
    """At most one speaker, who talks throughout: no stretch over LONGEST_UNLABELLED outside of the segments."""
    speaker: bool = False
    """A name for the speaker of each segment, and at least one segment."""
    trained_speaker: bool = False
    """A speaker who is in training too: where official splits part the speakers, those of the others are refused. For
    models that learn each speaker's voice, and know no others."""
    min_seconds: float = 0.0
    """Shorter rows are refused."""
    max_seconds: float | None = None
    """Longer rows are refused. None: rows may be of any length."""
    may_be_empty: ClassVar[bool] = False
    """Whether `speaker` also takes rows without a segment, in which nobody speaks."""


@dataclass(frozen=True)
class ConversationRequirements(Requirements):
    """Recordings in which any number of people speak, or nobody: every segment there is names its speaker."""

    speaker: bool = True
    may_be_empty: ClassVar[bool] = True
