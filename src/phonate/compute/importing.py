"""What takes long in `import torch` and can be left out."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType


@contextmanager
def faster_import() -> Iterator[None]:
    """Within, to import torch takes a twentieth less processor time."""
    with _lazily_bound(), _modules_by_name():
        yield


@contextmanager
def _lazily_bound() -> Iterator[None]:
    """The loader looks up a library's functions when they are first called. By itself Python has it look up all of them
    at once: torch's libraries have 48,000, of which a training calls few."""
    if sys.platform == "win32":
        yield
        return
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        yield
    finally:
        sys.setdlopenflags(flags)


@contextmanager
def _modules_by_name() -> Iterator[None]:
    """`inspect` tells the module of a frame by its name. By itself it resolves the paths of all modules to compare them
    with the frame's, and torch asks for frames of its own as it registers operators."""
    by_path = inspect.getmodule

    def by_name(object: object, _filename: str | None = None) -> ModuleType | None:
        module = sys.modules.get(object.f_globals.get("__name__", "")) if isinstance(object, FrameType) else None
        return module or by_path(object, _filename)

    inspect.getmodule = by_name
    try:
        yield
    finally:
        inspect.getmodule = by_path
