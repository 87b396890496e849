"""What depends on the language and is no pronunciation: a file of the folder `languages` for each.

`de.yaml` is for German, `de-at.yaml` would be for that of Austria, and `default.yaml` has what holds for languages
without a file, or whose file leaves it out. A file for another language needs no code; English alone has code for its
numbers, dates and abbreviations (`phonate.text.english`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, NonNegativeFloat, field_validator

from phonate.config import documents
from phonate.config.errors import RecipeError
from phonate.config.settings import Settings

PARAGRAPH = "paragraph"
"""What the last word of a paragraph is set off by."""
_FOLDER = resources.files("phonate.text").joinpath("languages")
_CODE = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]+)*")


def _split(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


def _checked(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        _compiled(pattern)
    return patterns


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


Words = Annotated[frozenset[str], BeforeValidator(_split)]
"""Written as one text with spaces between the words, in lower case."""


class Questions(Settings):
    """How questions are told from each other, and which rise (see `phonate.text.intonation`)."""

    rise: float = 0.0
    """Semitones from the last accented syllable to the end of a yes/no question."""
    falling: Words = frozenset()
    """Words that begin a question which falls as a statement does: who, why."""
    auxiliaries: Words = frozenset()
    """Words that begin a yes/no question, whatever its other clauses begin with: "When he comes, will you stay?" """
    leading: Words = frozenset()
    """Words that may stand in front of those: and, for."""
    alternatives: Words = frozenset()
    """Words between alternatives: or."""
    open_ends: Words = frozenset()
    """Words that, behind one of those, offer no alternative: or something."""
    tags: Annotated[tuple[str, ...], AfterValidator(_checked)] = ()
    """Regular expressions of a last clause that asks for agreement, in lower case, and falls: isn't it."""
    unaccented: Words = frozenset()
    """Words that are not accented at the end of a question: it, me."""


class Language(Settings):
    """The data of one language."""

    abbreviations: Words = frozenset()
    """Words in lower case after which a full stop does not end a sentence; with # behind them, only before a number."""
    starters: Words = frozenset()
    """Words in lower case that begin a sentence even after an abbreviation of capitals such as U.S."""
    conjunctions: Words = frozenset()
    """Words in lower case in front of which a sentence that is too long is cut where it has no commas: and, because."""
    ordinals: bool = False
    """Whether a full stop after digits makes them an ordinal and ends no sentence."""
    date: str = "{year}-{month:02}-{day:02}"
    """How a date is written that `readings`, or the phonemizer, read as one."""
    signs: Mapping[str, str] = {}
    """Character that is neither letter nor digit -> what it is called where a text is spelt."""
    readings: tuple[tuple[str, str], ...] = ()
    """Regular expressions and what is read in their place, from the first to the last. The text of a named group is
    written {name}; if there is a table of that name, its entry for the text. What is in no table is left as it is."""
    tables: Mapping[str, Mapping[str, str]] = {}
    """Name -> text of a group -> what is read for it."""
    pauses: Mapping[str, NonNegativeFloat] = {}
    """What a word is set off by -> seconds of silence after it, at least: a mark of `phonate.text.phonemes.MARKS`, "("
    for either parenthesis, "..." for an ellipsis, or `paragraph`, for the end of one."""
    questions: Questions | None = None
    """None: questions are said as the model says them."""

    @field_validator("readings")
    @classmethod
    def _readable(cls, readings: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        for pattern, written in readings:
            groups = _compiled(pattern).groupindex
            unknown = [name for name in re.findall(r"{(\w+)}", written) if name not in groups]
            if unknown:
                raise ValueError(f"{written!r} names {unknown[0]}, which is no group of {pattern!r}")
        return readings

    def read(self, text: str) -> str:
        """`text` with what `readings` say in the place of numbers, abbreviations and symbols, single spaces between."""
        if not self.readings:
            return text
        for pattern, template in self.readings:
            text = re.sub(pattern, functools.partial(self._reading, template), text)
        return re.sub(r"[^\S\n]+", " ", text).strip(" ")

    def _reading(self, template: str, match: re.Match[str]) -> str:
        values = {}
        for name, part in match.groupdict().items():
            table = self.tables.get(name)
            if table is not None and part is not None and part not in table:
                return match[0]
            values[name] = part if table is None or part is None else table[part]
        return re.sub(r"{(\w+)}", lambda group: values[group[1]] or "", template)


@functools.cache
def language(code: str) -> Language:
    """The data of the language `code`, such as de or en-us. Raises RecipeError for a file with a mistake."""
    code = code.lower().replace("_", "-")
    values = _values("default")
    parts = code.split("-") if _CODE.fullmatch(code) else []
    for length in range(1, len(parts) + 1):
        own = _values("-".join(parts[:length]))
        values = values | own | {"pauses": values.get("pauses", {}) | own.get("pauses", {})}
    return Language(**values)


def _values(name: str) -> dict[str, Any]:
    file = _FOLDER.joinpath(f"{name}.yaml")
    if not file.is_file():
        return {}
    values = documents.parse(file.read_text(encoding="utf-8"), f"{name}.yaml").values
    if not isinstance(values.get("pauses", {}), dict):
        raise RecipeError(f"{name}.yaml: pauses must be a mapping from marks to seconds")
    return values
