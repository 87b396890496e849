"""Codes of languages: "en-us", "en_US" and "EN" are all English."""

from __future__ import annotations

import re


def primary(code: str) -> str:
    """The language of a code, in lower case and without its region: "en" of "en-US"."""
    return re.split(r"[-_]", code.lower())[0]


def is_english(code: str) -> bool:
    """Whether a code is that of English, such as en-us."""
    return primary(code) == "en"
