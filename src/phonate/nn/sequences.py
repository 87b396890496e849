"""What layers over sequences of different lengths share: masks, length regulation, positions, dropout, gradient
checkpointing.

Shapes: B batch, L tokens, T frames, H heads, E dimensions of a head, D = H x E.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from phonate.compute.resources import GIB

# ---------------------------------- Masks over padded batches: True for real frames, False for padding


def frame_mask(lengths_B: Tensor, frames: int) -> Tensor:
    """(B, frames) boolean mask with True for the first `lengths_B[b]` frames of each row."""
    positions_T = torch.arange(frames, device=lengths_B.device)
    return positions_T[None, :] < lengths_B[:, None]


# -------------- From tokens to frames: the length regulator (Ren et al. 2019, FastSpeech, section 3.2)


def rounded_durations(frames_BL: Tensor) -> Tensor:
    """Durations (B, L) as integers. Rounding errors carry over to the next token, so the total is kept."""
    ends_BL = torch.round(torch.cumsum(frames_BL, dim=1))
    return (ends_BL - F.pad(ends_BL, (1, 0))[:, :-1]).long()


def token_indices(durations_BL: Tensor, frames: int, lengths_B: Tensor | None = None) -> Tensor:
    """Index of the token that each frame belongs to: (B, L) -> (B, frames). Frames after the end get the last token,
    which `lengths_B` says of items of different lengths."""
    ends_BL = torch.cumsum(durations_BL, dim=1)
    # the number of tokens that end before each frame; counted, because other runtimes have no searchsorted
    ended_BT = torch.zeros_like(torch.arange(frames, device=ends_BL.device)).expand(ends_BL.shape[0], -1)
    ended_BT = F.pad(ended_BT, (0, 1)).scatter_add(1, ends_BL.clamp_max(frames), torch.ones_like(ends_BL))
    ended_BT = torch.cumsum(ended_BT, dim=1)[:, :-1].clamp_max(ends_BL.shape[1] - 1)
    return ended_BT if lengths_B is None else torch.minimum(ended_BT, lengths_B[:, None] - 1)


# --------- Positions: sinusoids or learnt vectors added to the input, or rotations of queries and keys


def sinusoids(frames: int, d_model: int) -> Tensor:
    """(frames, d_model) sinusoidal table (Vaswani et al. 2017, section 3.5); sines in the even columns."""
    position_T1 = torch.arange(frames, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float32) * (-math.log(10000.0) / d_model))
    table_TD = torch.zeros(frames, d_model)
    table_TD[:, 0::2] = torch.sin(position_T1 * rate)
    table_TD[:, 1::2] = torch.cos(position_T1 * rate[: d_model // 2])
    return table_TD


class SinusoidalPositions(nn.Module):
    """Adds sinusoids to (B, T, D). Sequences longer than `max_frames` raise ValueError, unless the table `grows`."""

    table_TD: Tensor

    def __init__(self, d_model: int, max_frames: int, grows: bool = False) -> None:
        super().__init__()
        self.grows = grows
        # not in the state dict: it follows from the settings
        self.register_buffer("table_TD", sinusoids(max_frames, d_model), persistent=False)

    def forward(self, x_BTD: Tensor, start: int = 0) -> Tensor:
        """(B, T, D) with positions start .. start + T - 1 added."""
        end = start + x_BTD.shape[1]
        if not torch.onnx.is_in_onnx_export() and end > self.table_TD.shape[0]:
            if not self.grows:
                raise ValueError(f"{end} frames are more than the model's max_seq_len {self.table_TD.shape[0]}")
            self.table_TD = sinusoids(2 * end, self.table_TD.shape[1]).to(self.table_TD.device)
        return x_BTD + self.table_TD[start:end].to(x_BTD.dtype)


class LearntPositions(nn.Module):
    """Adds a learnt vector for each position to (B, T, D). Longer sequences than `max_frames` raise ValueError."""

    def __init__(self, d_model: int, max_frames: int) -> None:
        super().__init__()
        self.table_TD = nn.Parameter(torch.empty(max_frames, d_model))
        nn.init.normal_(self.table_TD, std=0.02)

    def forward(self, x_BTD: Tensor, start: int = 0) -> Tensor:
        """(B, T, D) with positions start .. start + T - 1 added."""
        end = start + x_BTD.shape[1]
        if end > self.table_TD.shape[0]:
            raise ValueError(
                f"{end} frames are more than the {self.table_TD.shape[0]} learnt positions of the model (max_seq_len)"
            )
        return x_BTD + self.table_TD[start:end].to(x_BTD.dtype)


class RotaryPositions(nn.Module):
    """Rotary embedding (Su et al. 2021): attention depends on the distance of two frames, not on their positions.

    So a model trained on short crops can be run on windows of any length.
    """

    rate_E: Tensor

    def __init__(self, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"rotary positions need an even head dimension, not {head_dim}")
        rate = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("rate_E", rate, persistent=False)

    def forward(self, frames: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (frames, head_dim / 2), of positions from `start` on, for `rotate`."""
        position_T = torch.arange(start, start + frames, device=self.rate_E.device, dtype=torch.float32)
        angle_TE = position_T[:, None] * self.rate_E
        return torch.cos(angle_TE), torch.sin(angle_TE)


