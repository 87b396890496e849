"""Small tasks that hold the trainer to its contract, one for each kind of model it must serve."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from phonate.config.settings import Settings
from phonate.training.settings import OptimizerSettings
from phonate.training.task import Coupling, Phase, Task


class Nothing(Settings):
    """No settings."""


class Sequences:
    """Sequences of random length; the target is a linear function of the clean input, the input is augmented."""

    frames_per_second = 10.0
    cached = True

    def __init__(self, count: int, seed: int, width: int = 4, noise: float = 0.1) -> None:
        rng = np.random.default_rng(seed)
        self.ids = [f"item-{seed}-{i:03d}" for i in range(count)]
        self.lengths = rng.integers(3, 12, size=count)
        self.inputs = [rng.normal(size=(n, width)).astype(np.float32) for n in self.lengths]
        mix = np.random.default_rng(0).normal(size=(width, width)).astype(np.float32)
        self.targets = [np.tanh(x @ mix) for x in self.inputs]
        self.noise = noise

    def get(self, index, rng):
        x = self.inputs[index]
        return (
            x + self.noise * rng.normal(size=x.shape).astype(np.float32),
            self.targets[index],
            self.ids[index],
        )

    def collate(self, items):
        longest = max(len(x) for x, _, _ in items)
        lengths = torch.tensor([len(x) for x, _, _ in items])

        def pad(arrays):
            return torch.stack(
                [torch.from_numpy(np.pad(a, ((0, longest - len(a)), (0, 0))).astype(np.float32)) for a in arrays]
            )

        return {
            "x": pad([x for x, _, _ in items]),
            "y": pad([y for _, y, _ in items]),
            "mask": torch.arange(longest) < lengths[:, None],
            "frames": int(lengths.sum()),
            "ids": [name for _, _, name in items],
        }


class RegressionTask(Task):
    """Masked regression with dropout."""

    dropout = 0.2
    count = 24
    validation_count = 6

    def __init__(self, recipe=None) -> None:
        self.recipe = recipe
        self.seen: list[list[str]] = []

    def model(self, device):
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(16, 4)).to(device)

    def dataset(self, split):
        return Sequences(self.count, 1) if split == "train" else Sequences(self.validation_count, 2)

    def loss(self, model, batch, phase):
        if torch.is_grad_enabled():
            self.seen.append(list(batch["ids"]))
        error = (model(batch["x"]) - batch["y"]) ** 2
        weight = batch["mask"][..., None]
        output = model[3].weight
        return {
            "mse": ((error * weight).sum(), float(batch["frames"] * 4)),
            "size": (output.square().sum() * len(batch["ids"]), float(len(batch["ids"]))),
        }

    def loss_weights(self, step):
        return {"size": 1e-3}


class GanTask(RegressionTask):
    """Two optimizers: a generator that maps noise to points on a circle, and a discriminator."""

    class Networks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 4))
            self.discriminator = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def model(self, device):
        return self.Networks().to(device)

    @property
    def phases(self):
        return (
            Phase("discriminator", lambda m: m.discriminator.named_parameters(), OptimizerSettings(lr=2e-3)),
            Phase("generator", lambda m: m.generator.named_parameters(), OptimizerSettings(lr=1e-3), every=2),
        )

    def loss(self, model, batch, phase):
        real = batch["y"][batch["mask"]]
        made = model.generator(torch.randn_like(real))
        count = float(batch["frames"])
        if phase == "discriminator":
            score = model.discriminator
            loss = nn.functional.softplus(-score(real)) + nn.functional.softplus(score(made.detach()))
            return {"discriminator": (loss.sum(), count)}
        return {"generator": (nn.functional.softplus(-model.discriminator(made)).sum(), count)}

    def loss_weights(self, step):
        return {}


class AdapterTask(RegressionTask):
    """A frozen base with a low-rank adapter; checkpoints hold the adapter alone."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(4, 4).requires_grad_(False)
            self.down = nn.Linear(4, 2, bias=False)
            self.up = nn.Linear(2, 4, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    def model(self, device):
        return self.Adapted().to(device)

    def loss(self, model, batch, phase):
        error = (model(batch["x"]) - batch["y"]) ** 2
        return {"mse": ((error * batch["mask"][..., None]).sum(), float(batch["frames"] * 4))}

    def saved(self, model):
        return {name: t for name, t in model.state_dict().items() if not name.startswith("base.")}


class RandomFeaturesTask(RegressionTask):
    """A model with a random projection that is redrawn as it trains."""

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("projection", torch.randn(4, 16))

        def redraw_features(self, generator=None) -> None:
            self.projection.copy_(torch.randn(4, 16, generator=generator))

        def forward(self, x):
            return torch.cos(x @ self.projection)

    def model(self, device):
        return nn.Sequential(self.Features(), nn.Linear(16, 4)).to(device)

    def loss(self, model, batch, phase):
        error = (model(batch["x"]) - batch["y"]) ** 2
        return {"mse": ((error * batch["mask"][..., None]).sum(), float(batch["frames"] * 4))}


class OutsideMetricTask(RegressionTask):
    """The best checkpoint is the one whose output weights are nearest to a given size, whatever the loss."""

    def evaluate(self, model, dataset, positions):
        size = model[3].weight.detach().abs().sum().item()
        return {"quality": (-abs(size - 6.0), 1)}


class CoupledTask(RegressionTask):
    """A loss that depends on the whole batch."""

    coupling = Coupling.BATCH
