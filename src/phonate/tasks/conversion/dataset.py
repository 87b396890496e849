"""Training samples: a crop of a recording's content, and the clean mel that the model is to make of it.

Shapes: B batch, T frames, F content features, P prosody features, M mel bands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.data.batches.crops import CroppedRecordings
from phonate.data.batches.recordings import padded
from phonate.tasks.conversion.corpus import Corpus
from phonate.training.task import Batch


@dataclass(frozen=True)
class Item:
    """One sample."""

    content_TF: FloatArray
    prosody_TP: FloatArray
    mel_TM: FloatArray
    speaker: int
    teacher_TW: FloatArray | None = None
    """Whisper features, where they are what is predicted of the content."""


class ConversionDataset(CroppedRecordings):
    """One split: random perturbed crops for training, else the middles of recordings as they are."""

    def __init__(self, corpus: Corpus, split: str) -> None:
        data = corpus.data
        positions, training = corpus.positions(split), split == "train"
        super().__init__(corpus.prepared, positions, data, data.crop_frames, data.crops_per_clip, training)
        self._corpus = corpus

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`: a crop of the recording, perturbed in training."""
        position, extractor = self.position(index), self._corpus.extractor
        recording = self._corpus.recording(position)
        if self.augmentation is not None:
            recording = extractor.recording(self.augmentation(self._corpus.waveform(position), rng))
        frames = len(recording.mel_TM)
        start = self.start(frames, rng)
        cut = slice(start, min(start + self.crop_frames, frames))
        content_TF = extractor.content(recording, rng if self.training else None, cut)
        if self.augmentation is not None:
            content_TF = self.augmentation.spec(content_TF, rng)
        speaker = int(self.prepared.index.speaker[position])
        teacher_TW = extractor.whisper_content(recording, cut) if extractor.teacher else None
        return Item(content_TF, extractor.prosody(recording, cut=cut), recording.mel_TM[cut], speaker, teacher_TW)

    def collate(self, items: list[Any]) -> Batch:
        """`features` (B, T, F), `prosody` (B, T, P), `target` (B, T, M), `speaker_id` (B,), `lengths` (B,), and
        `teacher` (B, T, W) where there is one."""
        lengths = torch.tensor([len(item.mel_TM) for item in items])
        taught = [item.teacher_TW for item in items if item.teacher_TW is not None]
        return {
            **({"teacher": padded(taught)} if taught else {}),
            "features": padded([item.content_TF for item in items]),
            "prosody": padded([item.prosody_TP for item in items]),
            "target": padded([item.mel_TM for item in items]),
            "speaker_id": torch.tensor([item.speaker for item in items]),
            "lengths": lengths,
        }
