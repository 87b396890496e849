"""Dropout, depthwise convolutions and ConvNeXt blocks on a processor do what torch's modules do, in fewer passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from phonate.nn.convolution import ConvNeXtBlock, LimitedConv1d, convolution, convolved, depthwise
from phonate.nn.sequences import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.99])
def test_dropout_has_the_probability_and_the_mean_of_torchs(dtype: torch.dtype, probability: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(501, 401, dtype=dtype, requires_grad=True)
    out = Dropout(probability)(x)
    share = (out == 0).float().mean().item()
    assert abs(share - probability) < 0.004
    assert out.unique().tolist() == pytest.approx([0.0, 1.0 / (1.0 - probability)], rel=0.01)
    out.backward(torch.full_like(x, 2.0))  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad == 0, out == 0), "a value that is dropped has no gradient"
    assert x.grad.max().item() == pytest.approx(2.0 / (1.0 - probability), rel=0.01)


def test_dropout_is_a_function_of_the_seed_and_treats_all_places_alike() -> None:
    x = torch.ones(2000, 64).t()  # not contiguous
    torch.manual_seed(3)
    first, second = Dropout(0.3)(x), Dropout(0.3)(x)
    torch.manual_seed(3)
    assert torch.equal(first, Dropout(0.3)(x))
    assert not torch.equal(first, second)
    assert ((first == 0).float().mean(1) - 0.3).abs().max() < 0.06, "no row is dropped more often"
    neighbours = ((first[:, 1:] == 0) & (first[:, :-1] == 0)).float().mean().item()
    assert abs(neighbours - 0.09) < 0.01, "neighbours are dropped independently"


def test_dropout_leaves_all_in_evaluation_and_with_nothing_to_drop() -> None:
    x = torch.rand(4, 5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()
    assert Dropout(0.5)(torch.rand(0, 5)).shape == (0, 5)


@pytest.mark.parametrize("lookahead", [None, 0, 1, 3])
@pytest.mark.parametrize("frames", [1, 2, 5, 40])
def test_a_depthwise_convolution_is_torchs_with_all_its_gradients(lookahead: int | None, frames: int) -> None:
    torch.manual_seed(0)
    reference = convolution(12, 12, 7, lookahead, groups=12)
    weight, bias = reference.weight, reference.bias
    assert bias is not None
    later = 3 if lookahead is None else lookahead
    x_BTD, grad_BTD = torch.randn(3, frames, 12, requires_grad=True), torch.randn(3, frames, 12)
    theirs_BTD = reference(x_BTD.transpose(1, 2)).transpose(1, 2)
    ours_BTD = depthwise(x_BTD, weight[..., : 4 + later], bias, 3, later)
    torch.testing.assert_close(ours_BTD, theirs_BTD)
    inputs = [x_BTD, weight, bias]
    for ours, theirs in zip(
        torch.autograd.grad(ours_BTD, inputs, grad_BTD), torch.autograd.grad(theirs_BTD, inputs, grad_BTD), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lookahead", [None, 0, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("frames", [1, 2, 7, 40])
def test_a_convolution_in_the_layout_of_frames_is_torchs(lookahead: int | None, stride: int, frames: int) -> None:
    torch.manual_seed(0)
    layer = convolution(12, 20, 5, lookahead, stride)
    x_BTF = torch.randn(3, frames, 12, requires_grad=True)
    theirs_BTF, ours_BTF = layer(x_BTF.transpose(1, 2)).transpose(1, 2), convolved(layer, x_BTF)
    torch.testing.assert_close(ours_BTF, theirs_BTF)
    grad_BTF, inputs = torch.randn_like(theirs_BTF), [x_BTF, *layer.parameters()]
    for ours, theirs in zip(
        *(torch.autograd.grad(made, inputs, grad_BTF) for made in (ours_BTF, theirs_BTF)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lookahead", [None, 1])
def test_a_strided_convolution_of_data_in_bf16_is_torchs(lookahead: int | None) -> None:
    torch.manual_seed(0)
    layer, x_BTF = convolution(12, 20, 5, lookahead, 2), torch.randn(3, 41, 12)
    exact_BTF = layer(x_BTF.transpose(1, 2)).transpose(1, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours_BTF = convolved(layer, x_BTF)
    grad_BTF = torch.randn_like(exact_BTF)
    for ours, exact in zip(
        *(torch.autograd.grad(made, [*layer.parameters()], grad_BTF.to(made.dtype)) for made in (ours_BTF, exact_BTF)),
        strict=True,
    ):
        assert (ours - exact).norm() < 0.01 * exact.norm()
    assert (ours_BTF - exact_BTF).norm() < 0.01 * exact_BTF.norm()


def reference(block: ConvNeXtBlock, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The block, as it is written in the paper (Liu et al. 2022, "A ConvNet for the 2020s")."""
    mixed_BDT = block.depthwise((x_BTD * mask_BT[..., None]).transpose(1, 2))
    out: Tensor = x_BTD + block.scale * block.feed_forward(block.norm(mixed_BDT.transpose(1, 2)))
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_is_the_papers_in_training_and_in_use(causal: bool) -> None:
    torch.manual_seed(0)
    block = ConvNeXtBlock(16, scale=0.3, causal=causal)
    assert isinstance(block.depthwise, LimitedConv1d) is causal
    nn.init.normal_(block.norm.weight)
    x_BTD = torch.randn(2, 30, 16, requires_grad=True)
    mask_BT = torch.arange(30) < torch.tensor([[30], [21]])
    inputs = [x_BTD, *block.parameters()]
    ours_BTD, theirs_BTD = block(x_BTD, mask_BT), reference(block, x_BTD, mask_BT)
    torch.testing.assert_close(ours_BTD, theirs_BTD)
    with torch.no_grad():
        torch.testing.assert_close(block(x_BTD, mask_BT), theirs_BTD)
    grad_BTD = torch.randn(2, 30, 16)
    for ours, theirs in zip(
        torch.autograd.grad(ours_BTD, inputs, grad_BTD), torch.autograd.grad(theirs_BTD, inputs, grad_BTD), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_in_bf16_is_as_near_to_fp32_as_torchs_modules_are(dtype: torch.dtype) -> None:
    """Also on frames in bf16, as a convolution before the first block gives them."""
    torch.manual_seed(0)
    block = ConvNeXtBlock(64, scale=1.0)
    x_BTD, mask_BT = torch.randn(2, 50, 64).to(dtype), torch.ones(2, 50, dtype=torch.bool)
    exact_BTD = reference(block, x_BTD.float(), mask_BT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours_BTD, theirs_BTD = block(x_BTD, mask_BT), reference(block, x_BTD, mask_BT)
    assert ours_BTD.dtype == torch.float32, "the sum that goes from block to block stays in fp32"
    error, reached = ((one - exact_BTD).square().mean().item() for one in (ours_BTD, theirs_BTD))
    assert error < 1.5 * reached
