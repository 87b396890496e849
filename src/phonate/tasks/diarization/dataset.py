"""Training samples of diarization: the features of a chunk of a conversation, and the speaker activity in each frame.

Shapes: B batch, T frames, F features, S speakers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.kaldi_settings import KaldiSettings
from phonate.data.batches.collators import Collator
from phonate.data.batches.dataset import Dataset
from phonate.data.batches.recordings import padded
from phonate.data.features import FEATURES
from phonate.data.settings import KaldiData
from phonate.tasks.diarization.corpus import UNKNOWN_SPEAKER, Corpus
from phonate.tasks.diarization.samples import Item
from phonate.tasks.diarization.samples.conversations import SimulatedConversations
from phonate.tasks.diarization.samples.cuts import item_of_cut
from phonate.tasks.diarization.samples.pieces import RecordedPieces
from phonate.tasks.diarization.samples.pool import PooledSamples
from phonate.tasks.diarization.samples.simulators import acoustics_of
from phonate.training.task import Batch

_SIMULATED_SAMPLES = 1000
"""Default number of training samples per epoch if all are simulated."""


class DiarizationDataset:
    """One split: chunks of recordings and simulated conversations, mixed as the recipe says."""

    def __init__(self, corpus: Corpus, split: str) -> None:
        training, data = split == "train", corpus.data
        self.frames_per_second: float | None = data.audio.frames_per_second
        parts: list[RecordedPieces | SimulatedConversations] = []
        simulator = corpus.simulators.get(split)
        share = corpus.simulated_share if training else float(simulator is not None)
        real = _counts(data.samples, share)[0] if training else None
        recorded: RecordedPieces | None = None
        if corpus.prepared is not None and share < 1.0:
            augmentation = data.augmentation if training else None
            acoustics = None if augmentation is None else acoustics_of(data, augmentation)
            mixing = data.mixing if training else None
            recorded = RecordedPieces(corpus, corpus.prepared, split, real, acoustics, mixing)
            parts.append(recorded)
        if simulator is not None:
            assert data.simulation is not None
            count = data.simulation.validation_samples
            if training:
                count = _counts(data.samples, share, recorded.count if recorded is not None else 0)[1]
            parts.append(SimulatedConversations(corpus, simulator, count, training))
        pool = data.pool if training else None
        self._parts = [part if pool is None else _pooled(part, pool, share) for part in parts]
        self._first = np.cumsum([0, *(part.count for part in self._parts)])
        self._corpus, self._split = corpus, split

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the samples."""
        return [name for part in self._parts for name in part.ids]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each sample."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(part.lengths for part in self._parts)])

    @property
    def digests(self) -> Mapping[str, int]:
        """See `Digested`: of the split's recordings, from which conversations may be simulated too."""
        prepared = self._corpus.prepared
        return {} if prepared is None else prepared.digests(self._corpus.positions(self._split))

    @property
    def cached(self) -> bool:
        """Whether samples are only read, without computation."""
        return all(part.cached for part in self._parts)

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """Sample number `index`."""
        part = int(np.searchsorted(self._first, index, side="right")) - 1
        return self._parts[part].get(index - int(self._first[part]), rng)

    def collate(self, items: list[Any]) -> Batch:
        """See `DiarizationCollator`."""
        return collated(items)


def _pooled(
    part: RecordedPieces | SimulatedConversations, pool: int, share: float
) -> RecordedPieces | SimulatedConversations | PooledSamples:
    """`part` with its share of the pool (`share` for simulated samples); unchanged if its samples are only read."""
    if part.cached or not part.count:
        return part
    simulated = isinstance(part, SimulatedConversations)
    size = round(pool * (share if simulated else 1.0 - share))
    return PooledSamples(part, max(1, size), "simulated" if simulated else "recorded")


def collated(items: Sequence[Item]) -> Batch:
    """The batch that `DiarizationCollator` describes."""
    most = max(item.activity_TS.shape[1] for item in items)
    activity = [_widened(item.activity_TS.astype(np.float32), most) for item in items]
    speakers = [
        np.pad(item.speakers_S, (0, most - len(item.speakers_S)), constant_values=UNKNOWN_SPEAKER) for item in items
    ]
    return {
        "features": padded([item.features_TF for item in items]),
        "lengths": torch.tensor([len(item.features_TF) for item in items]),
        "activity": padded(activity),
        "speaker_count": torch.tensor([item.activity_TS.shape[1] for item in items]),
        "speakers": torch.from_numpy(np.stack(speakers)),
    }


def _widened(values_TS: NDArray[Any], width: int) -> NDArray[Any]:
    return np.pad(values_TS, ((0, 0), (0, width - values_TS.shape[1])))


def _counts(samples: int | None, share: float, recorded: int | None = None) -> tuple[int | None, int]:
    """Numbers of recorded (None: as many as cover the recordings) and simulated training samples.

    Their sum is `samples`, of which the fraction `share` is simulated. If `samples` is None, the number of simulated
    samples follows from that of `recorded` ones.
    """
    if samples is not None:
        simulated = round(samples * share)
        return samples - simulated, simulated
    if not recorded:
        return None, _SIMULATED_SAMPLES if share == 1.0 else 0
    return recorded, round(recorded * share / (1.0 - share))


class DiarizationCollator(Collator):
    """Collates samples into a batch:

    `features` (B, T, F) float32 and `activity` (B, T, S) float32, padded with zeros in time and speakers; `lengths`
    (B,) in frames; `speaker_count` (B,); `speakers` (B, S) int64, indices in the corpus, -1 for padding and for
    speakers not in the training set.

    A registered subclass (`COLLATORS`), named in `data.collator`, can add or change labels. Created without a dataset,
    it is a `collate_fn` for your own loader over a Lhotse CutSet: features are computed as `audio` says, and all
    `speakers` are -1.
    """

    def __init__(self, dataset: Dataset | None = None, audio: KaldiSettings | None = None) -> None:
        self.dataset = cast(Dataset, dataset)
        self.audio = audio or KaldiSettings()
        self._features = FEATURES.get(self.audio.feature_type)(KaldiData(audio=self.audio))

    def __call__(self, cuts: Iterable[Any]) -> Batch:
        """The batch of `cuts`: samples of the dataset, or Lhotse cuts.

        Raises DataError as `item_of_cut` does.
        """
        items = [cut if isinstance(cut, Item) else item_of_cut(cut, self.audio, self._features) for cut in cuts]
        return collated(items)
