"""Running sums and counts of loss terms, from which their means are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from phonate.compute.distributed import Ranks
from phonate.training.task import CountedTerms


class Meter:
    """Adds up (sum, count) pairs by name. On a GPU the sums stay there, so that no step waits for the host."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor | float] = {}
        self.counts: dict[str, Tensor | float] = {}

    def add(self, terms: CountedTerms) -> None:
        """Add the terms of one micro-batch."""
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
        """Add what `other` has counted and clear it."""
        for name in other.sums:
            self.sums[name] = self.sums.get(name, 0.0) + other.sums[name]
            self.counts[name] = self.counts.get(name, 0.0) + other.counts[name]
        other.clear()

    def clear(self) -> None:
        """Forget all counts."""
        self.sums.clear()
        self.counts.clear()

    def become(self, other: Meter) -> None:
        """Take the counts of `other`, which keeps them."""
        self.sums, self.counts = dict(other.sums), dict(other.counts)

    def copy(self) -> Meter:
        """A meter with the same counts."""
        other = Meter()
        other.sums.update(self.sums)
        other.counts.update(self.counts)
        return other

    def state(self) -> dict[str, list[float]]:
        """Sums and counts as JSON."""
        return {name: [float(self.sums[name]), float(self.counts[name])] for name in self.sums}

    def restore(self, state: Mapping[str, list[float]]) -> None:
        """Restore sums and counts."""
        self.sums = {name: pair[0] for name, pair in state.items()}
        self.counts = {name: pair[1] for name, pair in state.items()}


class Meters:
    """The losses since the last log line, and those of the epoch before them; each rank counts its own.

    Both are state of a run, so that means over an epoch are exact after a resume within it.
    """

    def __init__(self, latest: Meter, ranks: Ranks) -> None:
        """`latest`: since the last log line."""
        self.latest = latest
        self.epoch = Meter()
        self.ranks = ranks

    def state(self) -> list[Any]:
        """Both meters of each rank. All ranks call it together."""
        return self.ranks.gather([self.latest.state(), self.epoch.state()])

    def restore(self, state: Sequence[Sequence[Mapping[str, list[float]]]]) -> None:
        """Each rank restores its own counts; where the number of ranks has changed, the first one takes them all."""
        meters = (self.latest, self.epoch)
        if len(state) == self.ranks.world_size:
            for meter, counted in zip(meters, state[self.ranks.rank], strict=True):
                meter.restore(counted)
            return
        for number, meter in enumerate(meters):
            for pair in state:
                # all ranks have the same names: they are summed together
                part = Meter()
                part.restore(pair[number] if self.ranks.is_main else {name: [0.0, 0.0] for name in pair[number]})
                meter.absorb(part)

    def epoch_means(self, state: Sequence[Any], weights: Mapping[str, float]) -> dict[str, float]:
        """Means of the current epoch over all ranks, from the result of `state`. Empty at its beginning."""
        whole = Meter()
        for one in (one for pair in state for one in pair):
            part = Meter()
            part.restore(one)
            whole.absorb(part)
        return whole.means(weights, Ranks())


def _summand(value: Tensor | float) -> Tensor | float:
    """`value` as it is added up: a number, or, where that would make a device wait, a tensor of its widest floats."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.device.type == "cpu":
        return value.item()
    return value.detach().float() if value.device.type == "mps" else value.detach().double()
