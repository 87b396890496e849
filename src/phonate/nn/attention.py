"""Multi-head softmax or linear attention over padded batches, parallel or incremental.

Masks are True for real frames. Shapes: B batch, T frames, S positions of the memory, D model, H heads, E = D / H head
dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from phonate.nn import kernels
from phonate.nn.linear_attention import (
    LinearSums,
    RandomFeatures,
    Rotation,
    causal_attention,
    key_sums,
    read_sums,
)
from phonate.nn.sequences import on_processor, rotate


class KeyValueCache:
    """Keys and values of the frames so far, in a buffer whose size is doubled when it is full."""

    def __init__(self) -> None:
        self.frames = 0
        self._buffer: Tensor | None = None

    def add(self, new_2BHTE: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (2, B, H, T, E) of the next frames; returns those of all frames, (B, H, S, E) each."""
        end = self.frames + new_2BHTE.shape[3]
        if self._buffer is None or end > self._buffer.shape[3]:
            buffer = new_2BHTE.new_empty(*new_2BHTE.shape[:3], max(64, 2 * end), new_2BHTE.shape[4])
            if self._buffer is not None:
                buffer[:, :, :, : self.frames] = self._buffer[:, :, :, : self.frames]
            self._buffer = buffer
        self._buffer[:, :, :, self.frames : end] = new_2BHTE
        self.frames = end
        key_BHTE, value_BHTE = self._buffer[:, :, :, :end].unbind(0)
        return key_BHTE, value_BHTE

    def select(self, rows_B: Tensor) -> Self:
        """A copy with these rows of the batch, which may repeat, as in beam search."""
        chosen = type(self)()
        chosen.frames = self.frames
        chosen._buffer = None if self._buffer is None else self._buffer[:, rows_B]
        return chosen


