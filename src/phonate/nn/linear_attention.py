"""Linear attention, whose time and memory are linear in the length: of all frames, or causal.

exp(q.k / sqrt(E)) is the mean over Gaussian directions w of phi(q) phi(k), with phi(x) = exp(w.y - |y|^2 / 2) and
y = x / E^(1/4) (FAVOR+). The published phi is exp(w.y - |y|^2 / 2 - max) + 1e-4, with the maximum over all keys:
through the 1e-4, a later key with large values, or padding, affects all frames. Here no maximum is subtracted.
Exponents are at most |w|^2 / 2 = E / 2, rarely above 12, and are clamped to 30, so that sums over any number of frames
are finite in float32.

The attention of a query q is sum(phi(q).phi(k) v) / sum(phi(q).phi(k)) over keys k and values v. As phi(q) can be
factored out of both sums, they are computed once for all queries. Features are computed in blocks, and recomputed in
the backward pass instead of stored.

In causal attention, within a block of frames the products of all pairs are computed and later keys masked; earlier
blocks enter through running sums. The backward pass recomputes the features, once forwards for the gradient of the
queries and once backwards for that of keys and values, so that no tensor of the size of the features is kept (a
blockwise form of Katharopoulos et al. 2020, section 3.3.1).

Shapes: B batch, H heads, T frames or queries, S keys, E head dimension, M random features, N parts (queries, keys,
values), R rows (items x heads), C frames per block.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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


# ------------------------------------ Linear attention, whose time and memory are linear in the length

P = ParamSpec("P")
R = TypeVar("R")


def _uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """As `torch.compiler.disable`, for functions whose loops over blocks torch.compile would unroll; without importing
    the compiler, which takes a second or two of every start, where nothing is compiled."""

    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return call


SMALLEST_SUM = 1e-12
"""Lower bound of the denominator, so that without keys the output is 0, not NaN. With a key it is >= M x EPSILON^2."""


@dataclass
class LinearSums:
    """Sums over keys, which represent them in linear attention."""

    weighted_BHME: Tensor
    """Sum of phi(k) v."""
    plain_BHM: Tensor
    """Sum of phi(k)."""

    @classmethod
    def empty(cls, batch: int, heads: int, projection_ME: Tensor) -> Self:
        """Sums over no keys."""
        features, head_dim = projection_ME.shape
        return cls(
            projection_ME.new_zeros(batch, heads, features, head_dim), projection_ME.new_zeros(batch, heads, features)
        )

    def select(self, rows_B: Tensor) -> Self:
        """A copy with these rows of the batch."""
        return type(self)(self.weighted_BHME[rows_B], self.plain_BHM[rows_B])


@_uncompiled
def key_sums(
    key_value_2BHSE: Tensor, projection_ME: Tensor, mask_BS: Tensor | None = None, rotation: Rotation | None = None
) -> LinearSums:
    """The sums over keys and values (2, B, H, S, E). `mask_BS`: True for keys that are included; None: all."""
    weighted_BHME, plain_BHM = _KeySums.apply(  # type: ignore[no-untyped-call]
        key_value_2BHSE, projection_ME, mask_BS, rotation
    )
    return LinearSums(weighted_BHME, plain_BHM)


@_uncompiled
def read_sums(query_BHTE: Tensor, sums: LinearSums, projection_ME: Tensor, rotation: Rotation | None = None) -> Tensor:
    """Attention of queries (B, H, T, E) to the keys in `sums`: (B, H, T, E)."""
    out: Tensor = _ReadSums.apply(  # type: ignore[no-untyped-call]
        query_BHTE, sums.weighted_BHME, sums.plain_BHM, projection_ME, rotation
    )
    return out


def masked(features_RCM: Tensor, mask_BT: Tensor | None, rows: slice, frames: slice) -> Tensor:
    """Sets features (R, C, M), or their gradient, to zero in padding, in place."""
    if mask_BT is None:
        return features_RCM
    mask_BC = mask_BT[rows, frames]
    by_item = features_RCM.view(mask_BC.shape[0], -1, *features_RCM.shape[1:])
    by_item.masked_fill_(~mask_BC[:, None, :, None], 0.0)
    return features_RCM


class _KeySums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_2BHSE: Tensor, projection_ME: Tensor, mask_BS: Any, rotation: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x_2BHSE, projection_ME)
        ctx.others = mask_BS, rotation
        phi = FeatureMap(projection_ME, x_2BHSE)
        _, batch, heads, _, head_dim = x_2BHSE.shape
        weighted_BHME = x_2BHSE.new_zeros(batch, heads, projection_ME.shape[0], head_dim, dtype=phi.dtype)
        plain_BHM = x_2BHSE.new_zeros(weighted_BHME.shape[:3], dtype=phi.dtype)
        with torch.autocast(x_2BHSE.device.type, enabled=False):
            for rows in batch_blocks(x_2BHSE):
                keys, values = x_2BHSE[:, rows]
                weighted_RME, plain_RM = weighted_BHME[rows].flatten(0, 1), plain_BHM[rows].flatten(0, 1)
                for frames in frame_blocks(x_2BHSE):
                    features_RCM = masked(phi(read(keys, frames, phi.dtype, rotation)), mask_BS, rows, frames)
                    weighted_RME.baddbmm_(features_RCM.transpose(1, 2), read(values, frames, phi.dtype))
                    plain_RM.add_(features_RCM.sum(dim=1))
        return weighted_BHME, plain_BHM

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weighted_BHME: Tensor, plain_BHM: Tensor) -> Any:
        x_2BHSE, projection_ME = ctx.saved_tensors
        mask_BS, rotation = ctx.others
        phi = FeatureMap(projection_ME, x_2BHSE)
        grad_2BHSE = like_packed(x_2BHSE)
        with torch.autocast(x_2BHSE.device.type, enabled=False):
            for rows in batch_blocks(x_2BHSE):
                (keys, values), (key_grad, value_grad) = x_2BHSE[:, rows], grad_2BHSE[:, rows]
                weighted_RME, plain_R1M = weighted_BHME[rows].flatten(0, 1), plain_BHM[rows].flatten(0, 1)[:, None]
                for frames in frame_blocks(x_2BHSE):
                    key_RCE, value_RCE = read(keys, frames, phi.dtype, rotation), read(values, frames, phi.dtype)
                    features_RCM = phi(key_RCE)
                    grad_RCM = torch.baddbmm(plain_R1M, value_RCE, weighted_RME.transpose(1, 2))
                    grad_RCM = masked(grad_RCM, mask_BS, rows, frames)
                    write(key_grad, frames, phi.backward(grad_RCM, features_RCM, key_RCE), rotation)
                    write(value_grad, frames, masked(features_RCM, mask_BS, rows, frames) @ weighted_RME)
        return grad_2BHSE, None, None, None


class _ReadSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_BHTE: Tensor, weighted_BHME: Tensor, plain_BHM: Tensor, projection_ME: Tensor, rotation: Any
    ) -> Tensor:
        ctx.save_for_backward(x_BHTE, weighted_BHME, plain_BHM, projection_ME)
        ctx.rotation = rotation
        phi = FeatureMap(projection_ME, x_BHTE)
        x_1BHTE = x_BHTE[None]
        out_BHTE = like_packed(x_1BHTE)[0]
        with torch.autocast(x_BHTE.device.type, enabled=False):
            for rows in batch_blocks(x_1BHTE):
                weighted_RME, plain_RM1 = weighted_BHME[rows].flatten(0, 1), plain_BHM[rows].flatten(0, 1)[..., None]
                for frames in frame_blocks(x_1BHTE):
                    features_RCM = phi(read(x_BHTE[rows], frames, phi.dtype, rotation))
                    sum_RC1 = torch.bmm(features_RCM, plain_RM1).clamp_min_(SMALLEST_SUM)
                    write(out_BHTE[rows], frames, torch.bmm(features_RCM, weighted_RME).div_(sum_RC1))
        return out_BHTE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHTE: Tensor) -> Any:
        x_BHTE, weighted_BHME, plain_BHM, projection_ME = ctx.saved_tensors
        phi = FeatureMap(projection_ME, x_BHTE)
        x_1BHTE = x_BHTE[None]
        query_grad = like_packed(x_1BHTE)[0]
        weighted_grad, plain_grad = torch.zeros_like(weighted_BHME), torch.zeros_like(plain_BHM)
        with torch.autocast(x_BHTE.device.type, enabled=False):
            for rows in batch_blocks(x_1BHTE):
                weighted_RME, plain_RM1 = weighted_BHME[rows].flatten(0, 1), plain_BHM[rows].flatten(0, 1)[..., None]
                weighted_out, plain_out = weighted_grad[rows].flatten(0, 1), plain_grad[rows].flatten(0, 1)
                for frames in frame_blocks(x_1BHTE):
                    query_RCE = read(x_BHTE[rows], frames, phi.dtype, ctx.rotation)
                    features_RCM = phi(query_RCE)
                    sum_RC1 = torch.bmm(features_RCM, plain_RM1).clamp_min_(SMALLEST_SUM)
                    out_RCE = torch.bmm(features_RCM, weighted_RME).div_(sum_RC1)
                    share_RCE = read(grad_BHTE[rows], frames, phi.dtype) / sum_RC1
                    own_RC1 = (share_RCE * out_RCE).sum(dim=-1, keepdim=True)
                    weighted_out.baddbmm_(features_RCM.transpose(1, 2), share_RCE)
                    plain_out.sub_((features_RCM * own_RC1).sum(dim=1))
                    grad_RCM = torch.bmm(share_RCE, weighted_RME.transpose(1, 2)).sub_(own_RC1 * plain_RM1.mT)
                    write(query_grad[rows], frames, phi.backward(grad_RCM, features_RCM, query_RCE), ctx.rotation)
        return query_grad, weighted_grad, plain_grad, None, None


# ------------------------------ Causal linear attention: each frame attends to itself and earlier ones


@_uncompiled
def causal_attention(
    packed_3BHTE: Tensor,
    projection_ME: Tensor,
    mask_BT: Tensor | None = None,
    rotation: Rotation | None = None,
    before: LinearSums | None = None,
) -> tuple[Tensor, LinearSums]:
    """Attention of each frame to itself, to earlier frames, and to those in `before`.

    Args:
        packed_3BHTE: Queries, keys and values.
        projection_ME: Directions of the random features.
        mask_BT: True for frames that are attended to; None: all.
        rotation: Rotary positions of queries and keys.
        before: Sums over frames before these; no gradient flows through them.

    Returns:
        The output (B, H, T, E), and the sums after the last frame.
    """
    if before is None:
        before = LinearSums.empty(packed_3BHTE.shape[1], packed_3BHTE.shape[2], projection_ME)
    out_BHTE, *after = _CausalAttention.apply(  # type: ignore[no-untyped-call]
        packed_3BHTE, before.weighted_BHME, before.plain_BHM, projection_ME, mask_BT, rotation
    )
    return out_BHTE, LinearSums(*after)


class _Block(NamedTuple):
    """The inputs of one block of frames, for both passes."""

    query_RCE: Tensor
    key_RCE: Tensor
    value_RCE: Tensor
    query_RCM: Tensor
    """Features of the queries."""
    key_RCM: Tensor
    """Features of the keys, zero for padding."""

    def weights(self) -> Tensor:
        """(R, C, C): unnormalised attention weights of each query, zero for later keys."""
        return torch.bmm(self.query_RCM, self.key_RCM.transpose(1, 2)).tril_()


class _Reader:
    """Reads blocks of slices of the batch."""

    def __init__(self, packed_3BHTE: Tensor, phi: FeatureMap, mask_BT: Tensor | None, rotation: Rotation | None):
        self.packed_3BHTE = packed_3BHTE
        self.phi = phi
        self.mask_BT = mask_BT
        self.rotation = rotation

    def block(self, rows: slice, frames: slice) -> _Block:
        queries, keys, values = self.packed_3BHTE[:, rows]
        query_RCE = read(queries, frames, self.phi.dtype, self.rotation)
        key_RCE = read(keys, frames, self.phi.dtype, self.rotation)
        key_RCM = masked(self.phi(key_RCE), self.mask_BT, rows, frames)
        return _Block(query_RCE, key_RCE, read(values, frames, self.phi.dtype), self.phi(query_RCE), key_RCM)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        packed_3BHTE: Tensor,
        weighted_BHME: Tensor,
        plain_BHM: Tensor,
        projection_ME: Tensor,
        mask_BT: Any,
        rotation: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        phi = FeatureMap(projection_ME, packed_3BHTE)
        ctx.save_for_backward(packed_3BHTE, weighted_BHME, plain_BHM, projection_ME)
        ctx.others = mask_BT, rotation
        reader = _Reader(packed_3BHTE, phi, mask_BT, rotation)
        out_BHTE = like_packed(packed_3BHTE[:1])[0]
        weighted_BHME, plain_BHM = weighted_BHME.to(phi.dtype, copy=True), plain_BHM.to(phi.dtype, copy=True)
        with torch.autocast(packed_3BHTE.device.type, enabled=False):
            for rows in batch_blocks(packed_3BHTE):
                sums = _Sums(weighted_BHME[rows], plain_BHM[rows])
                for frames in frame_blocks(packed_3BHTE):
                    block = reader.block(rows, frames)
                    out_RCE, sum_RC1 = sums.attended(block, block.weights())
                    write(out_BHTE[rows], frames, out_RCE.div_(sum_RC1))
                    sums.add(block)
        ctx.mark_non_differentiable(weighted_BHME, plain_BHM)
        return out_BHTE, weighted_BHME, plain_BHM

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHTE: Tensor, *_: Tensor) -> Any:
        packed_3BHTE, weighted_BHME, plain_BHM, projection_ME = ctx.saved_tensors
        phi = FeatureMap(projection_ME, packed_3BHTE)
        reader = _Reader(packed_3BHTE, phi, *ctx.others)
        out_3BHTE = like_packed(packed_3BHTE)
        with torch.autocast(packed_3BHTE.device.type, enabled=False):
            for rows in batch_blocks(packed_3BHTE):
                before = _Sums(weighted_BHME[rows].to(phi.dtype, copy=True), plain_BHM[rows].to(phi.dtype, copy=True))
                shares = _query_gradients(reader, rows, grad_BHTE, before, out_3BHTE[0, rows])
                _key_gradients(reader, rows, grad_BHTE, shares, out_3BHTE[1:, rows])
        return out_3BHTE, None, None, None, None, None


class _Sums:
    """Running sums over keys for a slice of the batch; the tensors are updated in place."""

    def __init__(self, weighted_BHME: Tensor, plain_BHM: Tensor) -> None:
        self.weighted_RME = weighted_BHME.flatten(0, 1)
        self.plain_RM1 = plain_BHM.flatten(0, 1)[..., None]

    def attended(self, block: _Block, weight_RCC: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator (R, C, E) and denominator (R, C, 1) of the block's attention."""
        out_RCE = torch.bmm(weight_RCC, block.value_RCE).baddbmm_(block.query_RCM, self.weighted_RME)
        sum_RC1 = weight_RCC.sum(dim=-1, keepdim=True).baddbmm_(block.query_RCM, self.plain_RM1)
        return out_RCE, sum_RC1.clamp_min_(SMALLEST_SUM)

    def add(self, block: _Block) -> None:
        self.weighted_RME.baddbmm_(block.key_RCM.transpose(1, 2), block.value_RCE)
        self.plain_RM1.add_(block.key_RCM.sum(dim=1)[..., None])


