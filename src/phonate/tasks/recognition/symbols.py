"""What a recogniser writes with: a blank, a space, and the letters of its training texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phonate.config.errors import InputError
from phonate.text.phonemes import phonemizer

BLANK = 0
"""Number of the symbol that says nothing (Graves et al. 2006, section 3.1)."""
_SPACE = " "


class Wording:
    """The words that are said when a text is read out, in lower case, one space apart."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._letters = phonemizer("characters", language)

    def __call__(self, text: str) -> str:
        """English numbers, dates and abbreviations as words; of other languages the letters alone.

        Raises InputError where nothing in `text` can be said.
        """
        return _SPACE.join(word.text for word in self._letters(text))


@dataclass(frozen=True)
class Symbols:
    """Letters by number: 1 is the space, 0 the blank, which is no letter."""

    letters: tuple[str, ...]
    """All but the blank. Accents stand for themselves (NFD)."""
    language: str

    def __post_init__(self) -> None:
        single = all(isinstance(letter, str) and len(letter) == 1 for letter in self.letters)
        if self.letters[:1] != (_SPACE,) or len(set(self.letters)) != len(self.letters) or not single:
            raise InputError("the symbols of a recogniser begin with a space, and each is one letter, there once")

    def __len__(self) -> int:
        return 1 + len(self.letters)

    @classmethod
    def of(cls, wordings: Iterable[str], language: str) -> Symbols:
        """The letters that occur in `wordings`, in the order of their code points."""
        found = {letter for wording in wordings for letter in _apart(wording)} - {_SPACE}
        return cls((_SPACE, *sorted(found)), language)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Symbols:
        """The symbols that `document()` gave. Raises InputError for anything else."""
        letters, language = document.get("letters"), document.get("language")
        if not isinstance(letters, list) or not isinstance(language, str):
            raise InputError("the symbols of a recogniser are letters (a list) and a language")
        return cls(tuple(letters), language)

    def document(self) -> dict[str, Any]:
        """The symbols as plain JSON, for `read`."""
        return {"letters": list(self.letters), "language": self.language}

    def ids(self, wording: str) -> list[int]:
        """The numbers of a wording's letters. Raises InputError naming one that is none of these."""
        try:
            return [self._numbers[letter] for letter in _apart(wording)]
        except KeyError as error:
            raise InputError(f"{error.args[0]!r} in {wording[:60]!r} is no letter that this recogniser has") from None

    def text(self, ids: Sequence[int]) -> str:
        """What the numbers say; single spaces, none at the ends."""
        written = "".join(self.letters[number - 1] for number in ids)
        return unicodedata.normalize("NFC", _SPACE.join(written.split()))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {letter: number for number, letter in enumerate(self.letters, start=1)}


def _apart(wording: str) -> str:
    return unicodedata.normalize("NFD", wording)