class RecentKeys:
    """Keys, not rotated yet, and values of the last frames, at most `most` of them.

    They are written one behind the other into a buffer; when it is full, the last ones go on in another.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._buffer: Tensor | None = None
        self._begin = self._end = 0

    def add(self, new_2BHTE: Tensor) -> Tensor:
        """Keys and values (2, B, H, S, E) of the last frames and the next ones (2, B, H, T, E)."""
        frames = new_2BHTE.shape[3]
        if self._buffer is None or self._end + frames > self._buffer.shape[3]:
            buffer = new_2BHTE.new_empty(*new_2BHTE.shape[:3], 2 * (self._most + frames), new_2BHTE.shape[4])
            held = self._end - self._begin
            if self._buffer is not None:
                buffer[:, :, :, :held] = self._buffer[:, :, :, self._begin : self._end]
            self._buffer, self._begin, self._end = buffer, 0, held
        end = self._end + frames
        self._buffer[:, :, :, self._end : end] = new_2BHTE
        window = self._buffer[:, :, :, self._begin : end]
        self._begin, self._end = max(self._begin, end - self._most), end
        return window

    def select(self, rows_B: Tensor) -> Self:
        """A copy with these rows of the batch, which may repeat."""
        chosen = type(self)(self._most)
        chosen._begin, chosen._end = self._begin, self._end
        chosen._buffer = None if self._buffer is None else self._buffer[:, rows_B]
        return chosen


@dataclass(frozen=True)
class KeysAndValues:
    """Keys and values (B, H, S, E) of the memory of cross-attention, and its mask."""

    keys: Tensor
    values: Tensor
    mask_BS: Tensor | None

    def select(self, rows_B: Tensor) -> Self:
        """A copy with these rows of the batch."""
        mask_BS = None if self.mask_BS is None else self.mask_BS[rows_B]
        return type(self)(self.keys[rows_B], self.values[rows_B], mask_BS)


Memory: TypeAlias = "KeysAndValues | LinearSums"
"""The memory of cross-attention, as projected for softmax or linear attention."""


class AttentionState(Protocol):
    """The state of incremental self-attention."""

    def select(self, rows_B: Tensor) -> Self:
        """A copy with these rows of the batch."""


def softmax_attention(
    query_BHTE: Tensor,
    key_BHSE: Tensor,
    value_BHSE: Tensor,
    mask_BS: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """Exact attention, (B, H, T, E). `causal`: queries are the last T of S positions, and attend to none after them;
    `window`: and to the last so many only, themselves among them."""
    frames, keys = query_BHTE.shape[2], key_BHSE.shape[2]
    allowed = _allowed(mask_BS, frames, keys, causal, window, query_BHTE.device)
    if dropout == 0.0 and _trains_in_16_bits(query_BHTE, query_BHTE[..., 0].numel() * keys):
        if causal and allowed is None and frames > 1:
            allowed = torch.ones(frames, keys, dtype=torch.bool).tril()
        return _by_products(query_BHTE, key_BHSE, value_BHSE, allowed)
    # In boolean masks of scaled_dot_product_attention, True means attended to.
    return F.scaled_dot_product_attention(
        query_BHTE,
        key_BHSE,
        value_BHSE,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=causal and allowed is None and frames > 1,
    )


def _allowed(
    mask_BS: Tensor | None, frames: int, keys: int, causal: bool, window: int | None, device: torch.device
) -> Tensor | None:
    """What each of the last `frames` of so many keys attends to, to be broadcast to (B, H, T, S); None: to all, or to
    itself and all before it where attention of all frames is `causal`."""
    allowed = None if mask_BS is None else mask_BS[:, None, None, :]
    narrow = window is not None and window < keys
    # The last of the positions by itself attends to all of them.
    if causal and (allowed is not None or narrow or frames not in (1, keys)):
        past_TS = torch.ones(frames, keys, dtype=torch.bool, device=device).tril(keys - frames)
        itself_TS = past_TS ^ past_TS.tril(keys - frames - 1)
        if window is not None:
            past_TS = past_TS ^ past_TS.tril(keys - frames - window)
        # A frame always attends to itself; otherwise padding before the first real frame would be NaN.
        allowed = past_TS if allowed is None else (past_TS & allowed) | itself_TS
    return allowed


_MOST_WEIGHTS = 2**22
"""Weights of a batch that are kept for the backward pass: 8 MB in 16 bits."""


def _trains_in_16_bits(x: Tensor, weights: int) -> bool:
    """Whether attention with so many weights is to be trained on a processor in bf16: there a backward pass of torch's
    own takes 3 times as long as matrix products of all weights."""
    trained = torch.is_grad_enabled() and x.requires_grad and x.dtype is torch.bfloat16
    return trained and on_processor(x) and weights <= _MOST_WEIGHTS


def _by_products(query_BHTE: Tensor, key_BHSE: Tensor, value_BHSE: Tensor, allowed: Tensor | None) -> Tensor:
    """Attention (B, H, T, E) where `allowed` is True; to all alike where it nowhere is."""
    weights_BHTS = (query_BHTE * query_BHTE.shape[-1] ** -0.5) @ key_BHSE.transpose(-1, -2)
    if allowed is not None:
        weights_BHTS = torch.where(allowed, weights_BHTS, torch.finfo(weights_BHTS.dtype).min)
    attended_BHTE: Tensor = weights_BHTS.softmax(-1) @ value_BHSE
    return attended_BHTE


class _Packed(torch.autograd.Function):
    """Self-attention (B, T, D) by the products of `_by_products`, of packed queries, keys and values (B, T, 3 D).

    With rotations in one pass from and to the layout of the frames, it takes two thirds of their time.
    """

    @staticmethod
    def forward(
        ctx: Any, packed_BTD: Tensor, rotation: Rotation | None, allowed: Tensor | None, n_heads: int
    ) -> Tensor:
        batch, frames, width = packed_BTD.shape
        ctx.rotation, ctx.n_heads = rotation, n_heads
        if (fast := kernels.of(packed_BTD.dtype)) is not None:
            apart_3BHTE = packed_BTD.new_empty(3, batch, n_heads, frames, width // (3 * n_heads))
            fast.heads(packed_BTD.contiguous(), rotation, apart_3BHTE)
            query_RTE, key_RTE, value_RTE = apart_3BHTE.flatten(1, 2)
            weights_RTS = torch.bmm(query_RTE, key_RTE.transpose(1, 2))
            fast.softmax(weights_RTS.view(batch, n_heads, frames, frames), allowed)
            ctx.allowed = None if allowed is None or bool(allowed.any(-1).all()) else allowed
            ctx.save_for_backward(query_RTE, key_RTE, value_RTE, weights_RTS)
            return _joined(torch.bmm(weights_RTS, value_RTE).view(apart_3BHTE.shape[1:]))
        scale = (width // (3 * n_heads)) ** -0.5
        ctx.turns = None if rotation is None else [_turn(rotation, packed_BTD.dtype, size) for size in (scale, 1.0)]
        ctx.scale, ctx.allowed = scale, allowed
        query_BHTE, key_BHTE, value_BHTE = _heads(packed_BTD, 3, n_heads)
        turned_2BHTE = packed_BTD.new_empty(2, *value_BHTE.shape)
        if ctx.turns is None:
            torch.mul(query_BHTE, scale, out=turned_2BHTE[0])
            turned_2BHTE[1] = key_BHTE
        else:
            for x_BHTE, turn, turned_BHTE in zip((query_BHTE, key_BHTE), ctx.turns, turned_2BHTE, strict=True):
                _turned(x_BHTE, turn, turned_BHTE)
        query_RTE, key_RTE = turned_2BHTE.flatten(1, 2)
        value_RTE = value_BHTE.flatten(0, 1)
        scores_RTS = torch.bmm(query_RTE, key_RTE.transpose(1, 2)).float()  # whose softmax takes half the time
        if allowed is not None:
            lowest = torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(scores_RTS.dtype).min)
            scores_RTS.view(batch, n_heads, frames, frames).add_(lowest)
        weights_RTS = torch.softmax(scores_RTS, -1).to(packed_BTD.dtype)
        ctx.save_for_backward(query_RTE, key_RTE, value_RTE, weights_RTS)
        return _joined(torch.bmm(weights_RTS, value_RTE).view_as(value_BHTE))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTD: Tensor) -> tuple[Tensor, None, None, None]:
        query_RTE, key_RTE, value_RTE, weights_RTS = ctx.saved_tensors
        batch, frames, width = grad_BTD.shape
        n_heads = ctx.n_heads
        of_packed_BTD = grad_BTD.new_empty(batch, frames, 3 * width)
        grad_RTE = _heads(grad_BTD, 1, n_heads)[0].flatten(0, 1)
        of_value_RTE = torch.bmm(weights_RTS.transpose(1, 2), grad_RTE)
        of_weights_RTS = torch.bmm(grad_RTE, value_RTE.transpose(1, 2))
        of_scores_RTS = torch._softmax_backward_data(of_weights_RTS, weights_RTS, -1, weights_RTS.dtype)
        if ctx.allowed is not None:  # where nothing is allowed, weights are not 0
            of_scores_RTS.view(batch, n_heads, frames, frames).masked_fill_(~ctx.allowed, 0.0)
        of_turned = torch.bmm(of_scores_RTS, key_RTE), torch.bmm(of_scores_RTS.transpose(1, 2), query_RTE)
        if (fast := kernels.of(grad_BTD.dtype)) is not None:
            apart_3BHTE = torch.stack((*of_turned, of_value_RTE)).view(3, batch, n_heads, frames, width // n_heads)
            fast.heads(of_packed_BTD, ctx.rotation, apart_3BHTE, back=True)
            return of_packed_BTD, None, None, None
        of_query_BHTE, of_key_BHTE, of_value_BHTE = _heads(of_packed_BTD, 3, n_heads)
        of_value_BHTE.copy_(of_value_RTE.view_as(of_value_BHTE))
        of_turned_query_BHTE, of_turned_key_BHTE = (one.view_as(of_query_BHTE) for one in of_turned)
        if ctx.turns is None:
            torch.mul(of_turned_query_BHTE, ctx.scale, out=of_query_BHTE)
            of_key_BHTE.copy_(of_turned_key_BHTE)
        else:
            (cosine_TE, sine_TE), (key_cosine_TE, key_sine_TE) = ctx.turns
            _turned(of_turned_query_BHTE, (cosine_TE, -sine_TE), of_query_BHTE)
            _turned(of_turned_key_BHTE, (key_cosine_TE, -key_sine_TE), of_key_BHTE)
        return of_packed_BTD, None, None, None


def _turn(rotation: Rotation, dtype: torch.dtype, scale: float) -> Rotation:
    """A rotation in a number format that scales, too."""
    cosine_TE, sine_TE = (part.to(dtype) * scale for part in rotation)
    return cosine_TE, sine_TE


def _turned(x_BHTE: Tensor, rotation: Rotation, out_BHTE: Tensor) -> None:
    """`rotate`, into `out_BHTE`."""
    cosine_TE, sine_TE = rotation
    (first, second), (out_first, out_second) = (one.chunk(2, dim=-1) for one in (x_BHTE, out_BHTE))
    torch.mul(first, cosine_TE, out=out_first).addcmul_(second, sine_TE, value=-1)
    torch.mul(first, sine_TE, out=out_second).addcmul_(second, cosine_TE)


def _heads(x_BTD: Tensor, parts: int, n_heads: int) -> Tensor:
    """(B, T, parts x D) -> (parts, B, H, T, E)."""
    batch, frames, width = x_BTD.shape
    return x_BTD.view(batch, frames, parts, n_heads, width // (parts * n_heads)).permute(2, 0, 3, 1, 4)


def _rotated(packed_3BHTE: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each (B, H, T, E)."""
    query_BHTE, key_BHTE, value_BHTE = packed_3BHTE.unbind(0)
    if rotation is not None:
        query_BHTE, key_BHTE = rotate(query_BHTE, rotation), rotate(key_BHTE, rotation)
    return query_BHTE, key_BHTE, value_BHTE


