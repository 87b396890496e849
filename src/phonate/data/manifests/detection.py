"""Which format a corpus has, when the recipe does not say.

Every file of `phonate.data.corpora` says itself what it recognises: `recognises(path)`, and PRIORITY, for several may
recognise the same folder (a list beside recordings, say); the highest counts. Plug-ins do the same in the module of
their function, and come first unless they say otherwise.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from phonate.config.errors import DataError
from phonate.data.settings import CORPORA

_PLUGGED_IN = 100


def detect_format(path: Path) -> str:
    """The name of a format: folder, json, csv, ... Raises DataError saying what was found instead."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; data.path is relative to {Path.cwd()}")
    found = [(_priority(module), name, module) for name in CORPORA.names() if (module := module_of(name)) is not None]
    for _, name, module in sorted(found, key=lambda one: (-one[0], one[1])):
        recognises: Callable[[Path], bool] = module.recognises
        if recognises(path):
            return name
    if not path.is_dir():
        raise DataError(f"{path}: not a list of recordings in a known format; name the format by data.format")
    try:
        listed = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    raise DataError(f"{path}: no audio files and no metadata.csv or metadata.json in it (found: {listed})")


def module_of(name: str) -> ModuleType | None:
    """The module of a format, if it recognises corpora by itself."""
    entry = CORPORA.find(name)
    if isinstance(entry, str):
        module: ModuleType | None = importlib.import_module(entry.partition(":")[0])
    else:
        module = sys.modules.get(getattr(entry, "__module__", ""))
    return module if hasattr(module, "recognises") else None


def _priority(module: ModuleType) -> int:
    return int(getattr(module, "PRIORITY", _PLUGGED_IN))
