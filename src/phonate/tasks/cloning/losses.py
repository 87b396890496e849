"""The losses of voice cloning: text and codes, and the likeness of the voice, with a curriculum.

Shapes: M text labels, P frames with labels, K codebooks, V values of a code.

Shapes: S samples, A frames, H width of the network.

Shapes: P frames with labels, K codebooks, V values of a code, T frames of an audio, N samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.augmentation import sinc_resample
from phonate.audio.higgs_codec import HiggsCodec
from phonate.audio.mel_filters import mel_filters
from phonate.nn.losses import IGNORED, ContrastiveLoss, SumCount
from phonate.pretrained import load_voice_encoder
from phonate.tasks.cloning.sequences import undelayed

# ------------------------------------------- A curriculum: terms that are hard at first come in slowly

LEAST = 0.1
"""Share of its weight with which a term begins."""


def share(step: int, steps: int | None) -> float:
    """Share of its weight that a term has in optimizer step `step` (from 0): from `LEAST` to 1 over `steps` steps along
    half a cosine, and 1 from then on. None: always 1."""
    if steps is None or step >= steps:
        return 1.0
    return LEAST + (1.0 - LEAST) * (1.0 - math.cos(math.pi * step / steps)) / 2.0


# ------------------------- Cross entropy of text tokens and of codes, and the weights of the codebooks

DECAY = 0.99
"""Share of the running mean of a codebook's loss that is left after an optimizer step."""


