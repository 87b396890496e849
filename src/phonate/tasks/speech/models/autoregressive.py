"""The autoregressive acoustic model: an encoded text, stretched to its durations, is spoken frame by frame.

A Transformer in the manner of Li et al. 2019 ("Neural speech synthesis with Transformer network"), with a length
regulator before its decoder (Ren et al. 2019, FastSpeech) and the pre-net, stop token and post-net of Tacotron 2 (Shen
et al. 2018). Durations only say where the text is to be found and how long the sound can become; the model itself says
when it has ended.

Shapes: B batch, L tokens, T frames, D width, M mel bands.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.nn.checkpointing import Segments
from phonate.nn.convolution import PostNet
from phonate.nn.masks import frame_mask
from phonate.nn.positions import SinusoidalPositions
from phonate.nn.regulator import rounded_durations, token_indices
from phonate.nn.transformer.layer import LayerShape
from phonate.nn.transformer.stack import Stack
from phonate.tasks.speech.models.spoken import SpokenSentence
from phonate.training.task import Batch, Count, Terms

logger = logging.getLogger("phonate")

WEIGHTS = {"mel": 10.0, "mel_before": 5.0, "duration": 0.1, "stop": 1.0}
"""Weights of the terms. Features go from 0 to 1 where the logarithms that such models are otherwise trained on go over
about ten, so their distances count ten times: 1.0 after the post-net and 0.5 before it, as those have it."""
STOP_THRESHOLD = 0.5
_TAIL = 3
"""Frames over which the stop token rises to 1: which one is the last is not known better than that."""
_STOP_WEIGHT = 17.0
"""Of frames that end, of which there is one in hundreds."""
_PRENET_DROPOUT = 0.5
_POSTNET_LAYERS = 5
_FIRST_FRAMES = 2500
"""Frames for which there are positions from the start; longer sentences make more."""


class Spoken(NamedTuple):
    """What a forward pass gives."""

    mel_BTM: Tensor
    before_BTM: Tensor
    """The mel before the post-net."""
    duration_BL: Tensor
    """Logarithm of each token's frames plus 1, as predicted."""
    stop_BT: Tensor
    """Logit of each frame being the last."""


