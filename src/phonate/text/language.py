"""What depends on the language and is no pronunciation: a file of the folder `languages` for each.

`de.yaml` is for German, `de-at.yaml` would be for that of Austria, and `default.yaml` has what holds for languages
without a file, or whose file leaves it out. A file for another language needs no code; English alone has code for its
numbers, dates and abbreviations (`phonate.text.english`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from typing import Any, Self, TypeVar

from phonate.config.errors import InputError, RecipeError
from phonate.config.language_codes import name_of, primary
from phonate.config.registry import nearest

PARAGRAPH = "paragraph"
"""What the last word of a paragraph is set off by."""
_FOLDER = resources.files("phonate.text").joinpath("languages")
_CODE = re.compile(r"[a-z]{2,3}(?:-[a-z0-9]+)*")


_PARSED = "parsed.json"
"""In that folder: what the other files say, and of which text, for YAML takes longer to read than a sentence to say.
`renewed()` is its content."""
DataT = TypeVar("DataT")
Words = frozenset[str]
"""Written as one text with spaces between the words, in lower case."""


def _words(value: Any) -> Words:
    return frozenset(value.split() if isinstance(value, str) else value)


def _patterns(patterns: Any) -> tuple[str, ...]:
    for pattern in patterns:
        _compiled(pattern)
    return tuple(patterns)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


def _readings(readings: Any) -> tuple[tuple[str, str], ...]:
    for pattern, written in readings:
        groups = _compiled(pattern).groupindex
        unknown = [name for name in re.findall(r"{(\w+)}", written) if name not in groups]
        if unknown:
            raise ValueError(f"{written!r} names {unknown[0]}, which is no group of {pattern!r}")
    return tuple((pattern, written) for pattern, written in readings)


def _seconds(pauses: Any) -> dict[str, float]:
    if any(not 0.0 <= float(value) < float("inf") for value in pauses.values()):
        raise ValueError("silences last 0 seconds or more")
    return {mark: float(value) for mark, value in pauses.items()}


def _build(kind: type[DataT], values: Mapping[str, Any], readers: Mapping[str, Callable[[Any], Any]]) -> DataT:
    """A `kind` of `values`, those with one of `readers` read by it. Raises InputError, naming the option."""
    read = {}
    for name, value in values.items():
        if name not in (names := [one.name for one in fields(kind)]):  # type: ignore[arg-type]  # a dataclass
            raise InputError(f"{name}: no such option of a language; {nearest(name, names)}")
        try:
            read[name] = readers[name](value) if name in readers else value
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{name}: {error}") from error
    return kind(**read)


@dataclass(frozen=True)
class Questions:
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
    tags: tuple[str, ...] = ()
    """Regular expressions of a last clause that asks for agreement, in lower case, and falls: isn't it."""
    unaccented: Words = frozenset()
    """Words that are not accented at the end of a question: it, me."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """As a file has them. Raises InputError, naming the option with a mistake."""
        words = [one.name for one in fields(cls) if one.name not in ("rise", "tags")]
        return _build(cls, values, {"rise": float, "tags": _patterns, **dict.fromkeys(words, _words)})

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Language:
    """The data of one language."""

    abbreviations: Words = frozenset()
    """Words in lower case after which a full stop does not end a sentence; with # behind them, only before a number."""
    starters: Words = frozenset()
    """Words in lower case that begin a sentence even after an abbreviation of capitals such as U.S."""
    conjunctions: Words = frozenset()
    """Words in lower case in front of which a sentence that is too long is cut where it has no commas: and, because."""
    ordinals: bool = False
    """Whether a full stop after digits makes them an ordinal and ends no sentence."""
    ends: str = ""
    """Signs that end a sentence in front of a space, besides those that do so in any language."""
    greeting: str = "TEXT"
    """A sentence to try a voice with. TEXT: whoever knows the language writes one."""
    common: Words = frozenset()
    """Frequent words in lower case, by which a text in the language is known from those in others."""
    date: str = "{year}-{month:02}-{day:02}"
    """How a date is written that `readings`, or the phonemizer, read as one."""
    signs: Mapping[str, str] = field(default_factory=dict)
    """Character that is neither letter nor digit -> what it is called where a text is spelt."""
    readings: tuple[tuple[str, str], ...] = ()
    """Regular expressions and what is read in their place, from the first to the last. The text of a named group is
    written {name}; if there is a table of that name, its entry for the text. What is in no table is left as it is."""
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Name -> text of a group -> what is read for it."""
    pauses: Mapping[str, float] = field(default_factory=dict)
    """What a word is set off by -> seconds of silence after it, at least: a mark of `phonate.text.phonemes.MARKS`, "("
    for either parenthesis, "..." for an ellipsis, or `paragraph`, for the end of one."""
    questions: Questions | None = None
    """None: questions are said as the model says them."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """As a file has them. Raises InputError, naming the option with a mistake."""
        words = dict.fromkeys(("abbreviations", "starters", "conjunctions", "common"), _words)
        readers = {"questions": Questions.of, "readings": _readings, "pauses": _seconds}
        return _build(cls, values, {**words, **readers})

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
    """The data of the language `code`, such as de or en-us. Raises InputError for a file with a mistake."""
    code = code.lower().replace("_", "-")
    values = _values("default")
    parts = code.split("-") if _CODE.fullmatch(code) else []
    for length in range(1, len(parts) + 1):
        own = _values("-".join(parts[:length]))
        values = values | own | {"pauses": values.get("pauses", {}) | own.get("pauses", {})}
    return Language.of(values)


_FEWEST, _SHARE, _TIMES = 3, 0.25, 3
"""A text is in another language where so many different words, and such a share of all, are frequent ones there, and so
many times as many as are in its own."""
_LOOKED_AT = 4000
"""Characters."""


def seems_other(text: str, code: str) -> str | None:
    """The language that `text` seems to be in, where that is clearly not `code`. None: it may be in `code`, or nobody
    can tell, as of a text of few words."""
    known = _common()
    if (own := primary(code)) not in known:
        return None
    words = re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text[:_LOOKED_AT].replace("’", "'"))
    plain = [word.lower() for at, word in enumerate(words) if at == 0 or word[0].islower()]  # not the Las of Las Vegas
    counts = {one: sum(word in common for word in plain) for one, common in known.items()}
    other = max(counts, key=counts.__getitem__)
    sure = counts[other] >= max(_SHARE * len(words), _TIMES * counts[own])
    return other if sure and len({*plain} & known[other]) >= _FEWEST else None


def tell_other(text: str, code: str) -> str | None:
    """What a person is told of a text that is clearly not in the language `code` of the voice."""
    other = seems_other(text, code)
    return None if other is None else f"the text seems to be {name_of(other)}, the voice reads it as {name_of(code)}"


@functools.cache
def _common() -> dict[str, Words]:
    """Language -> its frequent words, of those that have any."""
    codes = [file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml")]
    return {code: common for code in sorted(codes) if (common := language(code).common)}


def _values(name: str) -> dict[str, Any]:
    file = _FOLDER.joinpath(f"{name}.yaml")
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8")
    digest, values = _parsed().get(name, ("", {}))
    return dict(values) if digest == _digest(text) else _read(name, text)


def _read(name: str, text: str) -> dict[str, Any]:
    from phonate.config import documents

    values = documents.parse(text, f"{name}.yaml").values
    if not isinstance(values.get("pauses", {}), dict):
        raise RecipeError(f"{name}.yaml: pauses must be a mapping from marks to seconds")
    return dict(values)


@functools.cache
def _parsed() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name of a file -> digest of its text, and its values."""
    file = _FOLDER.joinpath(_PARSED)
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def renewed() -> str:
    """What `parsed.json` should hold. To renew it: `python -m phonate.text.language > .../languages/parsed.json`."""
    files = sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))
    texts = {name.removesuffix(".yaml"): _FOLDER.joinpath(name).read_text(encoding="utf-8") for name in files}
    parsed = {name: (_digest(text), _read(name, text)) for name, text in texts.items()}
    return json.dumps(parsed, ensure_ascii=False, indent=0, sort_keys=True) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(renewed())
