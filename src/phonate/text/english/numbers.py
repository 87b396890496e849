"""Numbers in English words."""

from __future__ import annotations

import functools
import re
import unicodedata

_ROMAN = re.compile(r"(?=[IVXLC])(C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")
_LARGEST = 15
"""Digits of a number, at most; longer ones are read digit by digit."""
_SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ("", " thousand", " million", " billion", " trillion")
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip


def _below_thousand(number: int) -> str:
    """ "345" -> "three hundred forty-five"; nothing for zero."""
    hundreds, rest = divmod(number, 100)
    words = [f"{_SMALL[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        words.append(_TENS[rest // 10] + (f"-{_SMALL[rest % 10]}" if rest % 10 else ""))
    elif rest:
        words.append(_SMALL[rest])
    return " ".join(words)


def _words(number: int) -> str:
    """A number below 10 ** 15."""
    groups: list[str] = []
    for scale in _SCALES:
        number, group = divmod(number, 1000)
        if group:
            groups.insert(0, _below_thousand(group) + scale)
    return " ".join(groups) or "zero"


@functools.lru_cache(maxsize=4096)
def cardinal(digits: str) -> str:
    """ "1,234" -> "one thousand two hundred thirty-four"; leading zeros and very long numbers digit by digit."""
    digits = digits.replace(",", "")
    if len(digits) > _LARGEST or (len(digits) > 1 and digits[0] == "0"):
        return by_digit(digits)
    return _words(int(digits))


def by_digit(digits: str) -> str:
    """ "105" -> "one zero five"."""
    return " ".join(_SMALL[unicodedata.digit(digit)] for digit in digits if digit.isdigit())


@functools.lru_cache(maxsize=4096)
def ordinal(digits: str) -> str:
    """ "21" -> "twenty-first"."""
    *before, last = re.split(r"(?<=[ -])", cardinal(digits))
    named = _ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    return "".join([*before, named])


def number(text: str) -> str:
    """A cardinal or a decimal: "3.14" -> "three point one four"."""
    whole, point, fraction = text.partition(".")
    if not point:
        return cardinal(whole)
    start = f"{cardinal(whole)} " if whole else ""
    return f"{start}point {by_digit(fraction)}"


def year(digits: str) -> str:
    """ "1984" -> "nineteen eighty-four", "2005" -> "two thousand five", "1906" -> "nineteen oh six"."""
    century, rest = digits[:2], digits[2:]
    if digits[1:3] == "00":
        return cardinal(digits)
    if rest == "00":
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {pair(rest)}"


def pair(digits: str) -> str:
    """Two digits after others: "05" -> "oh five", "45" -> "forty-five"."""
    return f"oh {cardinal(digits[1])}" if digits[0] == "0" else cardinal(digits)


def plural(words: str) -> str:
    """The plural of number words: "eighty" -> "eighties"."""
    return words[:-1] + "ies" if words.endswith("y") else words + ("es" if words.endswith("x") else "s")


def fraction(top: str, bottom: str) -> str:
    """ "3", "4" -> "three quarters"; "7" over a number above 100 -> "seven over ..."."""
    if bottom == "2":
        name = "half"
    elif bottom == "4":
        name = "quarter"
    elif 2 < int(bottom) <= 100 and not int(top) >= int(bottom) > 10:
        name = ordinal(bottom)
    else:
        return f"{cardinal(top)} over {cardinal(bottom)}"
    many = "halves" if name == "half" else name + "s"
    return f"{cardinal(top)} {name if int(top) == 1 else many}"


def roman(numeral: str) -> int | None:
    """The value of a Roman numeral below 400; None for anything else."""
    match = _ROMAN.fullmatch(numeral)
    if not match:
        return None
    values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
    total = 0
    for letter, after in zip(numeral, [*numeral[1:], "I"], strict=True):
        total += -values[letter] if values[letter] < values[after] else values[letter]
    return total
