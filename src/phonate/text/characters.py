"""A phonemizer for any language: letters as phones."""

from __future__ import annotations

import re
import string
import unicodedata

from phonate.config.errors import InputError
from phonate.config.language_codes import is_english
from phonate.text import phonemes
from phonate.text.english.normalisation import normalise
from phonate.text.language import language
from phonate.text.phonemes import Word, report_left_out

_LATIN = ((0x0061, 0x007A), (0x00DF, 0x024F), (0x0250, 0x0292), (0x02BC, 0x02BC), (0x0300, 0x0345))
_SCRIPTS = {
    "el": ((0x03AC, 0x03CE),),
    "ru be uk bg sr mk kk ky mn tg tt ba cv os ab": ((0x0430, 0x045F), (0x0460, 0x04FF)),
    "hy hyw": ((0x0561, 0x0587),),
    "he yi": ((0x05B0, 0x05EA),),
    "ar fa ur ps ug sd ku": ((0x0621, 0x0655), (0x0670, 0x06D3)),
    "hi mr ne sa kok": ((0x0901, 0x0963),),
    "bn as": ((0x0981, 0x09E3),),
    "ta": ((0x0B82, 0x0BCD),),
    "th": ((0x0E01, 0x0E4D),),
    "ka": ((0x10D0, 0x10F0),),
    "ko": ((0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2)),
    "ja": ((0x3041, 0x3096), (0x3099, 0x309A), (0x30A1, 0x30FC)),
}
"""Letters beyond the Latin ones, by language."""

_CATEGORIES = {"Ll", "Lo", "Lm", "Mn", "Mc"}


def _symbols(language: str) -> tuple[str, ...]:
    """Apostrophe and letters; for languages other than English also digits, accents and the language's script."""
    if is_english(language):
        return ("'", *string.ascii_lowercase)
    short = re.split(r"[-_]", language.lower())[0]
    own = next((blocks for languages, blocks in _SCRIPTS.items() if short in languages.split()), ())
    fixed = unicodedata.ucd_3_2_0  # the same letters in the same order whatever the Python
    letters = [
        chr(code)
        for first, last in (*_LATIN, *own)
        for code in range(first, last + 1)
        if fixed.category(chr(code)) in _CATEGORIES
        and fixed.normalize("NFD", chr(code)) == chr(code)
        and chr(code).lower() == chr(code)
    ]
    return ("'", *"0123456789", *letters)


class CharacterPhonemizer:
    """Lower-case letters as phones; for languages other than English also digits, and accents by themselves (NFD).

    Letters of other scripts than the language's are left out, and logged the first time.
    """

    name = "characters"

    def __init__(self, language: str = "en-us") -> None:
        if not language:
            raise InputError("characters: the language is empty; give any, such as en-us")
        self.language = language
        self.symbols = _symbols(language)
        self._known = frozenset(self.symbols)

    def __call__(self, text: str) -> list[Word]:
        """The words of `text`. Raises InputError if it has no letters."""
        english = is_english(self.language)
        plain = normalise(text) if english else language(self.language).read(unicodedata.normalize("NFKC", text))
        words: list[Word] = []
        foreign: list[str] = []
        between = letters = ""
        for character in [*unicodedata.normalize("NFD", plain.lower().replace("’", "'")), "\n"]:
            if character in self._known:
                if not letters and words:
                    words[-1] = _set_off(words[-1], between)
                letters += character
                between = ""
                continue
            if stripped := letters.strip("'"):
                words.append(Word(unicodedata.normalize("NFC", stripped), tuple(stripped)))
            letters = ""
            between += character
            if character.isalnum():
                foreign.append(character)
        report_left_out(foreign, f"no letters of the language {self.language}")
        if not words:
            raise phonemes.NothingToSay(text)
        words[-1] = _set_off(words[-1], between)
        return words


def _set_off(word: Word, between: str) -> Word:
    return Word(word.text, word.phones, phonemes.mark_of(between), phonemes.pause_of(between))
