"""The interface of phonemizers: a text as words with their phones and the punctuation after them; and what a model
makes of these: the ids of its symbols, and the marks of punctuation that it has learnt.
"""

from __future__ import annotations

import importlib
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

from phonate.config.errors import InputError
from phonate.config.words import number_of

logger = logging.getLogger("phonate")

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
        super().__init__(f"nothing of this text can be spoken: {shown!r}; write words of the voice's language")


# ---------------------------------------------------------------------------------------- Characters that can't be said


NAMED = 20
"""Characters that are shown."""
_CALLED = {
    **dict.fromkeys(("CJK", "IDEOGRAPHIC"), "Chinese"),
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"), "Japanese"),
    "HANGUL": "Korean",
}
"""A script, the first word of its letters' names in Unicode -> what people call it, where they do otherwise."""
_NO_SCRIPT = {
    *("", "ALEF", "ANGSTROM", "BET", "BLACK-LETTER", "CARON", "COMBINING", "DALET", "DOUBLE-STRUCK", "EULER"),
    *("FEMININE", "FULLWIDTH", "GIMEL", "HALFWIDTH", "INFORMATION", "KELVIN", "LATIN", "MASCULINE", "MASU"),
    *("MATHEMATICAL", "MICRO", "MODIFIER", "MUSICAL", "OHM", "PLANCK", "ROMAN", "SCRIPT", "SUPERSCRIPT", "TURNED"),
    *("VARIATION", "VEDIC", "VERTICAL"),
}
"""First words of the names of letters and marks that are those of no script, or of the one that is read."""
_reported: set[str] = set()


def report_left_out(characters: Iterable[str], why: str) -> None:
    """Log those of `characters` that were not logged before; `why` they are left out."""
    new = [character for character in dict.fromkeys(characters) if character not in _reported]
    if not new:
        return
    _reported.update(new)
    shown = "".join(one for one in new[:NAMED] if one.isprintable())
    logger.warning("left out, %s: %s", why, f"{shown} ({named(new)})" if shown else named(new))


def named(characters: Sequence[str]) -> str:
    """The `characters` in words of ASCII: letters counted by their script, others by their names: `3 Chinese
    characters, fox face`."""
    kinds: Counter[str] = Counter()
    for one in characters:
        name = unicodedata.name(one, "")
        script = name.partition(" ")[0] if unicodedata.category(one)[0] in "LM" else ""
        of_script = f"{_CALLED.get(script, script.capitalize())} character"
        kinds[of_script if script not in _NO_SCRIPT else name.lower() or f"U+{ord(one):04X}"] += 1
    parts = [number_of(count, kind) if kind.endswith(" character") else kind for kind, count in kinds.items()]
    more = f" and {number_of(len(parts) - NAMED, 'other')}" if len(parts) > NAMED else ""
    return ", ".join(parts[:NAMED]) + more


# ------------------------------------------------------------------------------------------------------ Symbols <-> ids

PAD = "<pad>"
"""Id 0: padding."""
WORD = "<word>"
"""The boundary after a word without punctuation."""
START = "<start>"
"""The boundary before the first word; its duration is the silence before speech."""

SPECIAL = (PAD, WORD, *MARKS, START)
"""The first symbols of every inventory."""


@dataclass(frozen=True)
class Inventory:
    """The symbols of a phonemizer and of boundaries; the id of a symbol is its position."""

    symbols: tuple[str, ...]
    phonemizer_name: str
    language: str

    def __post_init__(self) -> None:
        if self.symbols[: len(SPECIAL)] != SPECIAL or len(set(self.symbols)) != len(self.symbols):
            raise InputError(f"an inventory starts with {' '.join(SPECIAL)} and has no symbol twice")

    def __len__(self) -> int:
        return len(self.symbols)

    @classmethod
    def of(cls, phonemizer: Phonemizer) -> Inventory:
        """The inventory of all symbols of `phonemizer`."""
        return cls((*SPECIAL, *phonemizer.symbols), phonemizer.name, phonemizer.language)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Inventory:
        """The inventory that `document()` returned. Raises InputError for anything else."""
        symbols, name, language = (document.get(key) for key in ("symbols", "phonemizer", "language"))
        texts = isinstance(symbols, list) and all(isinstance(symbol, str) for symbol in symbols)
        if not (texts and isinstance(name, str) and isinstance(language, str)):
            raise InputError("an inventory needs symbols (a list of texts), phonemizer and language")
        return cls(tuple(symbols or ()), name, language)

    def document(self) -> dict[str, Any]:
        """The inventory as JSON values, for `read`."""
        return {"phonemizer": self.phonemizer_name, "language": self.language, "symbols": list(self.symbols)}

    def phonemizer(self) -> Phonemizer:
        """The phonemizer that this inventory was made for."""
        return phonemizer(self.phonemizer_name, self.language)

    def tokens(self, words: Sequence[Word]) -> list[str]:
        """START, then the phones of each word followed by a boundary: its mark, or WORD."""
        tokens = [START]
        for word in words:
            tokens += [*word.phones, word.mark or WORD]
        return tokens

    def ids(self, words: Sequence[Word]) -> list[int]:
        """The ids of `tokens`. Raises InputError for a symbol that is not in the inventory, naming it and its word."""
        for word in words:
            for symbol in (*word.phones, word.mark or WORD):
                if symbol not in self._ids:
                    raise InputError(
                        f"{symbol!r} of the word {word.text!r} is not among the {len(self)} symbols of this inventory "
                        f"({self.phonemizer_name}, {self.language})"
                    )
        return [self._ids[token] for token in self.tokens(words)]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: index for index, symbol in enumerate(self.symbols)}


# ------------------------------------------------------------------------- Marks of punctuation that a model has learnt

MARKS_KEY = "marks"
"""In what a checkpoint holds for inference: mark -> words of the training texts that it follows."""
START_MARKS_KEY = "marks_of_start"
"""Beside it: the marks that the voice had learnt whose weights training started from."""
ENOUGH = 20
"""Words that a mark must follow to count as learnt,"""
ENOUGH_SHARE = 0.2
"""or, in small corpora, so many of each recording."""
_WEAKER = {"?": ".", "!": ".", ";": ",", ":": ",", "-": ",", ".": "", ",": ""}


def counted_marks(texts: Iterable[Sequence[Word]]) -> dict[str, int]:
    """How many words of `texts` each mark follows."""
    return dict(Counter(word.mark for words in texts for word in words if word.mark))


def learnt_marks(inference_metadata: Mapping[str, Any]) -> frozenset[str] | None:
    """The marks that a model has learnt; None where its checkpoint does not tell."""
    counts, recordings = inference_metadata.get(MARKS_KEY), inference_metadata.get("recordings", 0)
    if counts is None:
        return None
    least = max(1.0, min(ENOUGH, ENOUGH_SHARE * recordings))
    own = frozenset(mark for mark, count in counts.items() if count >= least)
    return own.union(inference_metadata.get(START_MARKS_KEY, ()))


def known_mark(word: Word, learnt: Collection[str] | None) -> str:
    """The mark after a word, or the next weaker one that was learnt; a comma for a parenthesis."""
    if learnt is None:
        return word.mark
    mark = word.mark or ("," if word.pause == "(" else "")
    while mark and mark not in learnt:
        mark = _WEAKER[mark]
    return mark
