"""Dialogues: turns of text and audio parts, each turn marked as learnt or as context.

Plain text is a dialogue of one turn without a role. A prompt with its response is a user's turn followed by an
assistant's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from phonate.config.randomness import derived_seed

Role = Literal["system", "user", "assistant"]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Text:
    """A text part."""

    text: str


@dataclass(frozen=True)
class Audio:
    """An audio part: a file, or a span of one."""

    path: str
    """As written in the corpus file: absolute, or relative to the current directory."""
    start: float = 0.0
    """Where the span starts, in seconds."""
    end: float | None = None
    """Where the span ends, in seconds; None: at the end of the file."""


Part = Text | Audio


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: Role | None
    """Who speaks; None: plain text, which belongs to no conversation."""
    parts: tuple[Part, ...]
    learnt: bool
    """Whether the turn is a training target (True) or context only (False)."""

    @property
    def text(self) -> str:
        """The text parts, joined by line breaks."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def audio(self) -> tuple[Audio, ...]:
        """The audio parts."""
        return tuple(part for part in self.parts if isinstance(part, Audio))


@dataclass(frozen=True)
class Dialogue:
    """A text or a conversation."""

    id: str
    """Where it was read: file:line, or file:row for the rows of a .json file."""
    turns: tuple[Turn, ...]
    speaker: str | None = None
    """Whose voice the learnt turns have, where the corpus says so."""

    @classmethod
    def plain(cls, id: str, text: str) -> Dialogue:
        """Plain text, all of it learnt."""
        return cls(id, (Turn(None, (Text(text),), learnt=True),))

    @classmethod
    def pair(cls, id: str, prompt: str, response: str) -> Dialogue:
        """A prompt with the response to learn."""
        user = Turn("user", (Text(prompt),), learnt=False)
        return cls(id, (user, Turn("assistant", (Text(response),), learnt=True)))

    @property
    def is_plain(self) -> bool:
        """Whether this is plain text rather than a conversation."""
        return self.turns[0].role is None

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """The turns before the last learnt one, which is the `response`. Empty for plain text."""
        return self.turns[: self._last_learnt]

    @property
    def response(self) -> Turn:
        """The last learnt turn."""
        return self.turns[self._last_learnt]

    @property
    def _last_learnt(self) -> int:
        return max(index for index, turn in enumerate(self.turns) if turn.learnt)


def split_dialogues(dialogues: Sequence[Dialogue], share: float) -> tuple[list[Dialogue], list[Dialogue]]:
    """Split into training and validation dialogues; `share` of them, about, are for validation.

    The side of a dialogue is a function of its contents, so copies end up on the same side. With `share` above 0 and
    at least two different dialogues, neither side is empty.
    """
    return split_by_contents(dialogues, [_contents(dialogue) for dialogue in dialogues], share)


def split_by_contents(
    items: Sequence[Item], contents: Sequence[Sequence[str]], share: float
) -> tuple[list[Item], list[Item]]:
    """`split_dialogues` for anything whose contents are strings."""
    if share == 0.0 or not items:
        return list(items), []
    keys = [derived_seed("validation", *one) for one in contents]
    limit = max(min(keys) + 1, int(share * 2**63))
    if limit > max(keys):
        limit = max(keys)
    sides: tuple[list[Item], list[Item]] = ([], [])
    for key, item in zip(keys, items, strict=True):
        sides[key < limit].append(item)
    return sides


def _contents(dialogue: Dialogue) -> list[str]:
    """What the dialogue says. Plain text counts as the response to an empty prompt."""
    found = [""] if dialogue.is_plain else []
    for turn in dialogue.turns:
        for part in turn.parts:
            found.append(part.text if isinstance(part, Text) else f"{part.path}\x1e{part.start}\x1e{part.end}")
    return found
