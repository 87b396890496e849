"""Training samples of text-to-speech: tokens with their durations and energy, the melody, and the mel.

Shapes: B batch, L tokens, T frames, M mel bands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.data.batches.recordings import WholeRecordings, padded
from phonate.tasks.speech.corpus import Corpus
from phonate.tasks.speech.models.parallel import MIDDLE_F0, NOISE
from phonate.training.task import Batch


@dataclass(frozen=True)
class Item:
    """One sample."""

    tokens_L: NDArray[np.int64]
    durations_L: NDArray[np.int64]
    pitch_T2: FloatArray
    """Log F0 over 200 Hz of each frame, going on where there is no voice, and 1 where there is one."""
    energy_L: FloatArray
    mel_TM: FloatArray
    speaker: int
    noise_TN: FloatArray
    """Random numbers for what the text does not say."""
    crop: float
    """Where the discriminator looks, from 0 to 1."""


class SpeechDataset(WholeRecordings):
    """One split, whole recordings."""

    def __init__(self, corpus: Corpus, split: str) -> None:
        super().__init__(corpus.prepared, corpus.positions(split), corpus.data.audio.frames_per_second)
        self._corpus = corpus

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`."""
        corpus, position = self._corpus, self.positions[index]
        durations_L = corpus.durations[position][:, 0].astype(np.int64)
        mel_TM = corpus.prepared.cache.features(position)
        return Item(
            tokens_L=np.array(corpus.inventory.ids(corpus.words[position]), dtype=np.int64),
            durations_L=durations_L,
            pitch_T2=melody(corpus.pitch[position][:, 0]),
            energy_L=token_means(mel_TM.mean(axis=1), durations_L),
            mel_TM=mel_TM,
            speaker=int(corpus.prepared.index.speaker[position]),
            noise_TN=rng.standard_normal((len(mel_TM), NOISE), dtype=np.float32),
            crop=float(rng.random()),
        )

    def collate(self, items: list[Any]) -> Batch:
        """`tokens` (B, L) with 0 after the ends, `durations` (B, L), `pitch` (B, T, 2), `energy` (B, L), `target`
        (B, T, M), `speaker_id` (B,), `token_lengths` (B,), `lengths` (B,), `noise` (B, T, 16), `crop` (B,)."""
        return {
            "tokens": padded([item.tokens_L for item in items]),
            "durations": padded([item.durations_L for item in items]),
            "pitch": padded([item.pitch_T2 for item in items]),
            "energy": padded([item.energy_L for item in items]),
            "target": padded([item.mel_TM for item in items]),
            "speaker_id": torch.tensor([item.speaker for item in items]),
            "token_lengths": torch.tensor([len(item.tokens_L) for item in items]),
            "lengths": torch.tensor([len(item.mel_TM) for item in items]),
            "noise": padded([item.noise_TN for item in items]),
            "crop": torch.tensor([item.crop for item in items], dtype=torch.float32),
        }


def token_means(values_T: FloatArray, durations_L: NDArray[np.int64]) -> FloatArray:
    """Mean of the frames of each token (L,); 0 for tokens without frames."""
    sums = np.concatenate([[0.0], np.cumsum(values_T, dtype=np.float64)])
    edges = np.concatenate([[0], np.cumsum(durations_L)])
    return np.asarray((sums[edges[1:]] - sums[edges[:-1]]) / np.maximum(durations_L, 1), dtype=np.float32)


def melody(f0_T: FloatArray) -> FloatArray:
    """(T, 2): log F0 over 200 Hz, in a straight line where there is no voice (0 where there is none at all), and 1
    where there is one."""
    voiced_T = f0_T > 0
    contour_T = np.zeros(len(f0_T), dtype=np.float32)
    if voiced_T.any():
        frames = np.flatnonzero(voiced_T)
        contour_T = np.interp(np.arange(len(f0_T)), frames, np.log(f0_T[frames] / MIDDLE_F0)).astype(np.float32)
    return np.stack([contour_T, voiced_T.astype(np.float32)], axis=1)
