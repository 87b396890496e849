"""Train voice models: one trainer, one command line, one recipe file.

Names are imported when first used, so that `import phonate` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phonate.compute.resources import ResourceDetector
    from phonate.config.errors import PhonateError
    from phonate.data.voices.files import VoiceDataDetector
    from phonate.tasks.speech.english import EnglishTrainingConfig
    from phonate.training.loaders.config import TrainingConfig
    from phonate.training.loaders.trainer import VoiceTrainer
    from phonate.training.trainer import Trainer
    from phonate.workflows.session.session import TrainingSession
    from phonate.workflows.train import train

__version__: str

__all__ = [
    "EnglishTrainingConfig",
    "PhonateError",
    "ResourceDetector",
    "Trainer",
    "TrainingConfig",
    "TrainingSession",
    "VoiceDataDetector",
    "VoiceTrainer",
    "__version__",
    "train",
]

_HOMES = {
    "EnglishTrainingConfig": "phonate.tasks.speech.english",
    "PhonateError": "phonate.config.errors",
    "ResourceDetector": "phonate.compute.resources",
    "Trainer": "phonate.training.trainer",
    "TrainingConfig": "phonate.training.loaders.config",
    "TrainingSession": "phonate.workflows.session.session",
    "VoiceDataDetector": "phonate.data.voices.files",
    "VoiceTrainer": "phonate.training.loaders.trainer",
    "train": "phonate.workflows.train",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("phonate")
    if name not in _HOMES:
        raise AttributeError(f"module 'phonate' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
