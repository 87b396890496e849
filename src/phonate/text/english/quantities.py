"""Money, measures, fractions, telephone numbers and plain numbers in words."""

from __future__ import annotations

import re

from phonate.text.english.numbers import by_digit, cardinal, fraction, number, ordinal, plural
from phonate.text.patterns import lazy

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_SIGN = r"(?:(?<![\w)])[-+])?"
_SCALES = {"k": "thousand", "m": "million", "mn": "million", "bn": "billion", "b": "billion", "tn": "trillion"}
_SCALE = r"(?:\s?(thousand|million|billion|trillion)\b|(?:\s(?=m|tn))?(k|K|mn|m|M|bn|B|b|tn)\b)?"
_MONEY_NAMES = {
    "$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent"), "¥": ("yen", "sen"),
    "₹": ("rupee", "paisa"), "¢": ("cent", ""),
}  # fmt: skip
_MONEY_BEFORE = lazy(rf"({_SIGN})(?:\b(?:US|A|C|NZ|HK))?([$£€¥₹])\s?({_NUMBER}){_SCALE}")
_MONEY_AFTER = lazy(rf"({_SIGN})({_NUMBER}){_SCALE}\s?([$£€¥₹¢])")

_UNITS = {
    "km": "kilometer", "m": "meter", "cm": "centimeter", "mm": "millimeter", "um": "micrometer", "nm": "nanometer",
    "mi": "mile", "ft": "foot", "yd": "yard", "yds": "yard", "lb": "pound", "lbs": "pound", "oz": "ounce",
    "kg": "kilogram", "g": "gram", "mg": "milligram", "l": "liter", "L": "liter", "ml": "milliliter",
    "mL": "milliliter", "mph": "mile per hour", "kph": "kilometer per hour", "km/h": "kilometer per hour",
    "m/s": "meter per second", "km/s": "kilometer per second", "m/s2": "meter per second squared",
    "kg/m2": "kilogram per square meter", "kg/m3": "kilogram per cubic meter", "g/cm3": "gram per cubic centimeter",
    "g/l": "gram per liter", "g/L": "gram per liter", "mg/l": "milligram per liter", "mg/L": "milligram per liter",
    "tsp": "teaspoon", "tbsp": "tablespoon", "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz",
    "kB": "kilobyte", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "V": "volt",
    "W": "watt", "kW": "kilowatt", "MW": "megawatt", "kWh": "kilowatt hour", "s": "second", "sec": "second",
    "secs": "second", "ms": "millisecond", "min": "minute", "mins": "minute", "h": "hour", "hr": "hour",
    "hrs": "hour", "dB": "decibel", "ha": "hectare", "km2": "square kilometer", "m2": "square meter",
    "m3": "cubic meter", "cm2": "square centimeter", "cm3": "cubic centimeter", "sq ft": "square foot",
    "ft2": "square foot", "°C": "degree Celsius", "° C": "degree Celsius", "°F": "degree Fahrenheit",
    "° F": "degree Fahrenheit", "°": "degree", "px": "pixel", "rpm": "revolution per minute", "kcal": "kilocalorie",
    "cal": "calorie", "%": "percent",
}  # fmt: skip
_UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_BEHIND = r"(?![A-Za-z0-9'°/])(?:\.(?=\s+[a-z]))?"
_MEASURE = lazy(rf"({_SIGN})({_NUMBER})(\s?)({_UNIT}){_BEHIND}")
_PART_OF = lazy(rf"(?<![\d/.,])({_SIGN})(?:(\d+)\s+)?(\d{{1,2}})/(\d{{1,2}})\s?({_UNIT}){_BEHIND}")
_PERCENT = lazy(rf"({_SIGN})({_NUMBER})\s?%")
_MIXED = lazy(r"(?<![\d/.,])(\d+)\s+(\d{1,3})/(\d{1,3})(?![\d/])")
_FRACTION = lazy(r"(?<![\d/.,])(\d{1,3})/(\d{1,3}|10{3,6})(?![\d/])")
_RATIO = lazy(r"(?<![\d:.,/])(\d{1,2}):(?=\d{1,2}(?![\d:/]|[.,]\d))")
_PHONE = lazy(r"(?<![\w-])(\+?\d{1,3}[ .-]?)??(\(\d{3}\) ?|\d{3}[ .-])?(\d{3})[.-](\d{4})(?![\w-]|\.\d)")
_INTERNATIONAL = lazy(r"(?<!\w)\+\d{1,3}(?:[ -]\(?\d{1,4}\)?){2,5}(?![\w-])")
_GROUPS = lazy(r"(?<![\w-])(?:\d{3}-\d\d-\d{4}|\d+(?:-\d+){3,})(?![\w-])")
"""ISBNs, social security numbers: they count nothing, so their digits are read."""
_ORDINAL = lazy(r"(?<![\d.])(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b")
_DOMESTIC = lazy(r"(?<![\w-])0\d{2,4}(?: \d{3,4}){1,3}(?![\w-])")
_RANGE = lazy(rf"(?<![\w.,-])([$£€]?(?:{_NUMBER})%?)\s?-\s?(?=[$£€]?(?:{_NUMBER})(?![\w.]*-\d))")
_RANGE_OF_MEASURES = lazy(
    rf"(?<![\w.,-])((?:{_NUMBER})\s?({_UNIT}|[€£]))\s?-\s?(?=(?:{_NUMBER})\s?\2(?![A-Za-z0-9'°/]))"
)
_FEET = lazy(r"(?<!\d)(\d)'\s?(\d\d?)\"")
_FEET_AND_INCHES = lazy(
    r"(?<![\d.,])(\d+)\s?ft\.?,?\s?(\d\d?)\s?in\b"
    r"(?:\.(?=\s+[a-z]|\s*[,;:)])|(?!\s+(?!(?:by|deep|high|long|tall|thick|wide)\b)\w))"
)
_DOTTED = lazy(r"(?<![\d.])\d+(?:\.\d+){2,}(?![\d])")
_PER = lazy(r"(?<=[a-z])/(km|hr|h|s|kg|lb|min|month|year|day|week|hour|person|night)\b")
_BIG = lazy(rf"({_SIGN})({_NUMBER})")


