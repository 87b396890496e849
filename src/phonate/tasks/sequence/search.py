"""Beam search (Sutskever et al. 2014, section 3.2; lengths as in Wu et al. 2016, equation 14).

Shapes: B sequences, K beams of each, N = B x K rows, V tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor


class NextToken(Protocol):
    """A model that predicts one token after the other."""

    def next(self, tokens_N: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits (N, V) of what follows the tokens (N,) of each row, and the state after them."""
        ...

    def select(self, state: Any, rows_M: Tensor) -> Any:
        """The state of the rows (M,), of which some may be repeated or left out."""
        ...


@dataclass(eq=False)
class _Beams:
    """The hypotheses of one sequence."""

    position: int
    """Its place among the results."""
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
        model: Gives the logits of the following tokens.
        logits_BV: Logits (B, V) of the first token.
        state: The model's state after what was read so far, with a row for each sequence.
        width: Hypotheses that are kept; 1 is greedy decoding.
        end: The token that ends a sequence.
        max_tokens: Where sequences that have not ended are cut.
        length_penalty: Finished hypotheses are compared by log probability / ((5 + length) / 6) ** length_penalty.

    The search of a sequence ends when `width` of its hypotheses have ended.
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
    """Extend each hypothesis by a token. Returns the rows that go on, their new tokens, and whose they are."""
    log_probs_NV = logits_NV.float().log_softmax(-1)
    # of 2 x width candidates, at most width are ends, so width others are left
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
    """The best finished hypothesis, or, where none is, the best of those that were cut."""
    if one.finished:
        return max(one.finished, key=lambda found: found[0])[1]
    return max(zip(one.scores, one.alive, strict=True), key=lambda found: found[0] / penalty)[1]
