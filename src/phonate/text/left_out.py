"""Characters of a text that can't be said are left out; the log names each once, in one line for a text."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable

logger = logging.getLogger("phonate")

NAMED = 3
_reported: set[str] = set()


def report(characters: Iterable[str], why: str) -> None:
    """Log those of `characters` that were not logged before; `why` they are left out."""
    new = [character for character in dict.fromkeys(characters) if character not in _reported]
    if not new:
        return
    _reported.update(new)
    names = ", ".join(f"U+{ord(one):04X} ({unicodedata.name(one, 'without a name')})" for one in new[:NAMED])
    others = f" and {len(new) - NAMED} more characters" if len(new) > NAMED else ""
    logger.warning("left out, %s: %s%s", why, names, others)
