"""Positive random features of linear attention (FAVOR+), and blockwise access to long tensors.

They are apart from the attention itself, whose functions torch.compile is to leave alone: to say so imports torch's
compiler, and that takes a second or two of every start.

Shapes: B batch, H heads, T frames, E head dimension, M random features, N parts (queries, keys, values),
R rows (items x heads), C frames per block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from phonate.nn.sequences import rotate

# -------------------------------------------------------------------- Blockwise access to long tensors

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


# ------------------------------------------------------------------ Positive random features of FAVOR+

EPSILON = 1e-4
"""Added to each feature, so that sums of features are positive."""
_LARGEST_EXPONENT = 30.0
_CUT_OFF = 0.999999 * math.exp(_LARGEST_EXPONENT)


def draw_projection(features: int, head_dim: int) -> Tensor:
    """(M, E) directions, orthogonal within blocks of E (section 2.4), each of length sqrt(E).

    This is the regularised kernel SMREG of the paper. With the lengths of Gaussian vectors the estimate of the softmax
    kernel would be unbiased, but its error is larger by at least a third (benchmarks/attention.py).
    """
    blocks = [torch.empty(min(head_dim, features - start), head_dim) for start in range(0, features, head_dim)]
    return torch.cat([nn.init.orthogonal_(block, gain=head_dim**0.5) for block in blocks])


class RandomFeatures(nn.Module):
    """The random directions of one attention module, a buffer that is saved with the weights.

    They are drawn on the CPU, so that a seed gives the same directions on every device.

    Attributes:
        redraw_interval: Optimizer steps between redraws. None: the trainer's.
        auto_redraw: Whether the trainer redraws them if the recipe sets no interval.
    """

    projection_ME: Tensor

    def __init__(self, features: int, head_dim: int) -> None:
        super().__init__()
        self.redraw_interval: int | None = None
        self.auto_redraw = True
        self.register_buffer("projection_ME", draw_projection(features, head_dim))

    def redraw_features(self) -> None:
        """Draw new directions with torch's global generator."""
        self.projection_ME.copy_(draw_projection(*self.projection_ME.shape))


class FeatureMap:
    """phi for blocks of queries or keys, and its derivative. `like`: a tensor with their dtype and device."""

    def __init__(self, projection_ME: Tensor, like: Tensor) -> None:
        self.scale = projection_ME.shape[1] ** -0.25
        self.dtype = torch.promote_types(like.dtype, torch.float32)
        """Dtype of the computation, at least float32: half precision can't represent these exponentials."""
        self.projection_EM = (self.scale * projection_ME.to(self.dtype)).T.contiguous()

    def __call__(self, x_RCE: Tensor) -> Tensor:
        """x (R, C, E) -> phi (R, C, M), positive."""
        half_square_RC1 = x_RCE.square().sum(dim=-1, keepdim=True).mul_(-0.5 * self.scale**2)
        exponent_RCM = torch.matmul(x_RCE, self.projection_EM).add_(half_square_RC1)
        return exponent_RCM.clamp_max_(_LARGEST_EXPONENT).exp_().add_(EPSILON)

    def backward(self, grad_RCM: Tensor, features_RCM: Tensor, x_RCE: Tensor) -> Tensor:
        """The gradient of x (R, C, E), from the gradient of phi, which is overwritten, and phi itself (R, C, M)."""
        grad_RCM = grad_RCM.mul_(features_RCM - EPSILON).masked_fill_(features_RCM > _CUT_OFF, 0.0)
        own_RC1 = grad_RCM.sum(dim=-1, keepdim=True).mul_(self.scale**2)
        return torch.matmul(grad_RCM, self.projection_EM.T).sub_(x_RCE * own_RC1)
