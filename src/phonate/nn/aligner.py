"""Which frames belong to which token, learnt without labels.

Badlani et al. 2021, "One TTS alignment to rule them all", arXiv:2108.10447.

Shapes: B batch, T frames, L tokens, M mel bands, D width.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn.convolution import silence
from phonate.nn.masks import frame_mask

_NEVER = -1e4
"""Log probability of what can't be; infinities would make gradients that are no numbers."""
_BLANK = -1.0
"""Score of the blank, as in the paper's code."""
_SCALE = 0.1
"""Of the squared distances at first: scores differ little before anything is learnt."""

_AUDIBLE = 0.3
"""How far between the quietest and the loud frames of a recording speech begins."""

_SILENT = 3.0
"""How much less likely a boundary is in audible frames, as a logarithm."""


class AlignerModel(nn.Module):
    """Encoders of tokens and of mel frames. The nearer two vectors, the likelier they belong together.

    Tokens see no neighbours, and frames only the next ones: with the paper's wider encoders a "p before u" can become
    the beginning of the u, and boundaries were 35 ms late.
    """

    def __init__(self, n_tokens: int, n_speakers: int, n_mels: int, width: int = 128, out: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, width, padding_idx=0)
        self.speaker = nn.Embedding(n_speakers, width)
        self.keys = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))
        self.near = nn.Conv1d(n_mels, width, 3, padding=1)
        self.queries = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))
        self.pause = nn.Parameter(torch.zeros(out))
        """What all boundaries are: silence, whatever stands beside them."""
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
        """Log probability (B, T, L) of each token at each frame, the log prior added; padding is never."""
        mask_BL = frame_mask(token_lengths_B, tokens_BL.shape[1])
        mask_BT = frame_mask(lengths_B, mel_BTM.shape[1])
        keys_BLD = torch.where(optional_BL[..., None], self.pause, self.keys(self.embedding(tokens_BL)))
        near_BTD = self.near(silence(mel_BTM, mask_BT).transpose(1, 2)).transpose(1, 2)
        queries_BTD = self.queries(near_BTD + self.speaker(speaker_B)[:, None])
        squares_BTL = queries_BTD.square().sum(-1)[:, :, None] + keys_BLD.square().sum(-1)[:, None]
        scores_BTL = -self.log_scale.exp() * (squares_BTL - 2.0 * queries_BTD @ keys_BLD.transpose(1, 2))
        likely_BTL = scores_BTL.masked_fill(~mask_BL[:, None], _NEVER).log_softmax(-1)
        log_BTL: Tensor = (likely_BTL + prior_BTL).masked_fill(~mask_BL[:, None], _NEVER)
        return log_BTL


def forward_sum(log_BTL: Tensor, lengths_B: Tensor, token_lengths_B: Tensor) -> Tensor:
    """Sum over the batch of -log P(all tokens, in order), over every way to place them (the paper's equation 2).

    The blank takes the frames that nothing is known of yet, so that the aligner learns from the clear ones first.
    """
    blank_BT1 = log_BTL.new_full((*log_BTL.shape[:2], 1), _BLANK)
    classes_BTC = torch.cat([blank_BT1, log_BTL], dim=-1).log_softmax(-1)
    targets_BL = torch.arange(1, log_BTL.shape[2] + 1, device=log_BTL.device).expand(len(log_BTL), -1)
    return F.ctc_loss(
        classes_BTC.transpose(0, 1), targets_BL, lengths_B, token_lengths_B, reduction="sum", zero_infinity=True
    )


def binarisation(log_BTL: Tensor, durations_BL: Tensor, lengths_B: Tensor) -> Tensor:
    """Sum over real frames of -log P(the token that the best path gives it) (the paper's equation 4)."""
    steps_BL = durations_BL.cumsum(1)
    frames_BT = torch.arange(log_BTL.shape[1], device=log_BTL.device).expand(len(log_BTL), -1).contiguous()
    token_BT = torch.searchsorted(steps_BL, frames_BT, right=True).clamp_max(log_BTL.shape[2] - 1)
    chosen_BT = log_BTL.log_softmax(-1).gather(2, token_BT[..., None])[..., 0]
    return -(chosen_BT * frame_mask(lengths_B, log_BTL.shape[1])).sum()


