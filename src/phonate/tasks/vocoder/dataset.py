"""Training samples of the vocoder: crops of a mel, its pitch, and the waveform that they were made of.

Shapes: B batch, T frames, M mel bands, N = (T - 1) * hop samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.data.batches.crops import CroppedRecordings
from phonate.tasks.vocoder.corpus import Corpus
from phonate.training.task import Batch

_PREDICTED = 0.5
"""Share of the crops that are of predicted mels, where there are any."""


@dataclass(frozen=True)
class Item:
    """One sample."""

    mel_TM: FloatArray
    f0_T: FloatArray
    waveform_N: FloatArray
    noise_start: int
    """Where the source's noise starts in its table."""


class VocoderDataset(CroppedRecordings):
    """One split: random crops for training, else the middles of recordings."""

    def __init__(self, corpus: Corpus, split: str) -> None:
        data = corpus.data
        positions, training = corpus.positions(split), split == "train"
        super().__init__(corpus.prepared, positions, data, data.crop_frames, data.crops_per_clip, training)
        self._corpus = corpus

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each sample (samples,); all are equally long, short recordings being followed by silence."""
        return np.full(len(self.positions) * self.crops, self.crop_frames, dtype=np.int64)

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`."""
        corpus, position = self._corpus, self.position(index)
        waveform = self.prepared.cache.waveform(position)
        if self.augmentation is not None:
            waveform = self.augmentation(waveform, rng)
            mel_TM, f0_T = corpus.processor.mel(waveform), corpus.pitch_of(waveform)
        else:
            mel_TM, f0_T = self.prepared.cache.features(position), corpus.pitch[position][:, 0]
            predicted_TM = corpus.predicted_mel(position)
            if predicted_TM is not None and (not self.training or rng.random() < _PREDICTED):
                mel_TM = predicted_TM
        frames, hop = self.crop_frames, corpus.data.audio.hop_length
        start = self.start(len(mel_TM), rng)
        levelled = corpus.levelled(waveform)[start * hop : (start + frames - 1) * hop]
        return Item(
            _lengthened(mel_TM[start : start + frames], frames),
            _lengthened(f0_T[start : start + frames], frames),
            _lengthened(levelled, (frames - 1) * hop),
            noise_start=int(rng.integers(1 << 16)),
        )

    def collate(self, items: list[Any]) -> Batch:
        """`mel` (B, T, M), `f0` (B, T), `waveform` (B, N) and `noise_start` (B,)."""
        return {
            "mel": torch.from_numpy(np.stack([item.mel_TM for item in items])),
            "f0": torch.from_numpy(np.stack([item.f0_T for item in items])),
            "waveform": torch.from_numpy(np.stack([item.waveform_N for item in items])),
            "noise_start": torch.tensor([item.noise_start for item in items]),
        }


def _lengthened(values: FloatArray, length: int) -> FloatArray:
    """`values` followed by zeros, which are silence, unvoiced, and the mel's floor."""
    missing = length - len(values)
    return values if missing == 0 else np.pad(values, [(0, missing), *[(0, 0)] * (values.ndim - 1)])
