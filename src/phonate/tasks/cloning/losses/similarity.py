"""Likeness of voices by ear: what the model would say, as a waveform, beside the reference, both heard by a frozen
speaker encoder (d-vectors of Wan et al. 2018, https://arxiv.org/abs/1710.10467). Differentiable from end to end.

Shapes: P frames with labels, K codebooks, V values of a code, T frames of an audio, N samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.audio.higgs_codec import HiggsCodec
from phonate.audio.mel_filters import mel_filters
from phonate.audio.sinc_resampling import sinc_resample
from phonate.config.packages import optional_package
from phonate.evaluation.packages import old_pkg_resources
from phonate.nn.losses._base import SumCount
from phonate.tasks.cloning.sequences.sequence import undelayed

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
        with old_pkg_resources():
            package = optional_package("resemblyzer", "training.loss.weights.similarity")
        self.network = package.VoiceEncoder("cpu", verbose=False)
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
                total = total + 1.0 - self._said(rows_PKV, length) @ self._heard(reference)
        return total, float(len(lengths))

    def _said(self, logits_PKV: Tensor, length: int) -> Tensor:
        """(256,) of what the model says."""
        size = self.codec.codebook_size
        codes_TKV = torch.stack([logits_PKV[k : k + length, k, :size] for k in range(logits_PKV.shape[1])], dim=1)
        return self._embedding(self.codec.soft_decode(codes_TKV.softmax(-1)[None])[0])

    @torch.no_grad()
    def _heard(self, frames_FK: Tensor) -> Tensor:
        """(256,) of a reference."""
        waveform = self.codec.decode(undelayed(frames_FK.cpu().numpy()))
        return self._embedding(torch.from_numpy(np.ascontiguousarray(waveform)).to(frames_FK.device))

    def _embedding(self, waveform_N: Tensor) -> Tensor:
        embedding: Tensor = self.encoder(sinc_resample(waveform_N, self.codec.sample_rate, RATE))
        return embedding
