"""The names of losses. No torch in this file, so that a recipe's can be looked up when it is read."""

from __future__ import annotations

from typing import Any

from phonate.config.registry import Registry

LOSSES: Registry[Any] = Registry("loss", "phonate.nn.losses", suffix="loss", group="phonate.losses")
"""Name -> a module whose forward(outputs, targets, mask=None) returns (sum, count) or a scalar mean."""
LOSSES.register("mae", "phonate.nn.losses.l1:L1Loss")
LOSSES.register("stft", "phonate.nn.losses.multi_resolution_stft:MultiResolutionSTFTLoss")
LOSSES.register("reconstruction", "phonate.nn.losses.mse:MSELoss")
