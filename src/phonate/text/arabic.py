"""Arabic text as a model reads it: marks, forms of letters, digits and punctuation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal

from phonate.config.errors import optional_package
from phonate.config.settings import Settings


class ArabicText(Settings):
    """Changes to Arabic text, each on its own. Other scripts are left as they are."""

    remove_diacritics: bool = False
    """Remove the marks of short vowels, doubling and case (tashkeel). They say how a word is pronounced: remove them if
    some texts have them and some have not."""
    remove_tatweel: bool = True
    """Remove the stroke that only stretches a word (ـ)."""
    unify_alef: bool = False
    """Write أ إ آ ٱ as ا."""
    unify_yeh: bool = False
    """Write ى as ي."""
    unify_teh_marbuta: bool = False
    """Write ة as ه."""
    digits: Literal["keep", "western", "words"] = "keep"
    """Arabic-Indic and Persian digits (٣, ۳): western writes them as 3; words spells out whole numbers of up to twelve
    digits, these and 3 as well, in texts with Arabic letters (needs the package num2words)."""
    punctuation: Literal["keep", "western"] = "keep"
    """western writes ، ؛ ؟ as , ; ?"""


_LETTERS = re.compile("[\u0620-\u063f\u0641-\u064a\u066e-\u06d3\u06d5\u0750-\u077f\u08a0-\u08c7]")
_DIACRITICS = re.compile("[\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed]")
_TATWEEL = "\u0640"
_ALEFS = "\u0622\u0623\u0625\u0671"
_DIGITS = {start + value: str(value) for start in (0x0660, 0x06F0) for value in range(10)}
_SEPARATORS = {"\u066b": ".", "\u066c": ",", "\u066a": "%"}
_PUNCTUATION = {"\u060c": ",", "\u061b": ";", "\u061f": "?", "\u06d4": ".", "\u066d": "*"}
_MOST_DIGITS = 12
_DUAL = re.compile(r"\b(?:مئت|ألف|مليون|مليار)ا$")  # num2words gives 200 and 2000 the form they have before a noun
# Not part of a longer number, a decimal, a date, a time or a word: these are read in other ways.
_NUMBER = re.compile(rf"(?<![\w.,:/٫٬-])\d{{1,{_MOST_DIGITS}}}(?![\w]|[.,:/٫٬-]\d)")


def has_arabic(text: str) -> bool:
    """Whether a text has Arabic letters."""
    return _LETTERS.search(text) is not None


def normalise_arabic(text: str, settings: ArabicText) -> str:
    """`text` with the changes that `settings` ask for, in the composed form of Unicode (NFC) and with single spaces.
    Applied again, it changes nothing.

    Raises MissingPackageError where numbers are to be spelled out and num2words is not installed.
    """
    # What is removed may stand between the digits of a number, and the words of a number have marks of their own.
    text = _removed(unicodedata.normalize("NFC", text), settings)
    if settings.digits == "words" and has_arabic(text):
        text = _removed(_NUMBER.sub(lambda match: _spelled(match[0]), text), settings)
    table = str.maketrans(dict(_replacements(settings)))
    return " ".join(text.translate(table).split())


def _removed(text: str, settings: ArabicText) -> str:
    if settings.remove_diacritics:
        text = _DIACRITICS.sub("", text)
    return text.replace(_TATWEEL, "") if settings.remove_tatweel else text


def _replacements(settings: ArabicText) -> Iterator[tuple[str, str]]:
    """Characters, and what replaces them."""
    if settings.unify_alef:
        yield from ((letter, "\u0627") for letter in _ALEFS)
    if settings.unify_yeh:
        yield "\u0649", "\u064a"
    if settings.unify_teh_marbuta:
        yield "\u0629", "\u0647"
    if settings.digits == "western":
        yield from ((chr(code), digit) for code, digit in _DIGITS.items())
        yield from _SEPARATORS.items()
    if settings.punctuation == "western":
        yield from _PUNCTUATION.items()


def _spelled(digits: str) -> str:
    """A whole number in Arabic words; a code such as 0501 stays as it is."""
    if len(digits) > 1 and int(digits[0]) == 0:
        return digits
    package = optional_package("num2words", "data.arabic.digits: words", "num2words")
    words = str(package.num2words(int(digits), lang="ar"))
    return _DUAL.sub(r"\g<0>ن", words)
