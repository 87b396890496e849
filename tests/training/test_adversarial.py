"""A discriminator that judges once a step gives both phases the gradients of the losses as they are written down."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phonate.nn.vocoder import Discriminators
from phonate.training import adversarial
from phonate.training.adversarial import AdversarialTask, Pair

BANDS = (33, 17)


class Small(AdversarialTask[list[Tensor]]):
    """Makes spectra from numbers."""

    generator, discriminator = "generator", "discriminators"

    def model(self, device: torch.device) -> nn.Module:
        generator = nn.Linear(3, 2 * sum(BANDS))
        discriminators = Discriminators([(64, 16), (32, 8)], 2)
        return nn.ModuleDict({"generator": generator, "discriminators": discriminators})

    def dataset(self, split: str) -> Any:
        raise NotImplementedError

    def generate(self, model: nn.Module, batch: Any) -> list[Tensor]:
        made: Tensor = model.get_submodule("generator")(batch["given"])
        return list(made.split([2 * bands for bands in BANDS], dim=-1))

    def generator_terms(self, model: nn.Module, output: list[Tensor], batch: Any) -> Any:
        return {"size": (sum(one.square().sum() for one in output), "items")}

    def pair(self, output: list[Tensor], batch: Any) -> Pair:
        return Pair(output, batch["real"])


def test_the_distance_of_outputs_is_their_mean_one_and_where_they_are_equal_has_no_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    fake, real = (torch.randn(3, 4, 5, 2, generator=generator).transpose(1, 3) for _ in range(2))
    fake[:, 0] = real[:, 0]
    fake.requires_grad_()
    distance = adversarial._distance(fake, real)
    wanted = (fake - real).abs().mean((1, 2, 3)).sum()
    torch.testing.assert_close(distance, wanted)
    torch.testing.assert_close(torch.autograd.grad(2.0 * distance, fake), torch.autograd.grad(2.0 * wanted, fake))


def gradients(model: nn.Module) -> dict[str, list[Tensor]]:
    """Of the weights of each part, in a step's two phases."""
    task = Small(SimpleNamespace(adversarial_start=0, adversarial_weight=1.0, feature_matching_weight=10.0))
    task.step = 0
    generator = torch.Generator().manual_seed(0)
    batch: Any = {
        "given": torch.randn(2, 12, 3, generator=generator),
        "real": [torch.randn(2, 12, 2 * bands, generator=generator) for bands in BANDS],
    }
    found = {}
    for part in (task.generator, task.discriminator):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(part))
        weights = {"adversarial": 1.5, "features": 10.0}
        terms = task.loss(model, batch, part)
        sum(weights.get(name, 1.0) * total for name, (total, _) in terms.items()).backward()
        found[part] = [p.grad.clone() for p in model.get_submodule(part).parameters()]
        assert all(p.grad is None for name, p in model.named_parameters() if not name.startswith(part))
        model.zero_grad()
    return found


def test_gradients_are_those_of_a_pass_for_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Small(SimpleNamespace(adversarial_start=0)).model(torch.device("cpu"))
    judged: list[Any] = []
    model.discriminators.members[0].register_forward_hook(lambda *_: judged.append(None))
    once = gradients(model)
    assert len(judged) == 1  # real and fake together
    monkeypatch.setattr(adversarial, "_judged_once", lambda discriminator: False)
    plain = gradients(model)
    assert len(judged) == 1 + 4
    for part in plain:
        torch.testing.assert_close(once[part], plain[part], rtol=1e-4, atol=1e-6)


class Saved:
    """A tensor that a graph keeps for its backward pass."""

    def __init__(self, values: Tensor) -> None:
        self.values = values


def test_what_the_discriminator_has_computed_is_freed_with_the_generators_graph() -> None:
    """Between the phases only weights' gradients are left, however many micro-batches a step has."""
    torch.manual_seed(0)
    model = Small(SimpleNamespace(adversarial_start=0)).model(torch.device("cpu"))
    saved: list[weakref.ref[Saved]] = []

    def save(values: Tensor) -> Saved:
        one = Saved(values)
        saved.append(weakref.ref(one))
        return one

    task = Small(SimpleNamespace(adversarial_start=0, adversarial_weight=1.0, feature_matching_weight=10.0))
    task.step = 0
    batch: Any = {"given": torch.randn(2, 12, 3), "real": [torch.randn(2, 12, 2 * bands) for bands in BANDS]}
    with torch.autograd.graph.saved_tensors_hooks(save, lambda one: one.values):
        terms = task.loss(model, batch, task.generator)
    assert sum(one() is not None for one in saved) > 20
    sum(total for total, _ in terms.values()).backward()
    del terms
    assert not any(one() is not None for one in saved)
    loss, _ = task.loss(model, batch, task.discriminator)["discriminator"]
    loss.backward()
    assert all(one.grad is not None for one in model.get_submodule("discriminators").parameters())
