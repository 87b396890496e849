"""The network that a recipe's `model` describes: a VoiceTransformer, or two for live conversion by Whisper features.
With adversarial training, a discriminator beside it.

Shapes: B batch, T frames, F features of a frame, W features of the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from phonate.nn.vocoder.discriminators import MelDiscriminator
from phonate.tasks.conversion.model import StreamState, VoiceTransformer
from phonate.tasks.conversion.settings import ConversionModel


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
        """As `VoiceTransformer.forward`."""
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
        made: Tensor = self.converter(content_BTW.detach(), speaker_id, lengths, mask, prosody)
        return made, content_BTW

    def initial_state(self) -> DistilledState:
        """The state before the first `step`, for one stream."""
        return DistilledState(self.content.initial_state(), self.converter.initial_state())

    def step(
        self, features: Tensor, state: DistilledState, speaker_id: Tensor | None = None, prosody: Tensor | None = None
    ) -> Tensor:
        """As `VoiceTransformer.step`."""
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
