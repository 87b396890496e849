"""Adversarial training in two phases: least-squares losses (Mao et al. 2017, arXiv:1611.04076) and feature matching
(Larsen et al. 2016, arXiv:1512.09300), as in HiFi-GAN (Kong et al. 2020, arXiv:2010.05646, equations 1 to 4).

Shapes: B batch, ... any further dimensions. A loss is a sum over the items of a batch; its count is B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from phonate.training.task import Batch, Phase, Terms, parameters_of

OutputT = TypeVar("OutputT")


@dataclass(frozen=True)
class AdversarialPhases:
    """When a generator is trained against a discriminator.

    Args:
        generator: The model's part that is the generator; the name of its phase.
        discriminator: The part that is the discriminator, or several; the name of its phase.
        start: The first step in which they are trained against each other. None: never.
    """

    generator: str
    discriminator: str
    start: int | None

    def phases(self) -> tuple[Phase, ...]:
        """The generator's phase and, unless it never starts, the discriminator's."""
        generator = Phase(self.generator, parameters_of(self.generator))
        if self.start is None:
            return (generator,)
        return (generator, Phase(self.discriminator, parameters_of(self.discriminator), start=self.start))

    def active(self, step: int) -> bool:
        """Whether the discriminator takes part in optimizer step `step`."""
        return self.start is not None and step >= self.start


class PhaseOutput(Generic[OutputT]):
    """What the generator's phase computed for the batches of a step, for the discriminator's phase of the same step."""

    def __init__(self) -> None:
        self._step = -1
        self._kept: list[tuple[Batch, OutputT]] = []

    def put(self, step: int, batch: Batch, output: OutputT) -> None:
        """Keep the output for `batch` until it is taken or another step begins."""
        if step != self._step:
            self._step, self._kept = step, []
        self._kept.append((batch, output))

    def take(self, batch: Batch) -> OutputT | None:
        """The output for this very `batch`; None where none is kept."""
        for i, (one, _) in enumerate(self._kept):
            if one is batch:
                return self._kept.pop(i)[1]
        return None


class ConditionalDiscriminator(Protocol):
    """Tells natural from generated features, which belong to a condition such as a text."""

    def __call__(self, features: Tensor, condition: Tensor, /) -> tuple[Tensor, list[Tensor]]:
        """Scores (B, ...), high for natural features (B, T, F), and each layer's output (B, ...)."""


def adversarial_terms(
    discriminator: ConditionalDiscriminator, made: Tensor, natural: Tensor, condition: Tensor
) -> Terms:
    """The generator's terms: `adversarial`, and `features`, the mean over layers of `feature_distances`."""
    with torch.no_grad():
        _, wanted = discriminator(natural, condition)
    scores, seen = discriminator(made, condition)
    features = torch.stack(feature_distances(seen, wanted)).mean()
    return {"adversarial": (generator_loss([scores]), len(made)), "features": (features, len(made))}


def discriminator_loss(real: Sequence[Tensor], generated: Sequence[Tensor]) -> Tensor:
    """Least squares with targets 1 for real and 0 for generated items, summed over discriminators and items.

    Args:
        real: Scores (B, ...) by each discriminator of real items.
        generated: Its scores of generated ones.
    """
    total = torch.zeros((), device=real[0].device)
    for one, other in zip(real, generated, strict=True):
        total = total + _items((one - 1.0).square()).sum() + _items(other.square()).sum()
    return total


def generator_loss(generated: Sequence[Tensor]) -> Tensor:
    """Least squares with target 1, averaged over discriminators and summed over items.

    Args:
        generated: Scores (B, ...) by each discriminator of generated items.
    """
    total = torch.zeros((), device=generated[0].device)
    for scores in generated:
        total = total + _items((scores - 1.0).square()).sum() / len(generated)
    return total


def feature_distances(generated: Sequence[Tensor], real: Sequence[Tensor]) -> list[Tensor]:
    """L1 distance of each layer's output (B, ...) for generated and for real items, summed over items."""
    return [_items((one - other).abs()).sum() for one, other in zip(generated, real, strict=True)]


def _items(values: Tensor) -> Tensor:
    """Mean (B,) of each item."""
    return values.mean(tuple(range(1, values.dim())))