class AutoregressiveModel(nn.Module):
    """Tokens -> durations -> frames, one after the other.

    Args:
        n_tokens: Size of the inventory.
        n_speakers: Voices; with one there is no speaker embedding.
        n_mels: M.
        width: D.
        heads: Of all attentions.
        feed_forward: Hidden units of each block's (gated) feed-forward network.
        encoder_layers: Blocks over tokens.
        decoder_layers: Blocks over frames.
        dropout: In all blocks.
        postnet_channels: Of the post-net's five convolutions; 0: no post-net.
        segments: See `phonate.nn.checkpointing`.
    """

    def __init__(
        self,
        n_tokens: int,
        n_speakers: int,
        n_mels: int,
        width: int,
        heads: int,
        feed_forward: int,
        encoder_layers: int,
        decoder_layers: int,
        dropout: float,
        postnet_channels: int = 512,
        segments: Segments = None,
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.embedding = nn.Embedding(n_tokens, width, padding_idx=0)
        # Embeddings are multiplied by the root of D; drawn any larger they would drown the positions.
        nn.init.normal_(self.embedding.weight[1:], std=1.0 / self.scale)
        self.speakers = nn.Embedding(n_speakers, width) if n_speakers > 1 else None
        self.positions = SinusoidalPositions(width, _FIRST_FRAMES, grows=True)
        self.dropout = nn.Dropout(dropout)
        shape = LayerShape(width, heads, feed_forward, dropout, norm="pre", activation="glu")
        self.encoder = Stack(shape, encoder_layers, segments=segments)
        self.durations = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width // 2),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width // 2, 1),
        )
        # Recorded frames say so much about the next one that without this dropout the text would not be listened to.
        self.prenet = nn.Sequential(
            nn.Linear(n_mels, width), nn.ReLU(), nn.Dropout(_PRENET_DROPOUT), nn.Linear(width, width)
        )
        self.decoder = Stack(replace(shape, causal=True, memory=True), decoder_layers, segments=segments)
        self.output = nn.Linear(width, n_mels)
        self.stop = nn.Linear(width, 1)
        self.postnet = PostNet(n_mels, postnet_channels, _POSTNET_LAYERS) if postnet_channels else None

    def encode(self, tokens_BL: Tensor, speaker_B: Tensor | None, mask_BL: Tensor | None) -> Tensor:
        """What is to be said, and by whom (B, L, D)."""
        x_BLD = self.dropout(self.positions(self.scale * self.embedding(tokens_BL)))
        encoded_BLD: Tensor = self.encoder(x_BLD, mask_BL)
        if self.speakers is not None and speaker_B is not None:
            encoded_BLD = encoded_BLD + self.speakers(speaker_B)[:, None]
        return encoded_BLD

    def predict(self, encoded_BLD: Tensor) -> Tensor:
        """(B, L): log of the duration in frames plus 1."""
        out: Tensor = self.durations(encoded_BLD)
        return out.squeeze(-1)

    def regulated(self, encoded_BLD: Tensor, durations_BL: Tensor, frames: int) -> Tensor:
        """Each token's encoding for each of its frames, with the frame's position (B, T, D)."""
        token_BT = token_indices(durations_BL, frames)
        said_BTD = encoded_BLD.gather(1, token_BT[..., None].expand(-1, -1, encoded_BLD.shape[-1]))
        memory_BTD: Tensor = self.positions(said_BTD)
        return memory_BTD

    def decode(self, memory_BSD: Tensor, mask_BS: Tensor | None, given_BTM: Tensor) -> tuple[Tensor, Tensor]:
        """Mel before the post-net (B, T, M) and stop logits (B, T) of all frames, after the frames `given_BTM`.

        Frame t is made of those before it: of nothing, `given_BTM[:, 0]`, ..., `given_BTM[:, t - 1]`.
        """
        shifted_BTM = F.pad(given_BTM, (0, 0, 1, 0))[:, :-1]
        x_BTD = self.dropout(self.positions(self.prenet(shifted_BTM)))
        hidden_BTD = self.decoder(x_BTD, memory_BSD=memory_BSD, memory_mask_BS=mask_BS)
        return self.output(hidden_BTD), self.stop(hidden_BTD).squeeze(-1)

    def finished(self, before_BTM: Tensor, mask_BT: Tensor | None) -> Tensor:
        """The mel after the post-net (B, T, M)."""
        return before_BTM if self.postnet is None else self.postnet(before_BTM, mask_BT)

    def forward(
        self,
        tokens_BL: Tensor,
        token_lengths_B: Tensor,
        durations_BL: Tensor,
        target_BTM: Tensor,
        lengths_B: Tensor,
        speaker_B: Tensor | None = None,
    ) -> Spoken:
        """Teacher forcing: predictions with recorded durations, each frame from the recorded ones before it.

        Args:
            tokens_BL: Token numbers (B, L), 0 after the ends.
            token_lengths_B: Tokens of each item (B,).
            durations_BL: Frames of each token (B, L).
            target_BTM: Recorded mels (B, T, M), from 0 to 1.
            lengths_B: Frames of each item (B,).
            speaker_B: Numbers of the voices (B,).
        """
        encoded_BLD = self.encode(tokens_BL, speaker_B, frame_mask(token_lengths_B, tokens_BL.shape[1]))
        mask_BT = frame_mask(lengths_B, target_BTM.shape[1])
        memory_BTD = self.regulated(encoded_BLD, durations_BL, target_BTM.shape[1])
        before_BTM, stop_BT = self.decode(memory_BTD, mask_BT, target_BTM)
        return Spoken(self.finished(before_BTM, mask_BT), before_BTM, self.predict(encoded_BLD), stop_BT)

    def generate(self, memory_1SD: Tensor, least: int, most: int, threshold: float = STOP_THRESHOLD) -> Tensor:
        """Mel before the post-net (1, T, M), made from its own frames until it says that it has ended.

        It is not asked before `least` frames, and is cut off, with a warning, after `most`.
        """
        state = self.decoder.initial_state(1, memory_1SD)
        frame_11M = memory_1SD.new_zeros(1, 1, self.output.out_features)
        frames: list[Tensor] = []
        end = None
        while len(frames) < (most if end is None else min(most, end)):
            x_11D = self.positions(self.prenet(frame_11M), start=len(frames))
            hidden_11D = self.decoder.step(x_11D, state)
            frame_11M = self.output(hidden_11D).clamp(0.0, 1.0)  # what recorded frames, too, can be
            frames.append(frame_11M)
            if end is None and len(frames) >= least and float(self.stop(hidden_11D).sigmoid()) >= threshold:
                end = len(frames) + _TAIL - 1  # it has learnt to say so from the tail's first frame on
        if end is None:
            logger.warning("a sentence did not come to its end and was cut off after %d frames", most)
        return torch.cat(frames, dim=1)

    def speak(
        self,
        tokens: Sequence[Tensor],
        speaker: int,
        speeds: Sequence[Tensor] | None = None,
        semitones: Sequence[Tensor] | None = None,
    ) -> list[SpokenSentence]:
        """Synthesise sentences, one after the other.

        Args:
            tokens: Token numbers (L,) of each sentence.
            speaker: Number of the voice.
            speeds: Of each token (L,); 1.2 is a fifth faster.
            semitones: Of each token (L, 2); must be 0.

        Returns:
            Each in at least a third and at most twice the frames that its durations add up to, without pitch, which is
            in the mel.

        Raises InputError for `semitones` other than 0.
        """
        speeds = speeds or [torch.ones(len(one), device=one.device) for one in tokens]
        for changed in semitones or ():
            if changed.any():
                most = float(changed.abs().max())
                raise InputError(f"semitones {most:g}: an autoregressive model can't change its pitch; leave it at 0")
        return [
            SpokenSentence(self._sentence(one[None], speaker, speed_L), None, None)
            for one, speed_L in zip(tokens, speeds, strict=True)
        ]

    def _sentence(self, tokens_1L: Tensor, speaker: int, speed_L: Tensor) -> Tensor:
        """The mel (T, M) of one sentence."""
        encoded_1LD = self.encode(tokens_1L, torch.tensor([speaker], device=tokens_1L.device), None)
        durations_1L = rounded_durations((self.predict(encoded_1LD).float().exp() - 1.0).clamp_min(0.0) / speed_L)
        expected = max(2, int(durations_1L.sum()))
        memory_1SD = self.regulated(encoded_1LD, durations_1L, expected)
        before_1TM = self.generate(memory_1SD, least=math.ceil(expected / 3), most=2 * expected)
        return self.finished(before_1TM, None)[0].float().clamp(0.0, 1.0)


