"""The phonemizer of espeak-ng: over a hundred languages in IPA, one code point a phone, as in Piper's voices.

The library comes with the optional package espeakng-loader (`phonate[espeak]`) and is loaded at run time. Its state is
global, so a lock admits one text at a time.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import threading
import unicodedata

from phonate.config.errors import InputError, PhonateError, require_modules
from phonate.config.language_codes import code_of, is_english, primary
from phonate.config.registry import nearest
from phonate.text import phonemes
from phonate.text.english.normalisation import normalise
from phonate.text.language import language
from phonate.text.phonemes import Word

_PIPER = (
    "'abcdefhijklmnopqrstuvwxyzæçðøħŋœǀǁǂǃɐɑɒɓɔɕɖɗɘəɚɛɜɞɟɠɡɢɣɤɥɦɧɨɪɫɬɭɮɯɰɱɲɳɴɵɶɸɹɺɻɽɾʀʁʂʃʄʈʉʊʋʌʍʎʏʐʑʒʔʕʘʙʛʜʝʟʡʢʲ"
    'ˈˌːˑ˞βθχᵻⱱ0123456789\u0327\u0303\u032a\u032f\u0329ʰˤε↓#"'
)
"""The phones of Piper's phoneme_id_map, in its order, without its punctuation."""

_OTHERS = (
    "\u031e\u0308\u0306\u0325\u0324\u0330\u031a\u0320\u031f\u032c\u030a\u031d\u0331\u0361ʷʼˠⁿˡˀɝ"
    "\u0301\u0300\u0304\u030c\u0302\u033a\u033bᵝɿʅ"
)
"""Phones of languages that Piper has no voices for."""

SYMBOLS = tuple(_PIPER + _OTHERS)

SUBSTITUTES = {
    "s.": "ʂ", "z.": "ʐ", "r.": "ɽ", "i.": "ɨ", "g": "ɡ", ":": "ː", "Z": "ʒ", "S": "ʃ", "N": "ŋ", "X": "χ", "A": "ɑ",
    "Φ": "ɸ", "ʦ": "ts", "?": "ʔ", "[": "\u032a", **dict.fromkeys("-_|.+‿`^\u200d", ""),
}  # fmt: skip
"""espeak's mnemonics, by which phones without IPA come, and signs of no phone -> phones of this phonemizer."""
_COMPOSED = {"\u09a1\u09bc": "\u09dc", "\u09a2\u09bc": "\u09dd", "\u09af\u09bc": "\u09df"}
"""Letters of Bengali and Assamese that NFC takes apart, and espeak knows in one piece alone."""
_UNCOMPOSED = re.compile("|".join(_COMPOSED))
_VOWEL_FIRST = re.compile("([\u064b-\u0650\u0670]+)\u0651")
"""Arabic marks in the order of NFC; espeak drops a vowel in front of the mark that doubles its consonant."""
_SUBSTITUTED = re.compile("|".join(map(re.escape, SUBSTITUTES)))
_LANGUAGE_SWITCH = re.compile(r"\([^)]*\)")
_CLAUSE = re.compile(
    r"(.*?)((?:(?:[,!?;:…]|(?<!\b[A-Za-z])\.)+[\"'”’»)\]]*(?=\s|$)|\s+[-–—]+(?=\s)"
    r"|[—。｡，！？；：、؟،؛।॥۔։።။។]|\s*[()\[\]{}]+|\n)[\s.]*|$)",
    re.DOTALL,
)
_FOREIGN_MARKS = str.maketrans("。｡，！？；：、؟،؛।॥۔։።။។", "..,!?;:,?,;.......")
_DROPPED = re.compile(r"[\"“”„«»()\[\]{}<>¿¡*_|~^`\\]+")

_WITHOUT_DICTIONARY = {"fo", "kaa", "xex"}
"""Languages that espeak-ng lists, but whose dictionaries the wheel lacks."""

_UTF8, _IPA, _RETRIEVAL, _DONT_EXIT = 1, 2, 1, 0x8000  # of speak_lib.h
_lock = threading.Lock()


class _Voice(ctypes.Structure):
    """espeak_VOICE of speak_lib.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_void_p),
        ("identifier", ctypes.c_char_p),
        ("numbers", ctypes.c_ubyte * 4),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


def require_espeak() -> bool:
    """See `require_modules`. The system's espeak-ng is not used, but that in a Python package."""
    return require_modules("the phonemizer 'espeak'", "espeakng_loader", install="'phonate[espeak]'")


