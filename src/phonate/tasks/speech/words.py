"""The words of a corpus's texts with their phones: pronounced once, and kept beside the features of the recordings."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from phonate import text as package
from phonate.config.errors import InputError
from phonate.data.derived import open_derived
from phonate.text.english.phonemizer import EnglishPhonemizer
from phonate.text.phonemes import Phonemizer, Word


def words_of(texts: Iterable[str], phonemizer: Phonemizer) -> tuple[list[list[Word]], dict[int, str]]:
    """The words of each text, none where nothing can be spoken; and why, by position."""
    words: list[list[Word]] = []
    reasons: dict[int, str] = {}
    for position, text in enumerate(texts):
        try:
            words.append(phonemizer(text))
        except InputError as error:
            reasons[position] = str(error)
            words.append([])
    return words, reasons


def kept_words(folder: Path, texts: Sequence[str], phonemizer: Phonemizer) -> tuple[list[list[Word]], dict[int, str]]:
    """As `words_of`, with the words of English texts kept in `folder`, unless that can only be read.

    Another phonemizer's words depend on more than this package, or are there as soon as they are read. A text of which
    nothing or not all can be spoken is not kept: that is told by each run.
    """
    if type(phonemizer) is not EnglishPhonemizer:  # a plug-in's may have other words by the same name
        return words_of(texts, phonemizer)
    facts = json.dumps([_package(), phonemizer.language, list(texts)]).encode()
    words_folder = folder / f"words-{phonemizer.name}-{hashlib.blake2b(facts, digest_size=8).hexdigest()}"
    if not words_folder.is_dir() and not os.access(folder, os.W_OK):  # what others share can be trained on
        return words_of(texts, phonemizer)
    kept = open_derived(words_folder, len(texts), partial(_written, texts, phonemizer), np.uint8, what="pronouncing")
    words = [_read(kept[position].tobytes()) for position in range(len(texts))]
    others = [position for position, found in enumerate(words) if not found]
    anew, reasons = words_of([texts[position] for position in others], phonemizer)
    for position, found in zip(others, anew, strict=True):
        words[position] = found
    return words, {others[number]: reason for number, reason in reasons.items()}


def _written(texts: Sequence[str], phonemizer: Phonemizer, position: int) -> NDArray[np.uint8]:
    """The words of a text as JSON, with a byte as a frame (N, 1); no bytes where they are not kept."""
    from phonate.text.english.normalisation import says_all

    words: list[Word] = []
    if says_all(texts[position]):
        with contextlib.suppress(InputError):
            words = phonemizer(texts[position])
    document = json.dumps([[one.text, one.phones, one.mark, one.pause] for one in words]) if words else ""
    return np.frombuffer(document.encode(), np.uint8)[:, None]


def _read(document: bytes) -> list[Word]:
    return [Word(text, tuple(phones), mark, pause) for text, phones, mark, pause in from_json(document or b"[]")]


@functools.cache
def _package() -> str:
    """A digest of all that words depend on beside the text. Which characters are letters depends on Python."""
    digest = hashlib.blake2b(platform.python_version().encode(), digest_size=8)
    root = Path(package.__path__[0])
    for file in sorted(root.rglob("*")):
        if file.suffix in {".py", ".txt", ".gz"}:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
