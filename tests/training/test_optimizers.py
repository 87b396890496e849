"""Optimizers against torch's own and the papers, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from phonate.config.errors import InputError
from phonate.training.optimizers import build_optimizer
from phonate.training.registries import OPTIMIZERS
from phonate.training.settings import OptimizerSettings

CPU = torch.device("cpu")

TORCH = {
    "adamw": (torch.optim.AdamW, {}, {}),
    "adam": (torch.optim.Adam, {"betas": (0.8, 0.99), "amsgrad": True}, {"betas": (0.8, 0.99), "amsgrad": True}),
    "adamax": (torch.optim.Adamax, {"epsilon": 1e-6}, {"eps": 1e-6}),
    "sgd": (torch.optim.SGD, {"nesterov": True}, {"momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {}, {}),
    "rmsprop": (torch.optim.RMSprop, {"rho": 0.95, "momentum": 0.5}, {"alpha": 0.95, "momentum": 0.5}),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.8}, {"rho": 0.8}),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 20) -> list[torch.Tensor]:
    """The weights after some steps on fixed data."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(16, 5, generator=generator), torch.randn(16, 2, generator=generator)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("name", TORCH)
def test_steps_are_those_of_torch(name):
    reference, ours, theirs = TORCH[name]
    settings = OptimizerSettings(type=name, lr=0.01, weight_decay=0.1, **ours)
    mine, other = network(), network()
    optimizer = build_optimizer(settings, mine.named_parameters(), CPU)
    expected = train(other, reference(other.parameters(), lr=0.01, weight_decay=0.1, **theirs))
    torch.testing.assert_close(train(mine, optimizer), expected, rtol=1e-4, atol=1e-6)


