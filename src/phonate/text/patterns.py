"""Regular expressions that are compiled when they are first used: those of English take longer than a sentence, and
ranges of characters milliseconds."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, cast


class Lazy:
    """Has all that an `re.Pattern` has."""

    def __init__(self, source: str, flags: int) -> None:
        self._source, self._flags = source, flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern itself."""
        return re.compile(self._source, self._flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.compiled, name)
        setattr(self, name, value)  # found at once from now on
        return value


def lazy(source: str, flags: int = 0) -> re.Pattern[str]:
    """As `re.compile`. Mistakes in `source` are told at its first use."""
    return cast("re.Pattern[str]", Lazy(source, flags))
