"""The acoustic models, text to mel: parallel and autoregressive, and what a voice takes over from another.

Shapes: B batch, L tokens, T frames, D width, M mel bands, S speakers, V symbols.

The parallel model is after FastSpeech 2 (Ren et al. 2021) and FastPitch (Łańcucki 2021), with ConvNeXt blocks.
Durations are explicit, so no word can be left out or said twice. The pitch is predicted for each frame and given to the
decoder: one that had to guess it would blur the harmonics.

The autoregressive model is a Transformer in the manner of Li et al. 2019 ("Neural speech synthesis with Transformer
network"), with a length regulator before its decoder (Ren et al. 2019, FastSpeech) and the pre-net, stop token and
post-net of Tacotron 2 (Shen et al. 2018). Durations only say where the text is to be found and how long the sound can
become; the model itself says when it has ended.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.config.errors import InputError
from phonate.nn.arrays import FloatArray
from phonate.nn.convolution import ConvNeXt, PostNet
from phonate.nn.sequences import Dropout, SinusoidalPositions, frame_mask, rounded_durations, token_indices
from phonate.nn.transformer import LayerShape, Stack
from phonate.nn.vocoder import MelDiscriminator
from phonate.tasks.speech.arrays import (
    CONTOUR_FRAMES,
    MIDDLE_F0,
    NOISE,
    VOICE_SCALE,
    IntArray,
    SpokenSentence,
    Who,
    noise_table,
)
from phonate.tasks.speech.settings import WEIGHTS, SpeechModel
from phonate.text.phonemes import SPECIAL, Inventory
from phonate.training.task import Batch, Terms

logger = logging.getLogger("phonate")

# ---------------------------------- What acoustic models give. Shapes: L tokens, T frames, M mel bands


class AcousticOutput(NamedTuple):
    """`SpokenSentence` as tensors."""

    mel_TM: Tensor
    f0_T: Tensor | None
    durations_L: Tensor | None


class Acoustic(nn.Module, ABC):
    """An acoustic model, text to mel.

    Args:
        settings: The recipe's `model` part.
        n_tokens: Size of the inventory.
        n_speakers: Voices.
        n_mels: M.
    """

    weights: ClassVar[Mapping[str, float]]
    """Of its loss terms."""
    keeps_durations: bool
    """See `Voice`."""
    output: nn.Linear
    """Its last layer, before any post-net."""

    def __init__(self, settings: SpeechModel, n_tokens: int, n_speakers: int, n_mels: int) -> None:
        super().__init__()

    @abstractmethod
    def teacher_forced(self, batch: Batch) -> Any:
        """The predictions for a batch, from what is recorded of it."""

    @abstractmethod
    def terms(self, output: Any, batch: Batch) -> Terms:
        """The loss terms of the predictions `teacher_forced` made for a batch."""

    @torch.no_grad()
    def say(
        self,
        tokens: Sequence[IntArray],
        speaker: Who,
        speeds: Sequence[FloatArray],
        semitones: Sequence[FloatArray],
    ) -> list[SpokenSentence]:
        """See `Voice`."""
        device = self.output.weight.device
        given = [[torch.from_numpy(one).to(device) for one in values] for values in (tokens, speeds, semitones)]
        return [
            SpokenSentence(one.mel_TM.cpu().numpy(), _array(one.f0_T), _array(one.durations_L))
            for one in self.speak(given[0], speaker, *given[1:])
        ]

    @abstractmethod
    def speak(
        self,
        tokens: Sequence[Tensor],
        speaker: Who,
        speeds: Sequence[Tensor] | None = None,
        semitones: Sequence[Tensor] | None = None,
    ) -> list[AcousticOutput]:
        """As `say`, with tensors on the model's device."""


def _speakers(speaker: Who, sentences: int, device: torch.device) -> Tensor:
    """Who speaks each sentence: numbers (B,), or shares (B, S)."""
    if isinstance(speaker, int):
        return torch.full((sentences,), speaker, device=device)
    return torch.from_numpy(speaker).to(device)[None].expand(sentences, -1)


def _vectors(table: nn.Embedding, speaker_B: Tensor) -> Tensor:
    """The vector of each voice (B, D), or of each blend."""
    vectors_BD: Tensor = speaker_B @ table.weight if speaker_B.is_floating_point() else table(speaker_B)
    return vectors_BD


def _array(values: Tensor | None) -> Any:
    return None if values is None else values.cpu().numpy()


