"""Learning rate schedules. Importing this package does not import torch."""

from __future__ import annotations

from phonate.training.registries import SCHEDULES
from phonate.training.schedules._base import Schedule
from phonate.training.schedules._build import build_schedule

__all__ = ["SCHEDULES", "Schedule", "build_schedule"]
