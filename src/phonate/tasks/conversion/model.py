"""VoiceTransformer: spectral features of one voice in, a mel spectrogram of the wanted voice out.

Shapes: B batch, T frames, F features of a frame, W features of the teacher, D model.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.convolution import Downsampling, PastFrames, PostNet, zero_padding
from phonate.nn.sequences import Dropout, RotaryPositions, SinusoidalPositions, frame_mask
from phonate.nn.transformer import Activation, LayerShape, Stack, StackState
from phonate.nn.vocoder import MelDiscriminator
from phonate.tasks.conversion.settings import ConversionModel

ALIASES = {
    "hidden_size": "d_model",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "max_sequence_length": "max_seq_len",
    "vocab_size": "input_dim",
}


@dataclass
class StreamState:
    """What a causal VoiceTransformer carries from block to block."""

    input: PastFrames | None
    """Of the downsampling convolution; None without one."""
    encoder: StackState
    post_net: list[PastFrames] | None


class VoiceTransformer(nn.Module):
    """A transformer encoder over the frames of an utterance, conditioned on a learnt speaker embedding.

    By default the published shape: `input_dim` features are projected to `d_model`, scaled by its square root,
    given sinusoidal positions, passed through `n_layers` post-norm ReLU layers and projected to `output_dim`.

    Args:
        input_dim: features of a frame.
        d_model, n_heads, n_layers, d_ff, dropout: size of the encoder.
        max_seq_len: the longest sequence (sinusoidal positions only).
        n_speakers: speakers of the embedding; 0 for none.
        output_dim: features of an output frame; None for `input_dim`.
        prosody_dim: further features of a frame (pitch, voicing), projected and added; 0 for none.
        reference_dim: features of a frame that tell the wanted voice, made of its recordings; 0 for none.
        norm: layer norm before each branch of a layer, or after the residual sum.
        activation: of the feed-forward networks; see `feed_forward`.
        positions: sinusoidal, or rotary for a model that is trained on short crops.
        stride: frames that the encoder sees as one (a convolution joins them, the output splits them again).
        post_net_layers: layers of a residual convolutional post-net; 0 for none.
        causal: no output depends on frames after the `stride` ones that are seen as one, except for `lookahead`; such a
            model can run incrementally (`step`). It needs rotary positions.
        lookahead: of a causal model: output frames are made of the features of frames up to so many later.
        memory: of a causal model: frames that attention reaches back.

    The names hidden_size, num_layers, num_heads, max_sequence_length and vocab_size are taken too; a model
    with `vocab_size` reads integers (B, T) as one-hot vectors.
    """

    def __init__(
        self,
        input_dim: int = 80,
        d_model: int = 512,
        n_heads: int = 8,
        n_layers: int = 6,
        d_ff: int = 2048,
        dropout: float = 0.1,
        max_seq_len: int = 5000,
        n_speakers: int = 0,
        *,
        output_dim: int | None = None,
        prosody_dim: int = 0,
        reference_dim: int = 0,
        norm: Literal["pre", "post"] = "post",
        activation: Activation = "relu",
        positions: Literal["sinusoidal", "rotary"] = "sinusoidal",
        stride: int = 1,
        post_net_layers: int = 0,
        causal: bool = False,
        lookahead: int = 0,
        memory: int = 160,
        **aliases: int,
    ) -> None:
        super().__init__()
        sizes = {
            "input_dim": input_dim,
            "d_model": d_model,
            "n_heads": n_heads,
            "n_layers": n_layers,
            "max_seq_len": max_seq_len,
        }
        for alias, value in aliases.items():
            if alias not in ALIASES:
                raise TypeError(f"VoiceTransformer() got an unexpected keyword argument {alias!r}")
            sizes[ALIASES[alias]] = value
        self.input_dim, self.d_model = sizes["input_dim"], sizes["d_model"]
        self.n_speakers, self.prosody_dim, self.stride = n_speakers, prosody_dim, stride
        self.reference_dim = reference_dim
        self.output_dim = self.input_dim if output_dim is None else output_dim
        d_model, n_heads, n_layers = self.d_model, sizes["n_heads"], sizes["n_layers"]

        if causal and positions != "rotary":
            raise ValueError("a causal model needs positions='rotary', which have no end")
        self.causal, self.lookahead = causal, lookahead if causal else 0
        features = self.input_dim + prosody_dim + reference_dim
        self.input: nn.Module = nn.Linear(features, d_model)
        if stride > 1:
            self.input = Downsampling(features, d_model, stride, causal=causal)
        self.speaker = nn.Embedding(n_speakers, d_model) if n_speakers else None
        rotary = positions == "rotary"
        self.positions = None if rotary else SinusoidalPositions(d_model, sizes["max_seq_len"])
        self.input_dropout = Dropout(dropout)
        window = max(1, memory // stride) if causal else None
        shape = LayerShape(d_model, n_heads, d_ff, dropout, norm, activation, causal=causal, window=window)
        self.encoder = Stack(shape, n_layers, RotaryPositions(d_model // n_heads) if rotary else None)
        self.output = nn.Linear(d_model, self.output_dim * stride)
        self.post_net: PostNet | None = None
        if post_net_layers:
            self.post_net = PostNet(self.output_dim, d_model, post_net_layers, dropout=dropout, causal=causal)

    def forward(
        self,
        features: Tensor,
        speaker_id: Tensor | None = None,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
        prosody: Tensor | None = None,
        reference: Tensor | None = None,
    ) -> Tensor:
        """Predict a spectrogram.

        Args:
            features: (B, T, input_dim) floats, or (B, T) integers below `input_dim`.
            speaker_id: (B,) integers, the voice to speak in. Needed when the model has speakers.
            lengths: (B,) real frames of each item; the rest is padding.
            mask: (B, T) boolean, True at real frames; instead of `lengths`.
            prosody: (B, T, prosody_dim). Needed when the model reads prosody.
            reference: (B, T, reference_dim). Needed when the model is told the voice by recordings.

        Returns:
            (B, T, output_dim). What is returned for padding has no meaning.
        """
        mask_BT = frame_mask(lengths, features.shape[1]) if mask is None and lengths is not None else mask
        if self.lookahead:
            features = self._ahead(features, mask_BT)
        hidden_BTD, hidden_mask_BT = self._embed(self._input_features(features, prosody, reference), mask_BT)
        hidden_BTD = self._conditioned(hidden_BTD, speaker_id)
        if self.positions is not None:
            hidden_BTD = self.positions(hidden_BTD)
        # Padding is at the end, where no real frame of a causal model attends to it.
        encoder_mask_BT = None if self.causal else hidden_mask_BT
        hidden_BTD = self.encoder(self.input_dropout(hidden_BTD), encoder_mask_BT)
        out_BTF = self._frames(self.output(hidden_BTD), features.shape[1])
        return out_BTF if self.post_net is None else self.post_net(out_BTF, mask_BT)

    def initial_state(self) -> StreamState:
        """The state of a causal model before the first `step`, for one stream."""
        if not self.causal:
            raise ValueError("only a causal model can run incrementally; build it with causal=True")
        return StreamState(
            self.input.initial_state(1) if isinstance(self.input, Downsampling) else None,
            self.encoder.initial_state(1),
            None if self.post_net is None else self.post_net.initial_state(1),
        )

    def step(
        self, features: Tensor, state: StreamState, speaker_id: Tensor | None = None, prosody: Tensor | None = None
    ) -> Tensor:
        """The frames (1, n, output_dim), n may be 0, that the next features (1, T, input_dim) complete.

        Joined, they are those of `forward`. `state` is updated in place.

        Args:
            features: of the frames that are `lookahead` after those of `prosody`. Behind the last ones come zeros.
            state: from `initial_state`.
            speaker_id: (1,), as for `forward`.
            prosody: (1, T, prosody_dim), as for `forward`.
        """
        hidden_BTD = self._input_features(features, prosody)
        if isinstance(self.input, Downsampling):
            assert state.input is not None
            hidden_BTD = self.input.step(hidden_BTD, state.input)
        else:
            hidden_BTD = self.input(hidden_BTD)
        if hidden_BTD.shape[1] == 0:
            return hidden_BTD.new_zeros(1, 0, self.output_dim)
        hidden_BTD = self.encoder.step(self._conditioned(hidden_BTD, speaker_id), state.encoder)
        out_BTF = self._frames(self.output(hidden_BTD), hidden_BTD.shape[1] * self.stride)
        if self.post_net is None:
            return out_BTF
        assert state.post_net is not None
        return self.post_net.step(out_BTF, state.post_net)

    def _ahead(self, features: Tensor, mask_BT: Tensor | None) -> Tensor:
        """The features of the frames `lookahead` later; zeros behind the last ones."""
        features = features if mask_BT is None else zero_padding(features, mask_BT)
        return F.pad(features[:, self.lookahead :], (0, 0, 0, min(self.lookahead, features.shape[1])))

    def _conditioned(self, hidden_BTD: Tensor, speaker_id: Tensor | None) -> Tensor:
        """Hidden frames, scaled, with the embedding of the speaker."""
        hidden_BTD = hidden_BTD * math.sqrt(self.d_model)
        if self.speaker is not None:
            if speaker_id is None:
                raise ValueError(f"this model knows {self.n_speakers} speakers: speaker_id is needed")
            voiced_BTD: Tensor = hidden_BTD + self.speaker(speaker_id)[:, None, :].to(hidden_BTD.dtype)
            return voiced_BTD
        if speaker_id is not None:
            warnings.warn(
                "speaker_id is ignored: this VoiceTransformer has no speakers; build it with n_speakers=...",
                stacklevel=3,
            )
        return hidden_BTD

    def _input_features(self, features: Tensor, prosody: Tensor | None, reference: Tensor | None = None) -> Tensor:
        """Floats (B, T, input_dim + prosody_dim + reference_dim) of whatever came."""
        if features.dim() == 2 and not features.is_floating_point():
            features = F.one_hot(features, self.input_dim).to(self.output.weight.dtype)
        parts = [features]
        for name, size, values in (
            ("prosody", self.prosody_dim, prosody),
            ("reference", self.reference_dim, reference),
        ):
            if size and values is None:
                raise ValueError(f"this model reads {size} {name} features of each frame: {name} is needed")
            if size and values is not None:
                parts.append(values.to(features.dtype))
        return torch.cat(parts, dim=-1) if len(parts) > 1 else features

    def _embed(self, features_BTF: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Hidden frames (B, ceil(T / stride), D) and their mask."""
        if self.stride == 1:
            return self.input(features_BTF), mask_BT
        embedded: tuple[Tensor, Tensor | None] = self.input(features_BTF, mask_BT)
        return embedded

    def _frames(self, out_BTS: Tensor, frames: int) -> Tensor:
        """Split each hidden frame's output into its `stride` frames: (B, frames, output_dim)."""
        if self.stride == 1:
            return out_BTS
        batch, hidden_frames, _ = out_BTS.shape
        return out_BTS.reshape(batch, hidden_frames * self.stride, self.output_dim)[:, :frames]

    def export_to_onnx(self, path: str | Path, opset_version: int = 17, frames: int = 64) -> Path:
        """Write the model as ONNX with free batch and time axes.

        Inputs are `features`, then, where the model has them, `speaker_id`, `prosody` and `reference`; output is
        `output`.
        `frames` is the length of the example that the export is traced with; any other length runs too.
        """
        names, example = ["features"], [torch.zeros(1, frames, self.input_dim)]
        if self.speaker is not None:
            names.append("speaker_id")
            example.append(torch.zeros(1, dtype=torch.long))
        if self.prosody_dim:
            names.append("prosody")
            example.append(torch.zeros(1, frames, self.prosody_dim))
        if self.reference_dim:
            names.append("reference")
            example.append(torch.zeros(1, frames, self.reference_dim))
        axes = {name: {0: "batch"} if name == "speaker_id" else {0: "batch", 1: "time"} for name in names}
        was_training, target = self.training, Path(path)
        self.eval()
        try:
            with warnings.catch_warnings():
                # The newer exporter writes no opset under 18, so this is the tracing one, which warns of its age.
                warnings.simplefilter("ignore", DeprecationWarning)
                torch.onnx.export(
                    self,
                    tuple(example[:1]),
                    str(target),
                    kwargs=dict(zip(names[1:], example[1:], strict=True)),
                    input_names=names,
                    output_names=["output"],
                    dynamic_axes={**axes, "output": {0: "batch", 1: "time"}},
                    opset_version=opset_version,
                    dynamo=False,
                )
        finally:
            self.train(was_training)
        return target


