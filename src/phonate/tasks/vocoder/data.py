"""The recordings that a vocoder is trained on, and training samples of them.

Shapes: B batch, T frames, M mel bands, N = (T - 1) * hop samples.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import f0
from phonate.audio.processor import AudioProcessor, preemphasised
from phonate.config.errors import DataError
from phonate.data.derived import DerivedFeatures, TeacherForcedMels, open_pitch
from phonate.data.prepared import CroppedRecordings, PreparedCorpus, prepare_to_train
from phonate.tasks.vocoder.settings import VocoderData
from phonate.training.task import Batch

logger = logging.getLogger("phonate")
# --------------------------------------------------------- The recordings that a vocoder is trained on

_SILENT = 1e-6


class VocoderCorpus:
    """The prepared corpus at `data.path`, with the pitch of each recording."""

    def __init__(self, data: VocoderData) -> None:
        self.data = data
        self.processor = AudioProcessor(data.audio)
        self.prepared: PreparedCorpus = prepare_to_train(data)
        self.predicted = None if data.predicted is None else self._predicted(data.predicted)

    def _predicted(self, folder: str) -> TeacherForcedMels:
        """Mels that a model predicted for the recordings. Raises DataError where there is one for none of them."""
        mels = TeacherForcedMels(folder, self.processor.fingerprint)
        ids = self.prepared.index.id[:]
        count = sum(name in mels for name in ids)
        if not count:
            raise DataError(
                f"data.predicted: {folder} has mels of other recordings than {self.data.path}, such as "
                f"{mels.example!r} where the corpus has {ids[0]!r}; predict them from the same data.path"
            )
        logger.info("predicted mels: of %d of %d recordings", count, len(ids))
        return mels

    def predicted_mel(self, position: int) -> FloatArray | None:
        """The mel (T, M) predicted for a recording; None where there is none."""
        if self.predicted is None:
            return None
        index = self.prepared.index
        return self.predicted.get(index.id[position], int(index.frames[position]))

    @cached_property
    def pitch(self) -> DerivedFeatures:
        """F0 (T, 1) in Hz of each recording."""
        return open_pitch(self.prepared, self.data.audio, self.data.f0_method)

    def pitch_of(self, waveform: FloatArray) -> FloatArray:
        """F0 (T,) in Hz at the mel's frames."""
        return f0(waveform, self.data.audio.sample_rate, self.data.audio.hop_length, self.data.f0_method)

    def levelled(self, waveform: FloatArray) -> FloatArray:
        """A waveform (N,) at the level of its mel, which is computed with the pre-emphasised waveform peaking at 1."""
        peak = float(np.abs(preemphasised(waveform, self.data.audio.preemphasis)).max(initial=0.0))
        return waveform / np.float32(max(peak, _SILENT))


# --------------------------------------------------------------------- Training samples of the vocoder

_PREDICTED = 0.5
"""Share of the crops that are of predicted mels, where there are any."""


@dataclass(frozen=True)
class VocoderItem:
    """One sample."""

    mel_TM: FloatArray
    f0_T: FloatArray
    waveform_N: FloatArray
    noise_start: int
    """Where the source's noise starts in its table."""


class VocoderDataset(CroppedRecordings):
    """One split: random crops for training, else the middles of recordings."""

    def __init__(self, corpus: VocoderCorpus, split: str) -> None:
        data = corpus.data
        positions, training = corpus.prepared.positions(split), split == "train"
        super().__init__(corpus.prepared, positions, data, data.crop_frames, data.crops_per_clip, training)
        self._corpus = corpus

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each sample (samples,); all are equally long, short recordings being followed by silence."""
        return np.full(len(self.positions) * self.crops, self.crop_frames, dtype=np.int64)

    def get(self, index: int, rng: np.random.Generator) -> VocoderItem:
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
        return VocoderItem(
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

    def unit_counts(self, batch: Batch) -> dict[str, float]:
        """Items, and frames, voiced ones too."""
        f0_BT = batch["f0"]
        return {"items": len(f0_BT), "frames": f0_BT.numel(), "voiced frames": int((f0_BT > 0).sum())}


def _lengthened(values: FloatArray, length: int) -> FloatArray:
    """`values` followed by zeros, which are silence, unvoiced, and the mel's floor."""
    missing = length - len(values)
    return values if missing == 0 else np.pad(values, [(0, missing), *[(0, 0)] * (values.ndim - 1)])
