"""Output symbols of a recogniser: a blank, a space, and the letters of its training texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phonate.config.errors import InputError
from phonate.text.phonemes import phonemizer

BLANK = 0
"""Id of the blank symbol (Graves et al. 2006, section 3.1)."""
_SPACE = " "


class Wording:
    """Text as it is read out: lower case, words separated by single spaces."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._letters = phonemizer("characters", language)

    def __call__(self, text: str) -> str:
        """English numbers, dates and abbreviations are written out; for other languages only letters are kept.

        Raises InputError if `text` has nothing to speak.
        """
        return _SPACE.join(word.text for word in self._letters(text))


@dataclass(frozen=True)
class Symbols:
    """Letters by id: 1 is the space; 0 is the blank, which is not a letter."""

    letters: tuple[str, ...]
    """All symbols except the blank. Accents are separate symbols (NFD)."""
    language: str

    def __post_init__(self) -> None:
        single = all(isinstance(letter, str) and len(letter) == 1 for letter in self.letters)
        if self.letters[:1] != (_SPACE,) or len(set(self.letters)) != len(self.letters) or not single:
            raise InputError("the symbols of a recogniser must be distinct single letters, the first of them a space")

    def __len__(self) -> int:
        return 1 + len(self.letters)

    @classmethod
    def of(cls, wordings: Iterable[str], language: str) -> Symbols:
        """The letters that occur in `wordings`, in the order of their code points."""
        found = {letter for wording in wordings for letter in letters_of(wording)} - {_SPACE}
        return cls((_SPACE, *sorted(found)), language)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Symbols:
        """Read the symbols written by `document()`. Raises InputError if malformed."""
        letters, language = document.get("letters"), document.get("language")
        if not isinstance(letters, list) or not isinstance(language, str):
            raise InputError("the symbols of a recogniser must consist of letters (a list) and a language")
        return cls(tuple(letters), language)

    def document(self) -> dict[str, Any]:
        """The symbols as plain JSON, for `read`."""
        return {"letters": list(self.letters), "language": self.language}

    def ids(self, wording: str) -> list[int]:
        """The ids of the letters of a wording. Raises InputError naming an unknown letter."""
        try:
            return [self._numbers[letter] for letter in letters_of(wording)]
        except KeyError as error:
            raise InputError(f"{error.args[0]!r} in {wording[:60]!r} is not a letter of this recogniser") from None

    def text(self, ids: Sequence[int]) -> str:
        """The text of the ids, with single spaces and none at the ends."""
        written = "".join(self.letters[number - 1] for number in ids)
        return unicodedata.normalize("NFC", _SPACE.join(written.split()))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {letter: number for number, letter in enumerate(self.letters, start=1)}


def letters_of(wording: str) -> str:
    """The letters of a wording, accents as letters of their own."""
    return unicodedata.normalize("NFD", wording)
