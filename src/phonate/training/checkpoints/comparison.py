"""The differences between two checkpoints, and between the recipes of two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phonate.config.documents import parse
from phonate.training.checkpoints.files import RECIPE
from phonate.training.checkpoints.loading import Checkpoint


@dataclass(frozen=True)
class TensorChange:
    """A tensor that both checkpoints have, with other values, shape or type."""

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    largest: float | None
    """Largest absolute difference of an element. None when shape or type differ."""
    relative: float | None
    """Norm of the difference over the norm of the first. None when shape or type differ."""


@dataclass(frozen=True)
class Comparison:
    """The differences, from the first checkpoint to the second."""

    metadata: dict[str, tuple[Any, Any]]
    """Fields of the metadata that differ, as JSON values."""
    equal: int
    """Tensors of the weights that are bit for bit the same."""
    changed: tuple[TensorChange, ...]
    """Those that are not, the most changed first."""
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]


@dataclass(frozen=True)
class SettingChange:
    """A setting that two resolved recipes have with different values."""

    path: str
    """Such as `training.optimizer.lr`."""
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.path} {_short(self.before)} -> {_short(self.now)}"


def changed_settings(before: str, now: str) -> list[SettingChange]:
    """The settings that differ between two resolved recipes, given as YAML. Those that only one has are left out: an
    older version did not know them. Raises RecipeError."""
    return list(_changed("", parse(before, RECIPE).values, parse(now, RECIPE).values))


def _changed(path: str, before: Any, now: Any) -> Iterator[SettingChange]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before:
            if key not in now:
                continue
            yield from _changed(f"{path}.{key}" if path else key, before[key], now[key])
    elif before != now:
        yield SettingChange(path, before, now)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."


def misfits(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Why tensors can't be put into a model that has `wanted`: a line for each unknown name and other shape."""
    found = []
    for name, tensor in given.items():
        if name not in wanted:
            found.append(f"{name} is not in this model")
        elif tensor.shape != wanted[name].shape:
            found.append(f"{name} is {tuple(tensor.shape)} there and {tuple(wanted[name].shape)} here")
    return found


def compare(first: Checkpoint, second: Checkpoint) -> Comparison:
    """Compare metadata and weights of two checkpoints."""
    one, two = first.metadata.document(), second.metadata.document()
    changed = _changes(first.weights, second.weights)
    return Comparison(
        metadata={key: (one[key], two[key]) for key in one if one[key] != two[key]},
        equal=len(first.weights.keys() & second.weights.keys()) - len(changed),
        changed=tuple(sorted(changed, key=lambda change: -(change.relative or float("inf")))),
        only_first=tuple(sorted(first.weights.keys() - second.weights.keys())),
        only_second=tuple(sorted(second.weights.keys() - first.weights.keys())),
    )


def _changes(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> list[TensorChange]:
    changes = []
    for name in sorted(first.keys() & second.keys()):
        a, b = first[name], second[name]
        shapes = tuple(a.shape), tuple(b.shape)
        if a.shape != b.shape or a.dtype != b.dtype:
            changes.append(TensorChange(name, shapes, None, None))
        elif a.contiguous().flatten().view(torch.uint8).ne(b.contiguous().flatten().view(torch.uint8)).any():
            wide = torch.complex128 if a.is_complex() else torch.float64
            a, difference = a.to(wide), b.to(wide) - a.to(wide)
            norm = float(a.norm())
            relative = float(difference.norm()) / norm if norm else float("inf")
            changes.append(TensorChange(name, shapes, float(difference.abs().max()), relative))
    return changes