# ------------------------------------------------------- The network that a recipe's `model` describes


@dataclass
class DistilledState:
    """What a DistilledTransformer carries from block to block."""

    content: StreamState
    converter: StreamState
    prosody_BTP: Tensor | None = None
    """Prosody of frames whose content is not known yet."""


class DistilledTransformer(nn.Module):
    """Two causal VoiceTransformers: one predicts the content that a teacher, such as Whisper's encoder, sees in whole
    recordings; the other converts from that content.

    The first learns from the teacher alone: a loss on the converted mel would teach it to let the voice through.

    Args:
        content: mel envelopes -> features of the teacher.
        converter: these, prosody and a speaker -> mel.
    """

    causal = True
    positions = None

    def __init__(self, content: VoiceTransformer, converter: VoiceTransformer) -> None:
        super().__init__()
        self.content, self.converter = content, converter
        self.lookahead, self.stride = content.lookahead, converter.stride
        self.prosody_dim, self.output_dim = converter.prosody_dim, converter.output_dim

    @property
    def output(self) -> nn.Linear:
        """The last layer of the converter, before its post-net."""
        return self.converter.output

    def forward(
        self,
        features: Tensor,
        speaker_id: Tensor | None = None,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
        prosody: Tensor | None = None,
    ) -> Tensor:
        return self.with_content(features, speaker_id, lengths, mask, prosody)[0]

    def with_content(
        self,
        features: Tensor,
        speaker_id: Tensor | None = None,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
        prosody: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The mel (B, T, output_dim), and the content (B, T, W) that it was made from."""
        content_BTW = self.content(features, lengths=lengths, mask=mask)
        mel_BTM: Tensor = self.converter(content_BTW.detach(), speaker_id, lengths, mask, prosody)
        return mel_BTM, content_BTW

    def initial_state(self) -> DistilledState:
        """The state before the first `step`, for one stream."""
        return DistilledState(self.content.initial_state(), self.converter.initial_state())

    def step(
        self, features: Tensor, state: DistilledState, speaker_id: Tensor | None = None, prosody: Tensor | None = None
    ) -> Tensor:
        content_BTW = self.content.step(features, state.content)
        if prosody is not None:
            held = prosody if state.prosody_BTP is None else torch.cat((state.prosody_BTP, prosody), dim=1)
            prosody, state.prosody_BTP = held[:, : content_BTW.shape[1]], held[:, content_BTW.shape[1] :]
        return self.converter.step(content_BTW, state.converter, speaker_id, prosody)


Network = VoiceTransformer | DistilledTransformer


class ConversionGAN(nn.Module):
    """The network, and the discriminator that is only there to train it."""

    def __init__(self, network: Network, discriminator: MelDiscriminator) -> None:
        super().__init__()
        self.network = network
        self.discriminator = discriminator


def network_of(model: nn.Module) -> Network:
    """The network of a model that is trained with or without a discriminator."""
    return cast(Network, model.network if isinstance(model, ConversionGAN) else model)


def build_model(
    settings: ConversionModel,
    n_speakers: int,
    input_dim: int,
    output_dim: int,
    prosody_dim: int,
    teacher_dim: int | None = None,
    reference_dim: int = 0,
) -> Network:
    """The network that a recipe's `model` part describes, for features of these sizes. `teacher_dim`: W; None: the mel
    is made of the input at once. `reference_dim`: features of a frame that tell the voice, instead of `n_speakers`."""
    options = settings.model_dump(exclude={"discriminator_channels"})
    if teacher_dim is None:
        return VoiceTransformer(
            input_dim,
            n_speakers=n_speakers,
            output_dim=output_dim,
            prosody_dim=prosody_dim,
            reference_dim=reference_dim,
            **options,
        )
    content = VoiceTransformer(input_dim, output_dim=teacher_dim, **{**options, "post_net_layers": 0})
    converter = VoiceTransformer(
        teacher_dim,
        n_speakers=n_speakers,
        output_dim=output_dim,
        prosody_dim=prosody_dim,
        **{**options, "lookahead": 0},
    )
    return DistilledTransformer(content, converter)
