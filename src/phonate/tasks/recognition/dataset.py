"""Training samples of recognition: the mel of a recording, and the numbers of the letters that are said in it.

Shapes: B batch, L letters, T frames, M mel bands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.augmentation import DataAugmentation
from phonate.audio.decoding import FloatArray, resample
from phonate.data.batches.recordings import WholeRecordings, padded
from phonate.tasks.recognition.corpus import Corpus
from phonate.training.task import Batch

_MASKS = 2
"""Masks of each kind (Park et al. 2019, "SpecAugment", table 1: m_F and m_T of its stronger policies)."""
_FLATTEST = 1e-3


@dataclass(frozen=True)
class Item:
    """One sample."""

    mel_TM: FloatArray
    symbols_L: NDArray[np.int64]


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
    """A mel (T, M) with mean 0 and deviation 1 in each band over the recording, which removes the microphone's response
    and much of the voice; a constant band is 0."""
    deviation_M = np.maximum(mel_TM.std(axis=0), _FLATTEST)
    return np.asarray((mel_TM - mel_TM.mean(axis=0)) / deviation_M, dtype=np.float32)
