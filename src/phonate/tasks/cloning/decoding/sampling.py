"""Choosing the codes of a frame. Shapes: R rows, K codebooks, V logits of a codebook, W frames of a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phonate.config.errors import InputError

REPETITION_WINDOW = 7
"""Frames in which repetitions are counted; the value of the released model, as is the next one."""
REPETITIONS = 2
"""A code that is that often in the window is drawn again."""
NO_CODE = -1
"""In a window: begin or end of stream, or nothing yet."""
_LOWEST_TEMPERATURE = 1e-2
"""Logits are divided by the temperature; a lower one would overflow 16-bit floats."""


@dataclass(frozen=True)
class Sampling:
    """How codes are drawn. The defaults are those of the released model's examples."""

    temperature: float = 0.3
    """0 takes the likeliest code of each codebook; 1 samples from the model's distribution."""
    top_k: int = 50
    """Draw from this many likeliest codes of each codebook; 0: from all."""
    top_p: float = 0.95
    """Draw from the likeliest codes that reach this probability together; 1: from all."""

    def __post_init__(self) -> None:
        """Raises InputError for a number out of range."""
        if not (self.temperature == 0.0 or _LOWEST_TEMPERATURE <= self.temperature < math.inf):
            raise InputError(f"temperature {self.temperature:g}: must be 0, or {_LOWEST_TEMPERATURE:g} or more")
        if self.top_k < 0:
            raise InputError(f"top k {self.top_k}: must be 0 (all codes) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top p {self.top_p:g}: must be above 0 and at most 1")


def allowed(logits_RKV: Tensor, may_end_R: Tensor, begin: int, end: int) -> Tensor:
    """Logits with -inf for the codes that no codebook may choose at this place: begin of stream in all of them, end of
    stream in all but the first, whose end the others follow, and in the first one where a row may not end."""
    found = logits_RKV.clone()
    found[:, :, begin] = -torch.inf
    found[:, 1:, end] = -torch.inf
    found[:, 0, end].masked_fill_(~may_end_R, -torch.inf)
    return found


def choose(logits_RKV: Tensor, options: Sequence[Sampling], draws_RK2: Tensor, recent_RWK: Tensor, end: int) -> Tensor:
    """One code (R, K) for each codebook of each row, independent of the other rows.

    Temperature, top k and top p apply to each codebook. A drawn code that is in the last frames `REPETITIONS` times is
    drawn again from the model's own distribution (repetition aware sampling; Chen et al. 2024,
    https://arxiv.org/abs/2406.05370), the end of stream excepted.

    Args:
        logits_RKV: What `allowed` returns, in fp32.
        options: Of each row.
        draws_RK2: Uniform numbers in [0, 1), for the first and for the second draw.
        recent_RWK: The last codes of each codebook, or `NO_CODE`.
        end: The end of stream.
    """
    likeliest_RK = logits_RKV.argmax(dim=-1)
    if all(one.temperature == 0.0 for one in options):
        return likeliest_RK
    device, size = logits_RKV.device, logits_RKV.shape[-1]
    temperature_R = torch.tensor([one.temperature for one in options], device=device)
    top_k_R = torch.tensor([one.top_k or size for one in options], device=device)
    top_p_R = torch.tensor([one.top_p for one in options], device=device)
    greedy_R1 = temperature_R[:, None] == 0.0
    scaled_RKV = logits_RKV / temperature_R.where(temperature_R > 0.0, 1.0)[:, None, None]
    drawn_RK = _draw(scaled_RKV, top_k_R, top_p_R, draws_RK2[..., 0])
    repeated_RK = (recent_RWK == drawn_RK[:, None]).sum(dim=1) >= REPETITIONS
    if bool(repeated_RK.any()):
        going_on_RKV = logits_RKV.clone()
        going_on_RKV[..., end] = -torch.inf
        every_R = torch.full_like(top_k_R, size)
        again_RK = _draw(going_on_RKV, every_R, torch.ones_like(top_p_R), draws_RK2[..., 1])
        drawn_RK = torch.where(repeated_RK, again_RK, drawn_RK)
    return torch.where(greedy_R1, likeliest_RK, drawn_RK)


def _draw(logits_RKV: Tensor, top_k_R: Tensor, top_p_R: Tensor, draws_RK: Tensor) -> Tensor:
    """Codes (R, K) by inversion: where the cumulative probability of the candidates, likeliest first, passes the draw.
    So a row's codes depend on its own draws alone, not on how many rows there are."""
    sorted_RKV, order_RKV = logits_RKV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(logits_RKV.shape[-1], device=logits_RKV.device)
    sorted_RKV = sorted_RKV.masked_fill(rank_V >= top_k_R[:, None, None], -torch.inf)
    probabilities_RKV = sorted_RKV.softmax(dim=-1)
    before_RKV = probabilities_RKV.cumsum(dim=-1) - probabilities_RKV
    kept_RKV = (before_RKV < top_p_R[:, None, None]) & (probabilities_RKV > 0.0)
    kept_RKV[..., 0] = True
    cumulative_RKV = (probabilities_RKV * kept_RKV).cumsum(dim=-1)
    passed_RK1 = draws_RK[..., None] * cumulative_RKV[..., -1:]
    # rounding may leave the draw behind the last candidate
    index_RK = torch.minimum((cumulative_RKV <= passed_RK1).sum(dim=-1), kept_RKV.sum(dim=-1) - 1)
    return order_RKV.gather(-1, index_RK[..., None])[..., 0]