def audible(mel_TM: NDArray[np.float32]) -> NDArray[np.bool_]:
    """The frames (T,) that are no silence, by their level between the quietest and the loud ones of the recording."""
    level_T = mel_TM.mean(axis=1, dtype=np.float64)
    quiet, loud = np.quantile(level_T, [0.02, 0.95])
    return np.asarray(level_T > quiet + _AUDIBLE * (loud - quiet)) if loud > quiet else level_T >= quiet


def beta_binomial(said_T: NDArray[np.bool_], optional_L: NDArray[np.bool_], strength: float) -> NDArray[np.float32]:
    """Log prior (T, L) that keeps the path near the diagonal, the nearer the greater `strength` (the paper's
    equation 5, where it is omega).

    Time stands still where nothing is said: long pauses, and above all the silence after the last word, would
    otherwise pull every token towards them, and the aligner would learn to be late. The boundaries (`optional_L`) are
    silent, so that audible frames (`said_T`) are hardly theirs.
    """
    from scipy.special import betaln, gammaln

    n = int((~optional_L).sum()) - 1
    k_L = np.clip(np.cumsum(~optional_L) - 1.0 + 0.5 * optional_L, 0, n)
    frames, t_T = int(said_T.sum()), np.maximum(1.0, np.cumsum(said_T))[:, None]
    a_T, b_T = strength * t_T, strength * (frames - t_T + 1.0)
    ways_L = gammaln(n + 1.0) - gammaln(k_L + 1.0) - gammaln(n - k_L + 1.0)
    log_TL = ways_L + betaln(k_L + a_T, n - k_L + b_T) - betaln(a_T, b_T)
    return np.asarray(log_TL - _SILENT * (said_T[:, None] & optional_L), dtype=np.float32)


def best_durations(
    scores_BTL: NDArray[np.float32],
    lengths_B: NDArray[np.int64],
    token_lengths_B: NDArray[np.int64],
    optional_BL: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Frames (B, L) of each token on the monotonic path with the highest sum of scores (Viterbi).

    Every token has a frame or more; those of `optional_BL` may have none, where their neighbours are not optional.
    The earlier token keeps a frame that fits both as well. Raises ValueError when there are fewer frames than tokens
    that need one.
    """
    batch, frames, tokens = scores_BTL.shape
    scores_TBL = np.ascontiguousarray(scores_BTL.transpose(1, 0, 2), dtype=np.float64)
    over_BL = np.where(np.pad(optional_BL, ((0, 0), (1, 0)))[:, :tokens], 0.0, -np.inf)
    # two columns more in front, from which nothing comes, so that the three ways to a token are slices
    sums_TBL2 = np.full((frames, batch, tokens + 2), -np.inf)
    sums_TBL2[0, :, 2] = scores_TBL[0, :, 0]
    sums_TBL2[0, :, 3:4] = scores_TBL[0, :, 1:2] + over_BL[:, 1:2]
    for t in range(1, frames):
        before_BL2, now_BL = sums_TBL2[t - 1], sums_TBL2[t, :, 2:]
        np.add(before_BL2[:, :-2], over_BL, out=now_BL)
        np.maximum(now_BL, before_BL2[:, 1:-1], out=now_BL)
        np.maximum(now_BL, before_BL2[:, 2:], out=now_BL)
        now_BL += scores_TBL[t]
    return _walked_back(sums_TBL2, over_BL, lengths_B, token_lengths_B, optional_BL)


def _walked_back(
    sums_TBL2: NDArray[np.float64],
    over_BL: NDArray[np.float64],
    lengths_B: NDArray[np.int64],
    token_lengths_B: NDArray[np.int64],
    optional_BL: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Frames of each token on the path to the best end; `sums_TBL2[t, :, l + 2]` is the best of all to l at t."""
    batch, tokens = optional_BL.shape
    rows_B, ways_3 = np.arange(batch), np.array([[2], [1], [0]])  # to stay, to step, to skip
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
