"""Linear layers with adapters that read the same input, beside peft's own forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from installed import missing
from phonate.nn.pretrained import gated_silu, kept_inputs, project, rms_norm

if missing("peft"):
    pytest.skip("needs peft: pip install 'phonate[language]'", allow_module_level=True)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.plain = nn.Linear(16, 24), nn.Linear(16, 8, bias=False), nn.Linear(16, 4)


def adapted(**options: Any) -> list[Any]:
    """Three layers, two of them with an adapter that is not zero."""
    import peft

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


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}, {"bias": "all"}], ids=str)
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


def test_gradients_go_through_the_mask_that_the_outputs_went_through() -> None:
    """Against numeric differences, with the mask drawn anew from the same state for each evaluation."""
    layers = [layer.double() for layer in adapted(lora_dropout=0.5)[:2]]
    trained = [one for layer in layers for one in layer.train().parameters() if one.requires_grad]

    def outputs(inputs: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        return tuple(project(inputs, layers))

    assert torch.autograd.gradcheck(outputs, (torch.randn(5, 16, dtype=torch.float64, requires_grad=True), *trained))


def test_every_row_goes_through_the_mask() -> None:
    """A processor takes 128 at a time."""
    (layer,) = adapted(lora_dropout=0.5)[:1]
    inputs = torch.randn(300, 16, requires_grad=True)
    torch.manual_seed(1)
    kept, probability = kept_inputs(inputs, 0.5)
    low = layer.lora_A["default"](inputs * kept)
    expected = layer.base_layer(inputs) + 3.0 / (1.0 - probability) * layer.lora_B["default"](low)
    torch.manual_seed(1)
    found = project(inputs, [layer.train()])[0]
    torch.testing.assert_close(found, expected)
    for mine, one in zip(gradients([layer], inputs, [found]), gradients([layer], inputs, [expected]), strict=True):
        assert float((mine - one).norm() / one.norm()) < 1e-5


def test_a_layer_alone_gets_its_gradient_when_the_others_are_not_used() -> None:
    layers, inputs = adapted(), torch.randn(10, 16, requires_grad=True)
    project(inputs, layers[:2])[1].sum().backward()
    found = inputs.grad
    inputs.grad = None
    layers[1](inputs).sum().backward()
    torch.testing.assert_close(found, inputs.grad)


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (400, 500)], ids=str)
def test_masks_hold_their_probability(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    kept, probability = kept_inputs(torch.empty(shape), 0.1)
    mask = kept == 0
    assert mask.shape == shape
    assert probability == pytest.approx(0.1, abs=1e-5)
    if mask.numel() > 1000:
        deviation = (0.1 * 0.9 / mask.numel()) ** 0.5
        assert abs(float(mask.float().mean()) - probability) < 5 * deviation
        neighbours = (mask[:, 1:] & mask[:, :-1]).float().mean()
        assert float(neighbours) == pytest.approx(0.01, abs=0.002)


def test_dropout_just_below_1_leaves_numbers() -> None:
    (layer,) = adapted(lora_dropout=1.0 - 2.0**-18)[:1]
    (outputs,) = project(torch.randn(10, 16), [layer.train()])
    assert outputs.isfinite().all()


def test_gated_silu_is_the_product() -> None:
    gates, values = (torch.randn(3, 7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(gated_silu(gates, values), nn.functional.silu(gates) * values)
    assert torch.autograd.gradcheck(gated_silu, (gates, values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_norm_is_that_of_transformers(dtype: torch.dtype) -> None:
    from transformers.models.higgs_audio_v2.modeling_higgs_audio_v2 import HiggsAudioV2RMSNorm

    torch.manual_seed(0)
    layer = HiggsAudioV2RMSNorm(24).to(dtype).requires_grad_(False)
    layer.weight.copy_(torch.rand(24) + 0.5)
    inputs = (3.0 * torch.randn(5, 7, 24)).to(dtype).requires_grad_()
    gradient = torch.randn(5, 7, 24).to(dtype)
    found, expected = rms_norm(layer, inputs), layer(inputs)
    assert found.grad_fn is not None
    assert type(found.grad_fn) is not type(expected.grad_fn)  # not computed by the layer
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(one, inputs, gradient)[0] for one in (found, expected))
    torch.testing.assert_close(ours, theirs)
    assert ours.dtype == dtype


def test_norm_that_is_trained_gets_its_gradient() -> None:
    from transformers.models.higgs_audio_v2.modeling_higgs_audio_v2 import HiggsAudioV2RMSNorm

    layer = HiggsAudioV2RMSNorm(8)
    rms_norm(layer, torch.randn(3, 8, requires_grad=True)).square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().min() > 0