class _Library:
    """The C library through ctypes; one per process."""

    def __init__(self) -> None:
        require_espeak()
        import espeakng_loader

        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = str(espeakng_loader.get_data_path())
        if self._library.espeak_Initialize(_RETRIEVAL, 0, data.encode(), _DONT_EXIT) <= 0:
            raise PhonateError(f"espeak-ng can't be started with the data in {data}")
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self._library.espeak_TextToPhonemes.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int]
        self._library.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_Voice))
        self._library.espeak_ListVoices.argtypes = [ctypes.c_void_p]
        self.voices = self._voices()
        self._voice = ""

    def _voices(self) -> dict[str, str]:
        """Language -> the identifier of its best voice."""
        best: dict[str, tuple[int, str]] = {}
        table = self._library.espeak_ListVoices(None)
        number = 0
        while table[number]:
            voice = table[number].contents
            at, identifier = voice.languages, voice.identifier.decode()
            # a list of (one byte of priority, a string that ends in zero), ended by a zero priority
            while priority := ctypes.cast(at, ctypes.POINTER(ctypes.c_ubyte))[0]:
                code = ctypes.string_at(at + 1)
                language = code.decode().lower()
                if language not in best or priority < best[language][0]:
                    best[language] = (priority, identifier)
                at += 2 + len(code)
            number += 1
        return {code: identifier for code, (_, identifier) in sorted(best.items()) if code not in _WITHOUT_DICTIONARY}

    def ipa(self, text: str, language: str) -> str:
        """The IPA of `text`, words separated by spaces. The caller holds the lock."""
        if self._voice != language:
            if self._library.espeak_SetVoiceByName(self.voices[language].encode()) != 0:
                raise PhonateError(f"espeak-ng can't load its voice {self.voices[language]!r}")
            self._voice = language
        buffer = ctypes.create_string_buffer(text.encode())
        place = ctypes.c_void_p(ctypes.addressof(buffer))
        clauses: list[str] = []
        while place.value:
            clause = self._library.espeak_TextToPhonemes(ctypes.byref(place), _UTF8, _IPA)
            clauses.append((clause or b"").decode())
        return " ".join(clauses)


@functools.cache
def _library() -> _Library:
    return _Library()


class EspeakPhonemizer:
    """Text -> words with the code points of espeak-ng's IPA (NFD) as phones; stress marks are phones too."""

    name = "espeak"

    def __init__(self, language: str = "en-us") -> None:
        code = code_of(language).lower().replace("_", "-")
        with _lock:
            voices = _library().voices
        if code not in voices and primary(code) in voices:
            raise InputError(f"espeak-ng has no language {language!r}; use {primary(code)}")
        if code not in voices:
            near = nearest(code, list(voices))
            mend = near if near.startswith("did") else "give its code, such as de"
            raise InputError(f"espeak-ng has no language {language!r}; {mend}")
        self.language = code
        self.symbols = SYMBOLS

    def __call__(self, text: str) -> list[Word]:
        """The words of `text`. In languages other than English, the language's file says how abbreviations and such
        are read, and espeak reads the numbers.

        Raises InputError if it has no words.
        """
        english = is_english(self.language)
        plain = normalise(text) if english else language(self.language).read(unicodedata.normalize("NFC", text))
        words: list[Word] = []
        for clause, mark, pause in _clauses(plain):
            own = self._clause(clause)
            words += [*own[:-1], Word(own[-1].text, own[-1].phones, mark, pause)] if own else []
        if not words:
            raise phonemes.NothingToSay(text)
        return words

    def _clause(self, clause: str) -> list[Word]:
        """The words of a text without punctuation. espeak may merge words ("of the") or split one ("25")."""
        tokens = clause.split()
        pieces = self._ipa(clause)
        if len(pieces) != len(tokens):
            expected = [max(1, sum(map(len, self._ipa(token)))) for token in tokens]
            groups = align(expected, [len(piece) for piece in pieces])
        else:
            groups = [(n, n + 1, n, n + 1) for n in range(len(tokens))]
        return [
            Word(text, tuple(self._checked("".join(pieces[third:fourth]), text)))
            for first, second, third, fourth in groups
            if (text := " ".join(tokens[first:second]))
        ]

    def _ipa(self, text: str) -> list[str]:
        with _lock:
            composed = _UNCOMPOSED.sub(lambda pair: _COMPOSED[pair[0]], text.replace("\0", " "))
            ipa = _library().ipa(_VOWEL_FIRST.sub("\u0651\\1", composed), self.language)
        pieces = (plain(piece) for piece in _LANGUAGE_SWITCH.sub("", ipa).split())
        return [piece for piece in pieces if any(character.isalpha() for character in piece)]

    def _checked(self, phones: str, word: str) -> str:
        unknown = next((phone for phone in phones if phone not in _KNOWN), None)
        if unknown is not None:
            raise InputError(
                f"espeak-ng gives {unknown!r} (U+{ord(unknown):04X}) for {word!r}, not a phone of this phonemizer"
            )
        return phones


