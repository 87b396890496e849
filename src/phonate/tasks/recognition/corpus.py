"""The recordings that a recogniser is trained on, and what is said in each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from phonate.audio.processor import AudioProcessor
from phonate.config.errors import DataError, InputError
from phonate.data.manifests.dropping import warn_left_out
from phonate.data.manifests.rows import Checked, Problem
from phonate.data.store.index import SPLITS
from phonate.data.store.prepared import Prepared, prepare_to_train
from phonate.data.store.splits import split_speakers
from phonate.tasks.recognition.model import reduced
from phonate.tasks.recognition.settings import RecognitionData
from phonate.tasks.recognition.symbols import Symbols, Wording, letters_of


class Corpus:
    """The prepared corpus at `data.path`, with what is said in each recording."""

    def __init__(self, data: RecognitionData) -> None:
        self.data = data
        self.processor = AudioProcessor(data.audio)
        self.prepared: Prepared = prepare_to_train(data)

    @cached_property
    def wordings(self) -> list[str]:
        """The words of each recording; "" where nothing can be said."""
        index = self.prepared.index
        said, reasons = wordings_of([index.text[position] for position in range(len(index))], self.data)
        refused = [f"{index.id[position]}: {reason}" for position, reason in reasons.items()]
        if len(refused) == len(said):
            raise DataError(f"{self.data.path}: no recording has a text; the first: {refused[0]}")
        warn_left_out("have no text that can be spoken", refused)
        return said

    @cached_property
    def symbols(self) -> Symbols:
        """The letters of the corpus."""
        return Symbols.of(self.wordings, self.data.language)

    def positions(self, split: str) -> list[int]:
        """Positions in the index of a split's recordings, without those that are too short for their texts."""
        return self._usable[split]

    @cached_property
    def _usable(self) -> dict[str, list[int]]:
        index = self.prepared.index
        train, validation = self.prepared.train, self.prepared.validation
        official = SPLITS.index("validation") in np.asarray(index.official_split)
        if self.data.validation_by == "speaker" and not official:
            untested = np.union1d(train, validation)
            kept, held = split_speakers(index.speakers[:], index.speaker[untested], self.data.validation)
            train, validation = untested[kept], untested[held]
        usable: dict[str, list[int]] = {}
        short: list[str] = []
        for split, found in (("train", train), ("validation", validation)):
            spoken = [int(position) for position in found if self.wordings[int(position)]]
            fit = [position for position in spoken if self._fits(position)]
            short += [index.id[position] for position in sorted(set(spoken) - set(fit))]
            usable[split] = fit
        warn_left_out("are too short for their texts", short)
        if not usable["train"]:
            raise DataError(f"{self.data.path}: no recording of it is long enough for its text")
        return usable

    def _fits(self, position: int) -> bool:
        return fits(self.wordings[position], int(self.prepared.index.frames[position]), self.data)


def wordings_of(texts: Iterable[str], data: RecognitionData) -> tuple[list[str], dict[int, str]]:
    """The words of each text, "" where nothing can be said; and why, by position."""
    wording = Wording(data.language)
    said: list[str] = []
    reasons: dict[int, str] = {}
    for position, text in enumerate(texts):
        try:
            said.append(wording(text))
        except InputError as error:
            reasons[position] = str(error)
            said.append("")
    return said, reasons


def fits(wording: str, frames: int, data: RecognitionData) -> bool:
    """Whether the model has a frame for each letter, and one more between two that are the same, which a blank has to
    part, even when the recording of so many frames is played at its fastest."""
    letters = letters_of(wording)
    needed = len(letters) + sum(one == two for one, two in itertools.pairwise(letters))
    stretch = data.augmentation.time_stretch if data.augmentation is not None else None
    fastest = max(1.0, data.speed[1] if data.speed else 1.0) * max(1.0, stretch[1] if stretch else 1.0)
    return bool(reduced(int(frames / fastest)) >= needed)


def refusals(recordings: Sequence[Checked], data: RecognitionData) -> list[Problem]:
    """The recordings whose texts can't be spoken, or are longer than they are."""
    said, reasons = wordings_of([one.row.text or "" for one in recordings], data)
    processor, rate = AudioProcessor(data.audio), data.audio.sample_rate
    problems: list[Problem] = []
    for position, (one, wording) in enumerate(zip(recordings, said, strict=True)):
        if position in reasons:
            problems.append(Problem(one.row.id, one.row.place, "no text", reasons[position]))
        elif not fits(wording, processor.frames(round(one.seconds * rate)), data):
            detail = f"{one.seconds:.1f} s are too short for the {len(wording)} letters of its text"
            problems.append(Problem(one.row.id, one.row.place, "too short for its text", detail))
    return problems
