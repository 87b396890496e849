"""Unsupervised alignment of tokens and mel frames.

Badlani et al. 2021, "One TTS alignment to rule them all", arXiv:2108.10447.

Shapes: B batch, T frames, L tokens, M mel bands, D width.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.convolution import zero_padding
from phonate.nn.sequences import frame_mask

_NEVER = -1e4
"""Log probability of the impossible; infinities would give NaN gradients."""
_BLANK = -1.0
"""Score of the blank, as in the paper's implementation."""
_SCALE = 0.1
"""Initial factor on squared distances: scores differ little before training."""

_AUDIBLE = 0.3
"""Level above which a frame is audible, from 0 (the quietest frames) to 1 (the loud ones)."""

_SILENT = 3.0
"""Log penalty of a boundary in an audible frame."""


class AlignerModel(nn.Module):
    """Encoders of tokens and of mel frames; the distance of two vectors gives the probability that they align.

    Tokens are phones, or states of phones, and boundaries. They are encoded without context, and frames with one
    neighbour on either side: with the paper's wider encoders a "p before u" can become the start of the u, and
    boundaries were 35 ms late.
    """

    def __init__(self, n_tokens: int, n_speakers: int, n_mels: int, width: int = 128, out: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width, padding_idx=0)
        self.speaker = nn.Embedding(n_speakers, width)
        self.keys = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))
        self.near = nn.Conv1d(n_mels, width, 3, padding=1)
        self.queries = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))
        self.pause = nn.Parameter(torch.zeros(out))
        """The key of all boundaries: silence, whatever is next to them."""
        self.log_scale = nn.Parameter(torch.tensor(_SCALE).log())

    def forward(
        self,
        tokens_BL: Tensor,
        token_lengths_B: Tensor,
        mel_BTM: Tensor,
        lengths_B: Tensor,
        speaker_B: Tensor,
        prior_BTL: Tensor,
        optional_BL: Tensor,
    ) -> Tensor:
        """Log probability (B, T, L) of each token at each frame, plus the log prior.

        Args:
            tokens_BL: Token ids, 0 for padding.
            token_lengths_B: Tokens of each item.
            mel_BTM: Mel features.
            lengths_B: Frames of each item.
            speaker_B: Speaker ids.
            prior_BTL: Log prior, such as `beta_binomial`.
            optional_BL: True for boundaries, which may have no frame.
        """
        mask_BL = frame_mask(token_lengths_B, tokens_BL.shape[1])
        mask_BT = frame_mask(lengths_B, mel_BTM.shape[1])
        keys_BLD = torch.where(optional_BL[..., None], self.pause, self.keys(self.embedding(tokens_BL)))
        near_BTD = self.near(zero_padding(mel_BTM, mask_BT).transpose(1, 2)).transpose(1, 2)
        queries_BTD = self.queries(near_BTD + self.speaker(speaker_B)[:, None])
        squares_BTL = queries_BTD.square().sum(-1)[:, :, None] + keys_BLD.square().sum(-1)[:, None]
        scores_BTL = -self.log_scale.exp() * (squares_BTL - 2.0 * queries_BTD @ keys_BLD.transpose(1, 2))
        likely_BTL = scores_BTL.masked_fill(~mask_BL[:, None], _NEVER).log_softmax(-1)
        log_BTL: Tensor = (likely_BTL + prior_BTL).masked_fill(~mask_BL[:, None], _NEVER)
        return log_BTL


def forward_sum_loss(log_BTL: Tensor, lengths_B: Tensor, token_lengths_B: Tensor) -> Tensor:
    """Sum over the batch of -log P(all tokens in order), over all monotonic alignments (equation 2 of the paper).

    The blank absorbs frames that fit no token yet, so that training starts with the clear ones.

    Args:
        log_BTL: Log probabilities from `AlignerModel`.
        lengths_B: Frames of each item.
        token_lengths_B: Tokens of each item.
    """
    blank_BT1 = log_BTL.new_full((*log_BTL.shape[:2], 1), _BLANK)
    classes_BTC = torch.cat([blank_BT1, log_BTL], dim=-1).log_softmax(-1)
    targets_BL = torch.arange(1, log_BTL.shape[2] + 1, device=log_BTL.device).expand(len(log_BTL), -1)
    return F.ctc_loss(
        classes_BTC.transpose(0, 1), targets_BL, lengths_B, token_lengths_B, reduction="sum", zero_infinity=True
    )


def binarisation_loss(log_BTL: Tensor, durations_BL: Tensor, lengths_B: Tensor) -> Tensor:
    """Sum over frames of -log P(the token on the best path) (equation 4 of the paper).

    Args:
        log_BTL: Log probabilities (B, T, L) from `AlignerModel`.
        durations_BL: Frames (B, L) of each token on the best path.
        lengths_B: Frames (B,) of each item; those after them do not count.
    """
    steps_BL = durations_BL.cumsum(1)
    frames_BT = torch.arange(log_BTL.shape[1], device=log_BTL.device).expand(len(log_BTL), -1).contiguous()
    token_BT = torch.searchsorted(steps_BL, frames_BT, right=True).clamp_max(log_BTL.shape[2] - 1)
    chosen_BT = log_BTL.log_softmax(-1).gather(2, token_BT[..., None])[..., 0]
    return -(chosen_BT * frame_mask(lengths_B, log_BTL.shape[1])).sum()


