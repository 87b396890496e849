"""Corpus formats, one file each. `read_corpus` reads any of them."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "read_corpus":
        from phonate.data.corpora.manifest import read_corpus

        return read_corpus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
