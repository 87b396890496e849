"""Attention as it is trained in 16 bits on a processor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from phonate.nn.attention import SelfAttention, softmax_attention
from phonate.nn.sequences import RotaryPositions


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


def trained(attention: SelfAttention, dtype: torch.dtype, mask: Tensor | None, turned: bool) -> list[Tensor]:
    """Self-attention of frames, and the gradients of the frames and the weights."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 50, 32, generator=generator).requires_grad_()
    rotation = RotaryPositions(16)(50) if turned else None
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        made = attention(x, mask, rotation)
    loss = (made.float() * torch.linspace(-1.0, 1.0, 50)[:, None]).square().sum()
    return [made, *torch.autograd.grad(loss, [x, *attention.parameters()])]


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 7)])
@pytest.mark.parametrize("lengths", [None, [50, 31, 1]])
@pytest.mark.parametrize("turned", [False, True])
def test_self_attention_in_16_bits_is_that_of_32_bits(
    lengths: list[int] | None, causal: bool, window: int | None, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    attention = SelfAttention(32, 2, causal=causal, window=window)
    with torch.no_grad():
        attention.query_key_value.weight *= 3.0
    mask = None if lengths is None else torch.arange(50)[None] < torch.tensor(lengths)[:, None]
    wanted = trained(attention, torch.float32, mask, turned)
    monkeypatch.setattr("phonate.nn.attention.softmax_attention", None)  # of one part after the other
    for one, other in zip(trained(attention, torch.bfloat16, mask, turned), wanted, strict=True):
        assert (one.float() - other).norm() < 0.03 * other.norm()
