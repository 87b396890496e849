"""Made-up sentences of which each token has a look of its own, so that a model can be told by what it draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

TOKENS, MELS = 30, 20

Sentence = tuple[Any, Any, Any]
"""Tokens (L,), durations (L,) and mel (T, M)."""


def sentences(count: int, tokens: int = 8) -> list[Sentence]:
    """Random tokens, each 3 to 8 frames long."""
    rng = np.random.default_rng(0)
    looks = rng.random((TOKENS, MELS)).astype(np.float32)
    made = []
    for _ in range(count):
        said, durations = rng.integers(1, TOKENS, tokens), rng.integers(3, 9, tokens)
        made.append((said, durations, looks[np.repeat(said, durations)]))
        tokens += 1
    return made


def batch_of(items: list[Sentence]) -> dict[str, Any]:
    """As the task's samples are collated."""

    def padded(arrays: list[Any]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(array) for array in arrays], batch_first=True)

    return {
        "tokens": padded([item[0] for item in items]),
        "durations": padded([item[1] for item in items]),
        "target": padded([item[2] for item in items]),
        "token_lengths": torch.tensor([len(item[0]) for item in items]),
        "lengths": torch.tensor([len(item[2]) for item in items]),
        "speaker_id": torch.zeros(len(items), dtype=torch.long),
    }
