"""Samples -> training sequences, several of them packed into one row of a batch.

Rows are packed once and stay the same in every epoch: sequences in one row do not see each other, so packing affects
nothing but which of them share a batch, and batches are shuffled in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError, InputError
from phonate.data.batches.dataset import digest_of
from phonate.data.batches.packing import pack
from phonate.data.dialogues.reading import Refused, warn_refused
from phonate.tasks.cloning.corpus import Corpus, normalised
from phonate.tasks.cloning.network.dual_ffn import sequence_layout
from phonate.tasks.cloning.network.hearing import Hearing
from phonate.tasks.cloning.network.memory import Load
from phonate.tasks.cloning.pairs.checking import CheckedPairs
from phonate.tasks.cloning.pairs.samples import CloningSample
from phonate.tasks.cloning.pairs.settings import CloningData
from phonate.tasks.cloning.sequences.sequence import (
    CODEBOOKS,
    NO_POOL,
    REFERENCE,
    Example,
    TrainingSequence,
    training_sequence,
)
from phonate.tasks.cloning.sequences.tokens import CloningTokenizer, Script
from phonate.training.task import Batch


@dataclass(frozen=True)
class Item:
    """A sample of a row."""

    sequence: TrainingSequence
    speaker: int
    """The number of its speaker."""
    heard: FloatArray | None
    """(T, C) Whisper's features of its reference, if they are wanted."""

    def __len__(self) -> int:
        """L."""
        return len(self.sequence)


class CloningDataset:
    """Rows of one or more samples, at most `max_length` tokens each.

    Args:
        examples: The samples, none of them longer than `max_length`.
        tokenizer: Writes them.
        max_length: Tokens of a row.
        packing: Whether rows hold several samples.
        learn_text: Whether the targets' texts are learnt too.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: CloningTokenizer,
        max_length: int,
        *,
        packing: bool = True,
        learn_text: bool = False,
    ) -> None:
        self.examples = examples
        self.tokenizer = tokenizer
        self.learn_text = learn_text
        lengths = [len(one) for one in examples]
        self.rows = pack(lengths, max_length) if packing else [[i] for i in range(len(examples))]
        """Positions in `examples` of what each row holds."""
        names = sorted({one.speaker for one in examples if one.speaker is not None})
        self._speakers = {name: number for number, name in enumerate(names)}
        self.lengths: NDArray[np.int64] = np.array([sum(lengths[i] for i in row) for row in self.rows], dtype=np.int64)
        """(N,) tokens of each row."""

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of a row's first sample, and how many more there are."""
        names = ((self.examples[row[0]].id, len(row) - 1) for row in self.rows)
        return [f"{name} and {more} more" if more else name for name, more in names]

    @property
    def frames_per_second(self) -> None:
        """None: lengths are tokens."""
        return None

    @property
    def digests(self) -> Mapping[str, int]:
        """See `Digested`: of the texts, codes and speaker of each sample."""
        return {
            one.id: digest_of(np.asarray(one.reference_codes), np.asarray(one.target_codes), one.script, one.speaker)
            for one in self.examples
        }

    @property
    def cached(self) -> bool:
        """True: texts are tokens already, and codes lie in a memory-mapped file."""
        return True

    def largest(self, rows: int) -> Load:
        """At most what a batch of so many rows holds."""
        audio = [sum(len(self.examples[i].target_codes) + CODEBOOKS for i in row) for row in self.rows]
        texts = [sum(len(self.examples[i].script.after) if self.learn_text else 3 for i in row) for row in self.rows]
        return Load(rows * int(self.lengths.max()), rows * max(audio), rows * max(texts))

    def get(self, index: int, rng: np.random.Generator) -> list[Item]:
        """The samples of a row. Nothing about it is random."""
        return [self._item(i) for i in self.rows[index]]

    def _item(self, index: int) -> Item:
        example = self.examples[index]
        # A sample of an unknown speaker is of a speaker of its own.
        number = len(self._speakers) + index if example.speaker is None else self._speakers[example.speaker]
        heard = None if example.heard is None else np.load(example.heard)
        return Item(training_sequence(self.tokenizer, example, self.learn_text), number, heard)

    def collate(self, items: list[Any]) -> Batch:
        """Rows as a batch of S samples, one behind the other without padding. All positions are indices into L.

        Returns:
            `input_ids` (1, L).
            `position_ids` (1, L): they start again at 0 with every sequence.
            `frames` (A, K), `frame_positions` (A,): the audio, and where it is read.
            `other_positions` (L - A,): all other positions.
            `read_frames`, `read_others`: those of each whose result a label or more is compared with.
            `sequences` (S, T), `places` (L,): as `sequence_layout` gives them, for attention; `lengths` (S,), on the
            host: the tokens of each sequence.
            `text_positions` (M,), `text_labels` (M,), `audio_positions` (P,), `audio_labels` (P, K): the label of a
            position is what comes after it.
            `pools` (A,): 2 s for the frames of sample s's reference, 2 s + 1 for its target's, -1 for frames around
            the codes.
            `speakers` (S,): a number for each speaker.
            `references` and `target_lengths`, on the host: for each sample where in `frames` its reference begins and
            ends, and the frames T of its target.
            `heard_positions` (E,), `heard_features` (E, C), where they are wanted: Whisper's features of references,
            at the frames with a code in the first codebook.
        """
        samples: list[Item] = [one for row in items for one in row]
        sequences = [one.sequence for one in samples]
        lengths = [len(one) for one in sequences]
        starts: list[int] = [0, *np.cumsum(lengths[:-1]).tolist()]
        input_ids = _joined([one.input_ids for one in sequences])[None]
        position_ids = torch.cat([torch.arange(length) for length in lengths])[None]
        frame_positions = _shifted([one.frame_positions for one in sequences], starts)
        text_positions = _shifted([one.text_positions for one in sequences], starts)
        audio_positions = _shifted([one.audio_positions for one in sequences], starts)
        is_frame = _marked(input_ids.numel(), frame_positions)
        is_read = _marked(input_ids.numel(), text_positions, audio_positions)
        side_by_side, places = sequence_layout(starts, lengths, input_ids.numel())
        pools = [np.where(one.pools == NO_POOL, NO_POOL, 2 * s + one.pools) for s, one in enumerate(sequences)]
        return {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "frames": _joined([one.frames for one in sequences]),
            "frame_positions": frame_positions,
            "other_positions": (~is_frame).nonzero()[:, 0],
            "read_frames": (is_frame & is_read).nonzero()[:, 0],
            "read_others": (~is_frame & is_read).nonzero()[:, 0],
            "sequences": side_by_side,
            "places": places,
            "lengths": lengths,
            "text_positions": text_positions,
            "text_labels": _joined([one.text_labels for one in sequences]),
            "audio_positions": audio_positions,
            "audio_labels": _joined([one.audio_labels for one in sequences]),
            "pools": _joined(pools),
            "speakers": torch.tensor([one.speaker for one in samples]),
            "references": _spans(sequences),
            "target_lengths": [len(one.audio_labels) - one.audio_labels.shape[1] for one in sequences],
            **_heard(samples, starts),
        }


