"""The English lexicon: 180,000 words in ARPAbet, and which pronunciation of a homograph is meant.

`lexicon.json` is built by `scripts/build_lexicon.py` from the data of misaki (Apache-2.0, see NOTICE); half of it
was checked by hand. `english_names.txt` adds names and other common words that are missing there.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import mmap
import re
from collections.abc import Mapping
from typing import Any

_FILES = importlib.resources.files("phonate.text.english")


_FEW = 5000
"""Words that are searched for in the text of the file, whose words are in order: a server needs a tenth of the memory
that all of them take as a dictionary, and a short sentence does not wait for it."""
_key = re.compile(rb'[{,]"(?!(?:DEFAULT|NOUN|VERB|DT|ADV|VBN|ADJ|VBD|VBP|None)")([^"]+)":')
"""A word; the others are parts of speech, none of which is a word of the lexicon. In small letters: no page has it."""


@functools.cache
def _content() -> tuple[mmap.mmap, int]:
    """The file, and where its first half ends. It is mapped: a sentence reads a few pages of it, and unpacking it would
    take longer than to say a short one."""
    with importlib.resources.as_file(_FILES / "lexicon.json") as path, path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return content, content.find(b'},"unchecked":{')


@functools.cache
def _halves() -> tuple[dict[str, Any], dict[str, Any]]:
    """The checked and the unchecked half: word -> phones, or part of speech -> phones, separated by spaces."""
    from pydantic_core import from_json

    # in half the time that the json module takes: every voice that is trained waits for it
    document = from_json(_content()[0][:], cache_strings=False)
    return document["checked"], document["unchecked"]


@functools.lru_cache(maxsize=_FEW)
def _searched(word: str) -> tuple[Any, Any]:
    """What both halves have for a word, without reading all of them."""
    (content, border), key = _content(), word.encode()
    return _search(content, key, len(b'{"checked":'), border), _search(content, key, border + 14, len(content))


def _search(content: mmap.mmap, word: bytes, low: int, high: int) -> Any:
    """The value of a word between two places, or None: a text without escapes, or a mapping of such."""
    while low < high:
        middle = (low + high) // 2
        place = _key.search(content, middle)
        if place is None or place.start() >= high or place[1] > word:
            high = middle
        elif place[1] < word:
            low = place.end()
        else:
            end = content.find(b"}" if content[place.end() : place.end() + 1] == b"{" else b'"', place.end() + 1)
            return json.loads(content[place.end() : end + 1])
    return None


def _both(word: str) -> tuple[Any, Any]:
    """What the checked and the unchecked half have for a word."""
    if _halves.cache_info().currsize == 0 and _searched.cache_info().currsize < _FEW:
        return _searched(word)
    checked, unchecked = _halves()
    return checked.get(word), unchecked.get(word)


@functools.cache
def names() -> dict[str, tuple[str, ...]]:
    """Lines of `word phone phone ...`."""
    text = (_FILES / "english_names.txt").read_text(encoding="ascii")
    return {word: tuple(phones) for word, *phones in map(str.split, text.splitlines())}


def words() -> list[str]:
    """All words of both halves."""
    checked, unchecked = _halves()
    return [*checked, *(word for word in unchecked if word not in checked)]


def entry(word: str, checked: bool = False) -> dict[str, tuple[str, ...]]:
    """The pronunciations of exactly this spelling by part of speech (DEFAULT first); empty if there are none.

    `checked` looks only into the half that was checked by hand.
    """
    if word in names():
        return {"DEFAULT": names()[word]}
    by_hand, unchecked = _both(word)
    pronunciation = by_hand or (None if checked else unchecked)
    if pronunciation is None:
        return {}
    if isinstance(pronunciation, str):
        return {"DEFAULT": tuple(pronunciation.split())}
    return {tag: tuple(phones.split()) for tag, phones in pronunciation.items()}


# ------------------------------- Homographs: words with several pronunciations, disambiguated by the neighbouring words

Phones = tuple[str, ...]

HOMOGRAPHS: dict[str, dict[str, tuple[str, ...]]] = {"lead": {"DEFAULT": ("L", "IY1", "D"), "NOUN": ("L", "EH1", "D")}}
"""Words of which the file has one pronunciation alone."""
_BEFORE_VERB = frozenset(
    str.split(
        "to will would can could should must may might shall not cannot don't didn't doesn't won't can't couldn't "
        "wouldn't shouldn't i we you they let's i'll we'll you'll they'll he'll she'll i'd we'd you'd they'd who"
    )
)
_BEFORE_NOUN = frozenset(str.split("the a an this my your his her its our their some no any every each another of"))
_BEFORE_PARTICIPLE = frozenset(str.split("have has had having i've we've you've they've was were been be is are being"))
_LIVE = frozenset(
    str.split(
        "album albums animals audience audiences band bands broadcast broadcasts concert concerts coverage event "
        "events footage music performance performances radio recording recordings show shows stream streaming "
        "streams television tv wire wires"
    )
)
"""What is live."""
_BEFORE_THIRD_PERSON = frozenset(str.split("he she it who which that"))


_BEFORE_IMPERATIVE = frozenset(str.split("please then and or now just ok okay so but always never kindly simply"))
_BEHIND_IMPERATIVE = frozenset(
    str.split("the this that these those my your his her our their its it them him us me a an each every both")
)
_METAL = frozenset(
    str.split(
        "acid battery batteries bullet bullets crystal paint pipe pipes pipework poisoning shot solder weight weights"
    )
)
"""What is made of lead."""


def choose_homograph(word: str, entries: Mapping[str, Phones], before: str, after: str) -> Phones:
    """The pronunciation of `word` among `entries` (part of speech -> phones), given its lower-case neighbours."""
    return entries.get(_tag(word, entries, before, after), entries["DEFAULT"])


def _tag(word: str, entries: Mapping[str, Phones], before: str, after: str) -> str:
    if word == "lead":
        return "NOUN" if after in _METAL or before == "of" else "DEFAULT"
    if "VERB" in entries and (not before or before in _BEFORE_IMPERATIVE) and after in _BEHIND_IMPERATIVE:
        return "VERB"  # Close the window.
    if word == "used":
        return "VBD" if after == "to" and before not in _BEFORE_PARTICIPLE else "DEFAULT"
    if word in {"read", "wound"}:
        past = before in {"he", "she", "it"} or (word == "read" and before in _BEFORE_PARTICIPLE)
        return "VBD" if past else "DEFAULT"
    if word == "live":
        return "DEFAULT" if before in _BEFORE_NOUN or after in _LIVE else "VERB"
    if word == "lives":
        return "VERB" if before in _BEFORE_THIRD_PERSON else "DEFAULT"
    if word == "close":
        return "VERB" if before in _BEFORE_VERB else "NOUN" if before == "the" and after == "of" else "DEFAULT"
    if before in _BEFORE_VERB:
        return "VERB"
    if before in _BEFORE_NOUN:
        return "NOUN" if "NOUN" in entries else "ADJ" if word.endswith("ate") else "DEFAULT"
    return "DEFAULT"
