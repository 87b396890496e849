"""The losses that recipes can name. Each returns the sum over a batch and the count of what was summed.

Shapes: B items, T frames, F features, C classes, S samples. A mask is boolean, True for real values, and its shape is a
prefix of theirs, such as (B, T) for values of (B, T, F).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from phonate.audio.mel_filters import band_edges
from phonate.compute.distributed import of_all_ranks, own_labels
from phonate.config.errors import InputError

# -------------------------------------------- The base of losses: sums and counts, masks and precision

SumCount = tuple[Tensor, Tensor | float]
"""A sum over a batch, and the number of its terms; both add up over parts of a batch."""

Reads = Literal["logits", "probabilities", "log_probabilities", "values", "audio"]


class Loss(nn.Module):
    """A loss that returns its sum over the batch and the count, never their ratio.

    Sums and counts of the parts of a batch add up to those of the whole, so splitting a batch changes neither value nor
    gradient of (total sum / total count). Masked values have no influence and no gradient, even if they are NaN. Half
    precision is computed in float32.
    """

    couples_items: bool = False
    """True when an item's loss depends on the other items: such a batch must not be split."""
    takes: Literal["outputs", "embeddings", "model"] = "outputs"
    """Its arguments: outputs and targets, embeddings and their labels, or the model."""
    reads: Reads = "values"
    """What its outputs are; `audio` stands for waveforms and mel frames."""
    unit: str | None = None
    """What its count is a number of, if that follows from the shapes alone: "elements" of the outputs, or "targets", of
    which there is one for several scores. A subclass that counts otherwise says None."""
    over_classes: bool | None = False
    """Whether targets are classes, one for each (..., C) of outputs, or of the outputs' shape. None: either."""

    def forward(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> SumCount:
        """Sum and count over the values that `mask` keeps (None: all). Raises InputError for shapes that do not fit.

        Shapes are those of the class: outputs and targets of one shape, such as (B, T, F), if it does not say
        otherwise; `mask` is boolean, of a prefix of that shape, such as (B, T). The sum is a scalar.
        """
        with torch.autocast(outputs.device.type, enabled=False):
            return self.measure(full_precision(outputs), full_precision(targets), mask)

    def mean(self, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss as a scalar, sum / count, for custom training loops."""
        total, count = self.forward(outputs, targets, mask)
        return total / torch.as_tensor(count, device=total.device).clamp_min(1)

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        """The computation of `forward`, in float32 or float64: (...), (...), (...) -> scalar and count."""
        raise NotImplementedError


class ElementwiseLoss(Loss):
    """A loss of each element of two tensors of one shape (...); the count is the number of elements."""

    unit = "elements"

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        same_shape(outputs, targets)
        targets = targets.to(outputs.dtype)
        valid = None if mask is None else expanded(mask, outputs)
        if mask is None or valid is None or (mask.device.type == "cpu" and bool(mask.all())):
            return self.cells(outputs, targets).sum(), float(outputs.numel())
        # masked elements are zeroed first: 0 * nan would be nan in the backward pass
        values = self.cells(outputs.masked_fill(~valid, 0), targets.masked_fill(~valid, 0))
        return values.masked_fill(~valid, 0).sum(), valid.sum()

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each element: two tensors (...) -> (...)."""
        raise NotImplementedError


def full_precision(values: Tensor) -> Tensor:
    """A tensor (...): float16 and bfloat16 as float32, other types unchanged."""
    return values.float() if values.dtype in {torch.float16, torch.bfloat16} else values


def same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise InputError for shapes that differ, which torch would broadcast silently."""
    if outputs.shape != targets.shape:
        raise InputError(f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} differ in shape")


def expanded(mask: Tensor, values: Tensor) -> Tensor:
    """`mask`, (B, T) say, in the shape of `values`, (B, T, F) say. Raises InputError unless it is a prefix."""
    if mask.shape != values.shape[: mask.dim()]:
        raise InputError(f"a mask of {tuple(mask.shape)} does not fit values of {tuple(values.shape)}")
    trailing = (1,) * (values.dim() - mask.dim())
    return mask.bool().reshape(*mask.shape, *trailing).expand_as(values)


# -------------------------------------------------------------- Mean absolute error, also called `mae`


class L1Loss(ElementwiseLoss):
    """|outputs - targets| of each element."""

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs()


# ---------------------------------------------------------------------------------- Mean squared error


class MSELoss(ElementwiseLoss):
    """(outputs - targets)^2 of each element."""

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square()


# ---------------------------------------------------------- Smooth L1 loss (Girshick 2015, equation 3)


class SmoothL1Loss(ElementwiseLoss):
    """|error| - beta / 2, and error^2 / (2 beta) where the error is below `beta`."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = beta

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.smooth_l1_loss(outputs, targets, reduction="none", beta=self.beta)


# ----------------------------------------------------------------------------- Huber loss (Huber 1964)


class HuberLoss(ElementwiseLoss):
    """Half the squared error up to `delta`, linear beyond: delta * (|error| - delta / 2)."""

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        self.delta = delta

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.huber_loss(outputs, targets, reduction="none", delta=self.delta)


# ------------------------------------------------------------------------- Kullback-Leibler divergence


class KLDivLoss(Loss):
    """KL(targets || outputs) of distributions over the last dimension; the count is the number of distributions.

    Outputs (..., C) are log-probabilities, targets (..., C) probabilities.
    """

    reads = "log_probabilities"
    over_classes = True
    unit = "targets"

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        same_shape(outputs, targets)
        targets = targets.to(outputs.dtype)
        if mask is None:
            return functional.kl_div(outputs, targets, reduction="sum"), float(outputs[..., 0].numel())
        valid = expanded(mask, outputs)
        values = functional.kl_div(outputs.masked_fill(~valid, 0), targets.masked_fill(~valid, 0), reduction="none")
        return values.masked_fill(~valid, 0).sum(), valid[..., 0].sum()


# --------------- The base of losses over classes. Scores are (..., C); targets are class indices (...)

IGNORED = -100
"""Targets with this value do not count, as in torch."""


def flat(name: str, scores: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (N, C), targets (N,) or (N, C), and a mask (N,) of those that count.

    Those that do not count get scores 0 and class 0, so that they have no gradient, even if they are NaN.

    Args:
        name: Name of the loss, for errors.
        scores: (..., C).
        targets: Class indices (...), or the probability of each class (..., C).
        mask: A boolean prefix of the shape (...).

    Raises:
        InputError: Shapes that do not fit, or a single class.
    """
    classes = scores.shape[-1]
    soft = targets.shape == scores.shape
    if not soft and targets.shape != scores.shape[:-1]:
        raise InputError(
            f"{name}: scores {tuple(scores.shape)} need class indices {tuple(scores.shape[:-1])} or "
            f"probabilities {tuple(scores.shape)} as targets, not {tuple(targets.shape)}"
        )
    if classes < 2:
        raise InputError(f"{name}: needs at least two classes; use bce_with_logits for binary targets")
    frames = targets[..., 0] if soft else targets
    valid = frames != IGNORED
    if mask is not None:
        valid = valid & expanded(mask, frames)
    valid = valid.reshape(-1)
    scores = scores.reshape(-1, classes).masked_fill(~valid[:, None], 0)
    if soft:
        return scores, targets.to(scores.dtype).reshape(-1, classes).masked_fill(~valid[:, None], 0), valid
    return scores, targets.long().reshape(-1).masked_fill(~valid, 0), valid


def smoothed_nll(log_probabilities: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Negative log-likelihood (N,) of smoothed targets (Szegedy et al. 2016, section 7).

    Args:
        log_probabilities: (N, C).
        targets: Class indices (N,) or probabilities (N, C).
        smoothing: Share of the probability that is spread evenly over the classes.
    """
    if targets.dim() == 2:
        likelihood = (targets * log_probabilities).sum(-1)
        mass = targets.sum(-1)
    else:
        likelihood = log_probabilities.gather(-1, targets[:, None])[:, 0]
        mass = torch.ones_like(likelihood)
    if smoothing == 0:
        return -likelihood
    return -(1 - smoothing) * likelihood - smoothing * mass * log_probabilities.mean(-1)


def smoothed_binary(targets: Tensor, smoothing: float) -> Tensor:
    """Smoothed binary targets (...): 1 becomes 1 - smoothing / 2, and 0 smoothing / 2."""
    return targets * (1 - smoothing) + smoothing / 2 if smoothing else targets


# -------------------------------------------------------------------- Binary cross entropy from logits


class BCEWithLogitsLoss(ElementwiseLoss):
    """Binary cross entropy of sigmoid(outputs), element by element; targets are from 0 to 1.

    Elements with the target -100 do not count. `label_smoothing` moves targets towards 0.5.
    """

    reads: Reads = "logits"

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        labelled = targets != IGNORED
        return super().measure(outputs, targets, labelled if mask is None else labelled & expanded(mask, targets))

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        targets = smoothed_binary(targets, self.label_smoothing)
        return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")


# ------------------------------------------------------------- Binary cross entropy from probabilities


class BCELoss(BCEWithLogitsLoss):
    """Binary cross entropy of outputs in [0, 1]. `bce_with_logits` is more exact if there are logits."""

    reads = "probabilities"

    def cells(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy(
            outputs, smoothed_binary(targets, self.label_smoothing), reduction="none"
        )


# -------------------------------------------------------------------------- Cross entropy over classes


class CrossEntropyLoss(Loss):
    """-log softmax(outputs) at the target class; the count is the number of targets.

    Outputs are logits (..., C), targets class indices (...) or probabilities (..., C). Targets of -100 do not count.
    `label_smoothing` spreads that share of the probability evenly over the classes.
    """

    reads = "logits"
    over_classes = True
    unit = "targets"

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        scores, classes, valid = flat("cross_entropy", outputs, targets, mask)
        values = smoothed_nll(scores.log_softmax(-1), classes, self.label_smoothing)
        return values.masked_fill(~valid, 0).sum(), valid.sum()


# ------------------------------------------------------------------ Negative log-likelihood of classes


class NLLLoss(Loss):
    """-outputs at the target class, for outputs (..., C) that are log-probabilities.

    Targets, -100 and label smoothing are as for `cross_entropy`.
    """

    reads = "log_probabilities"
    over_classes = True
    unit = "targets"

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        log_probabilities, classes, valid = flat("nll", outputs, targets, mask)
        values = smoothed_nll(log_probabilities, classes, self.label_smoothing)
        return values.masked_fill(~valid, 0).sum(), valid.sum()


# ----------------------------------------------------------------- Cross entropy with smoothed targets


class LabelSmoothingLoss(CrossEntropyLoss):
    """`cross_entropy` with a label smoothing of 0.1 (Szegedy et al. 2016, section 7)."""

    def __init__(self, label_smoothing: float = 0.1) -> None:
        super().__init__(label_smoothing)


# ------------------------------------------------------------ Focal loss (Lin et al. 2017, equation 5)

SMALLEST = 1e-8
"""Keeps the gradient of (1 - p)^gamma finite for gamma below 1."""


class FocalLoss(Loss):
    """-alpha_t (1 - p_t)^gamma log(p_t): cross entropy that down-weights easy examples.

    Targets (...) in the shape of the outputs are binary labels (sigmoid); class indices (...) for outputs (..., C) are
    classes (softmax). Positives are weighted by `alpha`, negatives by 1 - alpha; of classes, class 0 is the negative
    (background). None: no weighting. Targets of -100 do not count.
    """

    reads = "logits"
    over_classes = None
    unit = "targets"

    def __init__(self, alpha: float | None = 0.25, gamma: float = 2.0) -> None:
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        if outputs.shape == targets.shape:
            valid = targets != IGNORED
            if mask is not None:
                valid = valid & expanded(mask, targets)
            positive = targets.to(outputs.dtype).masked_fill(~valid, 0)
            scores = outputs.masked_fill(~valid, 0)
            log_p = -functional.binary_cross_entropy_with_logits(scores, positive, reduction="none")
        else:
            scores, classes, valid = flat("focal", outputs, targets, mask)
            log_p = scores.log_softmax(-1).gather(-1, classes[:, None])[:, 0]
            positive = (classes != 0).to(scores.dtype)
        values = -(1 - log_p.exp()).clamp_min(SMALLEST).pow(self.gamma) * log_p
        if self.alpha is not None:
            values = values * torch.lerp(
                torch.full_like(positive, 1 - self.alpha), torch.full_like(positive, self.alpha), positive
            )
        return values.masked_fill(~valid, 0).sum(), valid.sum()


# --------- InfoNCE over a batch (van den Oord et al. 2018; Khosla et al. 2020, equation 2, for labels)


class ContrastiveLoss(Loss):
    """Pulls embeddings of one label together and pushes others apart.

    Outputs are embeddings (B, D), compared by cosine similarity / `temperature`. Targets are either labels (B,), such
    as speakers, or a second view (B, D) of each item, whose positive is the first. An embedding is never compared with
    itself. The count is the number of embeddings that have a positive.

    The embeddings of all ranks are compared with each other; the sum and the count are of this rank's. A label below 0
    means the same on this rank alone.
    """

    couples_items = True
    takes = "embeddings"

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        if outputs.dim() != 2:
            raise InputError(f"contrastive: embeddings (items, features), not {tuple(outputs.shape)}")
        valid = torch.ones(len(outputs), dtype=torch.bool, device=outputs.device)
        if mask is not None:
            valid = expanded(mask, valid)
        if targets.dim() == 2:
            same_shape(outputs, targets)
            labels = -1 - torch.arange(len(outputs), device=outputs.device).repeat(2)
            outputs, valid = torch.cat([outputs, targets.to(outputs.dtype)]), valid.repeat(2)
        else:
            labels = targets
        outputs = outputs.masked_fill(~valid[:, None], 0)
        (outputs, labels, valid), own = of_all_ranks(outputs, own_labels(labels), valid.to(torch.uint8))
        return self.among(outputs, labels, valid.bool(), own)

    def among(self, embeddings: Tensor, labels: Tensor, valid: Tensor, own: slice) -> SumCount:
        """The mean of -log softmax over the positives of each embedding, summed over the `own` of (N, D) with
        labels (N,)."""
        unit = torch.nn.functional.normalize(embeddings, dim=-1)
        itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        compared = (valid[:, None] & valid[None, :] & ~itself)[own]
        positive = compared & (labels[own, None] == labels[None, :])
        # finite, so that rows without comparisons are not NaN
        similarity = (unit[own] @ unit.T / self.temperature).masked_fill(~compared, -1 / math.ulp(1.0))
        log_share = similarity.log_softmax(-1).masked_fill(~positive, 0)
        positives = positive.sum(-1)
        values = -log_share.sum(-1) / positives.clamp_min(1)
        return values.sum(), (positives > 0).sum()


# ------------- Spectra for losses over waveforms. B items, S samples, K = n_fft / 2 + 1 bins, T frames

STFT_LOSSES = frozenset({"spectral", "multi_resolution_stft", "stft"})
"""The losses that compare waveforms."""


def waveforms(name: str, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs and targets as (B, S), zero where masked, and the length (B,) of each item in samples.

    Args:
        name: Name of the loss, for errors.
        outputs: (B, S) or (B, 1, S).
        targets: The same shape.
        mask: (B, S), True for the samples of each item; padding is at the end.

    Raises:
        InputError: Anything but waveforms, such as mel frames.
    """
    same_shape(outputs, targets)
    if outputs.dim() == 3 and outputs.shape[1] == 1:
        outputs, targets = outputs[:, 0], targets[:, 0]
    if outputs.dim() != 2:
        raise InputError(
            f"{name} compares waveforms (batch, samples), not values of {tuple(outputs.shape)}; for mel "
            "frames choose mse or l1, or give the waveforms"
        )
    if mask is None:
        return outputs, targets, torch.full(outputs.shape[:1], outputs.shape[1], device=outputs.device)
    if mask.shape != outputs.shape:
        raise InputError(f"{name}: a mask of {tuple(mask.shape)} does not fit {tuple(outputs.shape)} samples")
    valid = mask.bool()
    return outputs.masked_fill(~valid, 0), targets.masked_fill(~valid, 0), valid.sum(-1)


def magnitudes(samples: Tensor, lengths: Tensor, n_fft: int, hop_length: int) -> tuple[Tensor, Tensor]:
    """Hann-windowed magnitude spectra (B, K, T), and a mask (B, 1, T) of each item's frames.

    Frames are centred and the signal is padded with zeros, so an item has the same frames alone as in a padded batch.

    Args:
        samples: (B, S).
        lengths: (B,) samples of each item.
        n_fft: Samples of a frame.
        hop_length: Samples from frame to frame.
    """
    window = torch.hann_window(n_fft, dtype=samples.dtype, device=samples.device)
    spectra = torch.stft(
        samples, n_fft, hop_length, window=window, center=True, pad_mode="constant", return_complex=True
    )
    centres = hop_length * torch.arange(spectra.shape[-1], device=samples.device)
    valid = (centres <= lengths[:, None]) & (lengths[:, None] > 0)
    return spectra.abs(), valid[:, None]


def convergence(
    outputs: Tensor, targets: Tensor, mask: Tensor | None = None, quietest: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Spectral convergence (B,) of each item, and a mask (B,) of the items that have one: silent targets have none.

    ||targets - outputs|| / ||targets|| in the Frobenius norm (Arik et al. 2018, equation 3).

    Args:
        outputs: Magnitudes (B, K, T) or (B, T, K).
        targets: Magnitudes of the same shape.
        mask: (B, 1, T), True for real frames.
        quietest: Targets of a smaller norm count as having this one.
    """
    difference = targets - outputs
    if mask is not None:
        difference, targets = difference.masked_fill(~mask, 0), targets.masked_fill(~mask, 0)
    distance = torch.linalg.vector_norm(difference, dim=(1, 2))
    size = torch.linalg.vector_norm(targets, dim=(1, 2)).clamp_min(quietest)
    audible = size > 0
    return (distance / size.masked_fill(~audible, 1)).masked_fill(~audible, 0), audible


def spectral_distance(
    outputs: Tensor, targets: Tensor, mask: Tensor | None = None, *, floor: float, quietest: float = 0.0
) -> Tensor:
    """Spectral convergence plus the mean |log magnitude| difference (B,) of each item, at one resolution (Yamamoto et
    al. 2020, "Parallel WaveGAN", equations 3 to 6).

    Args: as of `convergence`; `floor` is added to magnitudes before the logarithm.
    """
    ratio, _ = convergence(outputs, targets, mask, quietest)
    difference = ((outputs + floor).log() - (targets + floor).log()).abs()
    if mask is None:
        return ratio + difference.mean((1, 2))
    cells = mask.sum((1, 2)).clamp_min(1) * outputs.shape[1]
    return ratio + difference.masked_fill(~mask, 0).sum((1, 2)) / cells


# ------------------------------------------------- Spectral convergence (Arik et al. 2018, equation 3)


class SpectralLoss(Loss):
    """|| |Y| - |X| || / || |Y| || of each item's magnitude spectra; the count is the number of items.

    Outputs X and targets Y are waveforms (B, S); the mask is (B, S). Items with a silent target do not count.
    """

    reads = "audio"

    def __init__(self, n_fft: int = 1024, hop_length: int = 256) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.hop_length = hop_length

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        outputs, targets, lengths = waveforms("spectral", outputs, targets.to(outputs.dtype), mask)
        output_magnitudes, mask = magnitudes(outputs, lengths, self.n_fft, self.hop_length)
        target_magnitudes, _ = magnitudes(targets, lengths, self.n_fft, self.hop_length)
        values, audible = convergence(output_magnitudes, target_magnitudes, mask)
        return values.sum(), audible.sum()


# ------------- Multi-resolution STFT loss (Yamamoto et al. 2020, "Parallel WaveGAN", equations 3 to 6)

FLOOR = 1e-7
"""Added to magnitudes before the logarithm."""


class MultiResolutionSTFTLoss(Loss):
    """Spectral convergence plus the mean |log magnitude| difference, averaged over resolutions.

    Both are computed per item; the count is the number of items. Outputs and targets are waveforms (B, S); the mask is
    (B, S). A silent target has no spectral convergence, only the logarithmic term.

    Args:
        resolutions: (n_fft, hop length) in samples.
    """

    reads = "audio"

    def __init__(self, resolutions: Sequence[tuple[int, int]] = ((1024, 256), (2048, 512), (512, 128))) -> None:
        super().__init__()
        self.resolutions = tuple((int(n_fft), int(hop_length)) for n_fft, hop_length in resolutions)

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        outputs, targets, lengths = waveforms("multi_resolution_stft", outputs, targets.to(outputs.dtype), mask)
        values = torch.stack(
            [self._resolution(outputs, targets, lengths, *resolution) for resolution in self.resolutions]
        )
        return values.mean(0).sum(), (lengths > 0).sum()

    def _resolution(self, outputs: Tensor, targets: Tensor, lengths: Tensor, n_fft: int, hop_length: int) -> Tensor:
        output_magnitudes, mask = magnitudes(outputs, lengths, n_fft, hop_length)
        target_magnitudes, _ = magnitudes(targets, lengths, n_fft, hop_length)
        return spectral_distance(output_magnitudes, target_magnitudes, mask, floor=FLOOR)


# ---------------------------------------------------------------- A-weighted L1 distance of mel frames


class PerceptualLoss(Loss):
    """Absolute difference of mel frames (..., F), with bands weighted by the A-weighting curve (IEC 61672-1).

    The mean of the weights is 1, so the scale is that of `l1`. The count is the number of elements.

    Args:
        fmin: Lower edge of the mel bands of the features, in Hz.
        fmax: Upper edge, in Hz.
    """

    reads = "audio"
    unit = "elements"

    def __init__(self, fmin: float = 0.0, fmax: float = 8000.0) -> None:
        super().__init__()
        self.fmin = fmin
        self.fmax = fmax

    def measure(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> SumCount:
        same_shape(outputs, targets)
        if outputs.dim() < 2:
            raise InputError(f"perceptual compares mel frames (..., bands), not {tuple(outputs.shape)}")
        weights = torch.tensor(self.weights(outputs.shape[-1]), dtype=outputs.dtype, device=outputs.device)
        if mask is None:
            return ((outputs - targets).abs() * weights).sum(), float(outputs.numel())
        valid = expanded(mask, outputs)
        difference = outputs.masked_fill(~valid, 0) - targets.masked_fill(~valid, 0)
        return (difference.abs() * weights).sum(), valid.sum()

    def weights(self, bands: int) -> list[float]:
        """The weight of each of `bands` mel bands; their mean is 1."""
        weights = [_a_curve(centre) for centre in band_edges(bands, self.fmin, self.fmax)[1:-1]]
        mean = sum(weights) / bands
        return [weight / mean for weight in weights]


def _a_curve(hertz: float) -> float:
    """The A-weighting of a frequency as a factor on amplitudes, up to a constant."""
    square = hertz**2
    return (12194**2 * square**2) / (
        (square + 20.6**2) * math.sqrt((square + 107.7**2) * (square + 737.9**2)) * (square + 12194**2)
    )


# -------------------------------------------------------------------- L2 regularisation as a loss term


class NormRegLoss(nn.Module):
    """The mean square of a model's trainable weight matrices, without biases and normalisation layers.

    A mean depends little on the number of weights (a newly initialised layer of width d has about 1 / (3 d)), so a
    weight of this term suits small and large models alike.
    """

    couples_items = False
    takes = "model"

    def forward(self, model: nn.Module) -> SumCount:
        """The sum of squares and the number of weights."""
        weights = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
        if not weights:
            return torch.zeros(()), 0.0
        total = torch.stack([weight.float().square().sum() for weight in weights]).sum()
        return total, float(sum(weight.numel() for weight in weights))
