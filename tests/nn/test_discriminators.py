"""Discriminators learn to tell what is made from what is natural, within a few steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from phonate.nn import bands, vocoder
from phonate.nn.vocoder import Discriminators, MelDiscriminator, MultiResolutionFourier

RESOLUTIONS = ((512, 128), (256, 64))


def judged(network: nn.Module, natural: list[torch.Tensor], made: list[torch.Tensor], steps: int) -> float:
    """The least-squares loss after training; 0.5 is chance."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, betas=(0.8, 0.99))
    loss = torch.zeros(())
    for _ in range(steps):
        ((real, _),), ((fake, _),) = network(*natural), network(*made)
        loss = (real - 1.0).square().mean() + fake.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def mels() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Mels with texture, and the same ones blurred over time as an averaging model makes them."""
    generator = torch.Generator().manual_seed(0)
    texture = torch.randn(8, 64, 40, generator=generator)
    level = 0.35 + 0.1 * torch.randn(8, 1, 40, generator=generator)
    blurred = nn.functional.avg_pool1d(texture.transpose(1, 2), 5, 1, 2).transpose(1, 2)
    condition = torch.randn(8, 64, 6, generator=generator)
    return [level + 0.05 * texture, condition], [level + 0.05 * blurred, condition]


def test_blur_is_found_out_in_a_few_steps() -> None:
    torch.manual_seed(0)
    assert judged(MelDiscriminator(40, 6, 8), *mels(), steps=100) < 0.3


def test_it_would_not_be_if_mels_were_not_standardised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocoder, "_MEAN_LEVEL", 0.0)
    monkeypatch.setattr(vocoder, "_DEVIATION", 1.0)
    torch.manual_seed(0)
    assert judged(MelDiscriminator(40, 6, 8), *mels(), steps=100) > 0.45


def test_noise_is_told_from_a_voice_at_every_resolution() -> None:
    torch.manual_seed(0)
    time = torch.arange(4096) / 22050
    voice = sum(torch.sin(2 * torch.pi * 150.0 * harmonic * time) / harmonic for harmonic in range(1, 20))
    fourier = MultiResolutionFourier(RESOLUTIONS)
    natural, made = (fourier(sound[None]) for sound in (0.1 * voice, 0.1 * torch.randn(4096)))
    network = Discriminators(RESOLUTIONS, 4)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(60):
        verdicts = list(zip(network(natural), network(made), strict=True))
        loss = sum((real - 1).square().mean() + fake.square().mean() for (real, _), (fake, _) in verdicts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for (real, layers), (fake, _) in verdicts:
        assert real.mean() > fake.mean() + 0.3
        assert len(layers) == 3


def plainly_judged(network: vocoder._Convolutions, hidden_BCTK: torch.Tensor) -> vocoder.Judgement:
    """By convolutions as they are written down."""
    outputs = []
    for layer in network.layers:
        hidden_BCTK = nn.functional.leaky_relu(layer(hidden_BCTK), 0.1)
        outputs.append(hidden_BCTK)
    return network.last(hidden_BCTK).squeeze(1), outputs


@pytest.mark.parametrize("count", [80, 129, 130, 131, 257])
@pytest.mark.parametrize("network", [vocoder.SpectrogramDiscriminator(4), MelDiscriminator(9, 6, 4)])
def test_convolutions_over_folded_bands_are_the_plain_ones(network: vocoder._Convolutions, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    ours, plain = (torch.randn(2, 2, 21, count, generator=generator).requires_grad_() for _ in range(2))
    plain.data.copy_(ours.data)
    weights = list(network.parameters())[-8:]
    results = []
    for given, (scores, outputs) in (
        (ours, *network.judged(ours.transpose(1, 2))),
        (plain, plainly_judged(network, plain)),
    ):
        loss = scores.square().mean() + sum(one.square().mean() for one in outputs)
        gradients = torch.autograd.grad(loss, [given, *weights])
        results.append([scores, *outputs, *gradients])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_of_inputs_and_of_weights_can_be_asked_for_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    network, given = MelDiscriminator(9, 6, 4), torch.randn(2, 21, 9, generator=generator).requires_grad_()
    ((scores, _),) = network(given, torch.randn(2, 21, 6, generator=generator))
    loss, weights = scores.square().mean(), list(network.parameters())
    together = torch.autograd.grad(loss, [given, *weights], retain_graph=True)
    apart = *torch.autograd.grad(loss, [given], retain_graph=True), *torch.autograd.grad(loss, weights)
    torch.testing.assert_close(apart, together, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("with_condition", [False, True])
def test_both_are_judged_as_each_alone(with_condition: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    network, bins, given = Discriminators(((64, 16), (32, 8)), 4), (66, 34), []
    fake, real = ([torch.randn(2, 21, size, generator=generator) for size in bins] for _ in range(2))
    if with_condition:
        network, fake, real = MelDiscriminator(66, 6, 4), fake[0], real[0]
        given = [torch.randn(2, 21, 6, generator=generator)]
    alone = network(fake, *given), network(real, *given)
    torch.testing.assert_close(network.of_both(fake, real, *given), alone, rtol=0.0, atol=0.0)


def test_compressed_spectra_keep_their_phase_and_have_the_gradient_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    x_BTCK = torch.randn(2, 5, 2, 9, generator=generator, dtype=torch.float64).requires_grad_()
    made = bands.compressed(x_BTCK, 1e-5, -0.35)
    sizes = torch.linalg.vector_norm(made, dim=2)
    torch.testing.assert_close(sizes, (x_BTCK.square().sum(2) + 1e-5).pow(0.15), rtol=1e-3, atol=1e-5)
    assert torch.autograd.gradcheck(lambda x: bands.compressed(x, 1e-5, -0.35), [x_BTCK])


@pytest.mark.parametrize(("n_fft", "hop"), [(64, 16), (60, 25)])
def test_the_gradient_of_a_spectrum_is_that_of_its_formula(n_fft: int, hop: int) -> None:
    fourier = vocoder.ShortTimeFourier(n_fft, hop).double()
    samples_BN = torch.randn(2, 331, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(fourier, [samples_BN])