# ------ What a voice takes from the one that its training starts from, where speakers or phones differ


def voices(table_SD: Tensor, known: Sequence[str], speakers: Sequence[str]) -> Tensor:
    """The vectors of the `speakers`: their own, or the average of those of `known`."""
    average_D = table_SD.mean(dim=0)
    return torch.stack([table_SD[known.index(name)] if name in known else average_D for name in speakers])


def phones(table_VD: Tensor, known: Inventory, inventory: Inventory) -> Tensor:
    """The vectors (V, D) of the symbols of `inventory`.

    For espeak's, those of an English voice: of its marks, and averages of its phones that sound like a symbol; zeros
    for symbols unlike any. For other inventories the table as it is, which may not fit.
    """
    if (known.phonemizer_name, inventory.phonemizer_name) != ("english", "espeak"):
        return table_VD
    from phonate.text.english.arpabet import like

    position = {symbol: index for index, symbol in enumerate(known.symbols)}
    rows = []
    for index, symbol in enumerate(inventory.symbols):
        similar = [symbol] if index < len(SPECIAL) else like(symbol)
        chosen = [position[one] for one in similar]
        rows.append(table_VD[chosen].mean(dim=0) if chosen else torch.zeros_like(table_VD[0]))
    return torch.stack(rows)


# ------------------------------------------------------------------------- The parallel acoustic model

_PLACES = 6


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


class ParallelOutput(NamedTuple):
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


