"""The interface of phonemizers: a text as words with their phones and the punctuation after them."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Protocol, cast

from phonate.config.errors import InputError

MARKS = (",", ".", "!", "?", ";", ":", "-")
"""The punctuation a word can have after it; an em dash is "-", an ellipsis "."."""

_STRONGEST_FIRST = "?!.;:,-"
_ELLIPSIS = re.compile(r"…|\.\s?\.\s?\.")
_PARENTHESES = frozenset("()[]{}（）")
_PHONEMIZERS = {
    "english": "phonate.text.english.phonemizer:EnglishPhonemizer",
    "espeak": "phonate.text.espeak:EspeakPhonemizer",
    "characters": "phonate.text.characters:CharacterPhonemizer",
}


@dataclass(frozen=True)
class Word:
    """A word, its phones, and the mark that follows it ("" for a plain space)."""

    text: str
    phones: tuple[str, ...]
    mark: str = ""
    pause: str = ""
    """What sets it off from the next word, if not its mark: "(" for a parenthesis, "..." for an ellipsis, or
    `paragraph` for the end of one."""


class Phonemizer(Protocol):
    """Turns a text into words with phones."""

    name: str
    language: str
    symbols: tuple[str, ...]
    """All of its phones, in a fixed order."""

    def __call__(self, text: str) -> list[Word]:
        """The words of `text`, which is normalised first. Raises InputError if it has no words."""
        ...


def phonemizer(name: str, language: str = "en-us") -> Phonemizer:
    """The phonemizer called `name` (english, espeak or characters) for `language`.

    Raises InputError for an unknown name or language, naming the nearest one.
    """
    if name not in _PHONEMIZERS:
        from phonate.config.registry import nearest  # only needed for the error

        raise InputError(f"unknown phonemizer {name!r}; {nearest(name, list(_PHONEMIZERS))}")
    module, _, cls = _PHONEMIZERS[name].partition(":")
    return cast(Phonemizer, getattr(importlib.import_module(module), cls)(language))


def mark_of(between: str) -> str:
    """The strongest mark in `between`, the text between two words; "" if it has none."""
    between = between.replace("…", ".").replace("—", "-").replace("–", "-")
    return next((mark for mark in _STRONGEST_FIRST if mark in between), "")


def pause_of(between: str) -> str:
    """What but a mark sets two words off in `between`, the text between them (see `Word.pause`)."""
    mark = mark_of(between)
    if mark == "." and _ELLIPSIS.search(between):
        return "..."
    return "(" if mark not in {".", "!", "?"} and not _PARENTHESES.isdisjoint(between) else ""


class NothingToSay(InputError):
    """A text without words."""

    def __init__(self, text: str) -> None:
        shown = text if len(text) <= 60 else text[:57] + "..."
        super().__init__(f"nothing in {shown!r} can be pronounced")
