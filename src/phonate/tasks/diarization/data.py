"""The data of diarization: corpora, simulated conversations, and the samples cut from them.

Shapes: B batch, T frames, F features, S speakers, K segments of speech.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import normalised_peak
from phonate.audio.settings import KaldiSettings
from phonate.config.errors import DataError
from phonate.config.randomness import derived_seed, generator
from phonate.data.batches import Collator, Dataset, SamplePreview, padded
from phonate.data.cache import SPLITS, Index
from phonate.data.clips import ClipBank, Source, arrival_activity, mixed_activity
from phonate.data.conversations import (
    Acoustics,
    ColouredNoise,
    Conversation,
    ConversationSimulator,
    Noise,
    RecordedNoise,
)
from phonate.data.features import FEATURES, Features
from phonate.data.prepared import PreparedCorpus, persons, prepare, split_index
from phonate.data.settings import AcousticSettings, KaldiData, SimulationSettings
from phonate.tasks.diarization.settings import (
    DiarizationData,
    DiarizationRecipe,
    MixingSettings,
    clip_corpora,
    has_corpus,
    noise_corpus,
)
from phonate.training.task import Batch

logger = logging.getLogger("phonate")


# -------------------------------------- A diarization sample. Shapes: T frames, F features, S speakers


@dataclass(frozen=True)
class DiarizationItem:
    """One sample."""

    features_TF: FloatArray
    activity_TS: NDArray[np.uint8]
    """1 where a speaker is active. Speakers are in order of arrival, simultaneous ones sorted by name."""
    speakers_S: NDArray[np.int64]
    """Index of each speaker in `DiarizationCorpus.speakers`; -1 if it is not in the training set."""
    source: str = ""
    """Id of the recording it is cut from; "" for a simulated conversation."""
    start: float = 0.0
    """Start in that recording, in seconds."""


_NONE, _TRAIN, _VALIDATION, _TEST = range(len(SPLITS))


# ---- Builds the simulators of training and validation conversations from the recipe's `data.simulatio


def build_simulators(
    data: DiarizationData, sources: Sequence[Source], simulated_validation: bool, optional: bool = False
) -> dict[str, ConversationSimulator]:
    """Simulators for the split train and, with `simulated_validation`, for validation, with disjoint speakers.

    Args:
        data: The recipe's `data` section; `data.simulation` is set.
        sources: The corpora of clips.
        optional: Whether nobody asked for conversations, which only add to recordings: they have fewer speakers where
            the clips are of fewer, and where there are no clips, there is no simulator; either is a warning.

    Raises DataError if a split has fewer speakers than a conversation.
    """
    assert data.simulation is not None
    simulation = data.simulation
    acoustics = acoustics_of(data, simulation.acoustics)
    bank = partial(ClipBank.of, sample_rate=data.audio.sample_rate, min_seconds=simulation.min_clip_seconds)
    if not simulated_validation:
        try:
            banks = {"train": bank([_without(source, _VALIDATION, _TEST) for source in sources])}
        except DataError as error:
            if not optional:
                raise
            logger.warning("no conversations are simulated beside the recordings: %s", error)
            return {}
        simulation = _with_speakers_of(banks["train"], simulation) if optional else simulation
    elif data.validation == 0.0:
        banks = {"train": bank([_without(source, _TEST) for source in sources])}
    elif any(
        _VALIDATION in np.asarray(source.prepared.index.official_split)[list(source.positions)] for source in sources
    ):
        train = bank([_without(source, _VALIDATION, _TEST) for source in sources])
        held_out = [_without(source, _NONE, _TRAIN, _TEST) for source in sources]
        unseen_speakers = set(bank(held_out).speakers) - set(train.speakers)
        _require_speakers(len(unseen_speakers), data, f"{len(unseen_speakers)} in the official validation split")
        banks = {"train": train, "validation": bank(held_out, people=unseen_speakers)}
    else:
        whole = [_without(source, _TEST) for source in sources]
        everybody = bank(whole)
        validation_speakers = _held_out(everybody, data.validation, simulation.speakers[1])
        training_speakers = set(everybody.speakers) - validation_speakers
        _require_speakers(len(training_speakers), data, f"{len(everybody.speakers)}")
        banks = {"train": bank(whole, people=training_speakers), "validation": bank(whole, people=validation_speakers)}
    return {split: ConversationSimulator(simulation, one, acoustics) for split, one in banks.items()}


def _with_speakers_of(bank: ClipBank, simulation: SimulationSettings) -> SimulationSettings:
    """`simulation` with no more speakers in a conversation than there are."""
    (least, most), there = simulation.speakers, len(bank.speakers)
    if there >= most:
        return simulation
    logger.warning(
        "the clips are of %d speaker(s): no simulated conversation has more; data.simulation.path adds other corpora",
        there,
    )
    return simulation.model_copy(update={"speakers": (min(least, there), there)})


def _require_speakers(count: int, data: DiarizationData, found: str) -> None:
    """Raise DataError where a split has only `count` speakers, too few for a conversation. `found`: whom there is."""
    assert data.simulation is not None
    needed = data.simulation.speakers[1]
    if count >= needed:
        return
    own = has_corpus(data) and not clip_corpora(data)
    labels = f"{data.label}: put an RTTM file beside each meeting, named as it is; or, to simulate, " if own else ""
    raise DataError(
        f"{labels}add speakers, a sub-folder for each, or lower data.simulation.speakers: training and validation need "
        f"{needed} each, found {found}"
    )


def simulator_of(data: DiarizationData) -> ConversationSimulator:
    """A simulator with all speakers of the clip corpora, of all splits; `data.simulation` must be set."""
    assert data.simulation is not None
    own = None if clip_corpora(data) else _source(data.model_copy(update={"validation": 0.0}), "")
    bank = ClipBank.of(_sources(data, own), data.audio.sample_rate, data.simulation.min_clip_seconds)
    return ConversationSimulator(data.simulation, bank, acoustics_of(data, data.simulation.acoustics))


def acoustics_of(data: DiarizationData, settings: AcousticSettings) -> Acoustics:
    """The acoustics described by `settings`, with noise recordings prepared at the corpus's sample rate."""
    noise: Noise = ColouredNoise()
    if settings.noise_path is not None:
        prepared = prepare(noise_corpus(data, settings.noise_path))
        noise = RecordedNoise(prepared, range(len(prepared.index)))
    return Acoustics(settings, data.audio.sample_rate, noise)


