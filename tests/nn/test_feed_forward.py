"""Feed-forward networks computed in pieces are those that they are made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from phonate.nn.feed_forward import FeedForward


def network(width: int, hidden: int, dropout: float = 0.0) -> tuple[FeedForward, Tensor]:
    """One with a scale of its outputs."""
    torch.manual_seed(0)
    return FeedForward(width, hidden, dropout), torch.randn(width).requires_grad_()


def gradients(ours: bool, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of a loss of it."""
    layers, scale = network(24, 72)
    made = layers.added(x, x, scale) if ours else x + scale * nn.Sequential.forward(layers, x)
    loss = (made.float() * torch.linspace(-1.0, 1.0, made.shape[-1])).square().mean()
    return [made, *torch.autograd.grad(loss, [x, scale, *layers.parameters()])]


@pytest.mark.parametrize("frames", [1, 700])  # and more than a piece
def test_outputs_and_gradients_are_those_of_its_layers(frames: int) -> None:
    x = (2.0 * torch.randn(3, frames, 24, generator=torch.Generator().manual_seed(1))).requires_grad_()
    for one, other in zip(gradients(True, x), gradients(False, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_in_16_bits_it_is_about_as_far_from_32_as_its_layers_are() -> None:
    x = (2.0 * torch.randn(3, 700, 24, generator=torch.Generator().manual_seed(1))).requires_grad_()
    exact = gradients(False, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, layers = gradients(True, x), gradients(False, x)
    for one, other, wanted in zip(ours, layers, exact, strict=True):
        assert one.dtype in (torch.bfloat16, torch.float32)
        assert (one.float() - wanted).norm() < 1.5 * (other.float() - wanted).norm()


def test_dropout_just_below_1_leaves_numbers() -> None:
    layers, _ = network(24, 72, dropout=1.0 - 2.0**-18)
    assert layers(torch.randn(5, 24)).isfinite().all()


@pytest.mark.parametrize("autocast", [False, True])
def test_what_is_dropped_has_no_gradient(autocast: bool) -> None:
    layers, _ = network(200, 200, dropout=0.25)
    for layer in (layers[0], layers[3]):
        assert isinstance(layer, nn.Linear)
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    x = (1.5 + torch.rand(1500, 200)).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        made = layers(x)
    kept = made != 0
    made.float().sum().backward()
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.005)
    plain = x.detach().clone().requires_grad_()
    wanted = nn.functional.gelu(plain, approximate="tanh")
    wanted.sum().backward()
    assert plain.grad is not None
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if autocast else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(made.float(), wanted * kept / 0.75, **tolerance)
    torch.testing.assert_close(x.grad, plain.grad * kept / 0.75, **tolerance)
    layers.eval()
    torch.testing.assert_close(layers(plain), wanted, rtol=1e-4, atol=1e-5)
