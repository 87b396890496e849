"""The losses against torch's own, closed forms and the contract that all share."""

from __future__ import annotations

import math

import librosa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from phonate.config.errors import InputError
from phonate.nn.losses import ContrastiveLoss, MultiResolutionSTFTLoss, NormRegLoss, PerceptualLoss, SpectralLoss
from phonate.training.registries import LOSSES

FRAMES = ["mse", "l1", "mae", "huber", "smooth_l1", "perceptual"]
LABELS = ["bce", "bce_with_logits", "focal"]
CLASSES = ["cross_entropy", "nll", "label_smoothing"]
WAVEFORMS = ["spectral", "multi_resolution_stft"]


def example(name: str, items: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, targets and a mask that suit the loss `name`; the items have unlike lengths, the first is full."""
    generator = torch.Generator().manual_seed(seed)
    size = (items, 4096) if name in WAVEFORMS else (items, 7, 5)
    outputs = torch.randn(size, generator=generator)
    targets = torch.randn(size, generator=generator)
    if name in LABELS:
        targets = (targets > 0).float()
    if name == "bce":
        outputs = outputs.sigmoid()
    if name in CLASSES:
        targets = targets.argmax(-1)
    if name in {"nll", "kl_div"}:
        outputs = outputs.log_softmax(-1)
    if name == "kl_div":
        targets = targets.softmax(-1)
    lengths = torch.randint(1, size[1] + 1, (items,), generator=generator)
    lengths[0] = size[1]
    mask = torch.arange(size[1]) < lengths[:, None]
    return outputs, targets, mask


def mean(name: str, outputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    total, count = LOSSES.get(name)()(outputs, targets, mask)
    return total / count


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("mse", functional.mse_loss),
        ("l1", functional.l1_loss),
        ("mae", functional.l1_loss),
        ("huber", functional.huber_loss),
        ("smooth_l1", functional.smooth_l1_loss),
        ("bce", functional.binary_cross_entropy),
        ("bce_with_logits", functional.binary_cross_entropy_with_logits),
    ],
)
def test_cells_agree_with_torch(name, reference):
    outputs, targets, mask = example(name)
    torch.testing.assert_close(mean(name, outputs, targets), reference(outputs, targets))
    torch.testing.assert_close(mean(name, outputs, targets, mask), reference(outputs[mask], targets[mask]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy_agrees_with_torch(smoothing, soft):
    outputs, targets, mask = example("cross_entropy")
    if soft:
        targets = functional.one_hot(targets, 5).float() * 0.7 + 0.06
    loss = LOSSES.get("cross_entropy")(label_smoothing=smoothing)
    total, count = loss(outputs, targets, mask)
    expected = functional.cross_entropy(outputs[mask], targets[mask], label_smoothing=smoothing)
    torch.testing.assert_close(total / count, expected)
    logs, count = LOSSES.get("nll")(label_smoothing=smoothing)(outputs.log_softmax(-1), targets, mask)
    torch.testing.assert_close(logs / count, expected)


def test_the_loss_called_label_smoothing_smooths():
    outputs, targets, _ = example("cross_entropy")
    expected = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(mean("label_smoothing", outputs, targets), expected)


def test_binary_label_smoothing_draws_targets_to_the_middle():
    outputs, targets, _ = example("bce_with_logits")
    loss = LOSSES.get("bce_with_logits")(label_smoothing=0.2)
    total, count = loss(outputs, targets)
    expected = functional.binary_cross_entropy_with_logits(outputs, targets * 0.8 + 0.1)
    torch.testing.assert_close(total / count, expected)
    total, count = LOSSES.get("bce")(label_smoothing=0.2)(outputs.sigmoid(), targets)
    torch.testing.assert_close(total / count, expected)


def test_kl_divergence_is_per_distribution():
    outputs, targets, mask = example("kl_div")
    expected = functional.kl_div(outputs[mask], targets[mask], reduction="batchmean")
    torch.testing.assert_close(mean("kl_div", outputs, targets, mask), expected)
    torch.testing.assert_close(
        mean("kl_div", outputs, targets),
        functional.kl_div(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="batchmean"),
    )


def test_focal_without_focus_is_cross_entropy():
    outputs, targets, mask = example("focal")
    total, count = LOSSES.get("focal")(alpha=None, gamma=0.0)(outputs, targets, mask)
    expected = functional.binary_cross_entropy_with_logits(outputs[mask], targets[mask])
    torch.testing.assert_close(total / count, expected)
    outputs, targets, mask = example("cross_entropy")
    total, count = LOSSES.get("focal")(alpha=None, gamma=0.0)(outputs, targets, mask)
    torch.testing.assert_close(total / count, functional.cross_entropy(outputs[mask], targets[mask]))


def test_focal_follows_its_equation():
    scores, labels = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 0.0]])
    p = scores.sigmoid()
    positive = -0.25 * (1 - p[0, 0]) ** 2 * p[0, 0].log()
    negative = -0.75 * p[0, 1] ** 2 * (1 - p[0, 1]).log()
    total, count = LOSSES.get("focal")()(scores, labels)
    torch.testing.assert_close(total, positive + negative)
    assert count == 2


@pytest.mark.parametrize("name", [*FRAMES, *LABELS, *CLASSES, "kl_div", *WAVEFORMS])
@given(cut=st.integers(1, 5), seed=st.integers(0, 50))
@settings(max_examples=8)
def test_parts_of_a_batch_add_up_to_the_whole(name, cut, seed):
    outputs, targets, mask = example(name, items=6, seed=seed)
    loss = LOSSES.get(name)()

    def value_and_gradient(parts: list[slice]) -> tuple[Tensor, Tensor]:
        x = outputs.clone().double().requires_grad_()
        results = [loss(x[part], targets[part], mask[part]) for part in parts]
        whole = sum(total for total, _ in results) / sum(float(count) for _, count in results)
        whole.backward()
        return whole.detach(), x.grad

    once = value_and_gradient([slice(None)])
    twice = value_and_gradient([slice(0, cut), slice(cut, None)])
    torch.testing.assert_close(once, twice)


@pytest.mark.parametrize("name", [*FRAMES, *LABELS, *CLASSES, "kl_div", *WAVEFORMS])
def test_what_is_masked_has_no_influence_even_as_nan(name):
    outputs, targets, mask = example(name)
    kept = mask.reshape(*mask.shape, *(1,) * (outputs.dim() - 2)).expand_as(outputs)
    spoilt = outputs.masked_fill(~kept, math.nan).requires_grad_()
    dirty = targets.masked_fill(~mask.reshape(*mask.shape, *(1,) * (targets.dim() - 2)), 3)
    total, count = LOSSES.get(name)()(spoilt, dirty, mask)
    clean, clean_count = LOSSES.get(name)()(outputs, targets, mask)
    torch.testing.assert_close(total, clean)
    assert float(count) == float(clean_count)
    total.backward()
    assert spoilt.grad.isfinite().all()
    assert (spoilt.grad[~kept] == 0).all()


@pytest.mark.parametrize("name", [*FRAMES, *LABELS, *CLASSES, "kl_div", *WAVEFORMS])
def test_fully_masked_is_zero_with_count_zero(name):
    outputs, targets, mask = example(name)
    outputs.requires_grad_()
    total, count = LOSSES.get(name)()(outputs, targets, torch.zeros_like(mask))
    total.backward()
    assert (total.item(), float(count)) == (0.0, 0.0)
    assert (outputs.grad == 0).all()


@pytest.mark.parametrize("name", [*FRAMES, *LABELS, *CLASSES, "kl_div", *WAVEFORMS])
def test_half_precision_is_computed_in_single(name):
    outputs, targets, mask = example(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total, count = LOSSES.get(name)()(outputs.bfloat16(), targets, mask)
    assert total.dtype == torch.float32
    expected = mean(name, outputs.bfloat16().float(), targets, mask)
    torch.testing.assert_close(total / count, expected)


def test_padded_labels_do_not_count():
    """Padded label tensors hold -100; a loss that takes it for a label gives such a cell 100 times the gradient."""
    scores = torch.zeros(1, 4, 2, requires_grad=True)
    labels = torch.tensor([[[1.0, 0], [0, 1], [-100, -100], [-100, -100]]])
    total, count = LOSSES.get("bce_with_logits")()(scores, labels)
    total.backward()
    assert float(count) == 4
    assert (scores.grad[0, 2:] == 0).all()
    assert (scores.grad[0, :2].abs() == 0.5).all()

    def unmasked(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")

    scores.grad = None
    unmasked(scores, labels).backward()
    assert scores.grad[0, 2:].abs().max() > 100


@pytest.mark.parametrize(
    ("outputs", "targets", "said"),
    [
        ((2, 7, 5), (2, 7, 1), "differ in shape"),
        ((2, 7, 5), (7, 5), "differ in shape"),
    ],
)
def test_shapes_are_never_broadcast(outputs, targets, said):
    with pytest.raises(InputError, match=said):
        LOSSES.get("mse")()(torch.zeros(outputs), torch.zeros(targets))


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(InputError, match="mask"):
        LOSSES.get("mse")()(torch.zeros(2, 7, 5), torch.zeros(2, 7, 5), torch.ones(2, 5, dtype=torch.bool))


def test_cross_entropy_of_one_class_is_refused():
    with pytest.raises(InputError, match="bce_with_logits"):
        LOSSES.get("cross_entropy")()(torch.zeros(2, 7, 1), torch.zeros(2, 7))
    with pytest.raises(InputError, match="class indices"):
        LOSSES.get("cross_entropy")()(torch.zeros(2, 7, 3), torch.zeros(2, 7, 2))


def test_spectral_convergence_is_the_ratio_of_each_item():
    generator = torch.Generator().manual_seed(3)
    outputs, targets = torch.randn(3, 5000, generator=generator), torch.randn(3, 5000, generator=generator)
    ratios = []
    for x, y in zip(outputs, targets, strict=True):
        spectra = [
            torch.stft(z, 1024, 256, window=torch.hann_window(1024), pad_mode="constant", return_complex=True).abs()
            for z in (x, y)
        ]
        ratios.append(torch.linalg.norm(spectra[1] - spectra[0]) / torch.linalg.norm(spectra[1]))
    total, count = SpectralLoss()(outputs, targets)
    torch.testing.assert_close(total / count, torch.stack(ratios).mean())


def test_multi_resolution_stft_is_the_mean_over_resolutions():
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(2, 1, 6000, generator=generator)
    expected = []
    for n_fft, hop in ((1024, 256), (2048, 512), (512, 128)):
        a, b = (
            torch.stft(
                z[0], n_fft, hop, window=torch.hann_window(n_fft), pad_mode="constant", return_complex=True
            ).abs()
            for z in (x, y)
        )
        convergence = torch.linalg.norm(b - a) / torch.linalg.norm(b)
        expected.append(convergence + ((a + 1e-7).log() - (b + 1e-7).log()).abs().mean())
    total, count = MultiResolutionSTFTLoss()(x, y)
    torch.testing.assert_close(total / count, torch.stack(expected).mean())


@pytest.mark.parametrize("loss", [SpectralLoss(), MultiResolutionSTFTLoss()])
def test_spectra_are_windowed(loss):
    """A tone between two bins leaks into all of them without a window, and the loss then sees the phase."""
    time = torch.arange(8192) / 22050
    tone = torch.sin(2 * math.pi * 1010.7 * time)[None]
    shifted = torch.sin(2 * math.pi * 1010.7 * time + 1.0)[None]
    total, _ = loss(shifted, tone)

    class Unwindowed(SpectralLoss):
        def measure(self, outputs, targets, mask):
            a, b = (
                torch.stft(z, 1024, 256, window=torch.ones(1024), return_complex=True).abs() for z in (outputs, targets)
            )
            return torch.linalg.norm(b - a) / torch.linalg.norm(b), 1.0

    windowed, _ = SpectralLoss()(shifted, tone)
    leaking, _ = Unwindowed()(shifted, tone)
    assert total.isfinite()
    assert windowed < 0.8 * leaking


@pytest.mark.parametrize("loss", [SpectralLoss(), MultiResolutionSTFTLoss()])
def test_an_item_counts_the_same_alone_and_padded_in_a_batch(loss):
    generator = torch.Generator().manual_seed(5)
    outputs, targets = torch.randn(2, 5000, generator=generator), torch.randn(2, 5000, generator=generator)
    mask = torch.arange(5000) < torch.tensor([[5000], [3000]])
    together, count = loss(outputs, targets, mask)
    first, _ = loss(outputs[:1], targets[:1])
    second, _ = loss(outputs[1:, :3000], targets[1:, :3000])
    assert float(count) == 2
    torch.testing.assert_close(together, first + second)


@pytest.mark.parametrize("loss", [SpectralLoss(), MultiResolutionSTFTLoss()])
def test_silence_has_a_finite_gradient(loss):
    outputs = torch.zeros(2, 4096, requires_grad=True)
    targets = torch.stack([torch.zeros(4096), torch.randn(4096, generator=torch.Generator().manual_seed(6))])
    total, _ = loss(outputs, targets)
    total.backward()
    assert total.isfinite()
    assert outputs.grad.isfinite().all()


@pytest.mark.parametrize("name", WAVEFORMS)
def test_stft_losses_refuse_mel_frames(name):
    with pytest.raises(InputError, match="waveforms"):
        LOSSES.get(name)()(torch.zeros(2, 33, 80), torch.zeros(2, 33, 80))


def test_perceptual_is_not_mse_by_another_name():
    """A placeholder would treat all bands alike; the ear does not."""
    low, middle = torch.zeros(1, 1, 80), torch.zeros(1, 1, 80)
    low[..., 0] = 1
    middle[..., 35] = 1
    nothing = torch.zeros(1, 1, 80)
    loss = PerceptualLoss()
    assert loss(middle, nothing)[0] > 5 * loss(low, nothing)[0]
    assert sum(loss.weights(80)) / 80 == pytest.approx(1)
    hertz = librosa.mel_frequencies(82, fmin=0, fmax=8000)[1:-1]
    assert 2000 < hertz[max(range(80), key=loss.weights(80).__getitem__)] < 3500  # where hearing is keenest


@pytest.mark.parametrize(("fmin", "fmax"), [(0.0, 8000.0), (50.0, 11000.0)])
def test_perceptual_weighs_the_bands_of_the_features(fmin, fmax):
    """By librosa's own A-weighting at the peaks of the filters that made the features."""
    filters = librosa.filters.mel(sr=24000, n_fft=32768, n_mels=80, fmin=fmin, fmax=fmax)
    peaks = filters.argmax(axis=1) * 24000 / 32768
    heard = 10 ** (librosa.A_weighting(peaks, min_db=None) / 20)
    assert PerceptualLoss(fmin, fmax).weights(80) == pytest.approx(heard / heard.mean(), rel=0.01)


def test_contrastive_with_views_is_nt_xent_without_self():
    generator = torch.Generator().manual_seed(7)
    a, b = torch.randn(4, 6, generator=generator), torch.randn(4, 6, generator=generator)
    total, count = ContrastiveLoss(temperature=0.5)(a, b)
    z = functional.normalize(torch.cat([a, b]), dim=-1)
    similarity = (z @ z.T / 0.5).fill_diagonal_(-math.inf)
    expected = functional.cross_entropy(similarity, torch.cat([torch.arange(4, 8), torch.arange(4)]))
    torch.testing.assert_close(total / count, expected)
    with_self = functional.cross_entropy(z @ z.T / 0.5, torch.cat([torch.arange(4, 8), torch.arange(4)]))
    assert not torch.isclose(expected, with_self)


def test_contrastive_falls_as_kinds_part():
    labels = torch.tensor([0, 0, 1, 1])
    mixed = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])
    parted = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    loss = ContrastiveLoss()
    assert loss(parted, labels)[0] < 0.01 < loss(mixed, labels)[0]
    assert loss.couples_items