def rotate(x_BHTE: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (x[e], x[e + E/2]) of queries or keys (B, H, T, E) by the angle of its frame."""
    cosine_TE, sine_TE = (part.to(x_BHTE.dtype) for part in rotation)
    first, second = x_BHTE.chunk(2, dim=-1)
    turned = (
        torch.addcmul(first * cosine_TE, second, sine_TE, value=-1),
        torch.addcmul(first * sine_TE, second, cosine_TE),
    )
    return torch.cat(turned, dim=-1)


Positions = SinusoidalPositions | LearntPositions | RotaryPositions


# ------------------------------------------------------------- Dropout that is fast on a processor

NUMBERS = 2**16
"""Steps of a probability of dropout."""
_LANES = 4
"""Numbers of 16 bits in one of 64."""


def on_processor(x: Tensor) -> bool:
    """Whether `x` is on a CPU, and computed now rather than traced by a compiler or an exporter."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not torch._C._is_tracing()


def drawn_seed() -> int:
    """A seed by torch's generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def random_numbers(numel: int) -> Tensor:
    """Numbers of 16 bits (numel,), of which those below `zeros` - 32,768 have a probability of `zeros` / 65,536.

    Four are a draw of numpy's fastest generator, whose seed is torch's: 6 times as fast as `bernoulli_`.
    """
    draws = (numel + _LANES - 1) // _LANES
    drawn = np.random.Generator(np.random.SFC64(drawn_seed())).integers(0, 2**64, draws, dtype=np.uint64)
    return torch.from_numpy(drawn.view(np.int16))[:numel]


def zeros_of(probability: float) -> int:
    """What gives a probability below 1 its nearest step; never 1, of which nothing would be left to be scaled."""
    return min(round(probability * NUMBERS), NUMBERS - 1)


def mask_of(numbers: Tensor, zeros: int) -> Tensor:
    """16 bits for each of the `random_numbers`: none of them set with a probability of `zeros` / 65,536, else all."""
    return torch.ge(numbers, zeros - NUMBERS // 2, out=torch.empty_like(numbers)).neg_()


class _DropoutFunction(torch.autograd.Function):
    """x -> x / (1 - p), or 0 with probability p = `zeros` / 65,536."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, zeros: int) -> Tensor:
        mask = mask_of(random_numbers(x.numel()), zeros).view(x.shape)
        ctx.save_for_backward(mask)
        ctx.scale = NUMBERS / (NUMBERS - zeros)
        return _masked(x, mask, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return _masked(grad, mask, ctx.scale), None


def _masked(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """`x` times `scale`, with zeros where the 16-bit `mask` has them."""
    if x.element_size() == 2:
        scaled = x * scale
        scaled.view(torch.int16).bitwise_and_(mask)
        return scaled
    return (x * -scale).mul_(mask)  # all ones are -1


class Dropout(nn.Dropout):
    """`nn.Dropout`, on a processor with masks that take a quarter of the time; the probability is then rounded to
    1 / 65,536."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        zeros = round(self.p * NUMBERS)
        if not self.training or not 0 < zeros < NUMBERS or not on_processor(x):
            return super().forward(x)
        out: Tensor = _DropoutFunction.apply(x, zeros)  # type: ignore[no-untyped-call]
        return out


# ---------- Gradient checkpointing: activations are recomputed in the backward pass (Chen et al. 2016)


Segments = int | Literal["auto"] | None
"""Number of segments; auto: by the device's memory; None: no checkpointing."""

_BY_MEMORY = ((20, 2), (10, 3), (6, 4))
_LITTLE_MEMORY = 6
_ON_MPS = 4
_ON_CPU = 2


def segments_for(device: torch.device) -> int:
    """Segments for `device`: on CUDA 2 with over 20 GiB, 3 over 10, 4 over 6, else 6; 4 on MPS, 2 on a CPU."""
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory / GIB
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
