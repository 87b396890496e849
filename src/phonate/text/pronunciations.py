"""Pronunciations of one's own, for names and terms that a phonemizer does not know.

A file has one word a line and its phones behind it: in the IPA (`Nguyen wˈɪn`), or, for the English phonemizer, as in
CMUdict (`Nguyen W IH1 N`). Empty lines and those that begin with `;` or `#` are skipped.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from phonate.config.errors import InputError, unreadable
from phonate.config.language_codes import is_english
from phonate.config.registry import nearest
from phonate.text.english.arpabet import PHONES, phones_of_ipa, without_stress
from phonate.text.espeak import plain
from phonate.text.phonemes import Phonemizer, Word

LOG = logging.getLogger("phonate")
_WORD = re.compile(r"(?:[^\W\d_]|\w[\u0300-\u036f\u064b-\u0652]+|['.])+")
"""Letters with their marks, apostrophes, and the full stops of initials."""
_ARPABET = re.compile("[A-Z]{1,2}[0-9]?")
_UNSTRESSED = frozenset(without_stress(PHONES))


class LexiconPhonemizer:
    """A phonemizer whose words are pronounced as a lexicon says, where it has them."""

    def __init__(self, phonemizer: Phonemizer, lexicon: Mapping[str, tuple[str, ...]]) -> None:
        """`lexicon`: words as `read_lexicon` writes them, and their phones."""
        self.phonemizer = phonemizer
        self.lexicon = dict(lexicon)
        self.name, self.language, self.symbols = phonemizer.name, phonemizer.language, phonemizer.symbols

    def __call__(self, text: str) -> list[Word]:
        """See `Phonemizer`."""
        return [replace(word, phones=self.lexicon.get(_key(word.text), word.phones)) for word in self.phonemizer(text)]


def read_lexicon(path: str | Path, phonemizer: Phonemizer) -> dict[str, tuple[str, ...]]:
    """The words of a file, in lower case and NFC with straight apostrophes, and their phones.

    Raises InputError, naming the line, for one without phones or with a phone that `phonemizer` does not have.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: can't be read as text ({unreadable(error)}); a lexicon is a UTF-8 text file"
        ) from error
    lexicon = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith((";", "#")):
            continue
        word, *phones = line.split()
        if not phones:
            raise InputError(f"{path}:{number}: {word} has no phones; write them after it")
        word = _key(word)
        word = _without_accents(word) if is_english(phonemizer.language) else word
        if not _WORD.fullmatch(word) and not _looked_up(word, phonemizer):
            LOG.warning("%s:%d: %s is never looked up, for texts are not read with it as one word", path, number, word)
        if word in lexicon:
            LOG.warning("%s:%d: %s is listed twice; this line is used", path, number, word)
        lexicon[word] = phones_of(f"{path}:{number}", phones, phonemizer)
    return lexicon


def _key(word: str) -> str:
    """A word as it is looked up."""
    return unicodedata.normalize("NFC", word.replace("’", "'").lower())


def _looked_up(word: str, phonemizer: Phonemizer) -> bool:
    """Whether `phonemizer` reads a text of this word as this word: that of espeak does with E-Mail."""
    try:
        return word in {_key(one.text) for one in phonemizer(word)}
    except InputError:
        return False


def _without_accents(word: str) -> str:
    """A word as English texts are read, if that leaves plain letters: café as cafe."""
    letters = "".join(one for one in unicodedata.normalize("NFKD", word) if not unicodedata.combining(one))
    return letters if letters.isascii() else word


def phones_of(place: str, written: list[str], phonemizer: Phonemizer) -> tuple[str, ...]:
    """Phones as they were `written` between spaces, checked. Raises InputError, naming the `place`.

    For English phones they may be written in the IPA too.
    """
    if set(PHONES) <= set(phonemizer.symbols) and not all(map(_ARPABET.fullmatch, written)):
        try:
            _check_alphabet(written)
            return phones_of_ipa(" ".join(written))
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
    phones = _symbols(written, phonemizer)
    if not phones:
        raise InputError(f"{place}: {' '.join(written)!r} has no sound")
    for phone in phones:
        if phone not in phonemizer.symbols and f"{phone}1" in phonemizer.symbols:
            raise InputError(f"{place}: {phone} needs its stress: {phone}0 (none), {phone}1 (main) or {phone}2 (other)")
        if phone not in phonemizer.symbols:
            raise InputError(
                f"{place}: {phone!r} is no phone of the phonemizer {phonemizer.name}; "
                f"{nearest(phone, sorted({symbol.rstrip('012') for symbol in phonemizer.symbols}))}"
            )
    return phones


def _symbols(written: list[str], phonemizer: Phonemizer) -> tuple[str, ...]:
    """Phones as `phonemizer` writes them itself, if they are: espeak's and letters are single code points in NFD."""
    if any(len(symbol) > 1 for symbol in phonemizer.symbols):
        return tuple(written)
    joined = "".join(written)
    if phonemizer.name == "espeak":
        return tuple(plain(joined.replace(".", "")))  # dots are between syllables
    return tuple(unicodedata.normalize("NFD", joined))


def _check_alphabet(written: list[str]) -> None:
    """Raises InputError for phones that are meant as those of CMUdict, and would be read in the IPA."""
    capitals = [phone.upper() for phone in written]
    bare = without_stress(capitals)
    unstressed = all(phone in _UNSTRESSED for phone in bare) and any(len(phone) > 1 for phone in bare)
    stressed = all(map(_ARPABET.fullmatch, capitals)) and re.search("[0-2]", "".join(written))
    if unstressed or stressed:
        raise InputError(f"phones of CMUdict are written in capitals: {' '.join(capitals)}")
    strange = [phone for phone in written if phone.rstrip("012") not in _UNSTRESSED]
    if len(strange) < len(written):
        raise InputError(f"{strange[0]!r} is no phone of CMUdict; words and comments may not stand among phones")
