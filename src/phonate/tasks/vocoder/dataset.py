"""Training samples of the vocoder: crops of a mel, its pitch, and the waveform that they were made of.

Shapes: B batch, T frames, M mel bands, N = (T - 1) * hop samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.augmentation import DataAugmentation
from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import f0
from phonate.audio.processor import AudioProcessor, preemphasised
from phonate.data.store.derived import DerivedFeatures, open_pitch
from phonate.data.store.predicted import TeacherForcedMels
from phonate.data.store.prepared import Prepared, prepare
from phonate.tasks.vocoder.settings import VocoderData
from phonate.training.task import Batch

_SILENT = 1e-6
_PREDICTED = 0.5
"""Share of the crops that are of predicted mels, where there are any."""


@dataclass(frozen=True)
class Item:
    """One sample."""

    mel_TM: FloatArray
    f0_T: FloatArray
    waveform_N: FloatArray
    phase: float
    """Where the source's first period starts, in cycles."""
    noise_start: int
    """Where the source's noise starts in its table."""


class Corpus:
    """The prepared corpus at `data.path`, with the pitch of each recording."""

    def __init__(self, data: VocoderData) -> None:
        self.data = data
        self.processor = AudioProcessor(data.audio)
        self.prepared: Prepared = prepare(data)

    @cached_property
    def predicted(self) -> TeacherForcedMels | None:
        """Mels that a model predicted for the recordings."""
        if self.data.predicted is None:
            return None
        return TeacherForcedMels(self.data.predicted, self.processor.fingerprint)

    def predicted_mel(self, position: int) -> FloatArray | None:
        """The mel (T, M) predicted for a recording; None where there is none."""
        if self.predicted is None:
            return None
        index = self.prepared.index
        return self.predicted.get(index.id[position], int(index.frames[position]))

    def positions(self, split: str) -> list[int]:
        """Positions of a split's recordings in the index."""
        found = self.prepared.train if split == "train" else self.prepared.validation
        return [int(position) for position in found]

    @cached_property
    def pitch(self) -> DerivedFeatures:
        """F0 (T, 1) in Hz of each recording."""
        return open_pitch(self.prepared, self.data.audio)

    def pitch_of(self, waveform: FloatArray) -> FloatArray:
        """F0 (T,) in Hz at the mel's frames."""
        return f0(waveform, self.data.audio.sample_rate, self.data.audio.hop_length)

    def levelled(self, waveform: FloatArray) -> FloatArray:
        """The waveform at the level of its mel: that is made after the pre-emphasised form was brought to peak at 1."""
        peak = float(np.abs(preemphasised(waveform, self.data.audio.preemphasis)).max(initial=0.0))
        return waveform / np.float32(max(peak, _SILENT))


class VocoderDataset:
    """One split: random crops for training, else the middles of recordings."""

    def __init__(self, corpus: Corpus, split: str) -> None:
        self._corpus = corpus
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
        """Frames of each sample; all are equally long, short recordings being followed by silence."""
        return np.full(len(self.positions) * self._crops, self._data.crop_frames, dtype=np.int64)

    @property
    def frames_per_second(self) -> float:
        """Mel frames in a second."""
        return self._data.audio.frames_per_second

    @property
    def cached(self) -> bool:
        """True unless waveforms are augmented."""
        return self._augmentation is None

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`."""
        position = self.positions[index // self._crops]
        waveform = self._corpus.prepared.cache.waveform(position)
        if self._augmentation is not None:
            waveform = self._augmentation(waveform, rng)
            mel_TM, f0_T = self._corpus.processor.mel(waveform), self._corpus.pitch_of(waveform)
        else:
            mel_TM, f0_T = self._corpus.prepared.cache.features(position), self._corpus.pitch[position][:, 0]
            predicted_TM = self._corpus.predicted_mel(position)
            if predicted_TM is not None and (not self._training or rng.random() < _PREDICTED):
                mel_TM = predicted_TM
        frames, hop = self._data.crop_frames, self._data.audio.hop_length
        spare = max(0, len(mel_TM) - frames)
        start = int(rng.integers(spare + 1)) if self._training else spare // 2
        levelled = self._corpus.levelled(waveform)[start * hop : (start + frames - 1) * hop]
        return Item(
            _lengthened(mel_TM[start : start + frames], frames),
            _lengthened(f0_T[start : start + frames], frames),
            _lengthened(levelled, (frames - 1) * hop),
            phase=float(rng.random()),
            noise_start=int(rng.integers(1 << 16)),
        )

    def collate(self, items: list[Any]) -> Batch:
        """`mel` (B, T, M), `f0` (B, T), `waveform` (B, N), `phase` (B,) and `noise_start` (B,)."""
        return {
            "mel": torch.from_numpy(np.stack([item.mel_TM for item in items])),
            "f0": torch.from_numpy(np.stack([item.f0_T for item in items])),
            "waveform": torch.from_numpy(np.stack([item.waveform_N for item in items])),
            "phase": torch.tensor([item.phase for item in items], dtype=torch.float32),
            "noise_start": torch.tensor([item.noise_start for item in items]),
        }


def _lengthened(values: FloatArray, length: int) -> FloatArray:
    """`values` followed by zeros, which are silence, unvoiced, and the mel's floor."""
    missing = length - len(values)
    return values if missing == 0 else np.pad(values, [(0, missing), *[(0, 0)] * (values.ndim - 1)])
