"""The checkpoint store. Names are imported when they are first used, so that listing a run needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phonate.config.lazy import lazily

if TYPE_CHECKING:
    from phonate.training.checkpoints.listing import best_or_latest as best_or_latest
    from phonate.training.checkpoints.listing import resolve_checkpoint as resolve_checkpoint
    from phonate.training.checkpoints.loading import Checkpoint as Checkpoint
    from phonate.training.checkpoints.manager import (
        CheckpointManager as CheckpointManager,
    )
    from phonate.training.checkpoints.manager import (
        create_checkpoint_manager as create_checkpoint_manager,
    )
    from phonate.training.checkpoints.manager import (
        get_default_checkpoint_config as get_default_checkpoint_config,
    )
    from phonate.training.checkpoints.metadata import CheckpointMetadata as CheckpointMetadata
    from phonate.training.settings import CheckpointConfig as CheckpointConfig

_HOMES = {
    "Checkpoint": "phonate.training.checkpoints.loading",
    "CheckpointConfig": "phonate.training.settings",
    "CheckpointManager": "phonate.training.checkpoints.manager",
    "CheckpointMetadata": "phonate.training.checkpoints.metadata",
    "best_or_latest": "phonate.training.checkpoints.listing",
    "create_checkpoint_manager": "phonate.training.checkpoints.manager",
    "get_default_checkpoint_config": "phonate.training.checkpoints.manager",
    "resolve_checkpoint": "phonate.training.checkpoints.listing",
}

__all__ = sorted(_HOMES)


__getattr__, __dir__ = lazily(__name__, _HOMES)