def _query_gradients(
    reader: _Reader, rows: slice, grad_BHTE: Tensor, sums: _Sums, target_BHTE: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Gradients of the queries, from the first block to the last. Returns for each block the denominators, and the sum
    over E of gradient times output divided by them, both (R, C, 1)."""
    shares = []
    for frames in frame_blocks(reader.packed_3BHTE):
        block = reader.block(rows, frames)
        out_RCE, sum_RC1 = sums.attended(block, block.weights())
        share_RCE = read(grad_BHTE[rows], frames, reader.phi.dtype) / sum_RC1
        own_RC1 = (share_RCE * out_RCE.div_(sum_RC1)).sum(dim=-1, keepdim=True)
        pair_RCC = torch.bmm(share_RCE, block.value_RCE.transpose(1, 2)).sub_(own_RC1).tril_()
        grad_RCM = torch.bmm(pair_RCC, block.key_RCM).baddbmm_(share_RCE, sums.weighted_RME.transpose(1, 2))
        grad_RCM.baddbmm_(own_RC1, sums.plain_RM1.transpose(1, 2), alpha=-1.0)
        write(target_BHTE, frames, reader.phi.backward(grad_RCM, block.query_RCM, block.query_RCE), reader.rotation)
        sums.add(block)
        shares.append((sum_RC1, own_RC1))
    return shares


def _key_gradients(
    reader: _Reader, rows: slice, grad_BHTE: Tensor, shares: list[tuple[Tensor, Tensor]], target_2BHTE: Tensor
) -> None:
    """Gradients of keys and values, from the last block to the first, with running sums over later queries."""
    weighted_RME = plain_R1M = None
    blocks = frame_blocks(reader.packed_3BHTE)
    for frames, (sum_RC1, own_RC1) in zip(reversed(blocks), reversed(shares), strict=True):
        block = reader.block(rows, frames)
        share_RCE = read(grad_BHTE[rows], frames, reader.phi.dtype) / sum_RC1
        pair_RCC = torch.bmm(share_RCE, block.value_RCE.transpose(1, 2)).sub_(own_RC1).tril_()
        key_RCM = torch.bmm(pair_RCC.transpose(1, 2), block.query_RCM)
        value_RCE = torch.bmm(block.weights().transpose(1, 2), share_RCE)
        if weighted_RME is not None and plain_R1M is not None:
            key_RCM.baddbmm_(block.value_RCE, weighted_RME.transpose(1, 2)).add_(plain_R1M)
            value_RCE.baddbmm_(block.key_RCM, weighted_RME)
        key_RCM = masked(key_RCM, reader.mask_BT, rows, frames)
        key_RCE = reader.phi.backward(key_RCM, block.key_RCM, block.key_RCE)
        write(target_2BHTE[0], frames, key_RCE, reader.rotation)
        write(target_2BHTE[1], frames, value_RCE)
        later_RME = torch.bmm(block.query_RCM.transpose(1, 2), share_RCE)
        later_R1M = torch.bmm(own_RC1.transpose(1, 2), block.query_RCM).neg_()
        weighted_RME = later_RME if weighted_RME is None else weighted_RME.add_(later_RME)
        plain_R1M = later_R1M if plain_R1M is None else plain_R1M.add_(later_R1M)
