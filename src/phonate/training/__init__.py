"""The trainer and what it is made of. Names are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Trainer": "phonate.training.trainer",
    "VoiceTrainer": "phonate.training.loaders.trainer",
    "TrainingConfig": "phonate.training.loaders.config",
    "create_trainer": "phonate.training.loaders.trainer",
    "get_default_training_config": "phonate.training.loaders.config",
    "Task": "phonate.training.task",
    "Phase": "phonate.training.task",
    "Callback": "phonate.training.callbacks",
    "LossRegistry": "phonate.training.losses",
    "LossManager": "phonate.training.losses",
    "CheckpointConfig": "phonate.training.settings",
    "CheckpointManager": "phonate.training.checkpoints",
    "CheckpointMetadata": "phonate.training.checkpoints",
    "create_checkpoint_manager": "phonate.training.checkpoints",
    "get_default_checkpoint_config": "phonate.training.checkpoints",
    "AudioConfig": "phonate.audio.settings",
    "AudioProcessor": "phonate.audio.processor",
    "DataAugmentation": "phonate.audio.augmentation",
    "VoiceDataset": "phonate.data.voices.dataset",
    "VoiceCollator": "phonate.data.voices.dataset",
    "create_voice_dataloader": "phonate.data.voices.dataset",
    "create_train_val_datasets": "phonate.data.voices.dataset",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
