"""Which column of a list without a header is the path, the speaker and the text, by its values."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from phonate.data.corpora.names import MOODS
from phonate.data.corpora.rows import printable
from phonate.text.patterns import lazy

FILES_LOOKED_FOR = 40
_SEVERAL = 4
"""Rows from which on it means something that no value returns."""
_ENDS = tuple('.,;:?!…。？！،؟।॥۔"”»')
_UNSPACED = lazy("[\u0e00-\u0eff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
"""Letters of scripts without spaces between words."""
_OTHER_LETTERS = lazy("[\u0370-\u1cff\u2e80-\ud7af\uf900-\ufaff\ufb1d-\ufefc]")
"""Letters of scripts other than Latin."""
_PHONES = re.compile(r"[ˈˌːɪʊɑʌɒɜɐɚɝɹɾʃʒɡʔʁ]|^\{.*\}$|\b[A-Z]{2}[012]\b")
"""Marks and letters of IPA that hardly any orthography has, and ARPAbet."""
_LANGUAGE = re.compile(r"(?:all_)?([a-z]{2,3})([-_][a-z]{2,4})?|auto", re.IGNORECASE)
_LANGUAGES = frozenset(
    re.findall(
        "..",
        "aaabaeafakamanarasavayazbabebgbhbibmbnbobrbscacechcocrcscucvcydadedvdzeeeleneoeseteufafffifjfofrfygagdgl"
        "gngugvhahehihohrhthuhyhziaidieigiiikioisitiujajpjvkakgkikjkkklkmknkokrkskukvkwkylalblglilnloltlulvmgmhmi"
        "mkmlmnmrmsmtmynanbndnengnlnnnonrnvnyocojomorospapiplpsptqurmrnrorurwsascsdsesgsiskslsmsnsosqsrssstsusvsw"
        "tatetgthtitktltntotrtstttwtyugukuruzvevivowawoxhyiyozazhzu",
    )
) | {"yue", "cmn"}
"""ISO 639-1, and jp."""
_LONG_CODES = frozenset(
    re.findall(
        r"\w+",
        "afr amh ara asm ast aze bak bel ben bos bre bul cat ceb ces chi ckb cym cze dan deu dut ell eng est eus fas "
        "fil fin fra fre ger gle glg guj hat hau haw heb hin hrv hun hye ibo ind isl ita jav jpn kan kat kaz kea khm "
        "kin kir kor lao lav lin lit ltz lug mal mar mkd mlt mon mri msa mya nep nld nob nor nso nya oci ory pan per "
        "pol por pus ron rum rus slk slo slv sna snd som spa sqi srp sun swa swe tam tel tgk tgl tha tur uig ukr umb "
        "urd uzb vie wol xho yor zho zul",
    )
)
"""Of ISO 639-2 and 639-3, the usual ones. Some are names (ben, dan), so they count only beside another label."""
_FRACTION = re.compile(r"\d+[.,]\d+")
_TIME = re.compile(r"(\d+:)?\d+:\d\d([.,]\d+)?|\d{4}([-/.])\d\d?\3\d\d?([T ]\S+)?|\d\d?([-/.])\d\d?\5(\d\d){1,2}")
"""Of a clock, or a date."""
_FILE = re.compile(r"\S+\.[A-Za-z]\w{1,4}")
_FEWEST_LETTERS = 2.5
"""Of a word, in the mean; phones with spaces between have fewer."""
_GENDER = re.compile(r"(fe)?male|[mfow]|other|unknown", re.IGNORECASE)
_INTEGER = re.compile(r"\d+")
_NUMBERS = re.compile(r"-?\d+([ .,]-?\d+)*")


class RecordingNames(Protocol):
    """Recordings by the names of a list."""

    def has(self, name: str) -> bool:
        """Whether a recording has this name."""

    def find(self, name: str) -> Path:
        """The file that has this name, or would have."""


@dataclass(frozen=True)
class Roles:
    """Which columns of a table without a header are what, counted from 0."""

    path: int = 0
    speaker: int | None = None
    text: int | None = None
    note: str | None = None
    """What a person should know of this reading, where another is possible."""
    refusal: str | None = None
    """Why there is no reading."""
    other: Roles | None = None
    """Another reading that is possible."""


def share_named(places: RecordingNames, rows: Sequence[Sequence[str]], column: int) -> float:
    """The share of rows of which a column names a recording that is there."""
    some = rows[:: -(-len(rows) // FILES_LOOKED_FOR) or 1]
    return sum(column < len(row) and places.has(row[column]) for row in some) / max(1, len(some))


class _Column:
    """What the values of a column are like."""

    def __init__(self, at: int, cells: Sequence[str]) -> None:
        self.at = at
        self.cells = cells
        self.filled = [cell for cell in cells if cell]
        count = max(1, len(self.filled))
        self.distinct = len(set(self.filled)) / count
        """1 where each row has another value."""
        self.words = sum(map(_words, self.filled)) / count
        """In a cell."""
        self.numbers = bool(self.filled) and all(map(_NUMBERS.fullmatch, self.filled))
        self.numbered = sum(any(map(str.isdigit, cell)) and " " not in cell for cell in self.filled) > 0.9 * count
        """Whether its values are like p225 or spk-3."""
        self.is_counting = len(self.filled) >= _SEVERAL and self.all_are(_INTEGER) and _rise(self.filled)
        """Whether it numbers the rows."""
        self.short = sum(map(like_a_name, self.filled)) >= 0.9 * count
        """Whether its values are no longer than names are."""
        self.varied = self.distinct >= 0.9
        """Whether nearly every row has a value of its own."""
        self.is_beside_languages = False
        """Whether another column holds the languages."""
        self.is_measured = len(self.filled) > 1 and (self.all_are(_FRACTION) or (self.varied and self.all_are(_FILE)))
        """Whether it holds durations, or names of files, one a row."""

    @property
    def letters(self) -> float:
        """Letters of a word, of scripts with spaces between words."""
        if self.holds(_UNSPACED):
            return float("inf")
        return sum(len(cell) for cell in self.filled) / max(1.0, self.words * len(self.filled)) - 1

    def holds(self, pattern: re.Pattern[str]) -> bool:
        """Whether at least half of the cells hold a match."""
        return bool(self.filled) and 2 * sum(bool(pattern.search(cell)) for cell in self.filled) >= len(self.filled)

    @property
    def is_of_languages(self) -> bool:
        """Whether each cell is the code of a language."""
        return self._all_codes(_LANGUAGES)

    @property
    def may_be_of_languages(self) -> bool:
        """The same, with codes that may be names, too."""
        return self._all_codes(_LANGUAGES | _LONG_CODES)

    def _all_codes(self, known: frozenset[str]) -> bool:
        codes = [_LANGUAGE.fullmatch(cell) for cell in self.filled]
        return bool(codes) and all(code is not None and (code[1] or "en").lower() in known for code in codes)

    @property
    def names_nobody(self) -> bool:
        """Whether its values are languages, moods, or men and women, which speakers are hardly called."""
        moods = bool(self.filled) and all(cell.lower() in MOODS for cell in self.filled)
        return moods or (self.is_of_languages and not self.is_beside_languages) or self.all_are(_GENDER)

    def all_are(self, pattern: re.Pattern[str]) -> bool:
        """Whether each cell is a match."""
        return bool(self.filled) and all(map(pattern.fullmatch, self.filled))


def _rise(cells: Sequence[str]) -> bool:
    """Whether each number is larger than the one before it."""
    numbers = list(map(int, cells))
    return all(one < other for one, other in pairwise(numbers))


def _words(cell: str) -> float:
    unspaced = len(_UNSPACED.findall(cell))
    return len(_UNSPACED.sub(" ", cell).split()) + unspaced / 2


def like_a_name(cell: str) -> bool:
    """Whether a cell is no longer than names are."""
    return len(cell) <= 32 and _words(cell) <= 3 and not cell.endswith(_ENDS)


def are_texts(cells: Sequence[str]) -> bool:
    """Whether the values of a column are sentences."""
    one = _Column(0, cells)
    return bool(one.filled) and not one.short and not one.holds(_PHONES) and one.letters >= _FEWEST_LETTERS


def may_be_speakers(cells: Sequence[str]) -> bool:
    """Whether values return, as those of speakers do, and are short."""
    one = _Column(0, cells)
    return one.short and not one.is_measured and not (one.varied and len(cells) >= _SEVERAL)


def roles_of(
    rows: Sequence[Sequence[str]], places: RecordingNames, separator: str, header: Sequence[str] = ()
) -> Roles:
    """What the columns of rows are; `header`: how they are called in a line that tells nothing of what they are."""
    roles = _roles_of(rows, places, separator)
    if roles.other is None:
        return roles
    read, other = _named_columns(roles, separator, header), _named_columns(roles.other, separator, header)
    where = "in place of the first line" if header else "as the first line"
    return replace(roles, note=f"read as {read}; if it is {other}, add that {where}")


def _roles_of(rows: Sequence[Sequence[str]], places: RecordingNames, separator: str) -> Roles:
    width = len(rows[0]) if rows else 0
    named = [share_named(places, rows, column) for column in range(width)]
    path = 0 if not named or named[0] >= 0.5 or max(named) < 0.5 else named.index(max(named))
    columns = [_Column(at, [row[at] for row in rows]) for at in range(width) if at != path]
    filled = [one for one in columns if one.filled]
    phones = [one for one in filled if one.holds(_PHONES)]
    plain = [one for one in filled if one not in phones and not one.is_measured]
    plain = [one for one in plain if not one.all_are(_TIME)] or plain
    if width > 3:
        plain = _without_side_columns(plain)
    plain = _without_other_forms(plain)
    plain = [one for one in plain if not one.is_counting] or plain
    if not plain:
        if len(phones) == 1:
            return _of_phones(path, None, phones[0])
        return _unclear(path, separator, phones or columns) if phones or width > 3 else Roles(path)
    if len(plain) == 1:
        return _of_one(path, plain[0], columns, phones)
    if len(plain) == 2:
        return _of_two(path, separator, *plain)
    labels, texts = [one for one in plain if one.short], [one for one in plain if not one.short]
    if len(labels) <= 1:
        own = [one for one in texts if one.holds(_OTHER_LETTERS)] or texts
        if own and all(_said_twice(one, own[-1]) for one in own[:-1]):
            roles = Roles(path, labels[0].at if labels else None, own[-1].at)
            foreign = next((one for one in texts if one not in own), None)
            return roles if foreign is None else replace(roles, other=replace(roles, text=foreign.at))
    return _unclear(path, separator, plain)


def _of_one(path: int, one: _Column, columns: Sequence[_Column], phones: Sequence[_Column]) -> Roles:
    """The roles of a column beside those of paths and phones, and empty ones."""
    label = one.short and (one.numbers or (not one.varied and len(columns) > 1))
    if label and len(phones) == 1:
        return _of_phones(path, one, phones[0])
    if label and len(columns) > 1 and not phones:  # a column of texts that is empty
        return Roles(path, one.at, next((other.at for other in columns if not other.filled), None))
    text = Roles(path, None, one.at)
    if len(columns) == 1 and one.short and len(one.cells) >= _SEVERAL and one.distinct <= 0.5:
        return replace(text, other=Roles(path, one.at))
    return text


def _without_side_columns(columns: list[_Column]) -> list[_Column]:
    """Without the language and the series of numbers that lists of more than three columns have."""
    labels = [one for one in columns if one.short and not one.may_be_of_languages]
    languages = [one for one in columns if one.may_be_of_languages]
    if len(languages) == 1 and all(one.names_nobody for one in labels):  # else they may be people
        languages = [one for one in languages if one.is_of_languages]
    if languages and (labels or len(languages) > 1):
        rarest = min(languages, key=lambda one: (len(set(one.filled)), -one.at))
        columns = [one for one in columns if one is not rarest]
        for one in columns:
            one.is_beside_languages = True
    columns = [one for one in columns if not (one.numbers and one.words > 1.5)]
    columns = [one for one in columns if one.is_of_languages or not one.names_nobody]
    words = [one for one in columns if not one.short and one.letters >= _FEWEST_LETTERS]
    columns = [one for one in columns if one.short or one in words or not words]
    return [one for one in columns if not (words and one.all_are(_INTEGER) and _numbers_texts(one, words[0]))]


def _numbers_texts(numbers: _Column, texts: _Column) -> bool:
    """Whether each of some numbers is of one text: such numbers count texts or samples, and call no speaker."""
    pairs = set(zip(numbers.cells, texts.cells, strict=True))
    return len(numbers.cells) > 1 and len(pairs) == len(set(numbers.cells))


def _without_other_forms(columns: list[_Column]) -> list[_Column]:
    """Without texts that are those of another column in letters taken apart (NFD)."""
    texts = [one for one in columns if not one.short]
    apart = [one for one in texts if any(unicodedata.normalize("NFC", cell) != cell for cell in one.filled)]
    whole = [one for one in texts if one not in apart]
    return [one for one in columns if not (whole and one in apart and any(_said_twice(one, other) for other in whole))]


def _of_two(path: int, separator: str, one: _Column, other: _Column) -> Roles:
    """The roles of two columns beside the paths."""
    if _said_twice(one, other):
        return Roles(path, None, other.at)
    if one.short != other.short:
        return _of_label_and_text(path, *((one, other) if one.short else (other, one)))
    if not one.short:
        own = [column for column in (one, other) if column.holds(_OTHER_LETTERS)]
        if len(own) == 1:  # beside a transcription in Latin letters, or a translation
            latin = other if own[0] is one else one
            return Roles(path, None, own[0].at, other=Roles(path, None, latin.at))
        if min(one.distinct, other.distinct) <= 1 / 3 and max(one.distinct, other.distinct) > 0.5:
            few, many = sorted((one, other), key=lambda column: column.distinct)
            return Roles(path, few.at, many.at)
        return _unclear(path, separator, (one, other))
    several = len(one.cells) >= _SEVERAL
    repeated = several and one.varied and other.distinct <= 0.5
    swapped = Roles(path, other.at, one.at)
    usual = Roles(path, one.at, other.at)
    if other.numbers and not one.numbers and (one.words > 1.5 or (repeated and not one.numbered)):
        return swapped
    if (repeated and not one.numbered) or (one.varied and one.words >= 2.5 and other.words <= 1.5):
        return replace(swapped, other=usual)
    unlikely = several and one.varied and (one.numbers or not one.numbered)
    return replace(usual, other=swapped) if unlikely else usual


def _of_label_and_text(path: int, label: _Column, text: _Column) -> Roles:
    speakers, alone = Roles(path, label.at, text.at), Roles(path, None, text.at)
    several = len(label.cells) >= _SEVERAL and label.distinct == 1.0
    # Where no value returns, so many words are no name; others may be one.
    # Numbers and ids that do not return count recordings.
    if label.names_nobody or (several and (label.words > 2.0 or label.numbered)):
        return replace(alone, other=speakers)
    return replace(speakers, other=alone) if several else speakers


def _said_twice(one: _Column, other: _Column) -> bool:
    """Whether two columns say the same, such as a text as written and normalised: most rows share words."""
    if one.distinct < 0.5 * other.distinct:
        return False
    pairs = list(zip(one.cells, other.cells, strict=True))
    return 2 * sum(are_alike(*pair) for pair in pairs) >= len(pairs)


def are_alike(one: str, other: str) -> bool:
    """Whether two texts share words."""
    first, second = _words_in(one), _words_in(other)
    return bool(first and second) and len(first & second) >= 0.3 * min(len(first), len(second))


def _words_in(cell: str) -> set[str]:
    """The words of a cell, or its letters where there are no spaces between words."""
    spaced = _UNSPACED.sub(r" \g<0> ", unicodedata.normalize("NFKC", cell).casefold())
    return {word for part in spaced.split() if (word := "".join(filter(str.isalnum, part)))}


def _named_columns(roles: Roles, separator: str, header: Sequence[str] = ()) -> str:
    """A header for the roles, with the columns that have none called as they are."""
    names = {roles.path: "audio_path", roles.speaker: "speaker_id", roles.text: "text"}
    last = max(column for column in names if column is not None)
    called = dict(enumerate(header)) | names
    width = max(last + 1, len(header))
    return separator.join(called.get(column, "unused") for column in range(width))


def _of_phones(path: int, speaker: _Column | None, phones: _Column) -> Roles:
    example = next(cell for cell in phones.filled if cell)[:40]
    note = f"its texts are phones ({printable(example)}), which are read like letters; list texts as they are written"
    return Roles(path, None if speaker is None else speaker.at, phones.at, note)


def _unclear(path: int, separator: str, columns: Sequence[_Column]) -> Roles:
    numbers = " and ".join(str(one.at + 1) for one in columns)
    first = Roles(path, None, columns[0].at)
    second = Roles(path, None, columns[-1].at)
    return Roles(
        path,
        refusal=f"columns {numbers} may each be the texts or the speakers; name the columns in a first line, such as "
        f"{_named_columns(first, separator)} or {_named_columns(second, separator)}, and speakers speaker_id",
    )