def stop_targets(lengths_B: Tensor, frames: int) -> Tensor:
    """(B, frames): 1 at the last frame of each item, to which the two before it rise, and 0 elsewhere."""
    left_BT = lengths_B[:, None] - 1 - torch.arange(frames, device=lengths_B.device)[None]
    return torch.where(left_BT >= 0, (1.0 - left_BT / _TAIL).clamp_min(0.0), 0.0)


def loss_terms(model: AutoregressiveModel, batch: Batch) -> Terms:
    """`mel` and `mel_before` (L1 distances after and before the post-net), `duration` (squared, of logarithms) and
    `stop` (cross-entropy)."""
    target_BTM, durations_BL = batch["target"], batch["durations"]
    spoken: Spoken = model(
        batch["tokens"], batch["token_lengths"], durations_BL, target_BTM, batch["lengths"], batch["speaker_id"]
    )
    mask_BT = frame_mask(batch["lengths"], target_BTM.shape[1])
    mask_BL = frame_mask(batch["token_lengths"], durations_BL.shape[1])
    cells = mask_BT.sum() * target_BTM.shape[-1]
    duration_BL = (spoken.duration_BL.float() - (durations_BL + 1.0).log()).square()
    stop_BT = F.binary_cross_entropy_with_logits(
        spoken.stop_BT.float(),
        stop_targets(batch["lengths"], target_BTM.shape[1]),
        reduction="none",
        pos_weight=torch.tensor(_STOP_WEIGHT, device=target_BTM.device),
    )
    return {
        "mel": (_distance(spoken.mel_BTM, target_BTM, mask_BT), cells),
        "mel_before": (_distance(spoken.before_BTM, target_BTM, mask_BT), cells),
        "duration": ((duration_BL * mask_BL).sum(), mask_BL.sum()),
        "stop": ((stop_BT * mask_BT).sum(), mask_BT.sum()),
    }


def loss_counts(batch: Batch) -> dict[str, Count]:
    """The counts of `loss_terms`."""
    tokens, frames = float(batch["token_lengths"].sum()), float(batch["lengths"].sum())
    cells = frames * batch["target"].shape[-1]
    return {"mel": cells, "mel_before": cells, "duration": tokens, "stop": frames}


def _distance(made_BTM: Tensor, target_BTM: Tensor, mask_BT: Tensor) -> Tensor:
    return ((made_BTM.float() - target_BTM).abs() * mask_BT[..., None]).sum()
