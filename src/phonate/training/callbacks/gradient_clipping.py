"""Clip gradients by their norm."""

from __future__ import annotations

from phonate.training.callbacks._base import Callback, TrainerView


class GradientClippingCallback(Callback):
    """Scales each optimizer's gradient down to `max_norm` (Pascanu et al. 2013, Algorithm 1).

    It runs once per optimizer step, on the complete and unscaled gradient. `training.gradient_clipping` does
    the same for the 2-norm without a callback; this one supports other norms (`norm_type`, "inf" for the maximum).
    """

    def __init__(self, max_norm: float = 1.0, norm_type: float | str = 2.0) -> None:
        if not max_norm > 0:
            raise ValueError("max_norm: must be above 0")
        self.max_norm = max_norm
        self.norm_type = float(norm_type)

    def on_backward_end(self, trainer: TrainerView) -> None:
        """Clip."""
        from torch.nn.utils import clip_grad_norm_

        for optimizer in trainer.optimizers.values():
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            if parameters:
                clip_grad_norm_(parameters, self.max_norm, norm_type=self.norm_type)
