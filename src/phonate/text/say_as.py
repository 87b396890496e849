"""What a text is read as: SSML's say-as."""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Callable

from phonate.config.errors import InputError
from phonate.config.language_codes import is_english
from phonate.text.language import language


def say_as(kind: str, text: str, code: str, order: str | None = None) -> str:
    """`text` in the language `code` as what is read for it. `kind` is one of `KINDS`, `order` the format of a date.

    Raises InputError for a text that can't be read so.
    """
    if kind == "date":
        return _dated(text, code, order)
    return KINDS[kind](text, code)


def _spelt(text: str, code: str) -> str:
    """Each letter, digit and sign by itself. A single letter has a pause after it, for "A" would be an article."""
    runs = re.findall(r"[^\W\d_]+|\d|[^\w\s]|_", "".join(map(_capital, unicodedata.normalize("NFC", text))))
    return " ".join(_run(run, code) for run in runs)


def _capital(character: str) -> str:
    """The capital of a letter, if it is one letter: that of ß is not."""
    return character.upper() if len(character.upper()) == 1 else character


def _run(run: str, code: str) -> str:
    """Letters, or one digit or sign."""
    if run.isdigit():
        return run
    if run.isalpha():
        return f"{run}," if len(run) == 1 else ".".join(run) + "."
    signs = language(code).signs
    if run not in signs:
        raise InputError(f"no name of the character {run!r} is known in {code}; write it as a word")
    return signs[run]


def _digits(text: str, code: str) -> str:
    """Each digit by itself, with a pause between groups."""
    if not re.fullmatch(r"\d+(?:[\s-]+\d+)*", text):
        raise InputError("must be digits, in groups with spaces or hyphens between them")
    return _grouped(text)


def _grouped(text: str) -> str:
    return ", ".join(" ".join(group) for group in re.findall(r"\d+", text))


def _telephone(text: str, code: str) -> str:
    """Digits in groups; capitals, as in 1-800-FLOWERS, are spelt, other words are read."""
    runs = re.findall(r"[\d\s().\-/]*\d|[^\W\d_]+\.?", text)
    said = [_grouped(run) if run[-1].isdigit() else _spelt(run, code) if run.isupper() else run for run in runs]
    return ("+ " if text.startswith("+") else "") + ", ".join(said)


def _ordinal(text: str, code: str) -> str:
    if not text.isdecimal():
        raise InputError("must be digits, such as 21")
    if is_english(code):
        from phonate.text.english.numbers import ordinal

        return ordinal(text)
    words = language(code).tables.get("ordinal", {})
    number = "".join(str(int(digit)) for digit in text)  # keys have Western digits
    if number not in words:
        raise InputError(f"this ordinal is not known in {code}; write it as a word")
    return words[number]


def _cardinal(text: str, code: str) -> str:
    """A whole number is no year: "2021" is two thousand twenty-one."""
    if is_english(code) and text.isdecimal():
        from phonate.text.english.numbers import cardinal

        return cardinal(text)
    return text


def _dated(text: str, code: str, order: str | None) -> str:
    """A date, as the language writes it, if `order` says which number is its day, month and year; or else as it is."""
    if order is None:
        return text
    order = re.sub(r"(.)\1+", r"\1", order.lower())  # yyyymmdd is ymd
    if sorted(order) != ["d", "m", "y"]:
        raise InputError(f"format {order!r} must be mdy, dmy, ymd or another order of day, month and year")
    numbers = re.findall(r"\d+", text)
    if len(numbers) != 3:
        raise InputError(f"with format {order!r} must be three numbers, such as 3/14/2021")
    day, month, year = (numbers[order.index(part)] for part in "dmy")
    if len(year) == 2:
        year = ("20" if int(year) < _TURN else "19") + year
    try:
        datetime.date(int(year), int(month), int(day))
    except ValueError as error:
        raise InputError(f"with format {order!r} is no date ({error})") from None
    return language(code).date.format(year=year, month=int(month), day=int(day))


_TURN = 70
"""Years of two digits from here on are of the twentieth century, as in texts."""


def _as_written(text: str, code: str) -> str:
    """The phonemizer reads numbers, dates, times and amounts by itself."""
    return text


KINDS: dict[str, Callable[[str, str], str]] = {
    "characters": _spelt,
    "spell-out": _spelt,
    "digits": _digits,
    "telephone": _telephone,
    "ordinal": _ordinal,
    "cardinal": _cardinal,
    "number": _cardinal,
    **dict.fromkeys(("date", "time", "currency", "unit", "address"), _as_written),
}
