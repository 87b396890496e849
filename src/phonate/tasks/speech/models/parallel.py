"""The parallel acoustic model: phones and how long each is, the melody over frames, then all frames at once.

After FastSpeech 2 (Ren et al. 2021) and FastPitch (Łańcucki 2021), with ConvNeXt blocks. Durations are explicit, so
no word can be left out or said twice. The pitch is predicted for each frame and given to the decoder: one that had to
guess it would blur the harmonics.

Shapes: B batch, L tokens, T frames, D width, M mel bands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from phonate.nn.convnext import ConvNeXt
from phonate.nn.masks import frame_mask
from phonate.nn.regulator import rounded_durations, token_indices
from phonate.tasks.speech.models.spoken import SpokenSentence

NOISE = 16
"""Random numbers that the decoder is given for each frame, for what text does not say."""
MIDDLE_F0 = 200.0
"""Hz, whose logarithm counts as 0."""
VOICE_SCALE = 8.0
"""Of the vectors of voices, which learn as much faster by it: each is heard in few of the steps."""
_PLACES = 6
_NOISE_FRAMES = 4096


def noise_table() -> Tensor:
    """The noise (4096, 16) that is spoken with: the same each time, and begun again where it ends."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal((_NOISE_FRAMES, NOISE), dtype=np.float32))


def hertz(melody_BT2: Tensor) -> Tensor:
    """F0 (B, T) of a melody, in whole eighths of a hertz (about a hundredth of a semitone), 0 where there is no voice.

    A vocoder sums the pitch up to a phase, and with it rounding errors that differ from one runtime to the next: after
    some seconds they are heard in the highest harmonics. Of pitches that are rounded alike there is nothing to sum up.
    """
    return torch.round(8.0 * MIDDLE_F0 * melody_BT2[..., 0].exp()) / 8.0 * melody_BT2[..., 1]


@dataclass(frozen=True)
class Prosody:
    """How tokens are to be said."""

    durations_BL: Tensor
    """Frames, whole numbers."""
    energy_BL: Tensor
    """Mean of the mel."""
    pitch_BT2: Tensor | None = None
    """Log F0 over 200 Hz of each frame, going on where there is no voice, and 1 where there is one. None: as the
    model predicts it."""


class AcousticOutput(NamedTuple):
    """What a forward pass gives."""

    mel_BTM: Tensor
    predicted_BL2: Tensor
    """See `ParallelModel.predict`."""
    pitch_BT2: Tensor
    """See `ParallelModel.pitch`."""
    regulated_BTD: Tensor
    """What each frame says."""


def renewed(weights: Mapping[str, Tensor], prefix: str, n_speakers: int) -> dict[str, Tensor]:
    """The vectors of voices (S, D) for weights from before they were scaled, when a single voice had none."""
    name = f"{prefix}voices.weight"
    if name in weights or f"{prefix}embedding.weight" not in weights:
        return {}
    if (table_SD := weights.get(f"{prefix}speakers.weight")) is not None:
        return {name: table_SD / VOICE_SCALE}
    return {name: torch.zeros(1, weights[f"{prefix}embedding.weight"].shape[1])} if n_speakers == 1 else {}


