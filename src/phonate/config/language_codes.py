"""Codes of languages: "en-us", "en_US" and "EN" are all English; and names, by which people know them."""

from __future__ import annotations

import re


def primary(code: str) -> str:
    """The language of a code, in lower case and without its region: "en" of "en-US"."""
    return re.split(r"[-_]", code.lower())[0]


def is_english(code: str) -> bool:
    """Whether a code is that of English, such as en-us."""
    return primary(code) == "en"


_NAMES = """
ar arabic العربية|bg bulgarian български|ca catalan català|cs czech čeština|cy welsh cymraeg|da danish dansk
de german deutsch|el greek ελληνικά|en english|es spanish español espanol castellano|et estonian eesti
eu basque euskara|fa persian farsi فارسی|fi finnish suomi|fr french français francais|he hebrew עברית
hi hindi हिन्दी|hr croatian hrvatski|hu hungarian magyar|id indonesian|is icelandic íslenska|it italian italiano
ja japanese 日本語|ko korean 한국어|lt lithuanian lietuvių|lv latvian latviešu|nl dutch nederlands
no norwegian norsk|pl polish polski|pt portuguese português portugues|ro romanian română|ru russian русский
sk slovak slovenčina|sl slovenian slovenščina|sr serbian српски|sv swedish svenska|th thai ไทย
tr turkish türkçe turkce|uk ukrainian українська|ur urdu اردو|vi vietnamese|zh chinese mandarin 中文
"""
_CODES = {
    name: code for line in re.split(r"[|\n]", _NAMES.strip()) for code, *names in [line.split()] for name in names
}


def code_of(language: str) -> str:
    """The code of a language that is given by its name, in English or its own: "de" of "German"; others as they are."""
    return _CODES.get(language.strip().lower(), language)


def name_of(code: str) -> str:
    """The English name of the language of a code: "German" of "de-at"; the code where it has none here."""
    return next((name.capitalize() for name, known in _CODES.items() if known == primary(code)), code)
