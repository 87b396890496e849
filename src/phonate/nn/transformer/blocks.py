"""Blockwise access to long tensors: intermediate results are computed per block of frames, and never stored for all.

Shapes: B batch, H heads, T frames, E head dimension, N parts (queries, keys, values), R rows (items x heads), C frames
per block.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from phonate.nn.positions import rotate

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the frames, from `RotaryPositions`."""

_CPU_BLOCK = 64
_CPU_ROWS = 32
_GPU_BLOCKS = (128, 1024)
"""Minimum and maximum block length; in between, a block has `_GPU_CELLS` rows x frames."""
_GPU_CELLS = 65536


def batch_blocks(x_NBHTE: Tensor) -> Iterator[slice]:
    """Slices of the batch. On a CPU they are small, so that a block with all features fits the cache."""
    batch, heads = x_NBHTE.shape[1:3]
    step = max(1, _CPU_ROWS // heads) if x_NBHTE.device.type == "cpu" else batch
    return (slice(start, min(batch, start + step)) for start in range(0, batch, step))


def frame_blocks(x_NBHTE: Tensor) -> list[slice]:
    """Slices of the frames, in order."""
    batch, heads, frames = x_NBHTE.shape[1:4]
    step = _CPU_BLOCK
    if x_NBHTE.device.type != "cpu":
        smallest, largest = _GPU_BLOCKS
        step = min(largest, max(smallest, _GPU_CELLS // max(1, batch * heads)))
    return [slice(start, min(frames, start + step)) for start in range(0, frames, step)]


def read(x_BHTE: Tensor, frames: slice, dtype: torch.dtype, rotation: Rotation | None = None) -> Tensor:
    """One block (R, C, E) of the given dtype, rotated if `rotation` is given."""
    block_BHCE = x_BHTE[:, :, frames].to(dtype)
    if rotation is not None:
        block_BHCE = rotate(block_BHCE, (rotation[0][frames], rotation[1][frames]))
    return block_BHCE.flatten(0, 1)


def write(target_BHTE: Tensor, frames: slice, block_RCE: Tensor, rotation: Rotation | None = None) -> None:
    """Store one block. With a rotation, the block is a gradient with respect to rotated values, and rotated back."""
    block_BHCE = block_RCE.view(*target_BHTE.shape[:2], -1, target_BHTE.shape[-1])
    if rotation is not None:
        block_BHCE = rotate(block_BHCE, (rotation[0][frames], -rotation[1][frames]))
    target_BHTE[:, :, frames] = block_BHCE


def like_packed(x_NBHTE: Tensor) -> Tensor:
    """An empty tensor of the same shape with memory layout (B, T, N, H, E), that of a linear layer's output."""
    parts, batch, heads, frames, head_dim = x_NBHTE.shape
    return x_NBHTE.new_empty(batch, frames, parts, heads, head_dim).permute(2, 0, 3, 1, 4)
