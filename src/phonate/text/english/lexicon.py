"""The English lexicon: 180,000 words in ARPAbet.

`lexicon.json.gz` is built by `scripts/build_lexicon.py` from the data of misaki (Apache-2.0, see NOTICE); half of it
was checked by hand. `english_names.txt` adds names and other common words that are missing there.
"""

from __future__ import annotations

import functools
import gzip
import importlib.resources
from typing import Any

from pydantic_core import from_json

_FILES = importlib.resources.files("phonate.text.english")


@functools.cache
def _tables() -> tuple[dict[str, Any], dict[str, Any]]:
    """The checked and the unchecked half: word -> phones, or part of speech -> phones, separated by spaces."""
    # in half the time that the json module takes: every voice that is trained or speaks waits for it
    document = from_json(gzip.decompress((_FILES / "lexicon.json.gz").read_bytes()), cache_strings=False)
    return document["checked"], document["unchecked"]


@functools.cache
def names() -> dict[str, tuple[str, ...]]:
    """Lines of `word phone phone ...`."""
    text = (_FILES / "english_names.txt").read_text(encoding="ascii")
    return {word: tuple(phones) for word, *phones in map(str.split, text.splitlines())}


def words() -> list[str]:
    """All words of both halves."""
    checked, unchecked = _tables()
    return [*checked, *(word for word in unchecked if word not in checked)]


def entry(word: str, checked: bool = False) -> dict[str, tuple[str, ...]]:
    """The pronunciations of exactly this spelling by part of speech (DEFAULT first); empty if there are none.

    `checked` looks only into the half that was checked by hand.
    """
    if word in names():
        return {"DEFAULT": names()[word]}
    by_hand, unchecked = _tables()
    found = by_hand.get(word) or (None if checked else unchecked.get(word))
    if found is None:
        return {}
    if isinstance(found, str):
        return {"DEFAULT": tuple(found.split())}
    return {tag: tuple(phones.split()) for tag, phones in found.items()}