def audible_frames(mel_TM: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Frames (T,) that are not silent, by their level relative to the quietest and the loud frames of `mel_TM`."""
    level_T = mel_TM.mean(axis=1, dtype=np.float64)
    quiet, loud = np.quantile(level_T, [0.02, 0.95])
    return np.asarray(level_T > quiet + _AUDIBLE * (loud - quiet)) if loud > quiet else level_T >= quiet


def beta_binomial(audible_T: NDArray[np.bool_], optional_L: NDArray[np.bool_], strength: float) -> NDArray[np.float32]:
    """Log prior (T, L) that keeps the path near the diagonal (equation 5 of the paper, with `strength` as omega).

    Time is counted in audible frames only: long pauses, above all the silence after the last word, would otherwise
    delay every token. Boundaries are silent, so they are penalised in audible frames.

    Args:
        audible_T: True for audible frames.
        optional_L: True for boundaries, which may have no frame.
        strength: The higher, the closer to the diagonal.
    """
    from scipy.special import gammaln

    n = int((~optional_L).sum()) - 1
    k_L = np.clip(np.cumsum(~optional_L) - 1.0 + 0.5 * optional_L, 0, n)
    frames, t_T = int(audible_T.sum()), np.maximum(1.0, np.cumsum(audible_T))[:, None]
    a_T, b_T = strength * t_T, strength * (frames - t_T + 1.0)
    ways_L = gammaln(n + 1.0) - gammaln(k_L + 1.0) - gammaln(n - k_L + 1.0)
    both_T = gammaln(a_T) + gammaln(b_T) + gammaln(n + a_T + b_T) - gammaln(a_T + b_T)  # ln B(x, y) by its definition
    log_TL = ways_L + gammaln(k_L + a_T) + gammaln(n - k_L + b_T) - both_T
    return np.asarray(log_TL - _SILENT * (audible_T[:, None] & optional_L), dtype=np.float32)


def best_durations(
    scores_BTL: NDArray[np.float32],
    lengths_B: NDArray[np.int64],
    token_lengths_B: NDArray[np.int64],
    optional_BL: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Frames (B, L) of each token on the monotonic path with the highest sum of scores (Viterbi).

    Every token has at least one frame, except those of `optional_BL`, whose neighbours must not be optional. Ties go to
    the earlier token.

    Args:
        scores_BTL: Score of each token at each frame.
        lengths_B: Frames of each item.
        token_lengths_B: Tokens of each item.
        optional_BL: True for tokens that may have no frame.

    Raises ValueError if there are fewer frames than tokens that need one.
    """
    batch, frames, tokens = scores_BTL.shape
    scores_TBL = np.ascontiguousarray(scores_BTL.transpose(1, 0, 2), dtype=np.float64)
    over_BL = np.where(np.pad(optional_BL, ((0, 0), (1, 0)))[:, :tokens], 0.0, -np.inf)
    # two more columns in front, which are never reached, so that the three transitions to a token are slices
    sums_TBL2 = np.full((frames, batch, tokens + 2), -np.inf)
    sums_TBL2[0, :, 2] = scores_TBL[0, :, 0]
    sums_TBL2[0, :, 3:4] = scores_TBL[0, :, 1:2] + over_BL[:, 1:2]
    for t in range(1, frames):
        before_BL2, now_BL = sums_TBL2[t - 1], sums_TBL2[t, :, 2:]
        np.add(before_BL2[:, :-2], over_BL, out=now_BL)
        np.maximum(now_BL, before_BL2[:, 1:-1], out=now_BL)
        np.maximum(now_BL, before_BL2[:, 2:], out=now_BL)
        now_BL += scores_TBL[t]
    return _backtrack(sums_TBL2, over_BL, lengths_B, token_lengths_B, optional_BL)


def _backtrack(
    sums_TBL2: NDArray[np.float64],
    over_BL: NDArray[np.float64],
    lengths_B: NDArray[np.int64],
    token_lengths_B: NDArray[np.int64],
    optional_BL: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Frames (B, L) of each token on the best path; `sums_TBL2[t, :, l + 2]` is the best sum to token l at t."""
    batch, tokens = optional_BL.shape
    rows_B, ways_3 = np.arange(batch), np.array([[2], [1], [0]])  # stay, step, skip
    at_B = token_lengths_B - 1
    last_BL = sums_TBL2[lengths_B - 1, rows_B]
    skipped_B = optional_BL[rows_B, at_B] & (last_BL[rows_B, at_B + 1] > last_BL[rows_B, at_B + 2])
    at_B = at_B - skipped_B
    if not np.isfinite(last_BL[rows_B, at_B + 2]).all():
        raise ValueError("fewer frames than tokens that need one")
    path_TB = np.full((len(sums_TBL2), batch), tokens)
    for t in range(len(sums_TBL2) - 1, -1, -1):
        inside_B = t < lengths_B
        path_TB[t] = np.where(inside_B, at_B, tokens)
        if t:
            sums_3B = sums_TBL2[t - 1, rows_B, at_B + ways_3]
            sums_3B[2] += over_BL[rows_B, at_B]
            at_B = at_B - sums_3B.argmax(axis=0) * inside_B
    counted = np.bincount((path_TB + rows_B * (tokens + 1)).ravel(), minlength=batch * (tokens + 1))
    return counted.reshape(batch, tokens + 1)[:, :tokens].astype(np.int64)
