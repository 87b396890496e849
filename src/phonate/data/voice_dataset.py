"""Recordings as a torch dataset with loaders, for those who write their own loop or use `VoiceTrainer`.

    train, validation = create_train_val_datasets("recordings", val_split=0.1)
    loader = create_voice_dataloader(train, batch_size=16)

It stands on the same validated, indexed and cached corpus that recipes use.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from phonate.audio.augmentation import DataAugmentation
from phonate.audio.decoding import FloatArray
from phonate.audio.processor import AudioProcessor
from phonate.audio.settings import AudioConfig
from phonate.config.errors import InputError
from phonate.config.randomness import generator
from phonate.data.batches import padded
from phonate.data.prepared import PreparedCorpus, prepare, split_index
from phonate.data.settings import VoiceData

logger = logging.getLogger("phonate")

VoiceItem = dict[str, Any]


class VoiceDataset(Dataset[VoiceItem]):
    """Recordings with mel spectrograms and speakers.

    Items: `id`, `audio` (samples,) float32, `mel_spec` (frames, n_mels) float32, `speaker_id` int, `speaker` and
    `text` str. Rows that can't be used are left out and listed in `report`; none is ever replaced by silence.

    Args:
        data: a folder with a sub-folder a speaker, or metadata in JSON, CSV, LJSpeech's or Lhotse's form.
        audio_config: what mel spectrograms are made with.
        cache_size: decoded recordings kept in memory; the rest are read from the memory-mapped cache.
        load_in_memory: keep all of them.
        num_workers: processes of the loaders that `create_voice_dataloader` makes of it, unless told otherwise.
        transforms: applied to each item as it is handed out, and never kept: called as `transforms(item)`. A
            `DataAugmentation` changes the waveform and computes the mel of the result.
        cache_dir: where clean waveforms and features are kept. None: ~/.cache/phonate.
        seed: of the augmentation, which is a function of (seed, epoch, id); see `set_epoch`.
        clean_target: with a `DataAugmentation`, items also hold `target_mel`, the mel of the recording as it is, so
            that a model learns to undo the augmentation: with shifted pitch, for instance, it must use `speaker_id`.
            Without a target of its own an item is its own target, which a model can copy.

    Raises:
        InputError: `clean_target` without a `DataAugmentation`, or with one that changes the length.
    """

    def __init__(
        self,
        data: str | Path,
        audio_config: AudioConfig | None = None,
        cache_size: int = 1000,
        load_in_memory: bool = False,
        num_workers: int = 4,
        transforms: DataAugmentation | Callable[[VoiceItem], VoiceItem] | None = None,
        *,
        cache_dir: str | None = None,
        seed: int = 42,
        clean_target: bool = False,
    ) -> None:
        self.audio_config = audio_config or AudioConfig()
        settings = VoiceData(path=str(data), audio=self.audio_config, cache_dir=cache_dir, validation=0.0)
        self.prepared: PreparedCorpus = prepare(settings)
        self.processor = AudioProcessor(self.audio_config)
        self.transforms = transforms
        self.clean_target = clean_target
        if clean_target:
            _check_augmentation(transforms)
        self.num_workers = num_workers
        self.seed = seed
        # in shared memory, so that the worker processes of a loader see it change
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]
        self.positions: NDArray[np.int64] = np.arange(len(self.prepared.index))
        self._kept: OrderedDict[int, tuple[FloatArray, FloatArray]] = OrderedDict()
        self._capacity = len(self.positions) if load_in_memory else cache_size

    @property
    def report(self) -> dict[str, Any]:
        """What the validation of the corpus found."""
        return self.prepared.report

    @property
    def speakers(self) -> list[str]:
        """Names by `speaker_id`."""
        return self.prepared.speakers

    @property
    def epoch(self) -> int:
        """What augmentation is drawn for."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw other augmentation from the next pass on. (A `VoiceLoader` does it by itself.)"""
        self._epoch.fill_(epoch)

    def part(self, positions: NDArray[np.int64], transforms: Any = None) -> VoiceDataset:
        """The same data set with these recordings only."""
        other = object.__new__(VoiceDataset)
        vars(other).update(vars(self))
        other.positions, other.transforms, other._kept = positions, transforms, OrderedDict()
        return other

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, number: int) -> VoiceItem:
        position = int(self.positions[number])
        waveform, mel = self._clean(position)
        index = self.prepared.index
        speaker = int(index.speaker[position])
        item: VoiceItem = {
            "id": index.id[position],
            "audio": waveform,
            "mel_spec": mel,
            "speaker_id": speaker,
            "speaker": index.speakers[speaker],
            "text": index.text[position],
        }
        if isinstance(self.transforms, DataAugmentation):
            return self._augmented(item, self.transforms)
        if self.transforms is None:
            return item
        # What is kept in memory must not be changed by a transform that works in place.
        return self.transforms({**item, "audio": waveform.copy(), "mel_spec": mel.copy()})

    def _clean(self, position: int) -> tuple[FloatArray, FloatArray]:
        if position in self._kept:
            self._kept.move_to_end(position)
            return self._kept[position]
        cache = self.prepared.cache
        clean = cache.waveform(position), np.array(cache.features(position))
        if self._capacity:
            self._kept[position] = clean
            if len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        return clean

    def _augmented(self, item: VoiceItem, augmentation: DataAugmentation) -> VoiceItem:
        rng = generator(self.seed, self.epoch, item["id"])
        waveform = augmentation(item["audio"], rng)
        target = {"target_mel": item["mel_spec"]} if self.clean_target else {}
        return {**item, **target, "audio": waveform, "mel_spec": augmentation.spec(self.processor.mel(waveform), rng)}


