"""Judges are optional packages: found when a score is asked for, missed in one clear line."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from phonate.config.errors import MissingPackageError


def judge_package(name: str, purpose: str, install: str = "'phonate[eval]'") -> Any:
    """The module `name`. Raises MissingPackageError where it is absent: what it is for, `pip install` and `install`."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise MissingPackageError(f"{purpose} needs the package {name}, which is not installed; pip install {install}")
    return importlib.import_module(name)


@contextmanager
def old_pkg_resources() -> Iterator[None]:
    """Let packages that ask setuptools' removed pkg_resources for their version be imported within.

    webrtcvad, which resemblyzer uses, calls only `get_distribution(name).version`, and that when it is imported.
    """
    stand_in = types.ModuleType("pkg_resources")
    stand_in.get_distribution = importlib.metadata.distribution  # type: ignore[attr-defined]
    with _standing_in(stand_in):
        yield


@contextmanager
def empty_torchaudio() -> Iterator[None]:
    """Let packages that import torchaudio, and use nothing of it for what is asked of them, be imported within.

    distillmos reads files with it in its own command line alone. There is no torchaudio for every torch, so it is
    never required.
    """
    with _standing_in(types.ModuleType("torchaudio")):
        yield


@contextmanager
def _standing_in(module: types.ModuleType) -> Iterator[None]:
    """Within, `module` stands in for a package that is absent; afterwards nothing else takes it for that package."""
    name = module.__name__
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        yield
        return
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]
