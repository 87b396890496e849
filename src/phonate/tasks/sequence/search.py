"""Beam search (Sutskever et al. 2014, section 3.2; length normalisation of Wu et al. 2016, equation 14).

Shapes: B sequences, K beams per sequence, N <= B x K rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor


class NextToken(Protocol):
    """An autoregressive model with incremental decoding."""

    def next(self, tokens_N: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits (N, V) of the tokens after the given ones (N,), and the updated state."""
        ...

    def select(self, state: Any, rows_M: Tensor) -> Any:
        """The state of these rows (M,), which may be repeated or left out."""
        ...


@dataclass(eq=False)
class _Beams:
    """The hypotheses of one sequence."""

    position: int
    """Its index in the results."""
    alive: list[list[int]] = field(default_factory=lambda: [[]])
    scores: list[float] = field(default_factory=lambda: [0.0])
    finished: list[tuple[float, list[int]]] = field(default_factory=list)


@torch.no_grad()
def beam_search(
    model: NextToken,
    logits_BV: Tensor,
    state: Any,
    *,
    width: int,
    end: int,
    max_tokens: int,
    length_penalty: float = 1.0,
) -> list[list[int]]:
    """The best continuation of each sequence, without the end token.

    Args:
        model: The model.
        logits_BV: Logits of the first token.
        state: The model's state before the first token, with a row for each sequence.
        width: Number of hypotheses; 1 is greedy decoding.
        end: The token that ends a sequence.
        max_tokens: Maximum length.
        length_penalty: Finished hypotheses are ranked by log probability / ((5 + length) / 6) ** length_penalty.

    The search for a sequence ends when `width` of its hypotheses have ended.
    """
    beams = [_Beams(position) for position in range(len(logits_BV))]
    results: list[list[int]] = [[] for _ in beams]
    penalty = [((5.0 + length) / 6.0) ** length_penalty for length in range(max_tokens + 2)]
    for length in range(1, max_tokens + 1):
        rows, tokens, going = _grow(beams, logits_BV, width, end, penalty[length])
        for one in beams:
            if one not in going or length == max_tokens:
                results[one.position] = _best(one, penalty[length])
        beams = going
        if not beams or length == max_tokens:
            break
        state = model.select(state, torch.tensor(rows, device=logits_BV.device))
        logits_BV, state = model.next(torch.tensor(tokens, device=logits_BV.device), state)
    return results


def _grow(
    beams: list[_Beams], logits_NV: Tensor, width: int, end: int, penalty: float
) -> tuple[list[int], list[int], list[_Beams]]:
    """Extend each hypothesis by a token. Returns the rows that continue, their new tokens, and their beams."""
    log_probs_NV = logits_NV.float().log_softmax(-1)
    # at most `width` of 2 x width candidates are end tokens, so at least `width` others remain
    best_NC, token_NC = log_probs_NV.topk(min(2 * width, log_probs_NV.shape[-1]), dim=-1)
    log_probs, candidates = best_NC.tolist(), token_NC.tolist()
    rows: list[int] = []
    tokens: list[int] = []
    going: list[_Beams] = []
    first = 0
    for one in beams:
        count = len(one.alive)
        options = [
            (one.scores[k] + log_prob, k, token)
            for k in range(count)
            for log_prob, token in zip(log_probs[first + k], candidates[first + k], strict=True)
        ]
        options.sort(key=lambda option: -option[0])
        alive: list[list[int]] = []
        scores: list[float] = []
        for rank, (score, k, token) in enumerate(options[: 2 * width]):
            if token == end:
                if rank < width:
                    one.finished.append((score / penalty, one.alive[k]))
            elif len(alive) < width:
                alive.append([*one.alive[k], token])
                scores.append(score)
                rows.append(first + k)
                tokens.append(token)
        one.alive, one.scores = alive, scores
        if len(one.finished) >= width or not alive:
            del rows[len(rows) - len(alive) :], tokens[len(tokens) - len(alive) :]
        else:
            going.append(one)
        first += count
    return rows, tokens, going


def _best(one: _Beams, penalty: float) -> list[int]:
    """The best finished hypothesis, or, if there is none, the best unfinished one."""
    if one.finished:
        return max(one.finished, key=lambda found: found[0])[1]
    return max(zip(one.scores, one.alive, strict=True), key=lambda found: found[0] / penalty)[1]
