"""Transformer encoders and decoders as stacks of layers.

Shapes: B batch, T frames, S positions of the memory, D model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from phonate.nn.checkpointing import Segments, run_layers
from phonate.nn.positions import Positions, RotaryPositions
from phonate.nn.transformer.blocks import Rotation
from phonate.nn.transformer.layer import Layer, LayerShape, LayerState
from phonate.nn.transformer.norms import build_norm


@dataclass
class StackState:
    """The state of incremental decoding of a causal stack."""

    layers: list[LayerState]
    frames: int = 0
    """Number of frames so far."""

    def select(self, rows_B: Tensor) -> Self:
        """A copy with these rows of the batch, which may repeat, as in beam search."""
        return type(self)([layer.select(rows_B) for layer in self.layers], self.frames)


class Stack(nn.Module):
    """`n_layers` equal layers, followed by a norm unless the layers are post-norm.

    An encoder by default; with `shape.causal` and `shape.memory` a decoder. Causal stacks can run incrementally.

    Args:
        shape: Hyperparameters of the layers.
        n_layers: Number of layers.
        positions: Positional encoding, added to the input or applied as rotations in each layer; None: none.
        segments: See `phonate.nn.checkpointing`.
    """

    def __init__(
        self, shape: LayerShape, n_layers: int, positions: Positions | None = None, segments: Segments = None
    ) -> None:
        super().__init__()
        self.causal = shape.causal
        self.window = shape.window
        self.segments = segments
        self.positions = positions
        self.layers = nn.ModuleList(Layer(shape) for _ in range(n_layers))
        self.last_norm = nn.Identity() if shape.norm == "post" else build_norm(shape.norm, shape.d_model)

    def forward(
        self,
        x_BTD: Tensor,
        mask_BT: Tensor | None = None,
        memory_BSD: Tensor | None = None,
        memory_mask_BS: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D).

        Args:
            x_BTD: Frames.
            mask_BT: True for real frames; None: all. A causal stack doesn't need it for padding at the end, to which no
                real frame attends.
            memory_BSD: The memory, for a stack with cross-attention.
            memory_mask_BS: True for real positions of the memory; None: all.
        """
        x_BTD, rotation = self._placed(x_BTD, 0)
        memory = (memory_BSD, memory_mask_BS, self._memory_rotation(memory_BSD))
        out: Tensor = self.last_norm(run_layers(self.layers, x_BTD, mask_BT, rotation, *memory, segments=self.segments))
        return out

    def initial_state(
        self, batch: int, memory_BSD: Tensor | None = None, memory_mask_BS: Tensor | None = None
    ) -> StackState:
        """The state of a causal stack before the first `step`, for `batch` rows."""
        rotation = self._memory_rotation(memory_BSD)
        return StackState(
            [
                layer.initial_state(batch, layer.remember(memory_BSD, memory_mask_BS, rotation))
                for layer in self._typed()
            ]
        )

    def step(self, x_BTD: Tensor, state: StackState) -> Tensor:
        """The next frames (B, T, D) -> (B, T, D), equal to those of `forward`; updates `state` in place."""
        x_BTD, rotation = self._next(x_BTD, state.frames)
        for layer, layer_state in zip(self._typed(), state.layers, strict=True):
            x_BTD = layer.step(x_BTD, layer_state, rotation)
        state.frames += x_BTD.shape[1]
        out: Tensor = self.last_norm(x_BTD)
        return out

    def _next(self, x_BTD: Tensor, start: int) -> tuple[Tensor, Rotation | None]:
        """As `_placed`. With a window, only distances within it matter, so that positions stay small in a stream."""
        if self.window is None or not isinstance(self.positions, RotaryPositions):
            return self._placed(x_BTD, start)
        return x_BTD, self.positions(self.window - 1 + x_BTD.shape[1])

    def _placed(self, x_BTD: Tensor, start: int) -> tuple[Tensor, Rotation | None]:
        """The frames with added positional encoding from position `start` on, and the rotation of queries and keys."""
        if self.positions is None:
            return x_BTD, None
        if isinstance(self.positions, RotaryPositions):
            return x_BTD, self.positions(x_BTD.shape[1], start)
        return self.positions(x_BTD, start), None

    def _memory_rotation(self, memory_BSD: Tensor | None) -> Rotation | None:
        if memory_BSD is None or not isinstance(self.positions, RotaryPositions):
            return None
        rotation: Rotation = self.positions(memory_BSD.shape[1])
        return rotation

    def _typed(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]