def _sources(data: DiarizationData, own: Source | None) -> list[Source]:
    """The clip corpora. A corpus that is also in the recipe's `data` is taken from `own`, so that its held-out
    recordings are not used."""
    corpora = clip_corpora(data)
    if not corpora:
        assert own is not None
        return [own]
    prefixes = _prefixes(data) if own is not None or len(corpora) > 1 else [""]
    return [
        _own_part(one.label, data, own) or _source(one, prefix) for one, prefix in zip(corpora, prefixes, strict=True)
    ]


def _prefixes(data: DiarizationData) -> list[str]:
    """Prefix of the speaker names of each clip corpus: equal names in different corpora are different people."""
    paths = [one.label for one in clip_corpora(data)]
    names = [Path(path).name for path in paths]
    return [f"{name if names.count(name) == 1 else path}/" for name, path in zip(names, paths, strict=True)]


def _own_part(path: str, data: DiarizationData, own: Source | None) -> Source | None:
    """The rows of `own` that belong to the corpus at `path`; None if `own` does not contain it."""
    if own is None:
        return None
    corpora, ids = data.corpora, own.prepared.index.id
    folder = Path(path).expanduser().resolve()
    same = (one.name for one in corpora if one.path is not None and Path(one.path).expanduser().resolve() == folder)
    name = next(same, None)
    if name is None:
        return None
    return own.of([one for one in own.positions if len(corpora) == 1 or ids[one].startswith(f"{name}/")])


