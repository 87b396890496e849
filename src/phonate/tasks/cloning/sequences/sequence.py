"""Codes <-> frames under the delay pattern, and samples as the model is trained on them.

Shapes: T code frames of an audio, K codebooks, F = T + K + 1 frames under the delay pattern, L tokens of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from phonate.tasks.cloning.sequences.tokens import CloningTokenizer, Script

Ints = NDArray[np.int64]

CODEBOOKS, CODEBOOK_SIZE = 8, 1024
"""K, and how many codes each codebook has."""
BOS, EOS = CODEBOOK_SIZE, CODEBOOK_SIZE + 1
"""What stands before and after the codes of every codebook."""
IGNORED = -100
"""The label of a codebook that has nothing to predict at a position."""
NO_POOL, REFERENCE, TARGET = -1, 0, 1
"""Which voice a frame belongs to; none: the frames around the codes."""


def delayed(codes: NDArray[np.integer], bos: int = BOS, eos: int = EOS) -> Ints:
    """Codes (T, K) as frames (T + K + 1, K) under the delay pattern (Copet et al. 2023,
    https://arxiv.org/abs/2306.05284): codebook k holds BOS k + 1 times, its T codes, and EOS K - k times."""
    length, codebooks = codes.shape
    frames = np.full((length + codebooks + 1, codebooks), eos, dtype=np.int64)
    for k in range(codebooks):
        frames[: k + 1, k] = bos
        frames[k + 1 : k + 1 + length, k] = codes[:, k]
    return frames


def undelayed(frames: NDArray[np.integer]) -> Ints:
    """Codes (T, K) of frames (T + K + 1, K), whatever their first and last frame hold."""
    length, codebooks = len(frames) - frames.shape[1] - 1, frames.shape[1]
    assert length >= 0, "fewer frames than the delay pattern has"
    return np.stack([frames[k + 1 : k + 1 + length, k] for k in range(codebooks)], axis=1).astype(np.int64)


def audio_labels(codes: NDArray[np.integer], eos: int = EOS) -> Ints:
    """What is to be predicted at each frame of `delayed(codes)` but the last: (T + K, K).

    The codes and, once for each codebook, the EOS after them; `IGNORED` elsewhere. BOS is never a label: generation
    writes it without asking the model. Labels are shifted: row f is of frame f + 1.
    """
    length, codebooks = codes.shape
    labels = np.full((length + codebooks, codebooks), IGNORED, dtype=np.int64)
    for k in range(codebooks):
        labels[k : k + length, k] = codes[:, k]
        labels[k + length, k] = eos
    return labels


@dataclass(frozen=True)
class TrainingSequence:
    """A sample as the model reads it, and what it is to predict. Labels are shifted already: `*_labels[i]` is what
    comes after `*_positions[i]`."""

    id: str
    speaker: str | None
    input_ids: Ints
    """(L,)"""
    frames: Ints
    """(A, K): of the reference, then of the target."""
    frame_positions: Ints
    """(A,) where they stand in `input_ids`."""
    text_positions: Ints
    """(M,)"""
    text_labels: Ints
    """(M,)"""
    audio_positions: Ints
    """(P,): the frames of the target but the last."""
    audio_labels: Ints
    """(P, K), `IGNORED` where a codebook has none."""
    pools: Ints
    """(A,): REFERENCE or TARGET for frames with a code in the first codebook, else NO_POOL."""

    def __len__(self) -> int:
        """L."""
        return len(self.input_ids)


@dataclass(frozen=True)
class Example:
    """A sample: its texts as tokens, and its codes."""

    id: str
    speaker: str | None
    script: Script
    reference_codes: NDArray[np.integer]
    """(T, K)"""
    target_codes: NDArray[np.integer]
    """(T, K)"""
    heard: Path | None = None
    """A .npy file with Whisper's features of the reference (T, C), if they are wanted."""

    def __len__(self) -> int:
        """Tokens of its sequence, L."""
        codes = (self.reference_codes, self.target_codes)
        # frames, <|audio_eos|> and <|eot_id|>
        spoken = sum(len(one) + one.shape[1] + 3 for one in codes)
        length: int = len(self.script.before) + len(self.script.after) + spoken
        return length


def training_sequence(tokenizer: CloningTokenizer, example: Example, learn_text: bool = False) -> TrainingSequence:
    """The sequence of a sample.

    Audio labels are those of the target; nothing of the prompt, the reference included, has any. Text labels are what
    the model writes in its own turn: <|audio_out_bos|> after the header, <|audio_eos|> after the last frame, <|eot_id|>
    after that; with `learn_text` also the tokens of the target's text and the <|eot_id|> that ends it, although they
    are the user's.
    """
    prompt = tokenizer.fill(example.script, example.reference_codes)
    frames = delayed(example.target_codes)
    start = len(prompt.input_ids)
    end = start + len(frames)
    input_ids = np.concatenate([prompt.input_ids, tokenizer.response_ids(len(frames))])
    positions = [start - 2, end - 1, end]
    if learn_text:
        script = example.script
        offset = start - len(script.after)
        positions = [*range(offset + script.target_text.start - 1, offset + script.target_text.stop), *positions]
    text_positions = np.array(positions, dtype=np.int64)
    return TrainingSequence(
        id=example.id,
        speaker=example.speaker,
        input_ids=input_ids,
        frames=np.concatenate([prompt.frames, frames]),
        frame_positions=np.concatenate([prompt.frame_positions, np.arange(start, end)]),
        text_positions=text_positions,
        text_labels=input_ids[text_positions + 1],
        audio_positions=np.arange(start, end - 1),
        audio_labels=audio_labels(example.target_codes),
        pools=np.concatenate([_pools(example.reference_codes, REFERENCE), _pools(example.target_codes, TARGET)]),
    )


def _pools(codes: NDArray[np.integer], pool: int) -> Ints:
    """(T + K + 1,): `pool` where the first codebook of the frames holds a code."""
    length, codebooks = codes.shape
    pools = np.full(length + codebooks + 1, NO_POOL, dtype=np.int64)
    pools[1 : length + 1] = pool
    return pools
