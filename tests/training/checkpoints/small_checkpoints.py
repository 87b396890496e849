"""A small checkpoint whose every value follows from its step, for the tests of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from phonate.training.checkpoints import Checkpoint, CheckpointManager


def save(manager: CheckpointManager, step: int, numel: int = 1000, **options: Any) -> Path:
    """Save weights and moments full of `step`."""
    weights = {"layer.weight": torch.full((numel,), float(step)), "layer.bias": torch.full((3,), step)}
    state = {
        "phases": {"main": {"optimizer": {0: {"exp_avg": torch.full((numel,), -float(step))}}}},
        "step": step,
    }
    return manager.save_checkpoint(step=step, epoch=step // 10, weights=weights, state=state, **options)


def assert_whole(checkpoint: Checkpoint) -> None:
    """Every value belongs to the same step."""
    step = checkpoint.metadata.global_step
    assert checkpoint.state["step"] == step
    assert checkpoint.weights["layer.weight"].eq(step).all()
    assert checkpoint.weights["layer.bias"].eq(step).all()
    assert checkpoint.state["phases"]["main"]["optimizer"][0]["exp_avg"].eq(-step).all()


def flip_bit(path: Path, byte: int = -1, bit: int = 0) -> None:
    """Flip one bit; by default in the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if byte < 0 else byte] ^= 1 << bit
    path.write_bytes(content)
