"""The recordings that a voice is trained on: what is said in each, and how long each phone lasts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cached_property

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import f0
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import DataError, InputError
from phonate.data.derived import DerivedFeatures, open_derived
from phonate.data.prepared import Prepared, prepare
from phonate.tasks.speech.durations.boundaries import Durations
from phonate.tasks.speech.settings import SpeechData
from phonate.text.inventory import Inventory
from phonate.text.phonemes import Word, phonemizer

logger = logging.getLogger("phonate")

_VERSION = 2  # raise it when pitch or durations are computed otherwise
_SAID = 5

Aligner = Callable[[FloatArray, int, list[Word], int, float], Durations]


class Corpus:
    """The prepared corpus at `data.path`, with phones, durations and pitch of each recording."""

    def __init__(self, data: SpeechData) -> None:
        self.data = data
        self.processor = AudioProcessor(data.audio)
        self.prepared: Prepared = prepare(data, text_required=True)
        self.phonemizer = phonemizer(data.phonemes, data.language)
        self.inventory = Inventory.of(self.phonemizer)
        self.speakers = self.prepared.speakers

    def positions(self, split: str) -> list[int]:
        """Positions in the index of a split's recordings; those that can't be aligned are left out."""
        found = self.prepared.train if split == "train" else self.prepared.validation
        kept = [int(position) for position in found if len(self.durations[int(position)])]
        if split == "train" and not kept:
            raise DataError(f"{self.data.path}: no recording of it can be aligned with its text")
        return kept

    @cached_property
    def words(self) -> list[list[Word]]:
        """The words of each recording; none where nothing can be said."""
        texts, ids = self.prepared.index.text, self.prepared.index.id
        words: list[list[Word]] = []
        refused: list[str] = []
        for position in range(len(texts)):
            try:
                words.append(self.phonemizer(texts[position]))
            except InputError as error:
                refused.append(f"{ids[position]}: {error}")
                words.append([])
        if len(refused) == len(words):
            raise DataError(f"{self.data.path}: no recording has a text; the first: {refused[0]}")
        _say("have no text that can be spoken", refused)
        return words

    @cached_property
    def pitch(self) -> DerivedFeatures:
        """F0 (T, 1) in Hz of each recording."""
        audio = self.data.audio
        return open_derived(
            self.prepared.folder / f"f0-v{_VERSION}",
            len(self.prepared.index),
            lambda position: f0(self.prepared.cache.waveform(position), audio.sample_rate, audio.hop_length)[:, None],
        )

    @cached_property
    def durations(self) -> DerivedFeatures:
        """Frames (L, 1) of each token of each recording; (0, 1) where it can't be aligned."""
        digest = hashlib.blake2b(digest_size=8)
        for words in self.words:
            digest.update(repr([(word.phones, word.mark) for word in words]).encode())
        name = f"durations-{self.data.durations}-v{_VERSION}-{digest.hexdigest()}"
        folder = self.prepared.folder / name
        if folder.is_dir():
            return open_derived(folder, len(self.words), _never)
        align, failed = self._aligner(), []

        def compute(position: int) -> FloatArray:
            words = self.words[position]
            if not words:
                return np.zeros((0, 1), dtype=np.float32)
            audio = self.data.audio
            waveform = self.prepared.cache.waveform(position)
            frames = int(self.prepared.index.frames[position])
            try:
                found = align(waveform, audio.sample_rate, words, frames, audio.frames_per_second)
            except DataError as error:
                failed.append(f"{self.prepared.index.id[position]}: {error}")
                return np.zeros((0, 1), dtype=np.float32)
            return found.astype(np.float32)[:, None]

        derived = open_derived(folder, len(self.words), compute)
        _say("can't be aligned with their text, and are left out", failed)
        return derived

    def _aligner(self) -> Aligner:
        if self.data.durations == "pocketsphinx":
            from phonate.tasks.speech.durations.pocketsphinx import PocketsphinxAligner

            if self.phonemizer.name != "english":
                raise InputError(
                    "data.durations: pocketsphinx only knows English phones; set data.phonemes to english, or "
                    "data.durations to learnt"
                )
            return PocketsphinxAligner(self.words)
        raise InputError(f"data.durations: {self.data.durations} is not built yet")


def _never(position: int) -> FloatArray:
    raise AssertionError("nothing is computed for features that are there")


def _say(what: str, problems: list[str]) -> None:
    if problems:
        more = f" and {len(problems) - _SAID} more" if len(problems) > _SAID else ""
        logger.warning("%d recordings %s: %s%s", len(problems), what, "; ".join(problems[:_SAID]), more)