class ParallelModel(Acoustic):
    """Tokens -> prosody -> mel."""

    weights: ClassVar = WEIGHTS["parallel"]
    """A mel distance is small in numbers, and says most."""
    keeps_durations = True

    def __init__(self, settings: SpeechModel, n_tokens: int, n_speakers: int, n_mels: int) -> None:
        super().__init__(settings, n_tokens, n_speakers, n_mels)
        width, layers, dropout = settings.width, settings.predictor_layers, settings.predictor_dropout
        self.embedding = nn.Embedding(n_tokens, width, padding_idx=0)
        self.voices = nn.Embedding(n_speakers, width, _weight=torch.zeros(n_speakers, width))
        self.encoder = ConvNeXt(width, settings.encoder_layers, dropout=settings.dropout)
        self.predictor_dropout = Dropout(dropout)
        self.predictor = ConvNeXt(width, layers, dropout=dropout)
        self.prosody_head = nn.Linear(width, 2)
        self.energy_embedding = nn.Linear(1, width)
        self.place_embedding = nn.Linear(_PLACES, width)
        self.melody = ConvNeXt(width, layers, dropout=dropout)
        self.pitch_head = nn.Linear(width, 2)
        self.contour = nn.Linear(2 * len(CONTOUR_FRAMES), 1, bias=False) if settings.contour else None
        if self.contour is not None:
            nn.init.zeros_(self.contour.weight)
        self._melody_gradient = settings.melody_gradient
        self.pitch_embedding = nn.Linear(2, width)
        self.noise_embedding = nn.Linear(NOISE, width, bias=False)
        self.decoder = ConvNeXt(width, settings.decoder_layers)
        self.output = nn.Linear(width, n_mels)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Also weights of before `renewed`."""
        state_dict |= renewed(state_dict, prefix, len(self.voices.weight))
        state_dict.pop(f"{prefix}speakers.weight", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def encode(self, tokens_BL: Tensor, speaker_B: Tensor | None, mask_BL: Tensor | None) -> Tensor:
        """What is to be said, and by whom (B, L, D); None: the first speaker."""
        voice_BD = self.voices.weight[:1] if speaker_B is None else _vectors(self.voices, speaker_B)
        said_BLD = self.embedding(tokens_BL) + VOICE_SCALE * voice_BD[:, None]
        encoded: Tensor = self.encoder(said_BLD, mask_BL)
        return encoded

    def predict(self, encoded_BLD: Tensor, mask_BL: Tensor | None) -> Tensor:
        """(B, L, 2): log of the duration in frames plus 1, and energy."""
        out: Tensor = self.prosody_head(self.predictor(self.predictor_dropout(encoded_BLD), mask_BL))
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
        out: Tensor = self.pitch_head(self.melody(self.predictor_dropout(regulated_BTD), mask_BT))
        if self.contour is None:
            return out
        return out + F.pad(self.contour(_nearness(regulated_BTD, mask_BT)), (0, 1))

    def decode(self, regulated_BTD: Tensor, pitch_BT2: Tensor, noise_BTN: Tensor, mask_BT: Tensor | None) -> Tensor:
        """The mel (B, T, M) of frames that know what they say and at which pitch."""
        hidden_BTD = regulated_BTD + self.pitch_embedding(pitch_BT2) + self.noise_embedding(noise_BTN)
        mel_BTM: Tensor = self.output(self.decoder(hidden_BTD, mask_BT))
        return mel_BTM

    def synthesise(
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
        # as int() it could be traced by torch's compiler alone, which takes an export longer
        frames = cast(int, prosody.durations_BL.sum().clamp_min(2).item())
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
    ) -> ParallelOutput:
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
        sung_BTD = regulated_BTD
        if self._melody_gradient < 1.0:
            sung_BLD = encoded_BLD.detach().lerp(encoded_BLD, self._melody_gradient)
            sung_BTD = self.regulated(sung_BLD, prosody, noise_BTN.shape[1])
        return ParallelOutput(
            mel_BTM=self.decode(regulated_BTD, prosody.pitch_BT2, noise_BTN, mask_BT),
            predicted_BL2=self.predict(encoded_BLD, mask_BL),
            pitch_BT2=self.pitch(sung_BTD, mask_BT),
            regulated_BTD=regulated_BTD,
        )

    def teacher_forced(self, batch: Batch) -> ParallelOutput:
        """From recorded durations, energy and pitch."""
        recorded = Prosody(batch["durations"], batch["energy"], batch["pitch"])
        output: ParallelOutput = self(
            batch["tokens"], batch["token_lengths"], recorded, batch["noise"], batch["lengths"], batch["speaker_id"]
        )
        return output

    def terms(self, output: ParallelOutput, batch: Batch) -> Terms:
        """Distances of mels, durations (their logarithms), energy, pitch (where voiced) and voicing."""
        mel_BTM, mask_BT = output.mel_BTM.float(), frame_mask(batch["lengths"], batch["target"].shape[1])
        mask_BL = frame_mask(batch["token_lengths"], batch["tokens"].shape[1])
        predicted_BL2, pitch_BT2 = output.predicted_BL2.float(), output.pitch_BT2.float()
        duration_BL = (predicted_BL2[..., 0] - (batch["durations"] + 1.0).log()).square()
        energy_BL = (predicted_BL2[..., 1] - batch["energy"]).abs()
        contour_BT, voiced_BT = batch["pitch"].unbind(-1)
        pitch_BT = (pitch_BT2[..., 0] - contour_BT).abs()
        voicing_BT = F.binary_cross_entropy_with_logits(pitch_BT2[..., 1], voiced_BT, reduction="none")
        return {
            "mel": (_distance(mel_BTM, batch["target"], mask_BT), "elements"),
            "duration": ((duration_BL * mask_BL).sum(), "tokens"),
            "energy": ((energy_BL * mask_BL).sum(), "tokens"),
            "pitch": ((pitch_BT * voiced_BT).sum(), "voiced frames"),
            "voicing": ((voicing_BT * mask_BT).sum(), "frames"),
        }

    def speak(
        self,
        tokens: Sequence[Tensor],
        speaker: Who,
        speeds: Sequence[Tensor] | None = None,
        semitones: Sequence[Tensor] | None = None,
    ) -> list[AcousticOutput]:
        """See `Acoustic.speak`; in one forward pass."""
        device = tokens[0].device
        speeds = speeds or [torch.ones(len(one), device=device) for one in tokens]
        semitones = semitones or [torch.zeros(len(one), 2, device=device) for one in tokens]
        table = torch.from_numpy(noise_table()).to(device)
        speaker_B = _speakers(speaker, len(tokens), device)
        if len(tokens) == 1:
            mel_1TM, melody_1T2, durations_1L = self.synthesise(
                tokens[0][None], speaker_B, table, speeds[0][None], semitones[0][None] / 12.0
            )
            return [AcousticOutput(mel_1TM[0], hertz(melody_1T2)[0], durations_1L[0])]
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
            AcousticOutput(mel_TM[:n], f0_T[:n], durations_L[: len(one)])
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


def _nearness(regulated_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
    """How near each frame is to the beginning and to the end of its sentence (B, T, 6)."""
    frame_T = torch.arange(regulated_BTD.shape[1], device=regulated_BTD.device).float()  # 16 bits can't count so far
    since_BT = frame_T.expand(regulated_BTD.shape[0], -1)
    last_B1 = frame_T[-1:] if mask_BT is None else mask_BT.sum(dim=1, keepdim=True) - 1.0
    left_BT = (last_B1 - since_BT).clamp_min(0.0)
    return torch.stack([torch.exp(-far_BT / one) for far_BT in (since_BT, left_BT) for one in CONTOUR_FRAMES], dim=-1)


# ------------------------------------------------------------------- The autoregressive acoustic model

STOP_THRESHOLD = 0.5
_TAIL = 3
"""Frames over which the stop token rises to 1: which one is the last is not known better than that."""
_STOP_WEIGHT = 17.0
"""Of frames that end, of which there is one in hundreds."""
_PRENET_DROPOUT = 0.5
_POSTNET_LAYERS = 5
_FIRST_FRAMES = 2500
"""Frames for which there are positions from the start; longer sentences make more."""


class AutoregressiveOutput(NamedTuple):
    """What a forward pass gives."""

    mel_BTM: Tensor
    before_BTM: Tensor
    """The mel before the post-net."""
    duration_BL: Tensor
    """Logarithm of each token's frames plus 1, as predicted."""
    stop_BT: Tensor
    """Logit of each frame being the last."""


