"""A curriculum: terms that are hard at first come in slowly."""

from __future__ import annotations

import math

LEAST = 0.1
"""Share of its weight with which a term begins."""


def share(step: int, steps: int | None) -> float:
    """Share of its weight that a term has in optimizer step `step` (from 0): from `LEAST` to 1 over `steps` steps along
    half a cosine, and 1 from then on. None: always 1."""
    if steps is None or step >= steps:
        return 1.0
    return LEAST + (1.0 - LEAST) * (1.0 - math.cos(math.pi * step / steps)) / 2.0
