"""Which packages of the extras are installed."""

from __future__ import annotations

import importlib.util


def missing(*packages: str) -> bool:
    """Whether one of them is not installed. Unlike `pytest.importorskip`, this imports nothing: each worker collects
    all test modules but runs only half of them."""
    return any(importlib.util.find_spec(package) is None for package in packages)
