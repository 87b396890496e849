"""What acoustic models give. Shapes: L tokens, T frames, M mel bands."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SpokenSentence(NamedTuple):
    """A sentence as a model speaks it."""

    mel_TM: Tensor
    """From 0 to 1."""
    f0_T: Tensor | None
    """Hz, 0 where unvoiced; None for a model that does not predict it."""
    durations_L: Tensor | None
    """Frames of each token; None for a model that does not keep to them."""