def _source(clips: DiarizationData, prefix: str) -> Source:
    prepared = prepare(clips)
    name = partial(_name, prefix, prepared.index)
    return Source(prepared, range(len(prepared.index)), name, clips.audio.sample_rate)


def _name(prefix: str, index: Index, position: int, speaker: int) -> str:
    return f"{prefix}{index.speakers[speaker]}"


def _without(source: Source, *splits: int) -> Source:
    """The rows of a source that are in none of these official splits."""
    official = np.asarray(source.prepared.index.official_split)
    return source.of([one for one in source.positions if int(official[one]) not in splits])


def _held_out(bank: ClipBank, share: float, least: int) -> set[str]:
    """The validation speakers: in order of the hash of their names, until there are at least `least` with the fraction
    `share` of the clips' duration."""
    seconds = dict(zip(bank.speakers, bank.seconds().tolist(), strict=True))
    needed, names = share * sum(seconds.values()), set[str]()
    for name in sorted(bank.speakers, key=lambda one: derived_seed("validation", one)):
        if len(names) >= least and sum(seconds[one] for one in names) >= needed:
            break
        names.add(name)
    return names


# ------------------------------------------------------------------- The corpus of a diarization model

UNKNOWN_SPEAKER = -1
"""Index of a speaker who is not in the training set."""

