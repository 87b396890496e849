"""Random generators: torch's, seeded from keys, and the global ones of Python, numpy and torch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from phonate.config.randomness import derived_seed


def seed_torch(device: torch.device, *keys: int | str) -> None:
    """Seed torch's generators from keys, so that dropout and the like are a function of (seed, step, ...).

    (torch.manual_seed formats a stack trace for CUDA at each call: 50 times the cost.)
    """
    seed = derived_seed(*keys)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # there are no generators before
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def seed_global_generators(seed: int) -> None:
    """Seed Python's and numpy's global generators. phonate never draws from them; plug-ins and callers may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def global_generators() -> dict[str, Any]:
    """The states of Python's, numpy's and torch's global generators."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }


def restore_global_generators(states: Mapping[str, Any]) -> None:
    """Restore the states."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])


class GlobalGenerators:
    """The global generators as part of a run's state.

    Args:
        seed: Of a run that begins.
        saved: Whether checkpoints hold their states (`training.checkpoint.snapshot_random_states`).
    """

    def __init__(self, seed: int, saved: bool) -> None:
        self._seed = seed
        self._saved = saved
        self._restored: Mapping[str, Any] | None = None

    def state(self) -> dict[str, Any] | None:
        """The state of each."""
        return global_generators() if self._saved else None

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Begin with these states."""
        self._restored = state

    def start(self) -> None:
        """Seed the generators, or restore their states. Called right before the first step, because a library may draw
        from them when it is first imported, as rich does."""
        if self._restored is None:
            seed_global_generators(self._seed)
        else:
            restore_global_generators(self._restored)