def test_contrastive_counts_only_what_has_a_positive():
    embeddings = torch.randn(3, 4, generator=torch.Generator().manual_seed(8)).requires_grad_()
    total, count = ContrastiveLoss()(embeddings, torch.tensor([0, 0, 1]))
    total.backward()
    assert float(count) == 2
    alone, none = ContrastiveLoss()(embeddings.detach(), torch.tensor([0, 1, 2]))
    assert (float(alone), float(none)) == (0.0, 0.0)
    assert embeddings.grad.isfinite().all()
    masked, count = ContrastiveLoss()(embeddings.detach(), torch.tensor([0, 0, 0]), torch.tensor([True, True, False]))
    torch.testing.assert_close(masked, ContrastiveLoss()(embeddings.detach()[:2], torch.tensor([0, 0]))[0])


def test_norm_reg_has_one_size_whatever_the_model():
    """As a sum of squares a single layer of width 512 would come to over 80 and drown the loss."""
    sizes = []
    for width in (64, 512):
        model = torch.nn.Linear(width, width)
        total, count = NormRegLoss()(model)
        assert count == width * width
        torch.testing.assert_close(total / count, model.weight.square().mean())
        sizes.append(float(total / count))
    assert max(sizes) < 0.01
    (total / count).backward()
    torch.testing.assert_close(model.weight.grad, 2 * model.weight / model.weight.numel())
    assert model.bias.grad is None


def test_the_mean_of_a_loss_is_a_scalar_to_train_with():
    outputs, targets = torch.randn(2, 4000, requires_grad=True), torch.randn(2, 4000)
    for loss in (SpectralLoss(), MultiResolutionSTFTLoss()):
        total, count = loss(outputs, targets)
        mean = loss.mean(outputs, targets)
        assert mean.shape == ()
        assert float(mean) == pytest.approx(float(total) / float(count))
        mean.backward()
    assert outputs.grad is not None
    assert outputs.grad.abs().sum() > 0
