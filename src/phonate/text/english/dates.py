"""Dates, times of day and years in words."""

from __future__ import annotations

import re

from phonate.text.english.numbers import cardinal, ordinal, pair, plural, year
from phonate.text.patterns import lazy

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip

_SHORT = {**{month[:3]: month for month in MONTHS}, "Sept": "September"}
_MONTH = "|".join([*MONTHS, *(rf"{short}\b\.?" for short in _SHORT if short != "May")])
_ISO = lazy(r"(?<![\w-])(\d{4})-(\d\d)-(\d\d)(?![\w-])")
_SLASHED = lazy(r"(?<![\d/])(\d{1,2})/(\d{1,2})/(\d{4}|\d\d)(?![\d/])")
_DASHED = lazy(r"(?<![\w-])(\d{1,2})-(\d{1,2})-(1[1-9]\d\d|20\d\d)(?![\w-])")
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_DAYS = rf"{_DAY}(?:-{_DAY})?"
_MONTH_FIRST = lazy(rf"\b({_MONTH}) {_DAYS}\b(?!:|\.\d|,\d)(?:,? (\d{{4}})\b(?![:,.]\d))?")
_DAY_FIRST = lazy(rf"\b([Tt]he )?{_DAYS}(?: of)? ({_MONTH})(?![a-z])(?:,? (\d{{4}})\b(?![:,.]\d))?")
_MONTH_YEAR = lazy(rf"\b({_MONTH}),? (\d{{4}})\b(?![:,.]\d)")
_DECADE = lazy(r"(?<![\d,.])(\d\d)?(\d0)'?s\b")
_SHORT_DECADE = lazy(r"'(\d)0s\b")
_SHORT_YEAR = lazy(r"(?<!\w)'(\d\d)\b(?!')")
_YEARS = lazy(r"(?<![\d,.$-])(1[1-9]\d\d|20\d\d)\s?-\s?(1[1-9]\d\d|20\d\d|\d\d)(?![\d,.-]*\d)")
_YEAR = lazy(r"(?<![\d,.$/:-])(1[1-9]\d\d|20\d\d)(?![\d/:]|[,.]\d|-\d)")
_EARLY_YEAR = lazy(
    r"(?<=\b(?:[Ii]n|AD) )(10[1-9]\d)(?![\w/:-]|[,.]\d)"
    r"(?=\W*$|[^\w\s]|\s(?:[A-Z]|(?:and|by|he|she|it|they|the|to|was|when)\b))"
)
"""A number of the eleventh century counts things more often than it is a year."""
_GLUED_YEAR = lazy(r"(?<=[A-Za-z])(?=(?:1[1-9]\d\d|20\d\d)(?!\d))")
_HALF = r"(?:\s?([AaPp])\.?\s?[Mm]\b\.?)"
_CLOCK = lazy(rf"(?<![\d:.])([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?(?![\d:]){_HALF}?")
_HOURS = lazy(rf"(?<![\d:.,])(\d{{1,2}}(?::\d\d)?{_HALF}?)\s?-\s?(?=\d{{1,2}}(?::\d\d|{_HALF}))")
_HOUR = lazy(rf"(?<![\d:.,])(1[0-2]|0?[1-9]){_HALF}")


def _month(name: str) -> str:
    return _SHORT.get(name.rstrip("."), name)


def _day(digits: str) -> str | None:
    return ordinal(str(int(digits))) if 1 <= int(digits) <= 31 else None


def _days(first: str, last: str | None) -> str | None:
    """ "1", "3" -> "first to third"; None for what is no day or no span of days."""
    begin, end = _day(first), _day(last or first)
    if begin is None or end is None or (last and int(last) <= int(first)):
        return None
    return f"{begin} to {end}" if last else begin


def _any_year(digits: str) -> str:
    if len(digits) == 2:
        digits = ("20" if int(digits) < 70 else "19") + digits
    return year(digits) if digits[0] != "0" else cardinal(digits)


def _numeric(month: str, day: str, digits: str) -> str | None:
    spoken_day = _day(day)
    if spoken_day is None or not 1 <= int(month) <= 12:
        return None
    return f"{MONTHS[int(month) - 1]} {spoken_day}, {_any_year(digits)}"


def _slashed(match: re.Match[str]) -> str:
    """The month first, as in America, unless it can be no month."""
    first, second, digits = match.groups()
    return _numeric(first, second, digits) or _numeric(second, first, digits) or match[0]


def _month_first(match: re.Match[str]) -> str:
    days = _days(match[2], match[3])
    if days is None:
        return match[0]
    return f"{_month(match[1])} {days}" + (f", {_any_year(match[4])}" if match[4] else "")


def _day_first(match: re.Match[str]) -> str:
    days = _days(match[2], match[3])
    if days is None:
        return match[0]
    return f"{match[1] or 'the '}{days} of {_month(match[4])}" + (f", {_any_year(match[5])}" if match[5] else "")


def _decade(match: re.Match[str]) -> str:
    if not match[1]:
        return plural(cardinal(match[2])) if match[2] != "00" else match[0]
    return plural(year(match[1] + match[2]))


def _half_day(letter: str | None) -> str:
    return f" {letter.upper()}.M." if letter else ""


def _clock(match: re.Match[str]) -> str:
    hour, minute, second = cardinal(str(int(match[1]))), match[2], match[3]
    half = _half_day(match[4])
    words = f"{hour} {pair(minute)}" if minute != "00" else hour if half else f"{hour} o'clock"
    if match[1] in {"00", "0"}:
        words = f"zero {pair(minute)}" if minute != "00" else "zero hours"
    if second and second != "00":
        words += f" and {cardinal(str(int(second)))} second" + ("s" if int(second) != 1 else "")
    return words + half


def expand(text: str) -> str:
    """`text` with dates and times in words."""
    text = _ISO.sub(lambda match: _numeric(match[2], match[3], match[1]) or match[0], text)
    text = _DASHED.sub(_slashed, _SLASHED.sub(_slashed, text))
    text = _DAY_FIRST.sub(_day_first, text)
    text = _MONTH_FIRST.sub(_month_first, text)
    text = _MONTH_YEAR.sub(lambda match: f"{_month(match[1])} {_any_year(match[2])}", text)
    text = _YEARS.sub(lambda match: f"{year(match[1])} to {_last_year(match[2])}", text)
    text = _HOURS.sub(r"\1 to ", text)
    text = _CLOCK.sub(_clock, text)
    text = _HOUR.sub(lambda match: cardinal(str(int(match[1]))) + _half_day(match[2]), text)
    text = _SHORT_DECADE.sub(
        lambda match: plural(cardinal(match[1] + "0")) if match[1] != "0" else "two thousands", text
    )
    return _DECADE.sub(_decade, text)


def expand_years(text: str) -> str:
    """`text` with remaining years in words; called last, because other patterns have four-digit numbers too."""
    text = _YEAR.sub(lambda match: year(match[1]), _GLUED_YEAR.sub(" ", text))
    text = _EARLY_YEAR.sub(lambda match: year(match[1]), text)
    return _SHORT_YEAR.sub(lambda match: pair(match[1]), text)


def _last_year(last: str) -> str:
    return year(last) if len(last) == 4 else pair(last)
