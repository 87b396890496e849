"""The models of all tasks under one roof, imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phonate.tasks.cloning.inference import HiggsAudioInference
    from phonate.tasks.conversion.model import VoiceTransformer

__all__ = ["HiggsAudioInference", "VoiceTransformer"]

_HOMES = {
    "HiggsAudioInference": "phonate.tasks.cloning.inference",
    "VoiceTransformer": "phonate.tasks.conversion.model",
}


if not TYPE_CHECKING:  # type checkers see the imports above, so a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
