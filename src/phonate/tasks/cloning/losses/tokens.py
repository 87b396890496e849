"""Cross entropy of text tokens and of codes, and the weights of the codebooks.

Shapes: M text labels, P frames with labels, K codebooks, V values of a code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import functional as F

from phonate.tasks.cloning.sequences.sequence import IGNORED

DECAY = 0.99
"""Share of the running mean of a codebook's loss that is left after an optimizer step."""


def text_loss(logits_MV: Tensor, labels_M: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum of the cross entropy of text tokens, in nats."""
    return F.cross_entropy(logits_MV.float(), labels_M, reduction="sum", label_smoothing=smoothing)


def code_losses(logits_PKV: Tensor, labels_PK: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross entropy of codes in nats, summed over frames: (K,). Frames where a codebook's label is `IGNORED` do not
    count."""
    losses_PK = F.cross_entropy(
        logits_PKV.float().flatten(0, 1),
        labels_PK.flatten(),
        reduction="none",
        ignore_index=IGNORED,
        label_smoothing=smoothing,
    )
    return losses_PK.view(labels_PK.shape).sum(0)


def correct_codes(logits_PKV: Tensor, labels_PK: Tensor) -> Tensor:
    """How many codes, ends included, are the likeliest given what came before."""
    return (logits_PKV.argmax(-1) == labels_PK).sum()


def falling_weights(codebooks: int) -> Tensor:
    """(K,): in proportion to 1 / (i + 1), 1 on average."""
    weights = 1.0 / torch.arange(1, codebooks + 1)
    return weights / weights.mean()


class AdaptiveWeights:
    """Weights of codebooks in proportion to the running mean of their losses, 1 on average.

    They change between optimizer steps only, and are the same on all ranks: what was observed in a step counts from the
    next step on. Before the first, they are all 1.
    """

    def __init__(self, codebooks: int) -> None:
        self.running_K = torch.zeros(codebooks)
        self._observed_2K: Tensor | None = None
        """Losses and their counts since `_step` began, on this rank."""
        self._step = -1

    def weights(self, step: int) -> Tensor:
        """(K,) for optimizer step `step`. All ranks call it in every step."""
        if step != self._step:
            self._fold()
            self._step = step
        mean = self.running_K.mean()
        return torch.where(mean > 0, self.running_K / mean.clamp_min(1e-12), torch.ones_like(self.running_K))

    def observe(self, losses_K: Tensor, counts_K: Tensor) -> None:
        """Take note of the summed losses of a micro-batch."""
        observed = torch.stack([losses_K.detach(), counts_K.to(losses_K.dtype)])
        self._observed_2K = observed if self._observed_2K is None else self._observed_2K + observed

    @torch.no_grad()
    def _fold(self) -> None:
        """Let the running mean follow what was observed."""
        if self._observed_2K is None:
            return
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self._observed_2K)
        losses_K, counts_K = self._observed_2K
        self._observed_2K = None
        before = self.running_K.to(losses_K.device)
        means_K = torch.where(counts_K > 0, losses_K / counts_K.clamp_min(1), before)
        self.running_K = torch.where(before > 0, DECAY * before + (1 - DECAY) * means_K, means_K)

    def state(self) -> dict[str, Any]:
        """The running mean. All ranks call it together."""
        self._fold()
        return {"running": self.running_K.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.running_K = torch.tensor(state["running"])
        self._observed_2K, self._step = None, -1
