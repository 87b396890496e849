"""Callbacks by name, and the base class to derive one's own from. None of this imports torch."""

from __future__ import annotations

from phonate.training.callbacks._base import Callback, CallbackList, TrainerView
from phonate.training.callbacks._build import CALLBACKS, build_callbacks

__all__ = ["CALLBACKS", "Callback", "CallbackList", "TrainerView", "build_callbacks"]