def _check_augmentation(transforms: Any) -> None:
    """Raise InputError for transforms whose results have no clean target of the same length."""
    if not isinstance(transforms, DataAugmentation):
        raise InputError("clean_target: transforms must be a DataAugmentation")
    if transforms.settings.time_stretch is not None:
        raise InputError("clean_target: set the augmentation's time_stretch to None, for it changes the length")


class VoiceCollator:
    """Pads items to a batch.

    Keys: `features` = `mel_spec` (B, T, n_mels), `target_features` (B, T, n_mels), `waveform` = `audio` (B, samples),
    `lengths` (B,) frames, `waveform_lengths` (B,) samples, `mask` (B, T) True for real frames, `speaker_id` (B,),
    and the lists `ids` and `texts`. Padding is 0. `target_features` are the items' `target_mel` (frames, n_mels), or
    without it `mel_spec` again: see `clean_target` of `VoiceDataset`.
    """

    def __call__(self, items: Sequence[VoiceItem]) -> dict[str, Any]:
        """The batch of `items`."""
        mel = padded([item["mel_spec"] for item in items])
        audio = padded([item["audio"] for item in items])
        lengths = torch.tensor([len(item["mel_spec"]) for item in items])
        return {
            "ids": [item["id"] for item in items],
            "texts": [item["text"] for item in items],
            "features": mel,
            "mel_spec": mel,
            "target_features": padded([item["target_mel" if "target_mel" in item else "mel_spec"] for item in items]),
            "audio": audio,
            "waveform": audio,
            "lengths": lengths,
            "waveform_lengths": torch.tensor([len(item["audio"]) for item in items]),
            "mask": torch.arange(mel.shape[1]) < lengths[:, None],
            "speaker_id": torch.tensor([item["speaker_id"] for item in items]),
        }


class VoiceLoader(DataLoader[VoiceItem]):
    """A loader whose every pass is another epoch: another order on each rank, and other augmentation."""

    epoch = 0
    """Number of the next pass."""

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`, such as after a resume."""
        self.epoch = epoch

    def __iter__(self) -> Any:
        for part in (self.dataset, self.sampler):
            if hasattr(part, "set_epoch"):
                part.set_epoch(self.epoch)
        self.epoch += 1
        return super().__iter__()


def create_voice_dataloader(
    dataset: VoiceDataset,
    batch_size: int = 32,
    shuffle: bool = True,
    num_workers: int | None = None,
    pin_memory: bool = True,
    distributed: bool = False,
    drop_last: bool = False,
) -> VoiceLoader:
    """A loader of padded batches.

    `num_workers`: None for the data set's own (4). `distributed`: each rank that a launcher started gets its share;
    without a launcher a warning, and all of it.
    """
    sampler: DistributedSampler[VoiceItem] | None = None
    if distributed and "WORLD_SIZE" not in os.environ:
        logger.warning("distributed=True, but no launcher started this process (torchrun does): loading all of it")
    elif distributed:
        world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        sampler = DistributedSampler(dataset, world, rank, shuffle=shuffle, drop_last=drop_last)
    return VoiceLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle and sampler is None,
        sampler=sampler,
        num_workers=dataset.num_workers if num_workers is None else num_workers,
        pin_memory=pin_memory and torch.cuda.is_available(),
        drop_last=drop_last,
        collate_fn=VoiceCollator(),
    )


def create_train_val_datasets(
    data_dir: str | Path,
    val_split: float = 0.1,
    audio_config: AudioConfig | None = None,
    transforms: DataAugmentation | Callable[[VoiceItem], VoiceItem] | None = None,
    **options: Any,
) -> tuple[VoiceDataset, VoiceDataset]:
    """A corpus in two parts; recordings of an official test split are in neither.

    Args:
        data_dir: see `VoiceDataset`.
        val_split: share of the recordings kept for validation, 0 to less than 1.
        audio_config: see `VoiceDataset`.
        transforms: applied to the training part; with `clean_target` to both, for there they make the task.
        options: further arguments of `VoiceDataset`.

    Raises:
        InputError: `val_split` is out of range.
    """
    if not 0.0 <= val_split < 1.0:
        raise InputError(f"val_split {val_split:g}: give the share kept for validation, from 0 to less than 1")
    whole = VoiceDataset(data_dir, audio_config, transforms=transforms, **options)
    train, validation, _ = split_index(whole.prepared.index, val_split)
    return whole.part(train, transforms), whole.part(validation, transforms if whole.clean_target else None)
