"""Losses by name, and what they return over a batch. All keep to (sum, count), see `phonate.nn.losses._base`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.nn.losses._base import SumCount, expanded
from phonate.training.registries import LOSSES
from phonate.training.task import Coupling

logger = logging.getLogger(__name__)


class LossRegistry:
    """The losses that recipes can name."""

    @staticmethod
    def register(name: str, loss: type[nn.Module]) -> None:
        """Make `loss` known as `name`. Its forward(outputs, targets[, mask]) returns a scalar mean over the
        batch, or the sum and the count. Without `mask` it is called for each item, see `compute`."""
        LOSSES.register(name, loss)

    @staticmethod
    def get(name: str) -> type[nn.Module]:
        """The loss called `name`. Raises InputError with the nearest name."""
        loss: type[nn.Module] = LOSSES.get(name)
        return loss

    @staticmethod
    def names() -> list[str]:
        """Every name."""
        return LOSSES.names()


def compute(loss: nn.Module, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> SumCount:
    """Sum and count of any loss over a batch whose first dimension is the items.

    A loss that returns a scalar counts as that mean times the items. One that takes no mask is called for each item
    alone, with the values that `mask` keeps, (1, N, ...): emptied padding would still count in its mean. Items of
    which nothing is kept don't count. Raises InputError for a result of another form, and for a loss without a mask
    that compares items with each other.
    """
    if mask is None or _takes_mask(loss):
        return _sum_and_count(loss, outputs, targets, *(() if mask is None else (mask,)))
    if getattr(loss, "couples_items", False):
        raise InputError(f"{type(loss).__name__} couples the items of a batch, so its forward must take a mask")
    for values in (outputs, targets):
        expanded(mask, values)  # refuses shapes that do not fit
    total: Tensor = outputs[:0].sum()
    count: Tensor | float = 0.0
    for number in range(len(outputs)):
        item = slice(number, number + 1)
        if mask[item].any():
            of_item, counted = _sum_and_count(loss, *(_kept(values[item], mask[item]) for values in (outputs, targets)))
            total, count = total + of_item, count + counted
    return total, count


def _kept(values: Tensor, mask: Tensor) -> Tensor:
    """The values (1, N, ...) of one item, (1, T, ...), that a mask (1, T) keeps."""
    return values[mask.bool()] if mask.dim() == 1 else values[mask.bool()][None]


def _sum_and_count(loss: nn.Module, *arguments: Tensor) -> SumCount:
    """What a loss returns of arguments whose first dimension is the items, as a sum and a count."""
    result = loss(*arguments)
    if isinstance(result, tuple):
        return result
    if not isinstance(result, Tensor) or result.numel() != 1:
        raise InputError(f"{type(loss).__name__} must return a scalar or (sum, count), not {_described(result)}")
    items = float(len(arguments[0]))
    return result.reshape(()) * items, items


def apply_loss(
    loss: nn.Module,
    *,
    outputs: Callable[[], tuple[Tensor, Tensor, Tensor | None]],
    embeddings: Callable[[], tuple[Tensor, Tensor]],
    model: Callable[[], nn.Module],
) -> SumCount:
    """Sum and count of a loss from what it takes: outputs with targets and mask, embeddings with labels, or the model.
    Only that function is called; it raises InputError where there is no such thing."""
    takes = getattr(loss, "takes", "outputs")
    if takes == "model":
        result: SumCount = loss(model())
        return result
    if takes == "embeddings":
        result = loss(*embeddings())
        return result
    return compute(loss, *outputs())


def coupling_of(losses: Iterable[nn.Module]) -> Coupling:
    """The coupling of a task that is trained by `losses`. A loss module sees one micro-batch, so that is what its
    `couples_items` is about."""
    coupled = any(getattr(loss, "couples_items", False) for loss in losses)
    return Coupling.MICRO_BATCH if coupled else Coupling.NONE


def _takes_mask(loss: nn.Module) -> bool:
    parameters = inspect.signature(loss.forward).parameters.values()
    return any(p.name == "mask" or p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


def _described(result: Any) -> str:
    return f"a tensor of {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
