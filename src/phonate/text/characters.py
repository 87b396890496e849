"""A phonemizer for any language: letters as phones."""

from __future__ import annotations

import re
import string
import unicodedata

from phonate.config.errors import InputError
from phonate.config.language_codes import is_english, primary
from phonate.text import phonemes
from phonate.text.english.normalisation import normalise, without_pronunciation
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
_SIGNS = {*_CATEGORIES, "Lu", "Lt", "Nd"}
"""Letters, marks and digits of any script."""
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_INNER = frozenset("'\u200c\u200d·\u05f3\u05f4\u0f0b")
"""What is part of a word between two letters: the joiners of Persian and Indic scripts, Catalan l·l, geresh and
gershayim, the mark between Tibetan syllables."""
_KEPT = re.compile("([\u0e33\u0eb3])")
"""am of Thai and Lao, which NFKC takes apart for good."""
_APOSTROPHES = str.maketrans("’‘", "''")


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


def lower_case(text: str, language: str) -> str:
    """`text` in lower case as the language has it: in Turkish and Azeri, I and İ are two letters."""
    if primary(language) in ("tr", "az"):
        text = text.replace("I\u0307", "i").replace("İ", "i").replace("I", "ı")
    return text.lower()


class CharacterPhonemizer:
    """Lower-case letters as phones; for languages other than English also digits, and accents by themselves (NFD).

    Letters of other scripts than the language's are left out, and logged the first time.
    """

    name = "characters"

    def __init__(self, language: str = "en-us", *, whole: bool = False) -> None:
        """`whole`: nothing is left out. Letters, marks and digits of any script are taken, whatever `symbols` says, and
        in English, where only its own letters are, texts with others are refused."""
        if not language:
            raise InputError("characters: the language is empty; give any, such as en-us")
        self.language = language
        self.symbols = _symbols(language)
        self._known = frozenset(self.symbols)
        self._whole = whole

    def _takes(self, character: str) -> bool:
        if character in self._known:
            return True
        return self._whole and not is_english(self.language) and unicodedata.category(character) in _SIGNS

    def __call__(self, text: str) -> list[Word]:
        """The words of `text`. Raises InputError if it has no letters."""
        words: list[Word] = []
        foreign: list[str] = []
        between = letters = ""
        read = self._read(text)
        for place, character in enumerate(read):
            inner = self._whole and character in _INNER and letters and self._takes(read[place + 1])
            if self._takes(character) or inner:
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
        if foreign and self._whole:
            shown = "".join(dict.fromkeys(foreign))
            raise InputError(f"{shown!r} in {text[:60]!r} can't be written in {self.language}; correct the text")
        report_left_out(foreign, f"no letters of the language {self.language}")
        if not words:
            raise phonemes.NothingToSay(text)
        words[-1] = _set_off(words[-1], between)
        return words

    def _read(self, text: str) -> str:
        """`text` as it is read, in lower case, decomposed, and with a line break at its end."""
        if is_english(self.language):
            plain = normalise(text)
            others = {one for one in unicodedata.normalize("NFC", text) if one.isalpha() and not one.isascii()}
            dropped = "".join(sorted(one for one in others if normalise(text.replace(one, "")) == plain))
            if dropped and self._whole:
                raise InputError(
                    f"{dropped!r} in {text[:60]!r} is not read in English; correct the text, or data.language"
                )
        else:
            parts = _KEPT.split(text) if self._whole else [text]
            plain = "".join(part if _KEPT.fullmatch(part) else unicodedata.normalize("NFKC", part) for part in parts)
            plain = language(self.language).read(_SELECTORS.sub("", plain) if self._whole else plain)
        plain = lower_case(plain, self.language)
        plain = plain.translate(_APOSTROPHES) if self._whole else plain.replace("’", "'")
        return unicodedata.normalize("NFD", plain) + "\n"


def _set_off(word: Word, between: str) -> Word:
    return Word(word.text, word.phones, phonemes.mark_of(between), phonemes.pause_of(between))


def left_out(text: str, phonemizer: phonemes.Phonemizer) -> list[str]:
    """The characters of `text` that `phonemizer` leaves out, or in espeak's languages spells, each once."""
    if is_english(phonemizer.language):
        return without_pronunciation(text)
    if phonemizer.name != CharacterPhonemizer.name:
        from phonate.text.espeak import unread  # which needs an extra

        return unread(text, phonemizer.language)
    read = CharacterPhonemizer(phonemizer.language)._read(text)
    return list(dict.fromkeys(one for one in read if one.isalnum() and one not in phonemizer.symbols))
