"""Cross entropy with smoothed targets."""

from __future__ import annotations

from phonate.nn.losses.cross_entropy import CrossEntropyLoss


class LabelSmoothingLoss(CrossEntropyLoss):
    """`cross_entropy` with a label smoothing of 0.1 (Szegedy et al. 2016, section 7)."""

    def __init__(self, label_smoothing: float = 0.1) -> None:
        super().__init__(label_smoothing)
