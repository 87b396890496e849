"""Attention as it is trained in 16 bits on a processor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from phonate.nn.attention import softmax_attention


def gradients(dtype: torch.dtype, mask: Tensor | None, causal: bool) -> list[Tensor]:
    """Attention, and the gradients of queries, keys and values, which are the same in any format."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(3, 2, 50, 16, generator=generator).bfloat16().to(dtype) for _ in range(3)]
    inputs = [one.requires_grad_() for one in inputs]
    made = softmax_attention(*inputs, mask_BS=mask, causal=causal)
    loss = (made.float() * torch.linspace(-1.0, 1.0, 50)[:, None]).square().sum()
    return [made, *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, [50, 31, 1]])
def test_it_is_that_of_32_bits(lengths: list[int] | None, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = None if lengths is None else torch.arange(50)[None] < torch.tensor(lengths)[:, None]
    wanted = gradients(torch.float32, mask, causal)
    monkeypatch.setattr(F, "scaled_dot_product_attention", None)  # of 16 bits, it takes 3 times as long
    for one, other in zip(gradients(torch.bfloat16, mask, causal), wanted, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one.float() - other).norm() < 0.01 * other.norm()