_KNOWN = frozenset(SYMBOLS)


_SPELT = 8
"""Phones for each letter, at least, of a word that espeak spells, naming the script before each letter."""


def unread(text: str, language_code: str) -> list[str]:
    """The characters of `text` that espeak does not read in a language other than English, each once: the letters of
    scripts that it spells there, such as Cyrillic in German, and signs that it passes over."""
    phonemizer = EspeakPhonemizer(language_code)
    plain_text = language(language_code).read(unicodedata.normalize("NFC", text))
    found: list[str] = []
    for word in dict.fromkeys(_DROPPED.sub(" ", plain_text).split()):
        for script, run in itertools.groupby(word, _script):
            characters = "".join(run)
            letters = [one for one in characters if one.isalpha()]
            if script == _SIGN:
                found += [one for one in characters if not phonemizer._ipa(one)]
            elif script != "LATIN" and sum(map(len, phonemizer._ipa(characters))) >= _SPELT * len(letters) > 0:
                found += letters
    return list(dict.fromkeys(found))


_SIGN = "sign"


def _script(character: str) -> str:
    """The script of a letter or of a mark on one, by its name; "" for digits and punctuation."""
    category = unicodedata.category(character)
    if category in {"Sm", "Sc", "So"}:
        return _SIGN
    return unicodedata.name(character, "").partition(" ")[0] if category[0] in "LM" else ""


def voice_of(language: str) -> str:
    """A name of the voice that speaks a language of espeak's: its code, or "gmw/en" where that is not the voice's own
    (en-gb), for not every program finds a voice by the other codes that it lists."""
    with _lock:
        voice = _library().voices[language]
    return language if voice.rpartition("/")[2].lower() == language else voice


def plain(ipa: str) -> str:
    """espeak's notation of a word or a phone as phones of this phonemizer."""
    return _SUBSTITUTED.sub(lambda match: SUBSTITUTES[match[0]], unicodedata.normalize("NFD", ipa))


def _clauses(text: str) -> list[tuple[str, str, str]]:
    """The clauses of `text`: text without punctuation, the mark after it, and what else sets it off."""
    clauses: list[tuple[str, str]] = []  # with all that stands behind the text
    for clause, ending in _CLAUSE.findall(text):
        text_alone = _DROPPED.sub(" ", clause).strip()
        behind = ending.translate(_FOREIGN_MARKS)
        if any(character.isalnum() for character in text_alone):
            clauses.append((text_alone, behind))
        elif clauses and not phonemes.mark_of(clauses[-1][1]):
            clauses[-1] = (clauses[-1][0], clauses[-1][1] + behind)
    if clauses and not phonemes.mark_of(clauses[-1][1]) and clauses[-1][0].endswith("."):
        clauses[-1] = (clauses[-1][0], ".")  # "U.S." ends the text as well
    return [(clause, phonemes.mark_of(behind), phonemes.pause_of(behind)) for clause, behind in clauses]


_LARGEST_GROUP = 16
"""Words of a group, at least: as of a long number, which is written as one."""


def align(expected: list[int], actual: list[int]) -> list[tuple[int, int, int, int]]:
    """Align written words with spoken ones by their numbers of phones.

    Returns (first, end) of the written and (first, end) of the spoken words of each group. One side of a group is a
    single word, every word is in one group, and the sum of the groups' differences in length is minimal.

    Args:
        expected: (N,) phones of each written word, pronounced by itself.
        actual: (M,) phones of each spoken word.
    """
    best: dict[tuple[int, int], tuple[int, tuple[int, int]]] = {(0, 0): (0, (0, 0))}
    if not expected or not actual:
        return []
    sums_N, sums_M = (list(itertools.accumulate(lengths, initial=0)) for lengths in (expected, actual))
    most = max(_LARGEST_GROUP, -(-len(expected) // len(actual)), -(-len(actual) // len(expected)))
    for n in range(len(expected) + 1):
        for m in range(len(actual) + 1):
            steps = [(n - back, m - 1) for back in range(1, min(n, most) + 1)]
            steps += [(n - 1, m - back) for back in range(1, min(m, most) + 1)]
            options = [
                (best[step][0] + abs(sums_N[n] - sums_N[step[0]] - sums_M[m] + sums_M[step[1]]), step)
                for step in steps
                if step in best
            ]
            if options:
                best[n, m] = min(options)
    groups: list[tuple[int, int, int, int]] = []
    at = (len(expected), len(actual))
    while at != (0, 0):
        before = best[at][1]
        groups.append((before[0], at[0], before[1], at[1]))
        at = before
    return groups[::-1]
