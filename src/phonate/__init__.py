"""Train voice models: one trainer, one command line, one recipe file.

Names are imported when first used, so that `import phonate` stays light.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from phonate.config.lazy import lazily

if TYPE_CHECKING:
    from phonate.compute.resources import ResourceDetector
    from phonate.config.errors import PhonateError
    from phonate.data.voices import VoiceDataDetector
    from phonate.tasks.cloning.inference import HiggsAudioInference, VoiceCloner
    from phonate.tasks.conversion.inference import Converter
    from phonate.tasks.diarization.data import DiarizationCollator
    from phonate.tasks.diarization.inference import Diarizer
    from phonate.tasks.language.inference import Generator
    from phonate.tasks.recognition.inference import Transcriber
    from phonate.tasks.speech.inference import Synthesiser
    from phonate.tasks.speech.settings import EnglishTrainingConfig, get_default_config, get_small_config
    from phonate.tasks.vocoder.inference import NeuralVocoder
    from phonate.training.inference import Inference
    from phonate.training.settings import TrainingConfig
    from phonate.training.trainer import Trainer
    from phonate.training.voice_trainer import VoiceTrainer
    from phonate.workflows.align import align
    from phonate.workflows.load import load
    from phonate.workflows.replay import replay
    from phonate.workflows.session.session import TrainingSession
    from phonate.workflows.train import train

__version__: str

__all__ = [
    "Converter",
    "DiarizationCollator",
    "Diarizer",
    "EnglishTrainingConfig",
    "Generator",
    "HiggsAudioInference",
    "Inference",
    "NeuralVocoder",
    "PhonateError",
    "ResourceDetector",
    "Synthesiser",
    "Trainer",
    "TrainingConfig",
    "TrainingSession",
    "Transcriber",
    "VoiceCloner",
    "VoiceDataDetector",
    "VoiceTrainer",
    "__version__",
    "align",
    "get_default_config",
    "get_small_config",
    "load",
    "replay",
    "train",
]

_HOMES = {
    "Converter": "phonate.tasks.conversion.inference",
    "DiarizationCollator": "phonate.tasks.diarization.data",
    "Diarizer": "phonate.tasks.diarization.inference",
    "EnglishTrainingConfig": "phonate.tasks.speech.settings",
    "Generator": "phonate.tasks.language.inference",
    "HiggsAudioInference": "phonate.tasks.cloning.inference",
    "Inference": "phonate.training.inference",
    "NeuralVocoder": "phonate.tasks.vocoder.inference",
    "PhonateError": "phonate.config.errors",
    "ResourceDetector": "phonate.compute.resources",
    "Synthesiser": "phonate.tasks.speech.inference",
    "Trainer": "phonate.training.trainer",
    "TrainingConfig": "phonate.training.settings",
    "TrainingSession": "phonate.workflows.session.session",
    "Transcriber": "phonate.tasks.recognition.inference",
    "VoiceCloner": "phonate.tasks.cloning.inference",
    "VoiceDataDetector": "phonate.data.voices",
    "VoiceTrainer": "phonate.training.voice_trainer",
    "align": "phonate.workflows.align",
    "get_default_config": "phonate.tasks.speech.settings",
    "get_small_config": "phonate.tasks.speech.settings",
    "load": "phonate.workflows.load",
    "replay": "phonate.workflows.replay",
    "train": "phonate.workflows.train",
}


# torch's threads wait for each other by spinning: 300,000 times by libgomp's default, which takes the core that another
# program has left to one that others need. 1000 is its own number where it knows of more threads than cores. Beside a
# busy program, a step takes two thirds of the time; on an idle machine, 1 to 4 % more (benchmarks/busy_core.py).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if not TYPE_CHECKING:  # type checkers see the imports above, so a name that is not there is an error
    _named, _ = lazily(__name__, _HOMES)

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("phonate")
        return _named(name)


def __dir__() -> list[str]:
    return sorted(__all__)
