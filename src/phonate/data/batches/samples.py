"""Samples as tasks share them: crops of recordings, whole recordings, several sequences packed in one row."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.augmentation import DataAugmentation
from phonate.config.randomness import generator
from phonate.data.settings import VoiceData
from phonate.data.store.prepared import Prepared

# ------------- Samples that are crops of recordings: what the tasks that train on crops have in common


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


# --------------- Samples that are whole recordings: what the tasks that take them whole have in common


class WholeRecordings:
    """Some recordings of a corpus by number: all of `data.batches.dataset.Dataset` but the samples themselves."""

    def __init__(self, prepared: Prepared, positions: Sequence[int], frames_per_second: float) -> None:
        self.prepared = prepared
        self.positions = positions
        """Positions of the recordings in the corpus."""
        self.frames_per_second = frames_per_second
        """Mel frames in a second."""

    @property
    def ids(self) -> Sequence[str]:
        """Ids of recordings."""
        return [self.prepared.index.id[position] for position in self.positions]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each recording."""
        return np.asarray(self.prepared.index.frames[self.positions], dtype=np.int64)

    @property
    def digests(self) -> Mapping[str, int]:
        """See `Digested`: of the recordings."""
        return self.prepared.digests(self.positions)

    @property
    def cached(self) -> bool:
        """Nothing is computed for a sample that takes long."""
        return True


def padded(arrays: Sequence[NDArray[Any]]) -> torch.Tensor:
    """(B, longest, ...) of arrays (length, ...), zeros after their ends."""
    out = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out)


# -------------------------------------------- Packing: several short sequences in one row, to pad less


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Group sequences into packs whose lengths add up to at most `capacity`: in random order, each goes into the
    fullest pack that still has room for it (best fit, as in Ding et al. 2024, https://arxiv.org/abs/2404.10830).

    The result depends on the arguments alone.

    Args:
        lengths: (N,) length of each sequence, from 1 to `capacity`.
        capacity: Length of a pack, at most.

    Returns:
        Packs of positions in `lengths`; every position is in exactly one.
    """
    assert max(lengths, default=0) <= capacity, "a sequence is longer than a pack"
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (length left, pack), sorted
    for i in generator("packing").permutation(len(lengths)).tolist():
        length = lengths[i]
        place = bisect.bisect_left(room, (length, -1))
        if place < len(room):
            left, number = room.pop(place)
        else:
            left, number = capacity, len(packs)
            packs.append([])
        packs[number].append(i)
        if left > length:
            bisect.insort(room, (left - length, number))
    return packs
