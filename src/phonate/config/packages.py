"""Imports of optional packages, with clear errors."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from phonate.config.errors import MissingPackageError


def optional_package(name: str, purpose: str, install: str = "'phonate[eval]'") -> Any:
    """Import the module `name`. Raises MissingPackageError if it is absent.

    Args:
        name: Name of the module; its top-level package is looked up.
        purpose: What needs it, for the error message.
        install: What to install, for the error message.
    """
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        raise MissingPackageError(f"{purpose} needs the package {name}, which is not installed; pip install {install}")
    return importlib.import_module(name)
