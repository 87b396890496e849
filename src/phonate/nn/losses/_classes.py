"""The base of losses over classes. Scores are (..., C); targets are class indices (...)."""

from __future__ import annotations

import torch
from torch import Tensor

from phonate.config.errors import InputError
from phonate.nn.losses._base import expanded

IGNORED = -100
"""Targets with this value do not count, as in torch."""


def flat(name: str, scores: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (N, C), targets (N,) or (N, C), and a mask (N,) of those that count.

    Those that do not count get scores 0 and class 0, so that they have no gradient, even if they are NaN.

    Args:
        name: Name of the loss, for errors.
        scores: (..., C).
        targets: Class indices (...), or the probability of each class (..., C).
        mask: A boolean prefix of the shape (...).

    Raises:
        InputError: Shapes that do not fit, or a single class.
    """
    classes = scores.shape[-1]
    soft = targets.shape == scores.shape
    if not soft and targets.shape != scores.shape[:-1]:
        raise InputError(
            f"{name}: scores {tuple(scores.shape)} need class indices {tuple(scores.shape[:-1])} or "
            f"probabilities {tuple(scores.shape)} as targets, not {tuple(targets.shape)}"
        )
    if classes < 2:
        raise InputError(f"{name}: needs at least two classes; use bce_with_logits for binary targets")
    frames = targets[..., 0] if soft else targets
    kept = frames != IGNORED
    if mask is not None:
        kept = kept & expanded(mask, frames)
    kept = kept.reshape(-1)
    scores = scores.reshape(-1, classes).masked_fill(~kept[:, None], 0)
    if soft:
        return scores, targets.to(scores.dtype).reshape(-1, classes).masked_fill(~kept[:, None], 0), kept
    return scores, targets.long().reshape(-1).masked_fill(~kept, 0), kept


def smoothed_nll(log_probabilities: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Negative log-likelihood (N,) of smoothed targets (Szegedy et al. 2016, section 7).

    Args:
        log_probabilities: (N, C).
        targets: Class indices (N,) or probabilities (N, C).
        smoothing: Share of the probability that is spread evenly over the classes.
    """
    if targets.dim() == 2:
        likelihood = (targets * log_probabilities).sum(-1)
        mass = targets.sum(-1)
    else:
        likelihood = log_probabilities.gather(-1, targets[:, None])[:, 0]
        mass = torch.ones_like(likelihood)
    if smoothing == 0:
        return -likelihood
    return -(1 - smoothing) * likelihood - smoothing * mass * log_probabilities.mean(-1)


def smoothed_binary(targets: Tensor, smoothing: float) -> Tensor:
    """Smoothed binary targets (...): 1 becomes 1 - smoothing / 2, and 0 smoothing / 2."""
    return targets * (1 - smoothing) + smoothing / 2 if smoothing else targets