def text_loss(logits_MV: Tensor, labels_M: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum of the cross entropy of text tokens, in nats."""
    return F.cross_entropy(logits_MV.float(), labels_M, reduction="sum", label_smoothing=smoothing)


def code_losses(logits_PKV: Tensor, labels_PK: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross entropy of codes in nats, summed over frames: (K,). Frames where a codebook's label is `IGNORED` do not
    count."""
    losses_PK = F.cross_entropy(
        logits_PKV.float().flatten(0, 1),
        labels_PK.flatten(),
        reduction="none",
        ignore_index=IGNORED,
        label_smoothing=smoothing,
    )
    return losses_PK.view(labels_PK.shape).sum(0)


def correct_codes(logits_PKV: Tensor, labels_PK: Tensor) -> Tensor:
    """How many codes, ends included, are the likeliest given what came before."""
    return (logits_PKV.argmax(-1) == labels_PK).sum()


def falling_weights(codebooks: int) -> Tensor:
    """(K,): in proportion to 1 / (i + 1), 1 on average."""
    weights = 1.0 / torch.arange(1, codebooks + 1)
    return weights / weights.mean()


class AdaptiveWeights:
    """Weights of codebooks in proportion to the running mean of their losses, 1 on average.

    They change between optimizer steps only, and are the same on all ranks: what was observed in a step counts from the
    next step on. Before the first, they are all 1.
    """

    def __init__(self, codebooks: int) -> None:
        self.running_K = torch.zeros(codebooks)
        self._observed_2K: Tensor | None = None
        """Losses and their counts since `_step` began, on this rank."""
        self._step = -1

    def weights(self, step: int) -> Tensor:
        """(K,) for optimizer step `step`. All ranks call it in every step."""
        if step != self._step:
            self._fold()
            self._step = step
        mean = self.running_K.mean()
        return torch.where(mean > 0, self.running_K / mean.clamp_min(1e-12), torch.ones_like(self.running_K))

    def observe(self, losses_K: Tensor, counts_K: Tensor) -> None:
        """Take note of the summed losses of a micro-batch."""
        observed = torch.stack([losses_K.detach(), counts_K.to(losses_K.dtype)])
        self._observed_2K = observed if self._observed_2K is None else self._observed_2K + observed

    @torch.no_grad()
    def _fold(self) -> None:
        """Let the running mean follow what was observed."""
        if self._observed_2K is None:
            return
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self._observed_2K)
        losses_K, counts_K = self._observed_2K
        self._observed_2K = None
        before = self.running_K.to(losses_K.device)
        means_K = torch.where(counts_K > 0, losses_K / counts_K.clamp_min(1), before)
        self.running_K = torch.where(before > 0, DECAY * before + (1 - DECAY) * means_K, means_K)

    def state(self) -> dict[str, Any]:
        """The running mean. All ranks call it together."""
        self._fold()
        return {"running": self.running_K.tolist()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restore it. None (saved without adaptive weights): they begin at 1, as in a new run."""
        if state is not None:
            self.running_K = torch.tensor(state["running"])
        self._observed_2K, self._step = None, -1


# ------------------------------------------------ Likeness of voices by what the network makes of them


def contrastive_loss(
    hidden_NH: Tensor, frame_positions_A: Tensor, pools_A: Tensor, speakers_S: Tensor, temperature: float
) -> SumCount:
    """InfoNCE between references and targets (van den Oord et al. 2018, https://arxiv.org/abs/1807.03748), with the
    voices of other speakers in the batch as negatives.

    Hidden states of the frames of a voice are averaged, normalised like a layer's input, and centred over the batch:
    before, the part that all voices share outweighs what tells them apart.

    Args:
        hidden_NH: Last hidden states at all positions (B * L, H).
        frame_positions_A: Where the frames stand.
        pools_A: 2 s for frames of the reference of sample s, 2 s + 1 for those of its target, -1 for neither.
        speakers_S: Numbers of the samples' speakers; voices of one speaker are never negatives of each other.
        temperature: Cosines are divided by it.

    Returns:
        Sum and count over the 2 S voices; 0 with a single speaker.
    """
    with torch.autocast(hidden_NH.device.type, enabled=False):
        voices_VH = _pooled(hidden_NH[frame_positions_A].float(), pools_A, 2 * len(speakers_S))
        voices_VH = F.layer_norm(voices_VH, voices_VH.shape[-1:])
        voices_VH = voices_VH - voices_VH.mean(0)
        labels_V = speakers_S.repeat_interleave(2)
        loss: SumCount = ContrastiveLoss(temperature)(voices_VH, labels_V)
        return loss


def _pooled(frames_AH: Tensor, pools_A: Tensor, voices: int) -> Tensor:
    """Means over the frames of each voice (voices, H). Frames of pool -1 go into one more, which is dropped."""
    pools_A = pools_A % (voices + 1)
    sums = frames_AH.new_zeros(voices + 1, frames_AH.shape[-1]).index_add(0, pools_A, frames_AH)
    counts = frames_AH.new_zeros(voices + 1).index_add(0, pools_A, torch.ones_like(frames_AH[:, 0]))
    return (sums / counts.clamp_min(1)[:, None])[:-1]


# --------------------------------------------------------------------------- Likeness of voices by ear

RATE = 16000
"""Hz, of the encoder."""
_WINDOW, _HOP, _BANDS = 400, 160, 40
_PIECE = 160 * _HOP
"""Samples that the encoder hears at once: 1.6 s."""
_LEVEL = -30.0
"""dB of full scale that quieter recordings are raised to."""


class SpeakerEncoder(nn.Module):
    """resemblyzer's encoder with its pretrained weights (Apache 2.0, in its wheel), whose embeddings have gradients
    with respect to the waveform. Silence is not cut out."""

    window: Tensor
    filters: Tensor

    def __init__(self) -> None:
        super().__init__()
        _, self.network = load_voice_encoder("training.loss.weights.similarity")
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)
        filters = torch.from_numpy(mel_filters(RATE, _WINDOW, _BANDS, 0.0, RATE / 2))
        self.register_buffer("filters", filters, persistent=False)
        self.requires_grad_(False)

    def mel(self, waveform_BN: Tensor) -> Tensor:
        """(B, T, 40) energies in mel bands, not in decibels; T = 1 + N // 160."""
        spectrum_BFT = torch.stft(
            waveform_BN, _WINDOW, _HOP, window=self.window, center=True, pad_mode="constant", return_complex=True
        )
        energies_BFT: Tensor = torch.view_as_real(spectrum_BFT).square().sum(-1)
        return (self.filters @ energies_BFT).transpose(1, 2)

    def forward(self, waveform_N: Tensor) -> Tensor:
        """(256,) unit-length embedding of a waveform (N,) at 16 kHz: the mean over pieces of 1.6 s, one each 0.8 s. The
        last one is filled up with silence."""
        level = waveform_N.square().mean().clamp_min(1e-12).log10() * 10
        louder_N = waveform_N * 10 ** ((_LEVEL - level).clamp_min(0.0) / 20)
        half = _PIECE // 2
        pieces = max(1, -(-(len(louder_N) - _PIECE) // half) + 1)
        padded_N = F.pad(louder_N, (0, max(0, (pieces + 1) * half - len(louder_N))))
        frames = _PIECE // _HOP
        pieces_PTM = self.mel(padded_N[None])[0].unfold(0, frames, frames // 2).transpose(1, 2)
        self.network.train()  # cuDNN has a backward pass for LSTMs in this mode only; there is no dropout
        embedding: Tensor = F.normalize(self.network(pieces_PTM).mean(0), dim=0)
        return embedding


class VoiceSimilarity:
    """1 - cosine of the voices of what the model says and of the reference.

    What the model says are its distributions of codes given the codes before (teacher forcing), each decoded as the
    mean of its codebook.

    Args:
        codec: The model's, which stays as it is.
        device: Where to compute.
    """

    def __init__(self, codec: HiggsCodec, device: torch.device) -> None:
        self.codec = codec
        self.encoder = SpeakerEncoder().to(device)

    def loss(self, logits_PKV: Tensor, lengths: Sequence[int], references: Sequence[Tensor]) -> SumCount:
        """Sum and count over S samples.

        Args:
            logits_PKV: Logits at the labelled frames of all targets, in order.
            lengths: (S,) frames T of each target; each has T + K labelled frames.
            references: (S,) frames (F, K) of each reference, under the delay pattern.
        """
        with torch.autocast(logits_PKV.device.type, enabled=False):
            total, start = logits_PKV.new_zeros((), dtype=torch.float32), 0
            codebooks = logits_PKV.shape[1]
            for length, reference in zip(lengths, references, strict=True):
                rows_PKV = logits_PKV[start : start + length + codebooks].float()
                start += length + codebooks
                total = total + 1.0 - self._target_embedding(rows_PKV, length) @ self._reference_embedding(reference)
        return total, float(len(lengths))

    def _target_embedding(self, logits_PKV: Tensor, length: int) -> Tensor:
        """(256,) of what the model says."""
        size = self.codec.codebook_size
        codes_TKV = torch.stack([logits_PKV[k : k + length, k, :size] for k in range(logits_PKV.shape[1])], dim=1)
        return self._embedding(self.codec.soft_decode(codes_TKV.softmax(-1)[None])[0])

    @torch.no_grad()
    def _reference_embedding(self, frames_FK: Tensor) -> Tensor:
        """(256,) of a reference."""
        waveform = self.codec.decode(undelayed(frames_FK.cpu().numpy()))
        return self._embedding(torch.from_numpy(np.ascontiguousarray(waveform)).to(frames_FK.device))

    def _embedding(self, waveform_N: Tensor) -> Tensor:
        embedding: Tensor = self.encoder(sinc_resample(waveform_N, self.codec.sample_rate, RATE))
        return embedding
