"""Which packages of the extras are installed."""

from __future__ import annotations

import importlib.util


def missing(*packages: str) -> bool:
    """Whether one of them is not installed. They are not imported, as by `pytest.importorskip`: each worker
    collects all test modules, and runs the tests of half of them."""
    return any(importlib.util.find_spec(package) is None for package in packages)
