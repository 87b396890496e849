"""Training samples: a crop of a recording's content, and the clean mel that the model is to make of it.

Shapes: B batch, T frames, F content features, P prosody features, M mel bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.augmentation import DataAugmentation
from phonate.audio.decoding import FloatArray
from phonate.tasks.conversion.corpus import Corpus
from phonate.training.task import Batch


@dataclass(frozen=True)
class Item:
    """One sample."""

    content_TF: FloatArray
    prosody_TP: FloatArray
    mel_TM: FloatArray
    speaker: int


class ConversionDataset:
    """One split: random perturbed crops for training, else the middles of recordings as they are."""

    def __init__(self, corpus: Corpus, split: str) -> None:
        self._corpus = corpus
        self._extractor = corpus.extractor
        self._data = data = corpus.data
        self.positions = corpus.positions(split)
        """Positions of the split's recordings in the corpus."""
        self._training = split == "train"
        self._crops = data.crops_per_clip if self._training else 1
        self._augmentation = None
        if self._training and data.augmentation is not None:
            self._augmentation = DataAugmentation(data.augmentation, data.audio.sample_rate)

    @property
    def ids(self) -> Sequence[str]:
        """Ids of recordings, with the number of the crop where each is used several times."""
        names = [self._corpus.prepared.index.id[position] for position in self.positions]
        return names if self._crops == 1 else [f"{name}#{crop}" for name in names for crop in range(self._crops)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each sample."""
        frames = np.asarray(self._corpus.prepared.index.frames[self.positions], dtype=np.int64)
        return np.repeat(np.minimum(frames, self._data.crop_frames), self._crops)

    @property
    def frames_per_second(self) -> float:
        """Mel frames in a second."""
        return self._data.audio.frames_per_second

    @property
    def cached(self) -> bool:
        """True unless waveforms are augmented, which costs more than a process of its own."""
        return self._augmentation is None

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`: a crop of the recording, perturbed in training."""
        position = self.positions[index // self._crops]
        recording = self._corpus.recording(position)
        if self._augmentation is not None:
            recording = self._extractor.recording(self._augmentation(self._corpus.waveform(position), rng))
        frames = min(self._data.crop_frames, len(recording.mel_TM))
        spare = len(recording.mel_TM) - frames
        start = int(rng.integers(spare + 1)) if self._training else spare // 2
        cut = slice(start, start + frames)
        content_TF = self._extractor.content(recording, rng if self._training else None, cut)
        if self._augmentation is not None:
            content_TF = self._augmentation.spec(content_TF, rng)
        speaker = int(self._corpus.prepared.index.speaker[position])
        return Item(content_TF, self._extractor.prosody(recording, cut=cut), recording.mel_TM[cut], speaker)

    def collate(self, items: list[Any]) -> Batch:
        """`features` (B, T, F), `prosody` (B, T, P), `target` (B, T, M), `speaker_id` (B,) and `lengths` (B,)."""
        lengths = torch.tensor([len(item.mel_TM) for item in items])
        return {
            "features": padded([item.content_TF for item in items]),
            "prosody": padded([item.prosody_TP for item in items]),
            "target": padded([item.mel_TM for item in items]),
            "speaker_id": torch.tensor([item.speaker for item in items]),
            "lengths": lengths,
        }


def padded(arrays: Sequence[FloatArray]) -> torch.Tensor:
    """(B, longest, width) of arrays (T, width), zeros after their ends."""
    out = np.zeros((len(arrays), max(map(len, arrays)), arrays[0].shape[1]), dtype=np.float32)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out)
