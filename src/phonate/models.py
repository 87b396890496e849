"""The models of all tasks under one roof, imported when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phonate.config.lazy import lazily

if TYPE_CHECKING:
    from phonate.tasks.cloning.inference import HiggsAudioInference
    from phonate.tasks.conversion.model import VoiceTransformer

__all__ = ["HiggsAudioInference", "VoiceTransformer"]

_HOMES = {
    "HiggsAudioInference": "phonate.tasks.cloning.inference",
    "VoiceTransformer": "phonate.tasks.conversion.model",
}


if not TYPE_CHECKING:  # type checkers see the imports above, so a name that is not there is an error
    __getattr__, __dir__ = lazily(__name__, _HOMES)
