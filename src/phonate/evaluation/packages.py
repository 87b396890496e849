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


def provide_pkg_resources() -> None:
    """Let packages that ask setuptools' removed pkg_resources for their version be imported.

    webrtcvad, which resemblyzer uses, calls only `get_distribution(name).version`.
    """
    if "pkg_resources" in sys.modules or importlib.util.find_spec("pkg_resources") is not None:
        return
    stand_in = types.ModuleType("pkg_resources")
    stand_in.get_distribution = importlib.metadata.distribution  # type: ignore[attr-defined]
    sys.modules["pkg_resources"] = stand_in


@contextmanager
def empty_torchaudio() -> Iterator[None]:
    """Let packages that import torchaudio, and use nothing of it for what is asked of them, be imported within.

    distillmos reads files with it in its own command line alone. There is no torchaudio for every torch, so it is
    never required. The stand-in is gone again afterwards: nothing else takes it for the package.
    """
    if "torchaudio" in sys.modules or importlib.util.find_spec("torchaudio") is not None:
        yield
        return
    sys.modules["torchaudio"] = types.ModuleType("torchaudio")
    try:
        yield
    finally:
        del sys.modules["torchaudio"]
