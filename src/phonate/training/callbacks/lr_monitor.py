"""Report the learning rate."""

from __future__ import annotations

from phonate.training.callbacks._base import Callback, TrainerView


class LRMonitorCallback(Callback):
    """Emits `learning_rate` when it has changed, checked every `interval` optimizer steps.

    With several optimizers the names are `learning_rate_<phase>`. If `interval` is null, `logging.interval` is used.
    """

    def __init__(self, interval: int | None = None) -> None:
        if interval is not None and interval < 1:
            raise ValueError("interval: must be at least 1 optimizer step")
        self.interval = interval
        self.last: dict[str, float] = {}

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Emit the rates that have changed."""
        if trainer.step % (self.interval or trainer.settings.logging.interval):
            return
        single = len(trainer.optimizers) == 1
        rates = {
            "learning_rate" if single else f"learning_rate_{phase}": float(optimizer.param_groups[0]["lr"])
            for phase, optimizer in trainer.optimizers.items()
        }
        changed = {name: rate for name, rate in rates.items() if self.last.get(name) != rate}
        if changed:
            trainer.emit(changed)
            self.last.update(changed)
