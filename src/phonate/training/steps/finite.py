"""Losses and gradient norms that are not finite end training, with the step and the samples named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phonate.config.errors import TrainingError
from phonate.training.task import Terms

GRADIENT = "the gradient norm"
ADVICE = (
    "Lower training.optimizer.lr or training.gradient_clipping, set training.mixed_precision: fp32, or check the "
    "recordings with `phonate data check`"
)


class FiniteCheck:
    """Checks numbers of each step: at once on a CPU; on other devices, where reading a number would wait for the
    device, they are collected until `flush`."""

    def __init__(self, device: torch.device) -> None:
        self._reads_at_once = device.type == "cpu"
        self._unread: list[tuple[str, int, Sequence[str], Tensor]] = []

    def check(self, what: str, value: Tensor, step: int, ids: Sequence[str], terms: Terms | None = None) -> None:
        """Check a scalar of step `step` on the samples `ids`. Raises TrainingError.

        `terms`: the loss terms it was made of, to name the one that is not finite.
        """
        if not self._reads_at_once:
            self._unread.append((what, step, ids, value.detach()))
        elif not math.isfinite(number := value.item()):
            raise _not_finite(what, number, step, ids, terms or {})

    def flush(self) -> None:
        """Check everything collected since the last call, which waits for the device. Raises TrainingError for the
        first number that is not finite."""
        unread, self._unread = self._unread, []
        if unread and not torch.stack([value.float() for *_, value in unread]).isfinite().all():
            what, step, ids, value = next(one for one in unread if not one[-1].isfinite())
            raise _not_finite(what, value.item(), step, ids, {})


def _not_finite(what: str, value: float, step: int, ids: Sequence[str], terms: dict[str, Any]) -> TrainingError:
    bad = [name for name, (total, _) in terms.items() if not torch.isfinite(total.detach()).all()]
    shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
    where = "" if what == GRADIENT else f"{', '.join(bad) or 'the sum of terms'}; "
    return TrainingError(f"{what} is {value} at step {step} ({where}batch: {shown}). {ADVICE}")
