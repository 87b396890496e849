"""Which modules torch.compile was given, and which of them were called: what it makes of the others never runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch import nn


def calls_of_compiled(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each module that is compiled from now on was called, by its class; nothing is in fact compiled."""
    calls: Counter[str] = Counter()

    def compile_nothing(module: nn.Module, *args: Any, **options: Any) -> None:
        name = type(module).__name__
        calls[name] += 0

        def count(*inputs: Any) -> None:
            calls[name] += 1

        module.register_forward_pre_hook(count)

    monkeypatch.setattr(nn.Module, "compile", compile_nothing)
    return calls
