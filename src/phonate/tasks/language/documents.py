"""Texts on disk -> documents: what is written there, and what can't be used of it, with file and line.

A document is a prompt and a response, of which only the response is learnt. Plain text is a response without a prompt.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError
from phonate.config.randomness import derived_seed
from phonate.data.manifests.rows import printable

logger = logging.getLogger("phonate")

PLAIN = (".txt", ".md")
ROWS = (".jsonl",)
SHOWN = 5
"""Refused rows that are named one by one."""
_BLANK = re.compile(r"\n[ \t]*\n\s*")
HALF = re.compile("[\ud800-\udfff]")
"""Half of a character: no text has it, but JSON, arguments and names of files may."""


@dataclass(frozen=True)
class Document:
    """One text."""

    id: str
    """file:line."""
    response: str
    """What is learnt."""
    prompt: str | None = None
    """What it answers. None: plain text."""


@dataclass(frozen=True)
class Refused:
    """A row that can't be used."""

    place: str
    """file:line."""
    reason: str


@dataclass(frozen=True)
class Texts:
    """What was found at a path."""

    documents: list[Document]
    refused: list[Refused]


def text_files(path: str | Path) -> list[Path]:
    """The text files at `path`, a file or a folder with its sub-folders. Hidden ones are passed over.

    Raises DataError where there is none.
    """
    root = Path(path)
    suffixes = (*PLAIN, *ROWS)
    if root.is_file():
        if root.suffix.lower() not in suffixes:
            raise DataError(f"{root}: not a text file; give one of {', '.join(suffixes)}, or a folder of them")
        return [root]
    if not root.is_dir():
        raise DataError(f"{root}: there is no such file or folder")
    found = sorted(
        file
        for file in root.rglob("*")
        if file.suffix.lower() in suffixes
        and not any(part.startswith(".") for part in file.relative_to(root).parts)
        and file.is_file()
    )
    if not found:
        raise DataError(f"{root}: holds no text; put {', '.join(suffixes)} files there")
    return found


def read_texts(path: str | Path, documents: str = "auto") -> Texts:
    """Every document at `path`; `documents` is the setting of that name. A warning counts and names what is refused.

    Raises DataError where nothing can be used.
    """
    root = Path(path)
    good: list[Document] = []
    refused: list[Refused] = []
    for file in text_files(root):
        name = printable(file.relative_to(root).as_posix() if root.is_dir() else file.name)
        read: Callable[[str, str], Iterator[Document | Refused]] = _rows
        if file.suffix.lower() in PLAIN:
            read = _plain(documents)
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            refused.append(Refused(f"{name}:1", f"not UTF-8 (byte {error.start}); save it as UTF-8"))
            continue
        except OSError as error:
            refused.append(Refused(f"{name}:1", str(error.strerror)))
            continue
        for one in read(name, text):
            (refused if isinstance(one, Refused) else good).append(one)  # type: ignore[arg-type]
    warn_refused(root, refused)
    if not good:
        first = f"{refused[0].place}: {refused[0].reason}" if refused else "nothing is written there"
        raise DataError(f"{root}: no document can be used ({len(refused)} refused; {first})")
    return Texts(good, refused)


def warn_refused(root: Path, refused: list[Refused]) -> None:
    """Warn of refused rows: how many, and which."""
    if refused:
        logger.warning("%s: %d rows can't be used", root, len(refused))
    for row in refused[:SHOWN]:
        logger.warning("%s: %s", row.place, row.reason)
    if len(refused) > SHOWN:
        logger.warning("... and %d more", len(refused) - SHOWN)


def _plain(documents: str) -> Callable[[str, str], Iterator[Document | Refused]]:
    def read(name: str, text: str) -> Iterator[Document | Refused]:
        unit = documents
        if unit == "auto":
            unit = "paragraph" if _BLANK.search(text.strip()) else "line"
        pattern = {"line": re.compile(r"\n"), "paragraph": _BLANK, "file": None}[unit]
        line, counted = 1, 0
        for start, part in _parts(text, pattern):
            if part.strip():
                first = start + len(part) - len(part.lstrip())
                line, counted = line + text.count("\n", counted, first), first
                yield Document(f"{name}:{line}", part.strip())

    return read


def _parts(text: str, pattern: re.Pattern[str] | None) -> Iterator[tuple[int, str]]:
    """The pieces of `text` between matches of `pattern`, with where they start."""
    start = 0
    for found in pattern.finditer(text) if pattern else ():
        yield start, text[start : found.start()]
        start = found.end()
    yield start, text[start:]


def _rows(name: str, text: str) -> Iterator[Document | Refused]:
    # Not splitlines: a JSON text may hold U+2028 and its like, which end no row.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _row(f"{name}:{number}", line)


def _row(place: str, line: str) -> Document | Refused:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Refused(place, f"not JSON ({error})")
    if not isinstance(row, Mapping):
        return Refused(place, 'not an object; write {"prompt": ..., "response": ...}')
    plain = "text" in row and "response" not in row
    prompt, response = (None, row["text"]) if plain else (row.get("prompt"), row.get("response"))
    fault = _fault("text" if plain else "response", response) or (None if plain else _fault("prompt", prompt))
    return Refused(place, fault) if fault else Document(place, str(response), prompt)


def _fault(key: str, value: Any) -> str | None:
    """What is wrong with a value that should be a text."""
    if value is None:
        return f"no {key!r}"
    if not isinstance(value, str):
        return f"{key!r} is {type(value).__name__}, not a text"
    if HALF.search(value):
        return f"{key!r} holds half a character (a lone surrogate)"
    return None if value.strip() else f"{key!r} is empty"


def divided(documents: list[Document], share: float) -> tuple[list[Document], list[Document]]:
    """Documents to train on and to validate on.

    A document's side is a function of its text, so copies are on the same side. With a `share` above 0 and two
    different texts or more, neither side is empty.
    """
    if share == 0.0:
        return documents, []
    keys = [derived_seed("validation", one.prompt or "", one.response) for one in documents]
    limit = max(min(keys) + 1, int(share * 2**63))
    if limit > max(keys):
        limit = max(keys)
    sides: tuple[list[Document], list[Document]] = ([], [])
    for key, document in zip(keys, documents, strict=True):
        sides[key < limit].append(document)
    return sides
