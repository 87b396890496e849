"""Causal linear attention: each frame attends to itself and earlier ones. See `linear` and `features`.

Frames are processed in blocks. Within a block the products of all pairs are computed and later keys masked; earlier
blocks enter through running sums. The backward pass recomputes the features, once forwards for the gradient of the
queries and once backwards for that of keys and values, so that no tensor of the size of the features is kept (a
blockwise form of Katharopoulos et al. 2020, section 3.3.1).

Shapes: B batch, H heads, T frames, E head dimension, M random features, R rows (items x heads), C frames per block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from phonate.nn.transformer.blocks import Rotation, batch_blocks, frame_blocks, like_packed, read, write
from phonate.nn.transformer.features import FeatureMap
from phonate.nn.transformer.linear import SMALLEST_SUM, LinearSums, masked


@torch.compiler.disable  # type: ignore[untyped-decorator]  # loops over blocks, which it would unroll
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
