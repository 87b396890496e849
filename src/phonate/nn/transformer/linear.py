"""Linear attention, whose time and memory are linear in the length.

With phi from `features`, the attention of a query q is sum(phi(q).phi(k) v) / sum(phi(q).phi(k)) over keys k and values
v. As phi(q) can be factored out of both sums, they are computed once for all queries. Features are computed in blocks,
and recomputed in the backward pass instead of stored.

Shapes: B batch, H heads, T queries, S keys, E head dimension, M random features, R rows (items x heads), C frames per
block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from phonate.nn.transformer.blocks import Rotation, batch_blocks, frame_blocks, like_packed, read, write
from phonate.nn.transformer.features import FeatureMap

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


@torch.compiler.disable  # type: ignore[untyped-decorator]  # loops over blocks, which it would unroll
def key_sums(
    key_value_2BHSE: Tensor, projection_ME: Tensor, mask_BS: Tensor | None = None, rotation: Rotation | None = None
) -> LinearSums:
    """The sums over keys and values (2, B, H, S, E). `mask_BS`: True for keys that are included; None: all."""
    weighted_BHME, plain_BHM = _KeySums.apply(  # type: ignore[no-untyped-call]
        key_value_2BHSE, projection_ME, mask_BS, rotation
    )
    return LinearSums(weighted_BHME, plain_BHM)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # loops over blocks, which it would unroll
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
