"""Judges are optional packages: found when a score is asked for, missed in one clear line."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import types
from typing import Any

from phonate.config.errors import MissingPackageError


def judge_package(name: str, purpose: str) -> Any:
    """The module `name`. Raises MissingPackageError, which says how to install it, where it is absent."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise MissingPackageError(
            f"{purpose} needs the package {name}, which is not installed; pip install 'phonate[eval]'"
        )
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
