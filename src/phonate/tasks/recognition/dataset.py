"""Training samples of recognition: the mel of a recording, and the numbers of the letters that are said in it.

Shapes: B batch, L letters, T frames, M mel bands.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.augmentation import DataAugmentation
from phonate.audio.decoding import FloatArray, resample
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import DataError, InputError
from phonate.data.batches.recordings import WholeRecordings, padded
from phonate.data.store.prepared import Prepared, prepare
from phonate.data.store.splits import split_speakers
from phonate.tasks.recognition.model import reduced
from phonate.tasks.recognition.settings import RecognitionData
from phonate.tasks.recognition.symbols import Symbols, Wording
from phonate.training.task import Batch

logger = logging.getLogger("phonate")

_SAID = 5
_MASKS = 2
"""Masks of each kind (Park et al. 2019, "SpecAugment", table 1: m_F and m_T of its stronger policies)."""
_FLATTEST = 1e-3


@dataclass(frozen=True)
class Item:
    """One sample."""

    mel_TM: FloatArray
    symbols_L: NDArray[np.int64]


class Corpus:
    """The prepared corpus at `data.path`, with what is said in each recording."""

    def __init__(self, data: RecognitionData) -> None:
        self.data = data
        self.processor = AudioProcessor(data.audio)
        self.prepared: Prepared = prepare(data)

    @cached_property
    def wordings(self) -> list[str]:
        """The words of each recording; "" where nothing can be said."""
        index, wording = self.prepared.index, Wording(self.data.language)
        said: list[str] = []
        refused: list[str] = []
        for position in range(len(index)):
            try:
                said.append(wording(index.text[position]))
            except InputError as error:
                refused.append(f"{index.id[position]}: {error}")
                said.append("")
        if len(refused) == len(said):
            raise DataError(f"{self.data.path}: no recording has a text; the first: {refused[0]}")
        _say("have no text that can be spoken, and are left out", refused)
        return said

    @cached_property
    def symbols(self) -> Symbols:
        """The letters of the corpus."""
        return Symbols.of(self.wordings, self.data.language)

    def positions(self, split: str) -> list[int]:
        """Positions in the index of a split's recordings, without those that are too short for their texts."""
        return self._usable[split]

    @cached_property
    def _usable(self) -> dict[str, list[int]]:
        index = self.prepared.index
        train, validation = self.prepared.train, self.prepared.validation
        if self.data.validation_by == "speaker":
            train, validation = split_speakers(index.speakers[:], index.speaker, self.data.validation)
            train, validation = (np.setdiff1d(found, self.prepared.test) for found in (train, validation))
        usable: dict[str, list[int]] = {}
        short: list[str] = []
        for split, found in (("train", train), ("validation", validation)):
            spoken = [int(position) for position in found if self.wordings[int(position)]]
            fit = [position for position in spoken if self._fits(position)]
            short += [index.id[position] for position in sorted(set(spoken) - set(fit))]
            usable[split] = fit
        _say("are too short for their texts, and are left out", short)
        if not usable["train"]:
            raise DataError(f"{self.data.path}: no recording of it is long enough for its text")
        return usable

    def _fits(self, position: int) -> bool:
        """Whether the model has a frame for each letter, and one more between two that are the same, which a blank has
        to part, even when the recording is played at its fastest."""
        ids = self.symbols.ids(self.wordings[position])
        needed = len(ids) + sum(one == two for one, two in itertools.pairwise(ids))
        frames = int(self.prepared.index.frames[position]) / self._fastest
        return bool(reduced(int(frames)) >= needed)

    @property
    def _fastest(self) -> float:
        augmentation = self.data.augmentation
        stretch = augmentation.time_stretch if augmentation is not None else None
        return max(1.0, self.data.speed[1] if self.data.speed else 1.0) * max(1.0, stretch[1] if stretch else 1.0)


class RecognitionDataset(WholeRecordings):
    """One split, whole recordings; their `lengths` are as recorded."""

    def __init__(self, corpus: Corpus, split: str) -> None:
        data = corpus.data
        super().__init__(corpus.prepared, corpus.positions(split), data.audio.frames_per_second)
        self._corpus = corpus
        training = split == "train"
        self._speed = data.speed if training else None
        self._augmentation = None
        if training and data.augmentation is not None:
            self._augmentation = DataAugmentation(data.augmentation, data.audio.sample_rate)

    @property
    def wordings(self) -> list[str]:
        """What is said in each."""
        return [self._corpus.wordings[position] for position in self.positions]

    @property
    def cached(self) -> bool:
        """True unless waveforms are varied."""
        return self._speed is None and self._augmentation is None

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`."""
        corpus, position = self._corpus, self.positions[index]
        symbols_L = np.array(corpus.symbols.ids(corpus.wordings[position]), dtype=np.int64)
        mel_TM = standardised(self._mel(position, rng))
        if self._augmentation is not None:
            for _ in range(_MASKS):
                mel_TM = self._augmentation.spec(mel_TM, rng)
        return Item(mel_TM, symbols_L)

    def _mel(self, position: int, rng: np.random.Generator) -> FloatArray:
        cache = self._corpus.prepared.cache
        if self.cached:
            return cache.features(position)
        waveform = cache.waveform(position)
        if self._speed is not None:
            rate = self._corpus.data.audio.sample_rate
            waveform = resample(waveform, rate * rng.uniform(*self._speed), rate)
        if self._augmentation is not None:
            waveform = self._augmentation(waveform, rng)
        return self._corpus.processor.mel(waveform)

    def collate(self, items: list[Any]) -> Batch:
        """`mel` (B, T, M) and `symbols` (B, L) with zeros after the ends, `lengths` (B,), `symbol_lengths` (B,)."""
        mels, symbols = [item.mel_TM for item in items], [item.symbols_L for item in items]
        return {
            "mel": padded(mels),
            "symbols": padded(symbols),
            "lengths": torch.tensor([len(mel) for mel in mels]),
            "symbol_lengths": torch.tensor([len(one) for one in symbols]),
        }


def standardised(mel_TM: FloatArray) -> FloatArray:
    """Each mel band with mean 0 and deviation 1 over the recording, which takes out the microphone and much of the
    voice; a band that never moves is 0."""
    deviation_M = np.maximum(mel_TM.std(axis=0), _FLATTEST)
    return np.asarray((mel_TM - mel_TM.mean(axis=0)) / deviation_M, dtype=np.float32)


def _say(what: str, recordings: list[str]) -> None:
    if recordings:
        more = f" and {len(recordings) - _SAID} more" if len(recordings) > _SAID else ""
        logger.warning("%d recordings %s: %s%s", len(recordings), what, "; ".join(recordings[:_SAID]), more)