def test_lion_follows_its_algorithm():
    mine, other = network(), network()
    settings = OptimizerSettings(type="lion", lr=0.003, weight_decay=0.1, betas=(0.8, 0.95))
    weights = train(mine, build_optimizer(settings, mine.named_parameters(), CPU))

    class ByTheBook(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = (0.8 * m + 0.2 * p.grad).sign() + 0.1 * p
                p -= 0.003 * update
                m.copy_(0.95 * m + 0.05 * p.grad)

    torch.testing.assert_close(weights, train(other, ByTheBook(other.parameters())))


def test_lion_goes_on_from_its_state():
    whole, first, second = network(), network(), network()
    settings = OptimizerSettings(type="lion", lr=0.003)
    expected = train(whole, build_optimizer(settings, whole.named_parameters(), CPU), steps=10)
    optimizer = build_optimizer(settings, first.named_parameters(), CPU)
    train(first, optimizer, steps=4)
    second.load_state_dict(first.state_dict())
    resumed = build_optimizer(settings, second.named_parameters(), CPU)
    resumed.load_state_dict(optimizer.state_dict())
    for ours, theirs in zip(train(second, resumed, steps=6), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_every_optimizer_learns_keeps_its_peak_and_repeats_itself(name):
    lr = {"adadelta": 1.0, "adagrad": 0.1, "sgd": 0.05}.get(name, 0.01)
    settings = OptimizerSettings(type=name, lr=lr)
    runs = []
    for _ in range(2):
        model = network()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = build_optimizer(settings, model.named_parameters(), CPU)
        assert all(group["initial_lr"] == lr for group in optimizer.param_groups)
        runs.append(train(model, optimizer))
        assert all(not torch.equal(a, b) for a, b in zip(before, runs[-1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "adagrad"])
def test_fused_kernels_are_used(name):
    optimizer = build_optimizer(OptimizerSettings(type=name), network().named_parameters(), CPU)
    assert optimizer.param_groups[0]["fused"] is True


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("adamw", {"nesterov": True}),
        ("adam", {"rho": 0.9}),
        ("sgd", {"betas": (0.9, 0.99)}),
        ("sgd", {"epsilon": 1e-8}),
        ("lion", {"amsgrad": True}),
        ("adagrad", {"momentum": 0.9}),
        ("adadelta", {"momentum": 0.5}),
    ],
)
def test_a_number_that_the_optimizer_does_not_have_is_refused(name, option):
    settings = OptimizerSettings(type=name, **option)
    with pytest.raises(InputError, match=rf"training\.optimizer\.{next(iter(option))}: {name} "):
        build_optimizer(settings, network().named_parameters(), CPU)


def test_defaults_written_out_are_no_mistake():
    settings = OptimizerSettings(type="sgd", nesterov=False, amsgrad=False)
    assert build_optimizer(settings, network().named_parameters(), CPU).param_groups[0]["momentum"] == 0.9


def test_mistakes_are_named():
    with pytest.raises(InputError, match="did you mean adamw"):
        build_optimizer(OptimizerSettings(type="adamww"), network().named_parameters(), CPU)
    settings = OptimizerSettings(type="sgd", nesterov=True, momentum=0.0)
    with pytest.raises(InputError, match="momentum"):
        build_optimizer(settings, network().named_parameters(), CPU)
    with pytest.raises(InputError, match="trainable"):
        build_optimizer(OptimizerSettings(), [], CPU)


def test_a_registered_class_is_an_optimizer(monkeypatch):
    class Half(torch.optim.SGD):
        def __init__(self, parameters, lr, weight_decay):
            super().__init__(parameters, lr=lr / 2, weight_decay=weight_decay)

    monkeypatch.setattr(OPTIMIZERS, "_registered", {})
    OPTIMIZERS.register("half", Half)
    optimizer = build_optimizer(OptimizerSettings(type="half", lr=0.2), network().named_parameters(), CPU)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_parameters_without_gradient_stay_as_they_are():
    model = network()
    frozen = model[0].weight.detach().clone()
    model[0].weight.requires_grad_(False)
    for name in OPTIMIZERS.own():
        train(model, build_optimizer(OptimizerSettings(type=name, lr=0.01), model.named_parameters(), CPU), steps=2)
    assert torch.equal(model[0].weight, frozen)


@pytest.mark.slow
def test_a_training_leaves_torch_as_it_was() -> None:
    """In a process of its own: no function of torch.optim is replaced or marked, hooks are called, and no compiler is
    imported, as torch's own step does, which takes more than a second of every start."""
    script = """
import pathlib, sys, tempfile, types, torch
sys.path.insert(0, sys.argv[1])
from small_tasks import RegressionTask
from phonate.training.optimizers import build_optimizer
from phonate.training.run import Run
from phonate.training.settings import OptimizerSettings, TrainingSettings
from phonate.training.trainer import Trainer

OWNERS = [torch.optim.Optimizer, torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.nn.Module, torch.Tensor]

def functions():
    return {
        (owner.__name__, name): (value, dict(vars(value)))
        for owner in OWNERS for name, value in vars(owner).items() if isinstance(value, types.FunctionType)
    }

before = functions()
model, called = torch.nn.Linear(2, 2), []
optimizer = build_optimizer(OptimizerSettings(), model.named_parameters(), torch.device("cpu"))
optimizer.register_step_post_hook(lambda *args: called.append(torch.is_grad_enabled()))
weight = model.weight.detach().clone()
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.zero_grad()
assert called == [True] and not torch.equal(weight, model.weight)

for kind in ("adamw", "sgd", "lion"):
    folder = pathlib.Path(tempfile.mkdtemp()) / "run"
    run = Run(folder)
    run.create(resuming=False)
    logging = {"tensorboard": False, "verbosity": "quiet"}
    Trainer(RegressionTask(), TrainingSettings(max_steps=2, optimizer={"type": kind}, logging=logging), run).fit()
assert len(before) > 100
print([name for name, value in functions().items() if before.get(name) != value], "torch._dynamo" in sys.modules)
"""
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", script, here], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[] False", done.stdout + done.stderr