def _marked(count: int, *positions: Tensor) -> Tensor:
    """(count,): True at the `positions`."""
    marked = torch.zeros(count, dtype=torch.bool)
    marked[torch.cat(positions)] = True
    return marked


def _heard(samples: Sequence[Item], starts: Sequence[int]) -> dict[str, Tensor]:
    """Whisper's features and where they go, if there are any."""
    features = [one.heard for one in samples if one.heard is not None]
    if not features:
        return {}
    sequences = [one.sequence for one in samples]
    positions = [one.frame_positions[one.pools == REFERENCE] for one in sequences]
    joined = torch.from_numpy(np.concatenate(features))
    return {"heard_positions": _shifted(positions, starts), "heard_features": joined}


def _spans(sequences: Sequence[TrainingSequence]) -> list[tuple[int, int]]:
    """Where in the joined frames of `sequences` those of each reference begin and end."""
    spans, start = [], 0
    for one in sequences:
        end = start + len(one.frames)
        # the target has one frame more than it has labels
        spans.append((start, end - len(one.audio_labels) - 1))
        start = end
    return spans


def examples_of(
    corpus: Corpus, split: str, tokenizer: CloningTokenizer, data: CloningData, hearing: Hearing | None = None
) -> list[Example]:
    """The samples of "train" or "validation" as tokens and codes, with Whisper's features where there is `hearing`.

    Those that can't be written or are too long are named in the log. Raises DataError if there is nothing to train on.
    """
    examples: list[Example] = []
    refused: list[Refused] = []
    samples = corpus.samples(split)
    for sample in samples[:1]:
        corpus.codes(sample.target)  # encodes all; a cache that can't be read or written is no fault of a sample
    for sample in samples:
        try:
            example = _example(corpus, sample, tokenizer, data, hearing)
        except InputError as error:
            refused.append(Refused(sample.id, str(error)))
            continue
        if len(example) > data.max_length:
            why = f"{len(example)} tokens, over data.max_length {data.max_length}; raise it"
            refused.append(Refused(sample.id, why))
        else:
            examples.append(example)
    warn_refused(Path(data.path), refused)
    if split == "train" and not examples:
        why = f"; {refused[0].place}: {refused[0].reason}" if refused else ""
        raise DataError(f"{data.path}: nothing to train on{why}")
    return examples


def _example(
    corpus: Corpus, sample: CloningSample, tokenizer: CloningTokenizer, data: CloningData, hearing: Hearing | None
) -> Example:
    """Raises InputError for a text that can't be written, or is too long."""
    script = script_of(sample, tokenizer, data)
    codes = corpus.codes(sample.reference), corpus.codes(sample.target)
    heard = None if hearing is None else hearing(sample.reference, len(codes[0]))
    return Example(sample.id, sample.speaker, script, *codes, heard=heard)


def check_scripts(checked: CheckedPairs, tokenizer: CloningTokenizer, data: CloningData) -> None:
    """Refuse, in the report, the pairs whose texts training leaves out, as the model's tokenizer writes them."""
    for sample in checked.samples:
        try:
            script_of(normalised(sample, data.arabic), tokenizer, data)
        except InputError as error:
            checked.refuse(sample, "text", str(error))


def script_of(sample: CloningSample, tokenizer: CloningTokenizer, data: CloningData) -> Script:
    """The texts of a sample as tokens. Raises InputError for one that can't be written, or is too long."""
    script = tokenizer.script(sample.reference_text, sample.target_text, sample.system)
    tokens = script.target_text.stop - script.target_text.start
    if tokens > data.max_tokens:
        raise InputError(f"a text of {tokens} tokens, over data.max_tokens {data.max_tokens}; raise it")
    return script


def _joined(arrays: Sequence[NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays))


def _shifted(positions: Sequence[NDArray[np.int64]], starts: Sequence[int]) -> Tensor:
    """Positions within sequences as positions within the batch."""
    return _joined([one + start for one, start in zip(positions, starts, strict=True)])
