"""Gradient checkpointing: activations are recomputed in the backward pass, which saves memory and costs time.

Chen et al. 2016, "Training deep nets with sublinear memory cost". Layers are split into segments. Only the input of a
segment is stored, and one segment at a time is recomputed. Gradients are the same, dropout included.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Segments = int | Literal["auto"] | None
"""Number of segments; auto: by the device's memory; None: no checkpointing."""

_BY_MEMORY = ((20, 2), (10, 3), (6, 4))
_LITTLE_MEMORY = 6
_ON_MPS = 4
_ON_CPU = 2
_GIB = 2**30


def segments_for(device: torch.device) -> int:
    """Segments for `device`: on CUDA 2 with over 20 GiB, 3 over 10, 4 over 6, else 6; 4 on MPS, 2 on a CPU."""
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory / _GIB
        return next((segments for least, segments in _BY_MEMORY if memory > least), _LITTLE_MEMORY)
    return _ON_MPS if device.type == "mps" else _ON_CPU


def run_layers(layers: nn.ModuleList, x: Tensor, *others: Any, segments: Segments = None) -> Tensor:
    """`x` after all layers, each called as `layer(x, *others)`; `segments` of them are checkpointed."""
    if segments is None or not torch.is_grad_enabled():
        return _run(list(layers), x, *others)
    count = min(segments_for(x.device) if segments == "auto" else segments, len(layers))
    edges = [round(part * len(layers) / count) for part in range(count + 1)]
    for start, end in pairwise(edges):
        x = checkpoint(_run, list(layers)[start:end], x, *others, use_reentrant=False)
    return x


def _run(layers: Sequence[nn.Module], x: Tensor, *others: Any) -> Tensor:
    for layer in layers:
        x = layer(x, *others)
    return x
