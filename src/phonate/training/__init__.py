"""The trainer and what it is made of. Names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phonate.config.lazy import lazily

if TYPE_CHECKING:
    from phonate.audio.augmentation import DataAugmentation as DataAugmentation
    from phonate.audio.processor import AudioProcessor as AudioProcessor
    from phonate.audio.settings import AudioConfig as AudioConfig
    from phonate.compute.resources import DeviceType as DeviceType
    from phonate.data.voice_dataset import VoiceCollator as VoiceCollator
    from phonate.data.voice_dataset import VoiceDataset as VoiceDataset
    from phonate.data.voice_dataset import create_train_val_datasets as create_train_val_datasets
    from phonate.data.voice_dataset import create_voice_dataloader as create_voice_dataloader
    from phonate.nn.losses import MultiResolutionSTFTLoss as MultiResolutionSTFTLoss
    from phonate.nn.losses import SpectralLoss as SpectralLoss
    from phonate.training.callbacks import Callback as Callback
    from phonate.training.checkpoints import CheckpointManager as CheckpointManager
    from phonate.training.checkpoints import CheckpointMetadata as CheckpointMetadata
    from phonate.training.checkpoints import create_checkpoint_manager as create_checkpoint_manager
    from phonate.training.checkpoints import get_default_checkpoint_config as get_default_checkpoint_config
    from phonate.training.losses import LossManager as LossManager
    from phonate.training.losses import LossRegistry as LossRegistry
    from phonate.training.memory import AdaptiveMemoryManager as AdaptiveMemoryManager
    from phonate.training.precision import MPSGradScaler as MPSGradScaler
    from phonate.training.profiling import InterbatchProfiler as InterbatchProfiler
    from phonate.training.settings import CheckpointConfig as CheckpointConfig
    from phonate.training.settings import TrainingConfig as TrainingConfig
    from phonate.training.settings import get_default_training_config as get_default_training_config
    from phonate.training.task import Phase as Phase
    from phonate.training.task import Task as Task
    from phonate.training.trainer import Trainer as Trainer
    from phonate.training.voice_trainer import VoiceTrainer as VoiceTrainer
    from phonate.training.voice_trainer import create_trainer as create_trainer

_HOMES = {
    "DeviceType": "phonate.compute.resources",
    "MultiResolutionSTFTLoss": "phonate.nn.losses",
    "SpectralLoss": "phonate.nn.losses",
    "AdaptiveMemoryManager": "phonate.training.memory",
    "MPSGradScaler": "phonate.training.precision",
    "InterbatchProfiler": "phonate.training.profiling",
    "Trainer": "phonate.training.trainer",
    "VoiceTrainer": "phonate.training.voice_trainer",
    "TrainingConfig": "phonate.training.settings",
    "create_trainer": "phonate.training.voice_trainer",
    "get_default_training_config": "phonate.training.settings",
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
    "VoiceDataset": "phonate.data.voice_dataset",
    "VoiceCollator": "phonate.data.voice_dataset",
    "create_voice_dataloader": "phonate.data.voice_dataset",
    "create_train_val_datasets": "phonate.data.voice_dataset",
}

__all__ = sorted(_HOMES)


if not TYPE_CHECKING:  # type checkers see the imports above, so a name that is not there is an error
    __getattr__, __dir__ = lazily(__name__, _HOMES)
