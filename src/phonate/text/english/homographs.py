"""Homographs: words with several pronunciations, disambiguated by the neighbouring words."""

from __future__ import annotations

from collections.abc import Mapping

Phones = tuple[str, ...]

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


def choose(word: str, entries: Mapping[str, Phones], before: str, after: str) -> Phones:
    """The pronunciation of `word` among `entries` (part of speech -> phones), given its lower-case neighbours."""
    return entries.get(_tag(word, entries, before, after), entries["DEFAULT"])


def _tag(word: str, entries: Mapping[str, Phones], before: str, after: str) -> str:
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
