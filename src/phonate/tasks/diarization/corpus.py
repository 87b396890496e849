"""The recordings that a diarization model is trained on: who speaks when, and which of them validate."""

from __future__ import annotations

import logging
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from phonate.config.errors import DataError
from phonate.data.features import FEATURES, Features
from phonate.data.store.index import SPLITS
from phonate.data.store.prepared import Prepared, prepare
from phonate.data.store.splits import Positions, split_index, split_strangers
from phonate.tasks.diarization.data_settings import DiarizationData

logger = logging.getLogger("phonate")

NOBODY = -1
"""Number of a speaker who is not in training."""


class Corpus:
    """The prepared corpus at `data.path`."""

    def __init__(self, data: DiarizationData) -> None:
        self.data = data
        self.features: Features = FEATURES.get(data.feature_name)(data)
        """How features are computed from a waveform at `data.audio.sample_rate`."""
        self.prepared: Prepared = prepare(data)
        index = self.prepared.index
        if not len(index.speakers):
            raise DataError(f"{data.path}: says of no recording who speaks in it; an RTTM file beside them does, say")

    @cached_property
    def person(self) -> NDArray[np.int64]:
        """(K,) for each segment of the index the number of its person: equal numbers are the same person."""
        index = self.prepared.index
        speakers = np.asarray(index.segment_speaker)
        if self.data.speaker_names == "corpus":
            return speakers
        recordings = np.repeat(np.asarray(index.recording), np.diff(index.segment_first))
        return np.where(speakers < 0, NOBODY, recordings * len(index.speakers) + speakers)

    @cached_property
    def _split(self) -> dict[str, Positions]:
        index, share = self.prepared.index, self.data.validation
        train, validation, test = split_index(index, share)
        official = bool((np.asarray(index.official_split) == SPLITS.index("validation")).any())
        if self.data.validation_by == "speaker" and share > 0 and not official and len(index) > 1:
            allowed = np.setdiff1d(np.arange(len(index)), test)
            strangers = split_strangers(index, share, self.person, allowed)
            if strangers is None:
                logger.warning(
                    "%s: its recordings are linked by common speakers, so validation hears speakers of the training "
                    "set; if names such as A or spk00 mean somebody else in each recording, set data.speaker_names: "
                    "recording",
                    self.data.path,
                )
            else:
                train, validation = strangers
        return {"train": train, "validation": validation, "test": test}

    def positions(self, split: str) -> list[int]:
        """Positions in the index of a split's recordings."""
        return [int(position) for position in self._split[split]]

    @cached_property
    def _trained(self) -> dict[int, int]:
        """Person -> number, for those in training."""
        first = self.prepared.index.segment_first
        found = {
            int(person)
            for position in self.positions("train")
            for person in self.person[int(first[position]) : int(first[position + 1])]
        }
        return {person: number for number, person in enumerate(sorted(found - {NOBODY}))}

    @cached_property
    def speakers(self) -> list[str]:
        """Names of the training speakers, by number."""
        index, count = self.prepared.index, len(self.prepared.index.speakers)
        if self.data.speaker_names == "corpus":
            return [index.speakers[person] for person in self._trained]
        ids = {int(index.recording[position]): index.id[position] for position in reversed(range(len(index)))}
        return [f"{ids[person // count]}/{index.speakers[person % count]}" for person in self._trained]

    def activity(self, position: int, start: int, stop: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Who speaks in frames `start` to `stop` of a recording: activity (T, S), and the number of each speaker (S,),
        NOBODY for one who is not in training. Speakers in the order in which they begin in these frames, those who
        begin together by name; those who are silent are left out."""
        index, rate = self.prepared.index, self.data.audio.frames_per_second
        segments = slice(int(index.segment_first[position]), int(index.segment_first[position + 1]))
        # A frame is of whoever speaks at its centre.
        first = np.ceil(np.asarray(index.segment_start[segments]) * rate - self.centre).astype(np.int64) - start
        end = np.ceil(np.asarray(index.segment_end[segments]) * rate - self.centre).astype(np.int64) - start
        first, end = np.clip(first, 0, stop - start), np.clip(end, 0, stop - start)
        there = np.flatnonzero(end > first)
        names = np.asarray(index.segment_speaker[segments])[there]  # in the order of names
        persons = self.person[segments][there]
        begins: dict[tuple[int, int], int] = {}
        for name, person, at in zip(names.tolist(), persons.tolist(), first[there].tolist(), strict=True):
            begins[name, person] = min(at, begins.get((name, person), at))
        order = sorted(begins, key=lambda one: (begins[one], one[0]))
        activity_TS = np.zeros((stop - start, len(order)), dtype=np.uint8)
        column = {name: number for number, (name, _) in enumerate(order)}
        for name, begin, finish in zip(names.tolist(), first[there], end[there], strict=True):
            activity_TS[begin:finish, column[name]] = 1
        numbers_S = np.array([self._trained.get(person, NOBODY) for _, person in order], dtype=np.int64)
        return activity_TS, numbers_S

    @property
    def centre(self) -> float:
        """Where the centre of the first frame is, in frames."""
        return 0.0
