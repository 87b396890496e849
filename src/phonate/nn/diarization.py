"""Parts of diarization networks: front ends, permutations, powersets, attractors.

Shapes: B items, T feature frames, F features, U = ceil(T / stride) output frames, C width of an output frame,
S speakers of the reference, K speakers (columns) of the model, P classes of a powerset, D model, N attractors. Masks
are True for real frames, which precede padding.

Sources: permutation-free loss, Fujita et al. 2019, "End-to-end neural speaker diarization with permutation-free
objectives", equations 8 to 10; attractors, Horiguchi et al. 2020, "End-to-end speaker diarization for an unknown
number of speakers with encoder-decoder based attractors"; powersets, Plaquet & Bredin 2023, "Powerset multi-class cross
entropy loss for neural speaker diarization".
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from phonate.nn.convolution import Downsampling, zero_padding
from phonate.nn.norms import LayerNorm

# ------------ Converts reference activity to the frame rate and number of speakers of a model's output


def subsampled(activity_BTS: Tensor, mask_BT: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Binary activity (B, U, S), and the mask (B, U), True for output frames with a real feature frame.

    A speaker is active in an output frame if active in at least half of its real feature frames. The values of
    `activity_BTS` in padding are ignored.
    """
    missing = -activity_BTS.shape[1] % stride
    real_BTS = activity_BTS.float().masked_fill(~mask_BT[:, :, None], 0)
    batch, frames, speakers = real_BTS.shape
    groups = (frames + missing) // stride
    sums_BUS = F.pad(real_BTS, (0, 0, 0, missing)).view(batch, groups, stride, speakers).sum(2)
    counts_BU = F.pad(mask_BT.float(), (0, missing)).view(batch, groups, stride).sum(2)
    mask_BU = counts_BU > 0
    active_BUS = (2 * sums_BUS >= counts_BU[:, :, None]) & mask_BU[:, :, None]
    return active_BUS.to(torch.float32), mask_BU


def most_active(activity_BUS: Tensor, speakers: int) -> tuple[Tensor, Tensor]:
    """Activity (B, U, K) of the K = `speakers` most active speakers, in their original order, and their columns (B, K).

    If there are fewer, columns of zeros are appended, with index -1.
    """
    batch, _, present = activity_BUS.shape
    if present <= speakers:
        index_K = torch.arange(speakers, device=activity_BUS.device)
        columns_BK = index_K.masked_fill(index_K >= present, -1).expand(batch, speakers)
        return F.pad(activity_BUS, (0, speakers - present)), columns_BK
    order_BS = activity_BUS.sum(1).argsort(dim=-1, descending=True, stable=True)
    columns_BK = order_BS[:, :speakers].sort(-1).values
    kept_BUK = activity_BUS.gather(2, columns_BK[:, None, :].expand(-1, activity_BUS.shape[1], -1))
    return kept_BUK, columns_BK


# -------------------------------------------------------------------------- Encoder-decoder attractors


