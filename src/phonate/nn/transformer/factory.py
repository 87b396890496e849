"""Builds transformers from settings. Shapes: B batch, T frames, F input features, D model, C frames of a step."""

from __future__ import annotations

from torch import Tensor, nn

from phonate.nn.positions import LearntPositions, Positions, RotaryPositions, SinusoidalPositions
from phonate.nn.transformer.features import RandomFeatures
from phonate.nn.transformer.layer import LayerShape
from phonate.nn.transformer.settings import LayerSettings, TransformerSettings
from phonate.nn.transformer.stack import Stack, StackState

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