class AutoregressiveModel(Acoustic):
    """Tokens -> durations -> frames, one after the other. With one speaker there is no embedding of it."""

    keeps_durations = False
    weights: ClassVar = WEIGHTS["autoregressive"]
    """Features go from 0 to 1 where the logarithms that such models are otherwise trained on go over about ten, so
    their distances count ten times: 1.0 after the post-net and 0.5 before it, as those have it."""

    def __init__(self, settings: SpeechModel, n_tokens: int, n_speakers: int, n_mels: int) -> None:
        super().__init__(settings, n_tokens, n_speakers, n_mels)
        width, dropout, segments = settings.width, settings.dropout, settings.checkpoint_segments
        self.scale = math.sqrt(width)
        self.embedding = nn.Embedding(n_tokens, width, padding_idx=0)
        # Embeddings are multiplied by the root of D; drawn any larger they would drown the positions.
        nn.init.normal_(self.embedding.weight[1:], std=1.0 / self.scale)
        self.speakers = nn.Embedding(n_speakers, width) if n_speakers > 1 else None
        self.positions = SinusoidalPositions(width, _FIRST_FRAMES, grows=True)
        self.dropout = Dropout(dropout)
        shape = LayerShape(width, settings.heads, settings.feed_forward, dropout, norm="pre", activation="glu")
        self.encoder = Stack(shape, settings.encoder_layers, segments=segments)
        self.durations = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(width, width // 2),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(width // 2, 1),
        )
        # Recorded frames say so much about the next one that without this dropout the text would not be listened to.
        self.prenet = nn.Sequential(
            nn.Linear(n_mels, width), nn.ReLU(), Dropout(_PRENET_DROPOUT), nn.Linear(width, width)
        )
        self.decoder = Stack(replace(shape, causal=True, memory=True), settings.decoder_layers, segments=segments)
        self.output = nn.Linear(width, n_mels)
        self.stop = nn.Linear(width, 1)
        channels = settings.postnet_channels
        self.postnet = PostNet(n_mels, channels, _POSTNET_LAYERS) if channels else None

    def encode(self, tokens_BL: Tensor, speaker_B: Tensor | None, mask_BL: Tensor | None) -> Tensor:
        """What is to be said, and by whom (B, L, D)."""
        x_BLD = self.dropout(self.positions(self.scale * self.embedding(tokens_BL)))
        encoded_BLD: Tensor = self.encoder(x_BLD, mask_BL)
        if self.speakers is not None and speaker_B is not None:
            encoded_BLD = encoded_BLD + _vectors(self.speakers, speaker_B)[:, None]
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

    def decode(self, memory_BSD: Tensor, mask_BS: Tensor | None, previous_BTM: Tensor) -> tuple[Tensor, Tensor]:
        """Mel before the post-net (B, T, M) and stop logits (B, T) of all frames, after the frames `previous_BTM`.

        Frame t is made of those before it: of nothing, `previous_BTM[:, 0]`, ..., `previous_BTM[:, t - 1]`.
        """
        shifted_BTM = F.pad(previous_BTM, (0, 0, 1, 0))[:, :-1]
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
    ) -> AutoregressiveOutput:
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
        return AutoregressiveOutput(self.finished(before_BTM, mask_BT), before_BTM, self.predict(encoded_BLD), stop_BT)

    def teacher_forced(self, batch: Batch) -> AutoregressiveOutput:
        """From recorded durations, and each frame from the recorded ones before it."""
        names = ("tokens", "token_lengths", "durations", "target", "lengths", "speaker_id")
        output: AutoregressiveOutput = self(*(batch[name] for name in names))
        return output

    def terms(self, output: AutoregressiveOutput, batch: Batch) -> Terms:
        """`mel` and `mel_before` (L1 distances after and before the post-net), `duration` (squared, of logarithms) and
        `stop` (cross-entropy)."""
        target_BTM, durations_BL = batch["target"], batch["durations"]
        mask_BT = frame_mask(batch["lengths"], target_BTM.shape[1])
        mask_BL = frame_mask(batch["token_lengths"], durations_BL.shape[1])
        duration_BL = (output.duration_BL.float() - (durations_BL + 1.0).log()).square()
        stop_BT = F.binary_cross_entropy_with_logits(
            output.stop_BT.float(),
            stop_targets(batch["lengths"], target_BTM.shape[1]),
            reduction="none",
            pos_weight=torch.tensor(_STOP_WEIGHT, device=target_BTM.device),
        )
        return {
            "mel": (_distance(output.mel_BTM, target_BTM, mask_BT), "elements"),
            "mel_before": (_distance(output.before_BTM, target_BTM, mask_BT), "elements"),
            "duration": ((duration_BL * mask_BL).sum(), "tokens"),
            "stop": ((stop_BT * mask_BT).sum(), "frames"),
        }

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
        speaker: Who,
        speeds: Sequence[Tensor] | None = None,
        semitones: Sequence[Tensor] | None = None,
    ) -> list[AcousticOutput]:
        """See `Acoustic.speak`; one sentence after the other, each in at least a third and at most twice the frames
        that its durations add up to. Their pitch, which is in the mel, can't be changed."""
        speeds = speeds or [torch.ones(len(one), device=one.device) for one in tokens]
        for changed in semitones or ():
            if changed.any():
                most = float(changed.abs().max())
                raise InputError(f"semitones {most:g}: an autoregressive model can't change its pitch; leave it at 0")
        return [
            AcousticOutput(self._sentence(one[None], speaker, speed_L), None, None)
            for one, speed_L in zip(tokens, speeds, strict=True)
        ]

    def _sentence(self, tokens_1L: Tensor, speaker: Who, speed_L: Tensor) -> Tensor:
        """The mel (T, M) of one sentence."""
        encoded_1LD = self.encode(tokens_1L, _speakers(speaker, 1, tokens_1L.device), None)
        durations_1L = rounded_durations((self.predict(encoded_1LD).float().exp() - 1.0).clamp_min(0.0) / speed_L)
        expected = max(2, int(durations_1L.sum()))
        memory_1SD = self.regulated(encoded_1LD, durations_1L, expected)
        before_1TM = self.generate(memory_1SD, least=math.ceil(expected / 3), most=2 * expected)
        return self.finished(before_1TM, None)[0].float().clamp(0.0, 1.0)