class EncoderDecoderAttractors(nn.Module):
    """An LSTM encoder over the frames, and an LSTM decoder that emits one attractor per step.

    In training, the encoder reads the frames in random order, drawn from torch's global generator, so that attractors
    do not depend on the time of speech.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.encoder = nn.LSTM(d_model, d_model, batch_first=True)
        self.decoder = nn.LSTM(d_model, d_model, batch_first=True)
        self.existence = nn.Linear(d_model, 1)

    def forward(self, x_BUD: Tensor, mask_BU: Tensor, attractors: int) -> tuple[Tensor, Tensor]:
        """Attractors (B, N, D), and their existence logits (B, N).

        Args:
            x_BUD: Frames.
            mask_BU: True for real frames, which come first.
            attractors: N.
        """
        if self.training:
            x_BUD = shuffled(x_BUD, mask_BU)
        lengths = mask_BU.sum(1).clamp_min(1).cpu()  # required on the host
        packed = pack_padded_sequence(x_BUD, lengths, batch_first=True, enforce_sorted=False)
        _, state = self.encoder(packed)
        nothing_BND = x_BUD.new_zeros(len(x_BUD), attractors, x_BUD.shape[2])
        attractors_BND, _ = self.decoder(nothing_BND, state)
        return attractors_BND, self.existence(attractors_BND)[..., 0]


def shuffled(x_BUD: Tensor, mask_BU: Tensor) -> Tensor:
    """The real frames of each item in random order, followed by padding."""
    keys_BU = torch.rand(mask_BU.shape, device=x_BUD.device).masked_fill(~mask_BU, 2.0)
    return x_BUD.gather(1, keys_BU.argsort(1)[:, :, None].expand_as(x_BUD))


# ----------------------------------- Normalisation and subsampling of feature frames for a transformer

Normalisation = Literal["none", "global", "mean", "mean_variance", "causal_mean"]
_FLATTEST = 1e-5


@dataclass
class RunningMean:
    """Sum (B, F) and number of the frames so far. The sum is float64, as a stream may last for hours."""

    total_BF: Tensor
    frames: int = 0


class FeatureNormalisation(nn.Module):
    """Mean and variance normalisation of each feature. All kinds but `global` and `none` remove the recording's level.

    Args:
        kind: `global` subtracts the mean of the training set and divides by its standard deviation (see `fit`). `mean`
            subtracts the mean of the item, `mean_variance` also divides by its standard deviation. `causal_mean`
            subtracts the running mean up to each frame, for streams. `none` does nothing.
        features: F.
    """

    def __init__(self, kind: Normalisation, features: int) -> None:
        super().__init__()
        self.kind = kind
        self.causal = kind in {"none", "global", "causal_mean"}
        if kind == "global":
            self.mean_F: Tensor
            self.register_buffer("mean_F", torch.zeros(features))
            self.deviation_F: Tensor
            self.register_buffer("deviation_F", torch.ones(features))

    def fit(self, frames_NF: Tensor) -> None:
        """Set the mean and standard deviation of `global` to those of frames (N, F).

        Features that are constant in them, such as bands above the recordings' bandwidth, are not scaled.
        """
        if self.kind == "global":
            deviation_F, mean_F = torch.std_mean(frames_NF.double(), dim=0, correction=0)
            self.mean_F.copy_(mean_F)
            self.deviation_F.copy_(deviation_F.masked_fill(deviation_F <= _FLATTEST * mean_F.abs(), 1.0))

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, T, F), with zeros in padding. `mask_BT` None: there is no padding."""
        if self.kind == "causal_mean":
            return zero_padding(x_BTF - self._means(zero_padding(x_BTF, mask_BT), None), mask_BT)
        if self.kind in {"none", "global"}:
            return zero_padding(self._fixed(x_BTF), mask_BT)
        real_BTF = zero_padding(x_BTF, mask_BT)
        frames_B11 = x_BTF.shape[1] if mask_BT is None else mask_BT.sum(1).clamp_min(1)[:, None, None]
        centred_BTF = zero_padding(x_BTF - real_BTF.sum(1, keepdim=True) / frames_B11, mask_BT)
        if self.kind == "mean":
            return centred_BTF
        variance_B1F = centred_BTF.square().sum(1, keepdim=True) / frames_B11
        return centred_BTF / (variance_B1F + _FLATTEST).sqrt()

    def initial_state(self, x_BTF: Tensor) -> RunningMean:
        """The initial state of a stream, for features with the shape, dtype and device of `x_BTF`."""
        return RunningMean(x_BTF.new_zeros(len(x_BTF), x_BTF.shape[2], dtype=torch.float64))

    def step(self, x_BTF: Tensor, state: RunningMean) -> Tensor:
        """`forward` for the next frames (B, T, F); updates `state` in place."""
        return x_BTF - self._means(x_BTF, state) if self.kind == "causal_mean" else self._fixed(x_BTF)

    def _fixed(self, x_BTF: Tensor) -> Tensor:
        return (x_BTF - self.mean_F) / self.deviation_F if self.kind == "global" else x_BTF

    def _means(self, x_BTF: Tensor, state: RunningMean | None) -> Tensor:
        """(B, T, F): the mean up to each frame."""
        sums_BTF = x_BTF.double().cumsum(1)
        before = 0
        if state is not None:
            sums_BTF, before = sums_BTF + state.total_BF[:, None, :], state.frames
            if x_BTF.shape[1]:
                state.total_BF, state.frames = sums_BTF[:, -1], before + x_BTF.shape[1]
        counts_T1 = torch.arange(before + 1, before + 1 + x_BTF.shape[1], device=x_BTF.device)[:, None]
        return (sums_BTF / counts_T1).to(x_BTF.dtype)