def _last(rotation: Rotation, frames: int) -> Rotation:
    return rotation[0][-frames:], rotation[1][-frames:]


def _joined(x_BHTE: Tensor) -> Tensor:
    """(B, H, T, E) -> (B, T, D)."""
    return x_BHTE.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2).

    Args:
        d_model: D.
        n_heads: H.
        dropout: Dropout probability of softmax attention weights; linear attention has no such weights.
        features: Number of random features of linear attention (FAVOR+); None: softmax.
        causal: Whether frames attend only to themselves and earlier frames.
        window: Frames that a frame of causal softmax attention attends to, itself among them; None: all.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        dropout: float = 0.0,
        features: int | None = None,
        causal: bool = False,
        window: int | None = None,
    ) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model {d_model} must be divisible by the number of heads, {n_heads}")
        if window is not None and (features is not None or not causal):
            raise ValueError("only causal softmax attention has a window")
        self.n_heads = n_heads
        self.window = window
        self.dropout = dropout
        self.causal = causal
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)
        self.random = None if features is None else RandomFeatures(features, d_model // n_heads)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None = None, rotation: Rotation | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D).

        Args:
            x_BTD: Frames.
            mask_BT: True for frames that are attended to; None: all. Causal attention doesn't need it for padding at
                the end, to which no real frame attends.
            rotation: Rotary positions; None: none.
        """
        packed_BTD = self.query_key_value(x_BTD)
        dropout, weights = self.dropout if self.training else 0.0, self.n_heads * packed_BTD[..., 0].numel()
        if self.random is None and dropout == 0.0 and _trains_in_16_bits(packed_BTD, weights * x_BTD.shape[1]):
            given = (packed_BTD, rotation, self._allowed(mask_BT, x_BTD), self.n_heads)
            attended: Tensor = self.output(_Packed.apply(*given))  # type: ignore[no-untyped-call]
            return attended
        packed_3BHTE = _heads(packed_BTD, 3, self.n_heads)
        if self.random is None:
            query_BHTE, key_BHTE, value_BHTE = _rotated(packed_3BHTE, rotation)
            out_BHTE = softmax_attention(query_BHTE, key_BHTE, value_BHTE, mask_BT, self.causal, dropout, self.window)
        elif self.causal:
            out_BHTE, _ = causal_attention(packed_3BHTE, self.random.projection_ME, mask_BT, rotation)
        else:
            query_1BHTE, key_value_2BHTE = torch.split(packed_3BHTE, [1, 2])
            sums = key_sums(key_value_2BHTE, self.random.projection_ME, mask_BT, rotation)
            out_BHTE = read_sums(query_1BHTE[0], sums, self.random.projection_ME, rotation)
        out: Tensor = self.output(_joined(out_BHTE))
        return out

    def _allowed(self, mask_BT: Tensor | None, x_BTD: Tensor) -> Tensor | None:
        """What frames attend to, to be broadcast to (B, H, T, T); None: to all."""
        frames = x_BTD.shape[1]
        if mask_BT is not None and bool(mask_BT.all()):
            mask_BT = None
        allowed = _allowed(mask_BT, frames, frames, self.causal, self.window, x_BTD.device)
        if self.causal and allowed is None and frames > 1:
            return torch.ones(frames, frames, dtype=torch.bool).tril()
        return allowed

    def initial_state(self, batch: int) -> AttentionState:
        """The state before the first `step`, for `batch` rows. Raises ValueError if the attention is not causal."""
        if not self.causal:
            raise ValueError("only causal attention can run incrementally")
        if self.window is not None:
            return RecentKeys(self.window - 1)
        if self.random is None:
            return KeyValueCache()
        return LinearSums.empty(batch, self.n_heads, self.random.projection_ME)

    def step(self, x_BTD: Tensor, state: AttentionState, rotation: Rotation | None = None) -> Tensor:
        """`forward` for the next frames (B, T, D); updates `state` in place.

        `rotation`: of these frames; with a window, of the frames before them too, as far as they are attended to.
        """
        packed_3BHTE = _heads(self.query_key_value(x_BTD), 3, self.n_heads)
        if isinstance(state, RecentKeys):
            keys, values = state.add(packed_3BHTE[1:]).unbind(0)
            query_BHTE = packed_3BHTE[0]
            if rotation is not None:
                query_BHTE = rotate(query_BHTE, _last(rotation, query_BHTE.shape[2]))
                keys = rotate(keys, _last(rotation, keys.shape[2]))
            out_BHTE = softmax_attention(query_BHTE, keys, values, causal=True, window=self.window)
        elif isinstance(state, KeyValueCache):
            query_BHTE, key_BHTE, value_BHTE = _rotated(packed_3BHTE, rotation)
            keys, values = state.add(torch.stack((key_BHTE, value_BHTE)))
            out_BHTE = softmax_attention(query_BHTE, keys, values, causal=x_BTD.shape[1] > 1)
        else:
            assert isinstance(state, LinearSums)
            assert self.random is not None
            out_BHTE, after = causal_attention(packed_3BHTE, self.random.projection_ME, None, rotation, before=state)
            state.weighted_BHME, state.plain_BHM = after.weighted_BHME, after.plain_BHM
        out: Tensor = self.output(_joined(out_BHTE))
        return out


class CrossAttention(nn.Module):
    """Multi-head attention of frames to a memory. Arguments as for `SelfAttention`.

    Queries and keys are initialised with the same weights, which favours a monotonic alignment of frames and memory
    (Ping et al. 2018, Deep Voice 3, section 3.5).
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0, features: int | None = None) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.dropout = dropout
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.output = nn.Linear(d_model, d_model)
        with torch.no_grad():
            self.key_value.weight[:d_model] = self.query.weight
        self.random = None if features is None else RandomFeatures(features, d_model // n_heads)

    def remember(self, memory_BSD: Tensor, mask_BS: Tensor | None = None, rotation: Rotation | None = None) -> Memory:
        """Project a memory (B, S, D), once for any number of `forward` calls. `mask_BS`: True for real positions."""
        packed_2BHSE = _heads(self.key_value(memory_BSD), 2, self.n_heads)
        if self.random is not None:
            sums: LinearSums = key_sums(packed_2BHSE, self.random.projection_ME, mask_BS, rotation)
            return sums
        key_BHSE, value_BHSE = packed_2BHSE.unbind(0)
        if rotation is not None:
            key_BHSE = rotate(key_BHSE, rotation)
        return KeysAndValues(key_BHSE, value_BHSE, mask_BS)

    def forward(self, x_BTD: Tensor, memory: Memory, rotation: Rotation | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        query_BHTE = _heads(self.query(x_BTD), 1, self.n_heads)[0]
        if isinstance(memory, KeysAndValues):
            dropout = self.dropout if self.training else 0.0
            if rotation is not None:
                query_BHTE = rotate(query_BHTE, rotation)
            out_BHTE = softmax_attention(query_BHTE, memory.keys, memory.values, memory.mask_BS, dropout=dropout)
        else:
            assert self.random is not None
            out_BHTE = read_sums(query_BHTE, memory, self.random.projection_ME, rotation)
        out: Tensor = self.output(_joined(out_BHTE))
        return out