def _sign(sign: str) -> str:
    return {"-": "minus ", "+": "plus "}.get(sign, "")


def _count(digits: str, name: str) -> str:
    """ "1", "foot" -> "one foot"; "3", "mile per hour" -> "three miles per hour"."""
    return f"{number(digits)} {name if digits == '1' else _plural_unit(name)}"


def _plural_unit(name: str) -> str:
    first, space, rest = name.partition(" ")
    if first in {"square", "cubic", "kilowatt"}:
        return f"{first} {_plural_unit(rest)}"
    if first.endswith("hertz") or first in {"yen", "sen", "percent"}:
        return name
    irregular = {"foot": "feet", "penny": "pence", "paisa": "paise", "inch": "inches"}
    return irregular.get(first, plural(first)) + space + rest


def _money(sign: str, symbol: str, digits: str, scale: str | None) -> str:
    name, small = _MONEY_NAMES[symbol]
    whole, _, cents = digits.replace(",", "").partition(".")
    if scale:
        return f"{_sign(sign)}{number(digits)} {scale} {_plural_unit(name)}"
    if len(cents) != 2 or not small:
        return _sign(sign) + _count(digits, name)
    parts = [_count(str(int(whole or "0")), name)] if int(whole or "0") or not int(cents) else []
    parts += [_count(str(int(cents)), small)] if int(cents) else []
    return _sign(sign) + " and ".join(parts)


def _scale(word: str | None, letters: str | None) -> str | None:
    return word or (_SCALES[letters.lower()] if letters else None)


def _phone(match: re.Match[str]) -> str:
    plus = "plus " if match[0].startswith("+") else ""
    groups = re.findall(r"\d+", match[0])
    if not match[2] and match[1] and not plus:
        return match[0]  # "12 345-6789" is not a telephone number
    return plus + ", ".join(by_digit(group) for group in groups)


def _feet(match: re.Match[str]) -> str:
    return f"{_count(match[1], 'foot')} {_count(match[2], 'inch')}"


def _mixed(match: re.Match[str]) -> str:
    part = fraction(match[2], match[3])
    return f"{cardinal(match[1])} and {part}" if match[3].strip("0") else match[0]


def _fraction(match: re.Match[str]) -> str:
    return fraction(match[1], match[2]) if match[2].strip("0") else f"{cardinal(match[1])} over {cardinal(match[2])}"


def _part_of(match: re.Match[str]) -> str:
    """1/2 tsp -> one half teaspoon; 3/4 mi -> three quarters of a mile; 1 1/2 h -> one and one half hours.

    5 1/2% -> five and a half percent.
    """
    sign, whole, over, under, unit = match.groups()
    if not under.strip("0") or not over.strip("0"):
        return match[0]
    part, name = fraction(over, under), _UNITS[unit]
    if whole:
        part = "a half" if unit == "%" and part == "one half" else part
        return f"{_sign(sign)}{cardinal(whole)} and {part} {_plural_unit(name)}"
    article = "an" if re.match(r"[aeio]|hour", name) else "a"
    return _sign(sign) + (f"{part} {name}" if over == "1" else f"{part} of {article} {name}")


def expand(text: str) -> str:
    """`text` with quantities in words, but not plain numbers."""
    text = _INTERNATIONAL.sub(lambda match: "plus " + ", ".join(map(by_digit, re.findall(r"\d+", match[0]))), text)
    text = _PHONE.sub(_phone, text)
    text = _DOMESTIC.sub(lambda match: ", ".join(map(by_digit, match[0].split())), text)
    text = _GROUPS.sub(lambda match: ", ".join(map(by_digit, match[0].split("-"))), text)
    text = _FEET_AND_INCHES.sub(_feet, _FEET.sub(_feet, text))
    text = _RANGE.sub(r"\1 to ", _RANGE_OF_MEASURES.sub(r"\1 to ", text))
    text = _MONEY_BEFORE.sub(lambda match: _money(match[1], match[2], match[3], _scale(match[4], match[5])), text)
    text = _MONEY_AFTER.sub(lambda match: _money(match[1], match[5], match[2], _scale(match[3], match[4])), text)
    text = _PART_OF.sub(_part_of, text)
    text = _PERCENT.sub(lambda match: f"{_sign(match[1])}{number(match[2])} percent", text)
    text = _MIXED.sub(_mixed, text)
    text = _MEASURE.sub(lambda match: _sign(match[1]) + _count(match[2], _UNITS[match[4]]), text)
    text = _PER.sub(_per, text)
    text = _RATIO.sub(r"\1 to ", text)
    text = _FRACTION.sub(_fraction, text)
    return _ORDINAL.sub(lambda match: ordinal(match[1]), text)


def _per(match: re.Match[str]) -> str:
    return f" per {_UNITS.get(match[1], match[1])}"


def expand_plain(text: str) -> str:
    """`text` with the remaining numbers in words."""
    text = _DOTTED.sub(lambda match: " point ".join(map(cardinal, match[0].split("."))), text)
    return _BIG.sub(_plain, text)


def _plain(match: re.Match[str]) -> str:
    text = match.string
    before = " " if text[: match.start()][-1:].isalpha() else ""
    after = " " if text[match.end() : match.end() + 1].isalpha() else ""
    return f"{before}{_sign(match[1])}{number(match[2])}{after}"
