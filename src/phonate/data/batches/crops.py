"""Samples that are crops of recordings: what the tasks that train on crops have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from phonate.audio.augmentation import DataAugmentation
from phonate.data.settings import VoiceData
from phonate.data.store.prepared import Prepared


class CroppedRecordings:
    """Crops of some recordings of a corpus: all of `data.batches.dataset.Dataset` but the samples themselves.

    In training each recording gives `crops_per_clip` samples an epoch, cut at random; in validation one, its middle.
    """

    def __init__(
        self,
        prepared: Prepared,
        positions: Sequence[int],
        data: VoiceData,
        crop_frames: int,
        crops_per_clip: int,
        training: bool,
    ) -> None:
        """`positions`: of the split's recordings in the corpus; `crop_frames`: mel frames of a crop."""
        self.prepared = prepared
        self.positions = positions
        self.crop_frames = crop_frames
        self.training = training
        self.crops = crops_per_clip if training else 1
        self.frames_per_second = data.audio.frames_per_second
        """Mel frames in a second."""
        self.augmentation: DataAugmentation | None = None
        if training and data.augmentation is not None:
            self.augmentation = DataAugmentation(data.augmentation, data.audio.sample_rate)

    @property
    def ids(self) -> Sequence[str]:
        """Ids of recordings, with the number of the crop where each is used several times."""
        names = [self.prepared.index.id[position] for position in self.positions]
        return names if self.crops == 1 else [f"{name}#{crop}" for name in names for crop in range(self.crops)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Mel frames of each sample (samples,): of the crop, or of a recording that is shorter."""
        frames = np.asarray(self.prepared.index.frames[self.positions], dtype=np.int64)
        return np.repeat(np.minimum(frames, self.crop_frames), self.crops)

    @property
    def digests(self) -> Mapping[str, int]:
        """See `Digested`: of the recordings."""
        return self.prepared.digests(self.positions)

    @property
    def cached(self) -> bool:
        """True unless waveforms are augmented."""
        return self.augmentation is None

    def position(self, index: int) -> int:
        """Position in the corpus of the recording that sample number `index` is of."""
        return self.positions[index // self.crops]

    def start(self, frames: int, rng: np.random.Generator) -> int:
        """The frame at which to crop a recording of so many mel frames; 0 for one that is shorter than a crop."""
        spare = max(0, frames - self.crop_frames)
        return int(rng.integers(spare + 1)) if self.training else spare // 2
