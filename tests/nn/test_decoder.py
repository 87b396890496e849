"""The decoder's masks, its cache, and gradient checkpointing of encoder and decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from phonate.nn import sequences
from phonate.nn.sequences import SinusoidalPositions, sinusoids
from phonate.nn.transformer import Layer, LayerShape, Stack

SHAPE = LayerShape(d_model=32, n_heads=4, d_ff=48, norm="pre", activation="glu")


def decoder(n_layers: int = 3, segments: Any = None) -> Stack:
    torch.manual_seed(0)
    return Stack(replace(SHAPE, causal=True, memory=True), n_layers, segments=segments)


def change_of_earlier_frames(model: Stack) -> float:
    """By how much the outputs of frames 0 to 6 move when frame 7 of 12 is another."""
    torch.manual_seed(1)
    x, memory = torch.randn(2, 12, 32), torch.randn(2, 9, 32)
    other = x.clone()
    other[:, 7] = torch.randn(2, 32)
    with torch.no_grad():
        before, after = model.eval()(x, None, memory), model(other, None, memory)
    assert float((before[:, 8:] - after[:, 8:]).abs().max()) > 1e-3
    return float((before[:, :7] - after[:, :7]).abs().max())


def test_a_later_frame_changes_no_earlier_one() -> None:
    model = decoder()
    assert change_of_earlier_frames(model) == 0.0
    for layer in model.layers:  # and the test would see it
        assert isinstance(layer, Layer)
        layer.attention.causal = False
    assert change_of_earlier_frames(model) > 1e-3


def test_padding_of_the_memory_is_not_attended_to() -> None:
    model = decoder().eval()
    x, memory = torch.randn(1, 6, 32), torch.randn(1, 9, 32)
    mask = torch.arange(9)[None] < 5
    with torch.no_grad():
        assert torch.allclose(model(x, None, memory, mask), model(x, None, memory[:, :5]), atol=1e-6)
        assert not torch.allclose(model(x, None, memory), model(x, None, memory[:, :5]), atol=1e-3)


def test_frame_by_frame_is_all_at_once() -> None:
    """Over more frames than the cache first has room for."""
    model = decoder().eval()
    x, memory = torch.randn(2, 200, 32), torch.randn(2, 9, 32)
    with torch.no_grad():
        state = model.initial_state(2, memory)
        steps = torch.cat([model.step(x[:, t : t + 1], state) for t in range(200)], dim=1)
        assert torch.allclose(steps, model(x, None, memory), atol=1e-5)


def test_positions_grow() -> None:
    grows, fixed = SinusoidalPositions(8, 4, grows=True), SinusoidalPositions(8, 4)
    assert torch.equal(grows(torch.zeros(1, 10, 8))[0], sinusoids(10, 8))
    assert torch.equal(grows(torch.zeros(1, 1, 8), start=30)[0, 0], sinusoids(31, 8)[30])
    with pytest.raises(ValueError, match="10 frames"):
        fixed(torch.zeros(1, 10, 8))


def kept(model: nn.Module, *inputs: torch.Tensor) -> tuple[int, list[torch.Tensor], torch.Tensor]:
    """Bytes kept for the backward pass, the gradients of all parameters, and the output; with dropout."""
    seen: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch.manual_seed(3)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        out = model.train()(*inputs)
    held = sum(seen.values())
    out.square().sum().backward()
    return held, [parameter.grad for parameter in model.parameters() if parameter.grad is not None], out.detach()


@pytest.mark.parametrize("segments", [1, 2, 4, 9, "auto"])
def test_checkpointing_keeps_less_and_changes_no_gradient(segments: Any) -> None:
    x, memory = torch.randn(2, 64, 32), torch.randn(2, 64, 32)
    for make, inputs in ((decoder, (x, None, memory)), (_encoder, (x,))):
        usual, less = make(n_layers=4), make(n_layers=4, segments=segments)
        usual_bytes, wanted, out = kept(usual, *inputs)
        bytes_, gradients, same = kept(less, *inputs)
        assert torch.equal(out, same)
        assert all(torch.equal(a, b) for a, b in zip(wanted, gradients, strict=True))
        assert bytes_ < 0.25 * usual_bytes


def _encoder(n_layers: int, segments: Any = None) -> Stack:
    torch.manual_seed(0)
    return Stack(SHAPE, n_layers, segments=segments)


@pytest.mark.parametrize(("gibibytes", "segments"), [(80, 2), (20.5, 2), (20, 3), (10.5, 3), (8, 4), (6, 6), (2, 6)])
def test_segments_by_memory(monkeypatch: pytest.MonkeyPatch, gibibytes: float, segments: int) -> None:
    class Properties:
        total_memory = gibibytes * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert sequences.segments_for(torch.device("cuda", 0)) == segments
    assert sequences.segments_for(torch.device("mps")) == 4
