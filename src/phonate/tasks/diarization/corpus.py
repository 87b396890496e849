"""The corpus of a diarization model: recordings with speaker labels, simulated conversations, and their splits.

Shapes: T frames, S speakers, K segments of speech.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from phonate.audio.kaldi_settings import KaldiSettings
from phonate.config.errors import DataError
from phonate.data.conversations.activity import arrival_activity
from phonate.data.conversations.clips import ClipBank
from phonate.data.conversations.simulator import Conversation, ConversationSimulator
from phonate.data.conversations.sources import Source
from phonate.data.features import FEATURES, Features
from phonate.data.store.prepared import Prepared, prepare
from phonate.tasks.diarization.data_settings import DiarizationData, clip_corpora, has_corpus
from phonate.tasks.diarization.samples.simulators import build_simulators

UNKNOWN_SPEAKER = -1
"""Index of a speaker who is not in the training set."""

Activity = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Activity (T, S), 1 where a speaker is active, and the indices (S,) of the speakers in `Corpus.speakers`, or
UNKNOWN_SPEAKER. Speakers are in order of arrival, simultaneous ones sorted by name; silent speakers have no column."""


def frame_centre(audio: KaldiSettings) -> float:
    """Position of the centre of the first frame, in frames; depends on `KaldiSettings.snip_edges`."""
    return 0.5 * audio.window_length / audio.hop_length if audio.snip_edges else 0.5


class Corpus:
    """The recordings of a recipe, and the simulators of conversations."""

    def __init__(self, data: DiarizationData) -> None:
        self.data = data
        self.features: Features = FEATURES.get(data.feature_name)(data)
        """Computes features from a waveform at `data.audio.sample_rate`."""
        self.prepared: Prepared | None = prepare(data) if has_corpus(data) else None
        """The recordings of `data.path` or `data.datasets`; None if there are only clips."""
        if self.prepared is None and not clip_corpora(data):
            raise DataError("there is no corpus: set data.path or data.simulation.path")
        if self.prepared is not None and not len(self.prepared.index.speakers):
            raise DataError(f"{data.label}: no recording has speaker labels; add RTTM files, for example")

    @cached_property
    def simulated_share(self) -> float:
        """Fraction of the training samples that are simulated, from 0 to 1."""
        simulation = self.data.simulation
        if simulation is None or self.prepared is None:
            return float(simulation is not None)
        if simulation.share is not None:
            return simulation.share
        clips_only = simulation.path is None and bool((self.prepared.index.speaker >= 0).all())
        return 1.0 if clips_only else 0.5

    @property
    def validates_on_recordings(self) -> bool:
        """Whether validation uses real recordings instead of simulated conversations."""
        return self.prepared is not None and (self.simulated_share < 1.0 or bool(clip_corpora(self.data)))

    @cached_property
    def simulators(self) -> dict[str, ConversationSimulator]:
        """Simulator of each split that has simulated conversations; the splits have disjoint speakers."""
        if self.data.simulation is None:
            return {}
        own = self._own_source() if self.prepared is not None else None
        return build_simulators(self.data, own, simulated_validation=not self.validates_on_recordings)

    def _own_source(self) -> Source:
        assert self.prepared is not None
        index, rate = self.prepared.index, self.data.audio.sample_rate
        if self.validates_on_recordings:
            return Source(self.prepared, self.positions("train"), self._name, rate)
        return Source(self.prepared, range(len(index)), self._name, rate)

    def _name(self, position: int, speaker: int) -> str:
        """The corpus-wide name of speaker number `speaker` in the recording at `position`."""
        assert self.prepared is not None
        index = self.prepared.index
        if self.data.speaker_names == "corpus":
            return index.speakers[speaker]
        return f"{self._recording_ids[int(index.recording[position])]}/{index.speakers[speaker]}"

    @cached_property
    def _recording_ids(self) -> dict[int, str]:
        """Id of each file: that of its first row."""
        assert self.prepared is not None
        index = self.prepared.index
        return {int(index.recording[position]): index.id[position] for position in reversed(range(len(index)))}

    def positions(self, split: str) -> list[int]:
        """Index positions of the recordings in a split."""
        if self.prepared is None:
            return []
        splits = {"train": self.prepared.train, "validation": self.prepared.validation, "test": self.prepared.test}
        return [int(position) for position in splits[split]]

    @cached_property
    def _number(self) -> dict[str, int]:
        """Name of each training speaker -> its index: first the speakers of real recordings, then those that occur only
        in simulated conversations."""
        names = set[str]()
        if self.prepared is not None and self.simulated_share < 1.0:
            index = self.prepared.index
            for position in self.positions("train"):
                first, end = int(index.segment_first[position]), int(index.segment_first[position + 1])
                names |= {self._name(position, one) for one in set(index.segment_speaker[first:end].tolist()) - {-1}}
        simulated = set(self.simulators["train"].bank.speakers) if self.simulators else set()
        return {name: number for number, name in enumerate([*sorted(names), *sorted(simulated - names)])}

    @cached_property
    def speakers(self) -> list[str]:
        """Names of the training speakers, by index."""
        return list(self._number)

    def activity(self, position: int, start: int, stop: int) -> Activity:
        """The `Activity` in frames `start` to `stop` (exclusive) of the recording at `position`."""
        assert self.prepared is not None
        index, rate = self.prepared.index, self.data.audio.frames_per_second
        segments = slice(int(index.segment_first[position]), int(index.segment_first[position + 1]))
        begin_K = np.asarray(index.segment_start[segments]) * rate - start
        end_K = np.asarray(index.segment_end[segments]) * rate - start
        speaker_K = np.asarray(index.segment_speaker[segments])  # in the order of names
        activity_TS, speaker_S = arrival_activity(
            begin_K, end_K, speaker_K, stop - start, frame_centre(self.data.audio)
        )
        return activity_TS, self._numbers([self._name(position, int(one)) for one in speaker_S])

    def simulated_activity(self, conversation: Conversation, bank: ClipBank, frames: int) -> Activity:
        """The `Activity` in the first `frames` frames of a conversation between speakers of `bank`."""
        segments_K2 = conversation.segments_K2 / self.data.audio.hop_length
        speaker_K = conversation.speaker_K
        activity_TS, speaker_S = arrival_activity(
            segments_K2[:, 0], segments_K2[:, 1], speaker_K, frames, frame_centre(self.data.audio)
        )
        return activity_TS, self._numbers([bank.speakers[int(one)] for one in speaker_S])

    def _numbers(self, names: list[str]) -> NDArray[np.int64]:
        return np.array([self._number.get(name, UNKNOWN_SPEAKER) for name in names], dtype=np.int64)
