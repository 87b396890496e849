"""Running sums of loss terms between two log lines."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from phonate.compute.distributed import Ranks


class Meter:
    """Adds up (sum, count) pairs by name. On a GPU the sums stay there, so that no step waits for the host."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor | float] = {}
        self.counts: dict[str, Tensor | float] = {}

    def add(self, terms: Mapping[str, tuple[Tensor, Tensor | float]]) -> None:
        """Count the terms of one micro-batch in."""
        for name, (total, count) in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + _summand(total)
            self.counts[name] = self.counts.get(name, 0.0) + _summand(count)

    def means(self, weights: Mapping[str, float], ranks: Ranks) -> dict[str, float]:
        """Mean of each term over all ranks, and `loss`, their weighted sum. Empty when nothing was added."""
        names = sorted(self.sums)
        numbers = ranks.sum([float(self.sums[n]) for n in names] + [float(self.counts[n]) for n in names])
        half = len(names)
        means = {name: numbers[i] / numbers[half + i] for i, name in enumerate(names) if numbers[half + i]}
        if means:
            means = {"loss": sum(weights.get(name, 1.0) * value for name, value in means.items()), **means}
        return means

    def absorb(self, other: Meter) -> None:
        """Take over what `other` has counted; it starts anew."""
        for name in other.sums:
            self.sums[name] = self.sums.get(name, 0.0) + other.sums[name]
            self.counts[name] = self.counts.get(name, 0.0) + other.counts[name]
        other.clear()

    def clear(self) -> None:
        """Start anew."""
        self.sums.clear()
        self.counts.clear()

    def copy(self) -> Meter:
        """The same counts, to go on with separately."""
        other = Meter()
        other.sums.update(self.sums)
        other.counts.update(self.counts)
        return other

    def state(self) -> dict[str, list[float]]:
        """Sums and counts as JSON."""
        return {name: [float(self.sums[name]), float(self.counts[name])] for name in self.sums}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        """Go on from `state`."""
        self.sums = {name: pair[0] for name, pair in state.items()}
        self.counts = {name: pair[1] for name, pair in state.items()}


def _summand(value: Tensor | float) -> Tensor | float:
    """`value` as it is added up: a number, or, where that would make a device wait, a tensor of its widest floats."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.device.type == "cpu":
        return value.item()
    return value.detach().float() if value.device.type == "mps" else value.detach().double()