class FrontEnd(nn.Module, ABC):
    """Subsampling with a known receptive field: output frame u depends on the feature frames from `u * stride - left`
    to `u * stride + right`, which are zero outside of the recording."""

    stride: int
    left: int
    right: int
    width: int
    """C."""

    @abstractmethod
    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, U, C)."""


class SplicedFrames(FrontEnd):
    """Every `stride`-th frame, concatenated with `context` frames on each side (7 and stride 10 in Fujita et al. 2019).

    Each output frame is centred on the `stride` frames that it represents.
    """

    def __init__(self, features: int, context: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.frames = 2 * context + 1
        self.start = stride // 2 - context
        self.left, self.right = max(0, -self.start), max(0, self.start + self.frames - 1)
        self.width = features * self.frames

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, U, C)."""
        x_BTF = zero_padding(x_BTF, mask_BT)
        outputs = -(-x_BTF.shape[1] // self.stride)
        end = (outputs - 1) * self.stride + self.start + self.frames
        padded_BTF = F.pad(x_BTF, (0, 0, self.left, max(0, end - x_BTF.shape[1])))
        windows_BUFW = padded_BTF[:, self.left + self.start :].unfold(1, self.frames, self.stride)[:, :outputs]
        return windows_BUFW.transpose(2, 3).flatten(2)


class StridedConvolutions(FrontEnd):
    """A convolution for each prime factor of the stride, with GELU in between and a final layer norm."""

    def __init__(self, features: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride, self.width = stride, width
        self.layers = nn.ModuleList()
        reach, so_far = 0, 1
        for factor in _primes(stride) or [1]:
            self.layers.append(Downsampling(features, width, factor, 2 * factor + 1))
            features, reach, so_far = width, reach + so_far * factor, so_far * factor
        self.left = self.right = reach
        self.norm = LayerNorm(width)

    def forward(self, x_BTF: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """(B, T, F) -> (B, U, C)."""
        for number, layer in enumerate(self.layers):
            x_BTF, mask_BT = layer(F.gelu(x_BTF, approximate="tanh") if number else x_BTF, mask_BT)
        out: Tensor = self.norm(x_BTF)
        return out


def _primes(number: int) -> list[int]:
    """The prime factors of a number, in ascending order."""
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *_primes(number // factor)]
    return []


@dataclass
class StreamState:
    """The feature frames of a stream that later output frames depend on."""

    mean: RunningMean
    kept_BTF: Tensor
    """Normalised frames from index `first` on."""
    first: int = 0
    done: int = 0
    """Number of output frames returned so far."""

    @property
    def end(self) -> int:
        """Number of feature frames so far."""
        return self.first + self.kept_BTF.shape[1]


class FeatureStream:
    """Normalisation and subsampling in blocks, with the same result as for the whole."""

    def __init__(self, normalisation: FeatureNormalisation, front_end: FrontEnd) -> None:
        self.normalisation = normalisation
        self.front_end = front_end

    def initial_state(self, x_BTF: Tensor) -> StreamState:
        """The initial state, for features with the shape, dtype and device of `x_BTF`."""
        return StreamState(self.normalisation.initial_state(x_BTF), x_BTF[:, :0])

    def step(self, x_BTF: Tensor, state: StreamState, last: bool = False) -> Tensor:
        """The output frames (B, U', C) completed by feature frames (B, T, F); updates `state` in place.

        `last`: no frames follow, so incomplete output frames are returned too.
        """
        front_end = self.front_end
        normalised_BTF = self.normalisation.step(x_BTF, state.mean)
        state.kept_BTF = torch.cat([state.kept_BTF, normalised_BTF], dim=1)
        end = state.end
        until = -(-end // front_end.stride) if last else max(0, (end - 1 - front_end.right) // front_end.stride + 1)
        if until <= state.done:
            return x_BTF.new_zeros(len(x_BTF), 0, front_end.width)
        out_BUC: Tensor = front_end(state.kept_BTF)
        offset = state.first // front_end.stride
        out_BUC = out_BUC[:, state.done - offset : until - offset]
        state.done = until
        first = max(state.first, min(end, until * front_end.stride) - front_end.left)
        first -= first % front_end.stride  # a multiple of the stride, so that output frames stay aligned
        state.kept_BTF = state.kept_BTF[:, first - state.first :]
        state.first = first
        return out_BUC


# ------------------ Permutation-invariant training: assignment of reference speakers to output columns

EXHAUSTIVE = 4
"""Up to this many columns, all permutations (24) are compared on the device; for more, the Hungarian algorithm runs on
the host."""
_FORBIDDEN = 1e9


def pairwise_cost(logits_BUK: Tensor, activity_BUK: Tensor, mask_BU: Tensor) -> Tensor:
    """(B, K, K): binary cross-entropy of output column i against reference column j, summed over real frames.

    It is softplus(x) - x y, where only the second term depends on both columns.
    """
    with torch.autocast(logits_BUK.device.type, enabled=False):  # sums over many frames need fp32
        logits_BUK = logits_BUK.float().masked_fill(~mask_BU[:, :, None], 0)
        real_BU1 = mask_BU[:, :, None].float()
        silent_BK = (F.softplus(logits_BUK) * real_BU1).sum(1)
        active_BKK = logits_BUK.transpose(1, 2) @ (activity_BUK.float() * real_BU1)
        return silent_BK[:, :, None] - active_BKK


def among_present(cost_BKK: Tensor, present_B: Tensor) -> Tensor:
    """`cost_BKK`, modified so that the first `present_B` columns of an item can only be assigned to its first
    `present_B` speakers; assignments among the others cost nothing."""
    index_K = torch.arange(cost_BKK.shape[1], device=cost_BKK.device)
    present_BK = index_K < present_B[:, None]
    both_BKK = present_BK[:, :, None] & present_BK[:, None, :]
    neither_BKK = ~present_BK[:, :, None] & ~present_BK[:, None, :]
    return cost_BKK.masked_fill(~both_BKK, _FORBIDDEN).masked_fill(neither_BKK, 0.0)


@torch.no_grad()
def best_permutation(cost_BKK: Tensor) -> Tensor:
    """(B, K): the reference column assigned to each output column, at the lowest total cost.

    Among equal costs, the exhaustive search chooses the first permutation in lexicographic order. Non-finite costs of a
    diverged model do not raise an error here: the loss computed from the assignment is not finite either.
    """
    cost_BKK = torch.nan_to_num(cost_BKK.detach())
    columns = cost_BKK.shape[1]
    if columns <= EXHAUSTIVE:
        orders_PK = _orders(columns).to(cost_BKK.device)
        totals_BP = cost_BKK[:, torch.arange(columns, device=cost_BKK.device), orders_PK].sum(-1)
        return orders_PK[totals_BP.argmin(-1)]
    on_host = cost_BKK.cpu().numpy()
    best_BK = np.stack([linear_sum_assignment(one)[1] for one in on_host])
    return torch.from_numpy(best_BK).to(cost_BKK.device)


@lru_cache(maxsize=EXHAUSTIVE)
def _orders(columns: int) -> Tensor:
    return torch.tensor(list(itertools.permutations(range(columns))))


def permuted(activity_BUK: Tensor, order_BK: Tensor) -> Tensor:
    """`activity_BUK` with its columns in the order of the output: column i is the reference's `order_BK[:, i]`."""
    return activity_BUK.gather(2, order_BK[:, None, :].expand_as(activity_BUK))


# ----------------------------------- Powerset classes: one class for each set of simultaneous speakers


class Powerset(nn.Module):
    """The subsets of K speakers with at most `at_once` elements: the empty set, each speaker, each pair, ...

    Args:
        speakers: K.
        at_once: Maximum number of simultaneous speakers.
    """

    def __init__(self, speakers: int, at_once: int) -> None:
        super().__init__()
        if not 1 <= at_once <= speakers:
            raise ValueError(f"at_once {at_once}: must be from 1 to the number of speakers, {speakers}")
        self.at_once = at_once
        sets = [chosen for size in range(at_once + 1) for chosen in itertools.combinations(range(speakers), size)]
        members_PK = torch.zeros(len(sets), speakers)
        number_of = torch.zeros(2**speakers, dtype=torch.long)
        for number, chosen in enumerate(sets):
            members_PK[number, list(chosen)] = 1
            number_of[sum(2**speaker for speaker in chosen)] = number
        self.members_PK: Tensor
        self.register_buffer("members_PK", members_PK, persistent=False)
        self.number_of: Tensor
        self.register_buffer("number_of", number_of, persistent=False)

    def __len__(self) -> int:
        """P."""
        return len(self.members_PK)

    def classes(self, activity_BUK: Tensor) -> Tensor:
        """(B, U): the class of each frame of binary activity (B, U, K). If more than `at_once` speakers are active,
        those that are most active in the item count."""
        order_BK = activity_BUK.sum(1).argsort(dim=-1, descending=True, stable=True)
        index_BUK = order_BK[:, None, :].expand_as(activity_BUK)
        ranked_BUK = activity_BUK.gather(2, index_BUK)
        kept_BUK = ranked_BUK * (ranked_BUK.cumsum(-1) <= self.at_once)
        weights_BUK = (2**index_BUK).to(kept_BUK.dtype)
        return self.number_of[(kept_BUK * weights_BUK).sum(-1).long()]

    def activity_logits(self, scores_BUP: Tensor) -> Tensor:
        """(B, U, K): log odds that a speaker is in the set, from class logits (B, U, P)."""
        log_p_BU1P = scores_BUP.log_softmax(-1)[:, :, None, :]
        member_KP = self.members_PK.T.bool()
        inside_BUK = log_p_BU1P.masked_fill(~member_KP, -torch.inf).logsumexp(-1)
        return inside_BUK - log_p_BU1P.masked_fill(member_KP, -torch.inf).logsumexp(-1)