class ParallelModel(nn.Module):
    """Tokens -> prosody -> mel.

    Args:
        n_tokens: Size of the inventory.
        n_speakers: Voices.
        n_mels: M.
        width: D.
        encoder_layers: Blocks over tokens.
        decoder_layers: Blocks over frames.
        predictor_layers: Blocks of the prosody predictor.
        dropout: In the encoder.
        predictor_dropout: In what predicts prosody and melody, and of what they are given.
    """

    def __init__(
        self,
        n_tokens: int,
        n_speakers: int,
        n_mels: int,
        width: int,
        encoder_layers: int,
        decoder_layers: int,
        predictor_layers: int,
        dropout: float,
        predictor_dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width, padding_idx=0)
        self.voices = nn.Embedding(n_speakers, width, _weight=torch.zeros(n_speakers, width))
        self.encoder = ConvNeXt(width, encoder_layers, dropout=dropout)
        self.given = nn.Dropout(predictor_dropout)
        self.predictor = ConvNeXt(width, predictor_layers, dropout=predictor_dropout)
        self.prosody_head = nn.Linear(width, 2)
        self.energy_embedding = nn.Linear(1, width)
        self.place_embedding = nn.Linear(_PLACES, width)
        self.melody = ConvNeXt(width, predictor_layers, dropout=predictor_dropout)
        self.pitch_head = nn.Linear(width, 2)
        self.pitch_embedding = nn.Linear(2, width)
        self.noise_embedding = nn.Linear(NOISE, width, bias=False)
        self.decoder = ConvNeXt(width, decoder_layers)
        self.output = nn.Linear(width, n_mels)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Also weights of before `renewed`."""
        state_dict |= renewed(state_dict, prefix, len(self.voices.weight))
        state_dict.pop(f"{prefix}speakers.weight", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def encode(self, tokens_BL: Tensor, speaker_B: Tensor | None, mask_BL: Tensor | None) -> Tensor:
        """What is to be said, and by whom (B, L, D); None: the first speaker."""
        voice_BD = self.voices.weight[:1] if speaker_B is None else self.voices(speaker_B)
        said_BLD = self.embedding(tokens_BL) + VOICE_SCALE * voice_BD[:, None]
        encoded: Tensor = self.encoder(said_BLD, mask_BL)
        return encoded

    def predict(self, encoded_BLD: Tensor, mask_BL: Tensor | None) -> Tensor:
        """(B, L, 2): log of the duration in frames plus 1, and energy."""
        out: Tensor = self.prosody_head(self.predictor(self.given(encoded_BLD), mask_BL))
        return out

    def prosody(self, predicted_BL2: Tensor, speed: float | Tensor = 1.0, mask_BL: Tensor | None = None) -> Prosody:
        """Predictions (B, L, 2) as whole durations and energies, each (B, L); `speed` 1.2 is a fifth faster."""
        frames_BL = (predicted_BL2[..., 0].exp() - 1.0).clamp_min(0.0) / speed
        durations_BL = rounded_durations(frames_BL if mask_BL is None else frames_BL * mask_BL)
        return Prosody(durations_BL, predicted_BL2[..., 1])

    def regulated(
        self, encoded_BLD: Tensor, prosody: Prosody, frames: int, token_lengths_B: Tensor | None = None
    ) -> Tensor:
        """Each token's encoding, energy and the frame's place within the token, for each of its frames (B, T, D).
        `token_lengths_B` are needed where an item has frames after the end of its tokens."""
        said_BLD = encoded_BLD + self.energy_embedding(prosody.energy_BL[..., None])
        ends_BL = torch.cumsum(prosody.durations_BL, dim=1)
        frame_T = torch.arange(frames, device=ends_BL.device)
        token_BT = token_indices(prosody.durations_BL, frames, token_lengths_B)
        said_BTD = said_BLD.gather(1, token_BT[..., None].expand(-1, -1, said_BLD.shape[-1]))
        length_BT = prosody.durations_BL.gather(1, token_BT).clamp_min(1).to(said_BTD.dtype)
        since_BT = frame_T - (ends_BL.gather(1, token_BT) - length_BT.long()).to(said_BTD.dtype)
        regulated: Tensor = said_BTD + self.place_embedding(_places(since_BT, length_BT))
        return regulated

    def pitch(self, regulated_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        """(B, T, 2): log F0 over 200 Hz, and the logit of there being a voice, as predicted for each frame."""
        out: Tensor = self.pitch_head(self.melody(self.given(regulated_BTD), mask_BT))
        return out

    def decode(self, regulated_BTD: Tensor, pitch_BT2: Tensor, noise_BTN: Tensor, mask_BT: Tensor | None) -> Tensor:
        """The mel (B, T, M) of frames that know what they say and at which pitch."""
        hidden_BTD = regulated_BTD + self.pitch_embedding(pitch_BT2) + self.noise_embedding(noise_BTN)
        mel_BTM: Tensor = self.output(self.decoder(hidden_BTD, mask_BT))
        return mel_BTM

    def spoken(
        self,
        tokens_1L: Tensor,
        speaker_1: Tensor | None,
        noise_table: Tensor,
        speed: float | Tensor = 1.0,
        octaves: float | Tensor = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The mel (1, T, M), from 0 to 1, of one text with predicted prosody, its melody (1, T, 2), and the frames of
        each token (1, L). `speed` may be of each token (1, L), and `octaves`, by which the pitch is raised, of the
        beginning and the end of each token (1, L, 2)."""
        encoded_1LD = self.encode(tokens_1L, speaker_1, None)
        prosody = self.prosody(self.predict(encoded_1LD, None), speed)
        frames = int(prosody.durations_BL.sum().clamp_min(2))
        regulated_1TD = self.regulated(encoded_1LD, prosody, frames)
        if isinstance(octaves, Tensor):
            octaves = _contour(octaves, prosody.durations_BL, frames)
        return (*self._decoded(regulated_1TD, noise_table, octaves, None), prosody.durations_BL)

    def _decoded(
        self, regulated_BTD: Tensor, noise_table: Tensor, octaves: float | Tensor, mask_BT: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mel (B, T, M), from 0 to 1, and melody (B, T, 2), with the predicted pitch raised by `octaves` (B, T)."""
        contour_BT, voicing_BT = self.pitch(regulated_BTD, mask_BT).float().unbind(-1)
        melody_BT2 = torch.stack([contour_BT + octaves * math.log(2.0), (voicing_BT > 0).float()], dim=-1)
        frames = regulated_BTD.shape[1]
        noise_TN = noise_table[torch.arange(frames, device=noise_table.device) % noise_table.shape[0]]
        noise_BTN = noise_TN[None].expand(regulated_BTD.shape[0], -1, -1)
        mel_BTM = self.decode(regulated_BTD, melody_BT2, noise_BTN, mask_BT)
        return mel_BTM.float().clamp(0.0, 1.0), melody_BT2

    def forward(
        self,
        tokens_BL: Tensor,
        token_lengths_B: Tensor,
        prosody: Prosody,
        noise_BTN: Tensor,
        lengths_B: Tensor,
        speaker_B: Tensor | None = None,
    ) -> AcousticOutput:
        """Mels with a recorded `prosody`, and the predictions of that prosody.

        Args:
            tokens_BL: Token numbers (B, L), 0 after the ends.
            token_lengths_B: Tokens of each item (B,).
            prosody: As recorded, with pitch.
            noise_BTN: Noise (B, T, 16) for what the text does not determine.
            lengths_B: Frames of each item (B,).
            speaker_B: Numbers of the voices (B,).
        """
        assert prosody.pitch_BT2 is not None
        mask_BL = frame_mask(token_lengths_B, tokens_BL.shape[1])
        encoded_BLD = self.encode(tokens_BL, speaker_B, mask_BL)
        mask_BT = frame_mask(lengths_B, noise_BTN.shape[1])
        regulated_BTD = self.regulated(encoded_BLD, prosody, noise_BTN.shape[1])
        return AcousticOutput(
            mel_BTM=self.decode(regulated_BTD, prosody.pitch_BT2, noise_BTN, mask_BT),
            predicted_BL2=self.predict(encoded_BLD, mask_BL),
            pitch_BT2=self.pitch(regulated_BTD, mask_BT),
            regulated_BTD=regulated_BTD,
        )

    def speak(
        self,
        tokens: Sequence[Tensor],
        speaker: int,
        speeds: Sequence[Tensor] | None = None,
        semitones: Sequence[Tensor] | None = None,
    ) -> list[SpokenSentence]:
        """Synthesise sentences, in one forward pass.

        Args:
            tokens: Token numbers (L,) of each sentence.
            speaker: Number of the voice.
            speeds: Of each token (L,); 1.2 is a fifth faster.
            semitones: Added to the pitch at the beginning and the end of each token (L, 2), evenly changing between.
        """
        device = tokens[0].device
        speeds = speeds or [torch.ones(len(one), device=device) for one in tokens]
        semitones = semitones or [torch.zeros(len(one), 2, device=device) for one in tokens]
        table = noise_table().to(device)
        speaker_B = torch.full((len(tokens),), speaker, device=device)
        if len(tokens) == 1:
            mel_1TM, melody_1T2, durations_1L = self.spoken(
                tokens[0][None], speaker_B, table, speeds[0][None], semitones[0][None] / 12.0
            )
            return [SpokenSentence(mel_1TM[0], hertz(melody_1T2)[0], durations_1L[0])]
        tokens_BL = nn.utils.rnn.pad_sequence(list(tokens), batch_first=True)
        lengths_B = torch.tensor([len(one) for one in tokens], device=device)
        mask_BL = frame_mask(lengths_B, tokens_BL.shape[1])
        encoded_BLD = self.encode(tokens_BL, speaker_B, mask_BL)
        speed_BL = nn.utils.rnn.pad_sequence(list(speeds), batch_first=True, padding_value=1.0)
        prosody = self.prosody(self.predict(encoded_BLD, mask_BL), speed_BL, mask_BL)
        frames_B = prosody.durations_BL.sum(dim=1).clamp_min(2)
        mask_BT = frame_mask(frames_B, int(frames_B.max()))
        regulated_BTD = self.regulated(encoded_BLD, prosody, int(frames_B.max()), lengths_B)
        octaves_BL2 = nn.utils.rnn.pad_sequence(list(semitones), batch_first=True) / 12.0
        octaves_BT = _contour(octaves_BL2, prosody.durations_BL, int(frames_B.max()), lengths_B)
        mel_BTM, melody_BT2 = self._decoded(regulated_BTD, table, octaves_BT, mask_BT)
        f0_BT, lengths = hertz(melody_BT2), frames_B.tolist()
        return [
            SpokenSentence(mel_TM[:n], f0_T[:n], durations_L[: len(one)])
            for mel_TM, f0_T, durations_L, n, one in zip(
                mel_BTM, f0_BT, prosody.durations_BL, lengths, tokens, strict=True
            )
        ]


def _contour(values_BL2: Tensor, durations_BL: Tensor, frames: int, token_lengths_B: Tensor | None = None) -> Tensor:
    """Values at the beginning and the end of each token (B, L, 2) as one for each frame (B, T), evenly between."""
    token_BT = token_indices(durations_BL, frames, token_lengths_B)
    length_BT = durations_BL.gather(1, token_BT).clamp_min(1)
    begins_BT = (torch.cumsum(durations_BL, dim=1) - durations_BL).gather(1, token_BT)
    share_BT = ((torch.arange(frames, device=token_BT.device) - begins_BT + 0.5) / length_BT).clamp(0.0, 1.0)
    first_BT, last_BT = (one_BL.gather(1, token_BT) for one_BL in values_BL2.unbind(-1))
    return torch.lerp(first_BT, last_BT, share_BT)


def _places(since_BT: Tensor, length_BT: Tensor) -> Tensor:
    """Where a frame lies in its token (B, T, 6): share passed (and a wave of it), nearness of both ends, length."""
    share_BT = ((since_BT + 0.5) / length_BT).clamp(0.0, 1.0)
    return torch.stack(
        [
            share_BT,
            torch.sin(math.pi * share_BT),
            torch.cos(math.pi * share_BT),
            torch.exp(-since_BT.clamp(0.0, 50.0) / 2.0),
            torch.exp(-(length_BT - 1.0 - since_BT).clamp(0.0, 50.0) / 2.0),
            torch.log(length_BT),
        ],
        dim=-1,
    )
