"""Transformer encoders and decoders as stacks of layers, built from settings.

Shapes: B batch, T frames, S positions of the memory, D model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from phonate.nn.checkpointing import Segments, run_layers
from phonate.nn.positions import LearntPositions, Positions, RotaryPositions, SinusoidalPositions
from phonate.nn.transformer.features import RandomFeatures, Rotation
from phonate.nn.transformer.layer import Layer, LayerShape, LayerState, build_norm
from phonate.nn.transformer.settings import LayerSettings, TransformerSettings

# ----------------------------------------------- Transformer encoders and decoders as stacks of layers


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


# ------------------------------------------------------------------- Builds transformers from settings

_FIRST_POSITIONS = 4096
"""Sinusoidal positions computed in advance; longer sequences extend them."""


def build_encoder(settings: LayerSettings) -> Stack:
    """An encoder over (B, T, D), with its positional encoding. It is causal if `attention_type` is causal_linear."""
    return _stack(settings, settings.attention_type == "causal_linear", memory=False)


def build_decoder(settings: LayerSettings, memory: bool) -> Stack:
    """A causal decoder over (B, T, D), with its positional encoding. `memory`: whether it has cross-attention."""
    return _stack(settings, causal=True, memory=memory)


def build_transformer(settings: TransformerSettings, input_dim: int) -> FrameTransformer:
    """The model described by the settings, over frames of `input_dim` features."""
    return FrameTransformer(settings, input_dim)


class FrameTransformer(nn.Module):
    """Frames of features -> frames of width D: a projection, then an encoder, a decoder, or both.

    A decoder alone is a causal stack over the frames. With an encoder, the decoder runs over the same frames and
    attends to the encoder's output.

    Args:
        settings: The model's settings.
        input_dim: F.
    """

    def __init__(self, settings: TransformerSettings, input_dim: int) -> None:
        super().__init__()
        encoder, decoder = settings.encoder, settings.decoder
        self.width = settings.output_settings.d_model
        self.input = nn.Linear(input_dim, self.width)
        self.encoder = None if encoder is None else build_encoder(encoder)
        self.decoder = None if decoder is None else build_decoder(decoder, encoder is not None)

    @property
    def causal(self) -> bool:
        """Whether no output depends on later frames, so that the model can run incrementally."""
        return self._causal_stack is not None

    @property
    def _causal_stack(self) -> Stack | None:
        if self.encoder is None:
            return self.decoder
        return self.encoder if self.encoder.causal and self.decoder is None else None

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, T, D). `mask_BT` is True for real frames; None: there is no padding.

        The output in padding is undefined.
        """
        x_BTD = self.input(x_BTF)
        memory_BTD = None if self.encoder is None else self.encoder(x_BTD, mask_BT)
        if self.decoder is None:
            assert memory_BTD is not None
            out: Tensor = memory_BTD
        else:
            out = self.decoder(x_BTD, mask_BT, memory_BTD, None if memory_BTD is None else mask_BT)
        return out

    def initial_state(self, batch: int = 1) -> StackState:
        """The state before the first `step`, for `batch` streams. Raises ValueError if the model is not causal."""
        return self._streaming_stack().initial_state(batch)

    def step(self, x_BCF: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """The next frames (B, C, F) -> (B, C, D), equal to those of `forward`, and the state after them.

        `state` must not be used again. Its size is constant with causal_linear, and grows by each frame with softmax.
        """
        return self._streaming_stack().step(self.input(x_BCF), state), state

    def _streaming_stack(self) -> Stack:
        stack = self._causal_stack
        if stack is None:
            raise ValueError(
                "this model uses later frames, so it can't run incrementally; "
                "use model_type decoder, or an encoder with attention_type causal_linear"
            )
        return stack


def _stack(settings: LayerSettings, causal: bool, memory: bool) -> Stack:
    shape = LayerShape(
        settings.d_model,
        settings.num_heads,
        settings.hidden,
        settings.dropout,
        norm="scale" if settings.use_scalenorm else "none" if settings.use_rezero else "pre",
        activation=settings.activation,
        features=settings.features,
        causal=causal,
        memory=memory,
        rezero=settings.use_rezero,
        kernel=settings.conv_kernel,
        attention_dropout=settings.attention_dropout,
    )
    stack = Stack(shape, settings.num_layers, _positions(settings), settings.checkpoint_segments)
    for module in stack.modules():
        if isinstance(module, RandomFeatures):
            module.redraw_interval = settings.feature_redraw_interval
            module.auto_redraw = settings.auto_check_redraw
    return stack


def _positions(settings: LayerSettings) -> Positions | None:
    match settings.positional_encoding:
        case "rope":
            return RotaryPositions(settings.head_dim)
        case "sinusoidal":
            return SinusoidalPositions(settings.d_model, _FIRST_POSITIONS, grows=True)
        case "learnable":
            return LearntPositions(settings.d_model, settings.max_seq_len)
        case "none":
            return None