Activity = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Activity (T, S), 1 where a speaker is active, and the indices (S,) of the speakers in `DiarizationCorpus.speakers`,
or UNKNOWN_SPEAKER. Speakers are in order of arrival, simultaneous ones sorted by name; silent ones have no column."""


def frame_centre(audio: KaldiSettings) -> float:
    """Position of the centre of the first frame, in frames; depends on `KaldiSettings.snip_edges`."""
    return 0.5 * audio.window_length / audio.hop_length if audio.snip_edges else 0.5


class DiarizationCorpus:
    """The recordings of a recipe, and the simulators of conversations."""

    def __init__(self, data: DiarizationData, known_speakers: bool = False) -> None:
        """`known_speakers`: whether every speaker stays in training, as for label type speaker_id."""
        self.data = data
        self.features: Features = FEATURES.get(data.feature_name)(data)
        """Computes features from a waveform at `data.audio.sample_rate`."""
        self.prepared: PreparedCorpus | None = prepare(data) if has_corpus(data) else None
        """The recordings of `data.path` or `data.datasets`; None if there are only clips."""
        if self.prepared is None and not clip_corpora(data):
            raise DataError("there is no corpus: set data.path or data.simulation.path")
        if self.prepared is not None and not len(self.prepared.index.speakers):
            raise DataError(f"{data.label}: no recording has speaker labels; add RTTM files, for example")
        if known_speakers:
            if self.prepared is not None:
                # split by recording, so that every speaker is in training
                person = persons(self.prepared.index, data.speaker_names)
                train, validation, test = split_index(self.prepared.index, data.validation, person)
                self.prepared = replace(self.prepared, train=train, validation=validation, test=test)
            self._warn_of_unseen_speakers()

    @classmethod
    def of(cls, recipe: DiarizationRecipe) -> DiarizationCorpus:
        """The corpus of a recipe, split as its labels need."""
        known_speakers = recipe.training.eval_knobs.label_type == "speaker_id"
        # Validation by strangers is for labels that mean the same for everybody.
        data = recipe.data.model_copy(update={"validation_by": "recording"}) if known_speakers else recipe.data
        return cls(data, known_speakers)

    @cached_property
    def simulated_share(self) -> float:
        """Fraction of the training samples that are simulated, from 0 to 1."""
        return self._share_of_recipe if self._share_of_recipe == 1.0 or self.simulators else 0.0

    @cached_property
    def _share_of_recipe(self) -> float:
        """The same, if conversations can be simulated."""
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
        return self.prepared is not None and (self._share_of_recipe < 1.0 or bool(clip_corpora(self.data)))

    @cached_property
    def simulators(self) -> dict[str, ConversationSimulator]:
        """Simulator of each split that has simulated conversations; the splits have disjoint speakers."""
        if self.data.simulation is None:
            return {}
        simulation = self.data.simulation
        return build_simulators(
            self.data,
            self.clips,
            simulated_validation=not self.validates_on_recordings,
            optional=simulation.share is None and simulation.path is None and self._share_of_recipe < 1.0,
        )

    @cached_property
    def clips(self) -> list[Source]:
        """The corpora that conversations are simulated from."""
        return _sources(self.data, self._own_source() if self.prepared is not None else None)

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

    @property
    def validation_names(self) -> list[str]:
        """The recordings that validate; none where simulated conversations do."""
        if self.prepared is None or not self.validates_on_recordings:
            return []
        return [self.prepared.index.id[position] for position in self.positions("validation")]

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
            names = self._speakers_in("train")
        simulated = set(self.simulators["train"].bank.speakers) if self.simulators else set()
        return {name: number for number, name in enumerate([*sorted(names), *sorted(simulated - names)])}

    @cached_property
    def speakers(self) -> list[str]:
        """Names of the training speakers, by index."""
        return list(self._number)

    def _speakers_in(self, split: str) -> set[str]:
        """Names of those who speak in the recordings of a split."""
        if self.prepared is None:
            return set()
        index, names = self.prepared.index, set[str]()
        for position in self.positions(split):
            first, end = int(index.segment_first[position]), int(index.segment_first[position + 1])
            names |= {self._name(position, one) for one in set(index.segment_speaker[first:end].tolist()) - {-1}}
        return names

    def _warn_of_unseen_speakers(self) -> None:
        """Warn where speakers in validation are not in training: their frames are ignored, and where that is all,
        only silence is left."""
        simulator = self.simulators.get("validation")
        speakers = self._speakers_in("validation") if simulator is None else set(simulator.bank.speakers)
        unseen_speakers = speakers - self._number.keys()
        if speakers and unseen_speakers == speakers:
            logger.warning(
                "label_type speaker_id: none of the %d speakers in validation is in training: its figures are of "
                "silence; set training.validation.metric_for_best_model=step, or leave out what splits by speaker",
                len(speakers),
            )
            return
        if unseen_speakers:
            logger.warning(
                "label_type speaker_id: %d of %d speakers in validation are not in training and are ignored: %s",
                *(len(unseen_speakers), len(speakers), ", ".join(sorted(unseen_speakers)[:5])),
            )

    def activity(self, position: int, start: int, stop: int) -> Activity:
        """The `Activity` in frames `start` to `stop` (exclusive) of the recording at `position`."""
        assert self.prepared is not None
        index, rate = self.prepared.index, self.data.audio.frames_per_second
        segments = slice(int(index.segment_first[position]), int(index.segment_first[position + 1]))
        begin_K = np.asarray(index.segment_start[segments]) * rate - start
        end_K = np.asarray(index.segment_end[segments]) * rate - start
        speaker_K = np.asarray(index.segment_speaker[segments])  # in the order of names
        return self._activity(begin_K, end_K, speaker_K, stop - start, partial(self._name, position))

    def simulated_activity(self, conversation: Conversation, bank: ClipBank, frames: int) -> Activity:
        """The `Activity` in the first `frames` frames of a conversation between speakers of `bank`."""
        begin_K, end_K = conversation.segments_K2.T / self.data.audio.hop_length
        return self._activity(begin_K, end_K, conversation.speaker_K, frames, bank.speakers.__getitem__)

    def _activity(
        self,
        begin_K: NDArray[Any],
        end_K: NDArray[Any],
        speaker_K: NDArray[Any],
        frames: int,
        name: Callable[[int], str],
    ) -> Activity:
        """Of segments from `begin_K` to `end_K`, in frames. `name`: that of a speaker by its number in `speaker_K`."""
        activity_TS, speaker_S = arrival_activity(begin_K, end_K, speaker_K, frames, frame_centre(self.data.audio))
        numbers = [self._number.get(name(int(one)), UNKNOWN_SPEAKER) for one in speaker_S]
        return activity_TS, np.array(numbers, dtype=np.int64)

    def samples(self, frames: int) -> int:
        """Samples of a waveform with `frames` feature frames."""
        audio = self.data.audio
        return (frames - 1) * audio.hop_length + audio.window_length if audio.snip_edges else frames * audio.hop_length

    def compute(self, waveform_N: FloatArray) -> FloatArray:
        """The features (T, F) of a waveform that is not cached, its level normalised as that of the recordings."""
        if self.features.normalises_level:
            waveform_N = normalised_peak(waveform_N)
        return np.asarray(self.features.compute(waveform_N), dtype=np.float32)


# -------------------------------- Samples cut from recordings. Shapes: N samples, T frames, S speakers

_DRAWS = 10
"""Attempts to find a chunk that may be added."""


@dataclass(frozen=True)
class _Chunk:
    position: int
    start: int
    """Its first frame."""
    activity: Activity

    @property
    def frames(self) -> int:
        return len(self.activity[0])


class RecordedChunks:
    """Chunks of the recordings of a split: consecutive in validation, at random positions in training.

    A recording has ceil(frames / chunk) slots. In training, a slot is a range of start positions, so that the `count`
    chunks of an epoch cover all recordings evenly, whatever `count` is.
    """

    def __init__(
        self,
        corpus: DiarizationCorpus,
        prepared: PreparedCorpus,
        split: str,
        count: int | None,
        acoustics: Acoustics | None,
        mixing: MixingSettings | None = None,
    ) -> None:
        self._corpus = corpus
        self._prepared = prepared
        self._training = split == "train"
        self._acoustics = acoustics
        self._mixing = mixing
        self._chunk = corpus.data.chunk_frames
        self._positions = np.array(corpus.positions(split), dtype=np.int64)
        self._frames = np.asarray(prepared.index.frames)[self._positions]
        self._first_slot = np.concatenate([[0], np.cumsum(-(-self._frames // self._chunk))])
        self.slots = int(self._first_slot[-1])
        self.count = self.slots if count is None or not self.slots else count

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the chunks."""
        if self.count != self.slots:
            return [f"recorded#{number}" for number in range(self.count)]
        return [
            f"{self._prepared.index.id[int(self._positions[row])]}#{slot - int(self._first_slot[row])}"
            for slot in range(self.slots)
            for row in [self._row(slot)]
        ]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each chunk; the maximum if the recording is drawn at random."""
        if self.count != self.slots:
            return np.full(self.count, min(self._chunk, int(self._frames.max())), dtype=np.int64)
        spans = [self._span(slot, 0.0) for slot in range(self.slots)]
        return np.array([stop - start for _, start, stop in spans], dtype=np.int64)

    @property
    def cached(self) -> bool:
        """Whether features are only read, not computed."""
        return self._acoustics is None and self._mixing is None and not self._prepared.cache.computes

    def get(self, number: int, rng: np.random.Generator) -> DiarizationItem:
        """Chunk number `number`."""
        slot = number if self.count == self.slots else int((number + rng.random()) * self.slots / self.count)
        chunk = self._cut(slot, rng)
        added = self._added(chunk, rng)
        activity_TS, numbers_S = chunk.activity
        if self._acoustics is None and added is None:
            features = self._prepared.cache.features(chunk.position, chunk.start, chunk.start + chunk.frames)
        else:
            mixture_N = self._mixture(chunk, added, rng)
            if added is not None:
                activity_TS, numbers_S = mixed_activity(activity_TS, numbers_S, *added.activity)
            features = self._corpus.compute(mixture_N)[: chunk.frames]
        seconds = chunk.start / self._corpus.data.audio.frames_per_second
        name = self._prepared.index.id[chunk.position]
        return DiarizationItem(np.asarray(features, dtype=np.float32), activity_TS, numbers_S, name, seconds)

    def waveform(self, number: int, rng: np.random.Generator) -> FloatArray:
        """What chunk number `number` sounds like (N,), as `get` makes it."""
        slot = number if self.count == self.slots else int((number + rng.random()) * self.slots / self.count)
        chunk = self._cut(slot, rng)
        return self._mixture(chunk, self._added(chunk, rng), rng)

    def _mixture(self, chunk: _Chunk, added: _Chunk | None, rng: np.random.Generator) -> FloatArray:
        mixture_N = self._sound(chunk, rng)
        if added is not None:
            other_N = self._sound(added, rng)[: len(mixture_N)]
            mixture_N[: len(other_N)] += other_N
        return mixture_N

    def _cut(self, slot: int, rng: np.random.Generator) -> _Chunk:
        row, start, stop = self._span(slot, rng.random() if self._training else 0.0)
        position = int(self._positions[row])
        return _Chunk(position, start, self._corpus.activity(position, start, stop))

    def _added(self, chunk: _Chunk, rng: np.random.Generator) -> _Chunk | None:
        """A random chunk of another recording to add to `chunk`. None: not mixed, or all attempts had too many
        speakers."""
        if self._mixing is None or rng.random() >= self._mixing.share:
            return None
        for _ in range(_DRAWS):
            other = self._cut(int(rng.integers(self.slots)), rng)
            if other.position == chunk.position:
                continue
            if mixed_activity(*chunk.activity, *other.activity)[0].shape[1] <= self._mixing.speakers:
                return other
        return None

    def _row(self, slot: int) -> int:
        return int(np.searchsorted(self._first_slot, slot, side="right")) - 1

    def _span(self, slot: int, where: float) -> tuple[int, int, int]:
        """Row of the split, first and end frame of a slot's chunk, at position `where` (0 to 1) in the slot's range."""
        row = self._row(slot)
        frames, first = int(self._frames[row]), int(self._first_slot[row])
        slots = int(self._first_slot[row + 1]) - first
        if not self._training:
            return row, frames * (slot - first) // slots, frames * (slot - first + 1) // slots
        possible = max(0, frames - self._chunk) + 1
        start = int(possible * (slot - first + where) / slots)
        return row, start, min(start + self._chunk, frames)

    def _sound(self, chunk: _Chunk, rng: np.random.Generator) -> FloatArray:
        """The waveform (N,) of a chunk, with augmented acoustics if configured."""
        hop = self._corpus.data.audio.hop_length
        start, samples = chunk.start * hop, self._corpus.samples(chunk.frames)
        waveform_N = self._prepared.cache.waveform(chunk.position, start, start + samples)
        if self._acoustics is None:
            return waveform_N
        speech = int(chunk.activity[0].any(axis=1).sum()) * hop
        return self._acoustics(waveform_N[None], speech, rng)


# ------------------------------------------------------------ Samples that are simulated conversations


class SimulatedConversations:
    """Simulated conversations: new ones in each training epoch, fixed ones in validation."""

    def __init__(self, corpus: DiarizationCorpus, simulator: ConversationSimulator, count: int, training: bool) -> None:
        self._corpus = corpus
        self._simulator = simulator
        self.count = count
        self._training = training
        self._samples = corpus.samples(corpus.data.chunk_frames)

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the conversations."""
        return [f"simulated#{number}" for number in range(self.count)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each conversation: one chunk."""
        return np.full(self.count, self._corpus.data.chunk_frames, dtype=np.int64)

    @property
    def cached(self) -> bool:
        """Conversations are computed."""
        return False

    def get(self, number: int, rng: np.random.Generator) -> DiarizationItem:
        """Conversation number `number`."""
        conversation = self._conversation(number, rng)
        features = self._corpus.compute(conversation.waveform_N)
        activity = self._corpus.simulated_activity(conversation, self._simulator.bank, len(features))
        return DiarizationItem(features, *activity)

    def waveform(self, number: int, rng: np.random.Generator) -> FloatArray:
        """What conversation number `number` sounds like (N,)."""
        return self._conversation(number, rng).waveform_N

    def _conversation(self, number: int, rng: np.random.Generator) -> Conversation:
        rng = rng if self._training else generator("validation conversation", number)
        return self._simulator.conversation(self._samples, rng)


# ---------------------------------------------- Lhotse cuts as diarization samples, for custom loaders


def item_of_cut(cut: Any, audio: KaldiSettings, features: Features) -> DiarizationItem:
    """The sample of a Lhotse cut with audio, resampled and mixed down to mono. Its supervisions give the speakers;
    their indices are all UNKNOWN_SPEAKER, as there is no corpus.

    Raises DataError for audio from a command or URL, and for a supervision without a speaker.
    """
    for part in getattr(cut, "tracks", None) or [cut]:
        recording = getattr(getattr(part, "cut", part), "recording", None)
        for source in recording.sources if recording is not None else ():
            if source.type not in ("file", "memory"):
                raise DataError(f"cut {cut.id}: its audio is a {source.type}, not a file; save the recording to a file")
    waveform_CN = np.atleast_2d(cut.resample(audio.sample_rate).load_audio())
    features_TF = features.compute(np.asarray(waveform_CN.mean(axis=0), dtype=np.float32))
    unnamed = next((one.id for one in cut.supervisions if one.speaker is None), None)
    if unnamed is not None:
        raise DataError(f"cut {cut.id}: supervision {unnamed} has no speaker; fill it in")
    names = sorted({one.speaker for one in cut.supervisions})
    rate = audio.frames_per_second
    activity_TS, speaker_S = arrival_activity(
        np.array([one.start * rate for one in cut.supervisions]),
        np.array([one.end * rate for one in cut.supervisions]),
        np.array([names.index(one.speaker) for one in cut.supervisions], dtype=np.int64),
        len(features_TF),
        frame_centre(audio),
    )
    return DiarizationItem(
        features_TF, activity_TS, np.full(len(speaker_S), UNKNOWN_SPEAKER, dtype=np.int64), str(cut.id)
    )


# -------------------------------------------------- Training samples that are computed once and reused


class PooledSamples:
    """Training samples of `part`, drawn from a pool of `size`, which does not depend on the training seed.

    Each process computes a sample when it is first drawn and holds it in memory.
    """

    cached = True

    def __init__(self, part: RecordedChunks | SimulatedConversations, size: int, name: str) -> None:
        self._part = part
        self._size = size
        self._name = name
        self._held: dict[int, DiarizationItem] = {}
        self.count = part.count

    @property
    def ids(self) -> Sequence[str]:
        """Names of samples."""
        return self._part.ids

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each sample, as of `part`."""
        return self._part.lengths

    def __getstate__(self) -> dict[str, object]:
        """Without the samples held."""
        return {**vars(self), "_held": {}}

    def get(self, number: int, rng: np.random.Generator) -> DiarizationItem:
        """A sample of the pool, from all parts of which an epoch draws evenly."""
        slot = self._slot(number, rng)
        if slot not in self._held:
            self._held[slot] = self._part.get(*self._origin(slot))
        return self._held[slot]

    def waveform(self, number: int, rng: np.random.Generator) -> FloatArray:
        """What that sample sounds like (N,)."""
        return self._part.waveform(*self._origin(self._slot(number, rng)))

    def _slot(self, number: int, rng: np.random.Generator) -> int:
        return int((number + rng.random()) * self._size / self.count)

    def _origin(self, slot: int) -> tuple[int, np.random.Generator]:
        return slot * self.count // self._size, generator("pool", self._name, slot)


# --------------------------------------------------------------------- Training samples of diarization

_SIMULATED_SAMPLES = 1000
"""Default number of training samples per epoch if all are simulated."""


class DiarizationDataset:
    """One split: chunks of recordings and simulated conversations, mixed as the recipe says."""

    def __init__(
        self, corpus: DiarizationCorpus, split: str, unit_counts: Callable[[Batch], Mapping[str, float]] | None = None
    ) -> None:
        """`unit_counts`: See `UnitCounts`; they depend on the labels."""
        if unit_counts is not None:
            self.unit_counts = unit_counts
        training, data = split == "train", corpus.data
        self.frames_per_second: float | None = data.audio.frames_per_second
        parts: list[RecordedChunks | SimulatedConversations] = []
        simulator = corpus.simulators.get(split)
        share = corpus.simulated_share if training else float(simulator is not None)
        real = _counts(data.samples, share)[0] if training else None
        recorded: RecordedChunks | None = None
        if corpus.prepared is not None and share < 1.0:
            augmentation = data.augmentation if training else None
            acoustics = None if augmentation is None else acoustics_of(data, augmentation)
            mixing = data.mixing if training else None
            recorded = RecordedChunks(corpus, corpus.prepared, split, real, acoustics, mixing)
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
        """See `DigestedDataset`: of the split's recordings, and of the clips from which conversations are simulated."""
        corpus, prepared = self._corpus, self._corpus.prepared
        digests = {} if prepared is None else prepared.digests(corpus.positions(self._split))
        for number, source in enumerate(corpus.clips if self._split in corpus.simulators else ()):
            if source.prepared is not prepared:
                of_clips = source.prepared.digests(source.positions)
                digests |= {f"clips {number}: {name}": digest for name, digest in of_clips.items()}
        return digests

    @property
    def cached(self) -> bool:
        """Whether samples are only read, without computation."""
        return all(part.cached for part in self._parts)

    def get(self, index: int, rng: np.random.Generator) -> DiarizationItem:
        """Sample number `index`."""
        part = int(np.searchsorted(self._first, index, side="right")) - 1
        return self._parts[part].get(index - int(self._first[part]), rng)

    def preview(self, index: int, rng: np.random.Generator) -> SamplePreview:
        """See `PreviewDataset`."""
        part = int(np.searchsorted(self._first, index, side="right")) - 1
        waveform = self._parts[part].waveform(index - int(self._first[part]), rng)
        return SamplePreview(waveform=waveform, sample_rate=self._corpus.data.audio.sample_rate)

    def collate(self, items: list[Any]) -> Batch:
        return collated(items)


def _pooled(
    part: RecordedChunks | SimulatedConversations, pool: int, share: float
) -> RecordedChunks | SimulatedConversations | PooledSamples:
    """`part` with its share of the pool (`share` for simulated samples); unchanged if its samples are only read."""
    if part.cached or not part.count:
        return part
    simulated = isinstance(part, SimulatedConversations)
    size = round(pool * (share if simulated else 1.0 - share))
    return PooledSamples(part, max(1, size), "simulated" if simulated else "recorded")


def collated(items: Sequence[DiarizationItem]) -> Batch:
    """The batch that `DiarizationCollator` describes."""
    most = max(item.activity_TS.shape[1] for item in items)
    activity = [
        np.pad(item.activity_TS.astype(np.float32), ((0, 0), (0, most - item.activity_TS.shape[1]))) for item in items
    ]
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
        items = [
            cut if isinstance(cut, DiarizationItem) else item_of_cut(cut, self.audio, self._features) for cut in cuts
        ]
        return collated(items)