def stop_targets(lengths_B: Tensor, frames: int) -> Tensor:
    """(B, frames): 1 at the last frame of each item, to which the two before it rise, and 0 elsewhere."""
    left_BT = lengths_B[:, None] - 1 - torch.arange(frames, device=lengths_B.device)[None]
    return torch.where(left_BT >= 0, (1.0 - left_BT / _TAIL).clamp_min(0.0), 0.0)


def _distance(mel_BTM: Tensor, target_BTM: Tensor, mask_BT: Tensor) -> Tensor:
    return ((mel_BTM.float() - target_BTM).abs() * mask_BT[..., None]).sum()


# ---------------------------------- The acoustic model, text to mel, of the kind that the recipe names

ACOUSTIC: Mapping[str, type[Acoustic]] = {"parallel": ParallelModel, "autoregressive": AutoregressiveModel}
"""By `model.kind`."""


class SpeechModelGAN(nn.Module):
    """The acoustic model, and the discriminator that is only there to train it (a parallel one)."""

    def __init__(self, acoustic: Acoustic, discriminator: MelDiscriminator | None) -> None:
        super().__init__()
        self.acoustic = acoustic
        self.discriminator = discriminator


def build_acoustic(settings: SpeechModel, n_tokens: int, n_speakers: int, n_mels: int) -> Acoustic:
    """The acoustic model of the recipe's `model` part."""
    return ACOUSTIC[settings.kind](settings, n_tokens, n_speakers, n_mels)
