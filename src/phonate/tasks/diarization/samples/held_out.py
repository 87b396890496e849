"""Conversations to evaluate on: another corpus, or the validation set of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError
from phonate.config.randomness import generator
from phonate.data.annotations import SpeakerTurn
from phonate.data.conversations.simulator import ConversationSimulator
from phonate.data.conversations.writing import turns_of
from phonate.data.manifests.manifest import check_corpus
from phonate.data.manifests.recording import part_blocks
from phonate.data.store.prepared import Prepared
from phonate.tasks.diarization.corpus import Corpus
from phonate.tasks.diarization.data_settings import DiarizationData
from phonate.tasks.diarization.samples.waveforms import samples_of

_BLOCK_SECONDS = 30.0
_MOST_SIMULATED = 100


@dataclass(frozen=True)
class HeldOut:
    """A conversation with its reference turns."""

    id: str
    read: Callable[[], Iterable[FloatArray]]
    """Iterates over the waveform in blocks (N,), at the model's sample rate."""
    turns: list[SpeakerTurn]
    """Sorted by start."""
    seconds: float
    """Length."""
    file: str | None = None
    """The recording's file; None for simulated conversations and prepared recordings."""


def conversations_of(data: DiarizationData, path: str) -> Iterator[HeldOut]:
    """The usable recordings of the corpus at `path`, read at the sample rate of `data`.

    Raises DataError if there are none.
    """
    others = {"path": path, "datasets": (), "simulation": None, "format": "auto", "drop": None, "limit": None}
    for one in check_corpus(data.model_copy(update=others))[0]:
        turns = [
            SpeakerTurn(segment.start, segment.end or one.seconds, str(segment.speaker))
            for segment in one.segments
            if (segment.end or one.seconds) > segment.start
        ]
        read = partial(part_blocks, one.row, data.audio.sample_rate)
        yield HeldOut(one.row.id, read, sorted(turns), one.seconds, str(one.row.path))


def kept_for_validation(data: DiarizationData) -> Iterator[HeldOut]:
    """The validation set of a run with this data: recordings, or simulated conversations.

    Raises InputError if it is empty.
    """
    corpus = Corpus(data)
    simulator = corpus.simulators.get("validation")
    if simulator is not None:
        yield from _simulated(corpus, simulator)
        return
    positions = corpus.positions("validation")
    if corpus.prepared is None or not positions:
        raise InputError("the run has no validation recordings (data.validation); give a corpus with --data")
    for position in positions:
        yield _recorded(corpus.prepared, position, data.audio.sample_rate)


def _recorded(prepared: Prepared, position: int, rate: int) -> HeldOut:
    index, cache, size = prepared.index, prepared.cache, round(_BLOCK_SECONDS * rate)
    samples = int(index.sample_start[position + 1] - index.sample_start[position])

    def read() -> Iterator[FloatArray]:
        for start in range(0, samples, size):
            yield cache.waveform(position, start, start + size)

    turns = [
        SpeakerTurn(one.start, one.end, index.speakers[one.speaker])
        for one in index.segments(position)
        if one.end > one.start
    ]
    return HeldOut(index.id[position], read, sorted(turns), samples / rate)


def _simulated(corpus: Corpus, simulator: ConversationSimulator) -> Iterator[HeldOut]:
    """The validation conversations, at most 100."""
    rate, samples = corpus.data.audio.sample_rate, samples_of(corpus, corpus.data.chunk_frames)
    for number in range(min(_MOST_SIMULATED, simulator.settings.validation_samples)):
        conversation = simulator.conversation(samples, generator("validation conversation", number))
        read: Callable[[], Iterable[FloatArray]] = partial(list, [conversation.waveform_N])
        yield HeldOut(f"simulated#{number}", read, turns_of(conversation, simulator), samples / rate)
