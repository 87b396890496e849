"""Permutation-invariant training: assignment of reference speakers to output columns.

Fujita et al. 2019, "End-to-end neural speaker diarization with permutation-free objectives", equations 8 to 10.

Shapes: B items, U output frames, K columns of the model, S speakers of the reference. Masks are True for real frames.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

EXHAUSTIVE = 4
"""Up to this many columns, all permutations (24) are compared on the device; for more, the Hungarian algorithm runs on
the host."""
_FORBIDDEN = 1e9


def pairwise_cost(logits_BUK: Tensor, activity_BUK: Tensor, mask_BU: Tensor) -> Tensor:
    """(B, K, K): binary cross-entropy of output column i against reference column j, summed over real frames.

    It is softplus(x) - x y, where only the second term depends on both columns.
    """
    with torch.autocast(logits_BUK.device.type, enabled=False):  # sums over many frames need fp32
        logits_BUK = logits_BUK.float().masked_fill(~mask_BU[:, :, None], 0)
        real_BU1 = mask_BU[:, :, None].float()
        silent_BK = (F.softplus(logits_BUK) * real_BU1).sum(1)
        active_BKK = logits_BUK.transpose(1, 2) @ (activity_BUK.float() * real_BU1)
        return silent_BK[:, :, None] - active_BKK


def among_present(cost_BKK: Tensor, present_B: Tensor) -> Tensor:
    """`cost_BKK`, modified so that the first `present_B` columns of an item can only be assigned to its first
    `present_B` speakers; assignments among the others cost nothing."""
    index_K = torch.arange(cost_BKK.shape[1], device=cost_BKK.device)
    present_BK = index_K < present_B[:, None]
    both_BKK = present_BK[:, :, None] & present_BK[:, None, :]
    neither_BKK = ~present_BK[:, :, None] & ~present_BK[:, None, :]
    return cost_BKK.masked_fill(~both_BKK, _FORBIDDEN).masked_fill(neither_BKK, 0.0)


@torch.no_grad()
def best_permutation(cost_BKK: Tensor) -> Tensor:
    """(B, K): the reference column assigned to each output column, at the lowest total cost.

    Among equal costs, the exhaustive search chooses the first permutation in lexicographic order. Non-finite costs of a
    diverged model do not raise an error here: the loss computed from the assignment is not finite either.
    """
    cost_BKK = torch.nan_to_num(cost_BKK.detach())
    columns = cost_BKK.shape[1]
    if columns <= EXHAUSTIVE:
        orders_PK = _orders(columns).to(cost_BKK.device)
        totals_BP = cost_BKK[:, torch.arange(columns, device=cost_BKK.device), orders_PK].sum(-1)
        return orders_PK[totals_BP.argmin(-1)]
    on_host = cost_BKK.cpu().numpy()
    found = np.stack([linear_sum_assignment(one)[1] for one in on_host])
    return torch.from_numpy(found).to(cost_BKK.device)


@lru_cache(maxsize=EXHAUSTIVE)
def _orders(columns: int) -> Tensor:
    return torch.tensor(list(itertools.permutations(range(columns))))


def permuted(activity_BUK: Tensor, order_BK: Tensor) -> Tensor:
    """`activity_BUK` with its columns in the order of the output: column i is the reference's `order_BK[:, i]`."""
    return activity_BUK.gather(2, order_BK[:, None, :].expand_as(activity_BUK))
