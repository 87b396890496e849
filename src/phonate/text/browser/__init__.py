"""The phonemizers `english` and `characters` in JavaScript, for a page that speaks without a server.

A JavaScript file is a port of the Python functions of its name in `phonate.text` or `phonate.text.english`; the tables
and patterns are those of Python, as a JavaScript module, so that they are written down once: `export const dates =
{ISO: new RegExp(...), ...}`, for each Python module an object with its constants, without their leading underscore.
Patterns keep to what Python and JavaScript have in common, but for the syntax of named groups.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import Any

from phonate.text import intonation, phonemes, sentences
from phonate.text.english import (
    abbreviations,
    arpabet,
    dates,
    derivation,
    lexicon,
    normalisation,
    numbers,
    phonemizer,
    quantities,
)
from phonate.text.patterns import Lazy

_MODULES = (
    abbreviations, arpabet, dates, derivation, intonation, lexicon, normalisation, numbers, phonemes, phonemizer,
    quantities, sentences,
)  # fmt: skip
_VALUES = (str, int, float, tuple, list, Mapping, Set, re.Pattern, Lazy)
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
    tables["lexicon"]["NAMES"] = lexicon.names()
    tables["normalisation"]["IN_CONTEXT"] = [  # for texts in any script
        (_Unicode(pattern), words) for pattern, words in tables["normalisation"]["IN_CONTEXT"]
    ]
    return "".join(f"export const {name} = {_object(table)};\n" for name, table in tables.items())


@dataclass
class _Unicode:
    """A pattern whose classes are those of Unicode, as in Python; those of JavaScript know ASCII only."""

    pattern: re.Pattern[str]

    def source(self) -> str:
        """The pattern in JavaScript, for the flag u."""
        source, in_class = "", False
        for token in re.findall(r"\\.|.", self.pattern.pattern, re.DOTALL):
            in_class = token == "[" or (in_class and token != "]")
            source += (_IN_CLASSES if in_class else _OUTSIDE).get(token, token)
        return source


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
    if isinstance(value, re.Pattern | Lazy):
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


_PACKAGE = resources.files("phonate.text.browser")


def modules() -> dict[str, str]:
    """The sources of the modules by their names, to be imported as `phonate/NAME`; `rules` has Python's tables."""
    return {"rules": rules(), **sources(_PACKAGE), **sources(_PACKAGE / "english")}


def sources(folder: Traversable) -> dict[str, str]:
    """The JavaScript files in a folder: name without suffix -> source."""
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".js")), key=lambda file: file.name)
    return {file.name.removesuffix(".js"): file.read_text(encoding="utf-8") for file in files}
