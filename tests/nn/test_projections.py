"""Linear layers with adapters that read the same input, beside peft's own forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phonate.nn.pretrained.projections import project

peft = pytest.importorskip("peft", reason="needs peft: pip install 'phonate[language]'")


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.plain = nn.Linear(16, 24), nn.Linear(16, 8, bias=False), nn.Linear(16, 4)


def adapted(**options: Any) -> list[Any]:
    """Three layers, two of them with an adapter that is not zero."""
    torch.manual_seed(0)
    given = {"r": 4, "lora_alpha": 12, "lora_dropout": 0.0, "target_modules": ["query", "key"], **options}
    model = peft.get_peft_model(Layers(), peft.LoraConfig(**given))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return [model.get_submodule(f"base_model.model.{name}") for name in ("query", "key", "plain")]


def gradients(layers: list[Any], inputs: Tensor, found: list[Tensor]) -> list[Tensor]:
    loss = torch.stack([one.float().square().sum() for one in found]).sum()
    trained = [one for layer in layers for one in layer.parameters() if one.requires_grad]
    return list(torch.autograd.grad(loss, [inputs, *trained]))


def check(layers: list[Any], inputs: Tensor, dtype: torch.dtype = torch.float32, atol: float = 1e-5) -> None:
    """Outputs and gradients are peft's."""
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        ours, theirs = project(inputs, layers), [layer(inputs) for layer in layers]
    assert [one.dtype for one in ours] == [dtype] * 3
    torch.testing.assert_close(ours, theirs, rtol=atol, atol=atol)
    pairs = zip(gradients(layers, inputs, ours), gradients(layers, inputs, theirs), strict=True)
    for mine, expected in pairs:
        assert float((mine - expected).norm() / expected.norm()) < atol


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}], ids=str)
def test_outputs_and_gradients_are_pefts(options: dict[str, Any]) -> None:
    check(adapted(**options), torch.randn(10, 16, requires_grad=True))


def test_under_autocast() -> None:
    check(adapted(), torch.randn(10, 16, requires_grad=True), torch.bfloat16, 0.05)


def test_adapters_that_are_switched_off_add_nothing() -> None:
    layers, inputs = adapted(), torch.randn(10, 16)
    for layer in layers[:2]:
        layer.enable_adapters(False)
    torch.testing.assert_close(project(inputs, layers)[0], layers[0].base_layer(inputs))


def test_layers_of_one_input_share_the_dropout_mask() -> None:
    layers = adapted(lora_dropout=0.5)
    for layer in layers[:2]:
        layer.train()
        nn.init.eye_(layer.lora_A["default"].weight)
        nn.init.eye_(layer.lora_B["default"].weight)
    inputs = torch.ones(200, 16)
    query, key = (
        found - layer.base_layer(inputs) for found, layer in zip(project(inputs, layers[:2]), layers[:2], strict=True)
    )
    torch.testing.assert_close(query[:, :4], key[:, :4])
    kept = query[:, :4] != 0.0
    assert 0.4 < float(kept.float().mean()) < 0.6
    torch.testing.assert_close(query[:, :4][kept], torch.full_like(query[:, :4][kept], 2 * 12 / 4))
    own = layers[0](inputs) - layers[0].base_layer(inputs)
    other = layers[1](inputs) - layers[1].base_layer(inputs)
    assert not torch.allclose(own[:, :4], other[:, :4])  # peft's do not
