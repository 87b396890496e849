"""The tables and patterns of the Python modules as a JavaScript module, so that they are written down once.

`export const dates = {ISO: new RegExp(...), ...}`: for each module an object with its constants, without their leading
underscore. Patterns keep to what Python and JavaScript have in common, but for the syntax of named groups.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from phonate.text import intonation, inventory, marks, normalisation, phonemes, sentences
from phonate.text.english import (
    abbreviations,
    addresses,
    arpabet,
    dates,
    derivation,
    homographs,
    letter_to_sound,
    lexicon,
    numbers,
    phonemizer,
    quantities,
    spelling,
)

_MODULES = (
    abbreviations, addresses, arpabet, dates, derivation, homographs, intonation, inventory, letter_to_sound, marks,
    normalisation, numbers, phonemes, phonemizer, quantities, sentences, spelling,
)  # fmt: skip
_VALUES = (str, int, float, tuple, list, Mapping, Set, re.Pattern)
_FLAGS = {re.IGNORECASE: "i", re.DOTALL: "s", re.MULTILINE: "m"}
_LETTERS, _DIGITS = r"\p{L}\p{N}_", r"\p{Nd}"
_IN_CLASSES = {r"\w": _LETTERS, r"\d": _DIGITS}
_OUTSIDE = {
    r"\w": f"[{_LETTERS}]",
    r"\d": _DIGITS,
    r"\b": f"(?:(?<=[{_LETTERS}])(?![{_LETTERS}])|(?<![{_LETTERS}])(?=[{_LETTERS}]))",
}


def rules() -> str:
    """The source of the JavaScript module."""
    tables = {module.__name__.rpartition(".")[2]: _constants(module) for module in _MODULES}
    tables["lexicon"] = {"NAMES": lexicon.names()}
    tables["spelling"]["IN_CONTEXT"] = [  # for texts in any script
        (_Unicode(pattern), words) for pattern, words in tables["spelling"]["IN_CONTEXT"]
    ]
    return "".join(f"export const {name} = {_object(table)};\n" for name, table in tables.items())


@dataclass
class _Unicode:
    """A pattern whose classes are those of Unicode, as in Python; those of JavaScript know ASCII only."""

    pattern: re.Pattern[str]

    def source(self) -> str:
        """The pattern in JavaScript, for the flag u."""
        made, in_class = "", False
        for token in re.findall(r"\\.|.", self.pattern.pattern, re.DOTALL):
            in_class = token == "[" or (in_class and token != "]")
            made += (_IN_CLASSES if in_class else _OUTSIDE).get(token, token)
        return made


def _constants(module: ModuleType) -> dict[str, Any]:
    """The constants of a module: what is written in capitals and is a value."""
    return {
        name.lstrip("_"): value
        for name, value in vars(module).items()
        if re.fullmatch(r"_?[A-Z][A-Z_]*", name) and isinstance(value, _VALUES)
    }


def _object(values: Mapping[Any, Any]) -> str:
    return "{" + ", ".join(f"{json.dumps(str(key))}: {_source(value)}" for key, value in values.items()) + "}"


def _source(value: Any) -> str:
    """A constant in JavaScript."""
    if isinstance(value, _Unicode):
        return f"new RegExp({json.dumps(value.source())}, 'gu')"
    if isinstance(value, re.Pattern):
        flags = "".join(letter for flag, letter in _FLAGS.items() if value.flags & flag)
        pattern = value.pattern.replace("(?P<", "(?<")
        return f"new RegExp({json.dumps(pattern)}, {json.dumps('g' + flags)})"
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, Set):
        return f"new Set([{', '.join(map(_source, sorted(value)))}])"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_source, value))}]"
    return json.dumps(value)
