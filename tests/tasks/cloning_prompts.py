"""Shared by the tests of decoding: a small model of which only the first codebook can end, prompts, and their codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from higgs import small_model, small_tokenizer
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.tasks.cloning.decoding import Decoder, Job, Piece, Sampling
from phonate.tasks.cloning.sequences import CloningTokenizer, Prompt

GREEDY = Sampling(temperature=0.0)
BEGIN, END = 1024, 1025


def disciplined_model(**options: Any) -> Any:
    """A small model of which greedy decoding gives begin of stream nowhere, and end of stream in the first codebook
    only, as a trained one."""
    model = small_model(**options)
    with torch.no_grad():
        head = model.audio_lm_head.weight.view(model.config.num_codebooks, model.config.codebook_size, -1)
        head[:, BEGIN:] = 0.0
    return model


def end_after(model: Any, code: int) -> None:
    """The first codebook ends where it would have given `code`."""
    with torch.no_grad():
        model.audio_lm_head.weight[END] = 1.01 * model.audio_lm_head.weight[code]


def cloning_tokenizer() -> CloningTokenizer:
    """The tokenizer of a small model."""
    return CloningTokenizer(TextTokenizer(small_tokenizer()))


def prompts(count: int) -> list[Prompt]:
    """Prompts of different lengths, one in three without the text of its reference."""
    tokenizer, numbers = cloning_tokenizer(), np.random.default_rng(0)
    return [
        tokenizer.prompt("abc " * i if i % 3 else None, numbers.integers(0, 1024, (5 + 3 * i, 8)), "the fox " * (i + 1))
        for i in range(count)
    ]


def generated(
    model: Any, given: Sequence[Prompt], limit: int, sampling: Sampling = GREEDY, seeds: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Codes (T, K) of all prompts, decoded together."""
    decoder: Decoder[int] = Decoder(model, len(given), 256)
    for index, prompt in enumerate(given):
        decoder.join(Job(Piece(prompt, limit), sampling, seeds[index] if seeds else index, index))
    return collected(decoder, len(given))


def collected(decoder: Decoder[int], count: int) -> list[np.ndarray]:
    """Codes (T, K) of the owners 0 to `count`, until all are done."""
    made: list[list[np.ndarray]] = [[] for _ in range(count)]
    while decoder.owners:
        for step in decoder.step():
            if step.codes is not None:
                made[step.owner].append(step.codes)
    return [np.array(one, dtype=np.int16).reshape(-1, 8) for one in made]
