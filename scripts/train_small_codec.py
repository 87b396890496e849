"""Trains a small codec of Higgs Audio's kind on recordings, so that voice cloning can be studied without the released
one: 24 kHz, 25 frames per second, 8 codebooks of 1,024 codes, as it has.

    python scripts/train_small_codec.py RECORDINGS CODEC [--steps N]

RECORDINGS is a folder that is searched for audio; CODEC becomes a folder that transformers loads. An autoencoder is
trained without codes first; k-means then gives each codebook the residuals of those before it; last, the decoder is
trained on codes. Only log-mel distances at several resolutions are minimised, so it sounds rough; voices keep their
colour. The semantic branch has random weights and contributes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from phonate.audio.decoding import read_audio
from phonate.audio.higgs_codec import HiggsCodec, codec_class
from phonate.audio.mel_filters import mel_filters
from phonate.data.corpora.rows import audio_files
from phonate.data.parallel import track

RATE, CODEBOOKS, CODES = 24000, 8, 1024
CROP = 16 * 960
"""Samples of a training crop."""
BATCH = 2
FITTED_SECONDS = 480
"""Speech that the codebooks are fitted to, at most; more takes longer and finds the same."""
MEL_SIZES = ((2048, 128), (1024, 80), (512, 40), (256, 20))
"""Samples of a frame, and bands."""


def new_codec() -> Any:
    """A codec whose codes do not depend on the semantic branch."""
    from transformers import DacConfig, HiggsAudioV2TokenizerConfig, HubertConfig

    acoustic = DacConfig(
        encoder_hidden_size=16,
        decoder_hidden_size=384,
        hidden_size=64,
        downsampling_ratios=[8, 5, 4, 2, 3],
        upsampling_ratios=[8, 5, 4, 2, 3],
        sampling_rate=RATE,
    )
    semantic = HubertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=[16] * 7,
        mask_time_prob=0.0,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    config = HiggsAudioV2TokenizerConfig(
        target_bandwidths=[0.5, 1, 1.5, 2],
        acoustic_model_config=acoustic,
        semantic_model_config=semantic,
        codebook_dim=acoustic.hidden_size + semantic.hidden_size,
    )
    model = codec_class()(config)
    residual_ends = []
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d):
                torch.nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            elif type(module).__name__ == "DacResidualUnit":
                residual_ends.append(module.conv2)
        for convolution in residual_ends:  # else each of the 30 would double the power, and training diverges
            convolution.weight.mul_(0.1)
        model.fc.weight.copy_(torch.eye(config.hidden_size))
        model.fc.weight[:, acoustic.hidden_size :] = 0.0
        model.fc.bias.zero_()
        for quantizer in model.quantizer.quantizers:
            for linear in (quantizer.project_in, quantizer.project_out):
                torch.nn.init.eye_(linear.weight)
                torch.nn.init.zeros_(linear.bias)
    return model


class Snake(torch.autograd.Function):
    """x + sin(a x) ** 2 / a (Ziyin et al. 2020, https://arxiv.org/abs/2006.08195) for a fixed a, with a third of
    autograd's passes over memory: they are what a step's time goes to."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, alpha: Tensor) -> Tensor:
        """Both in one shape, or broadcast."""
        ctx.save_for_backward(inputs, alpha)
        return (inputs * (2 * alpha)).cos_().sub_(1).div_(-2 * alpha).add_(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """None: alpha stays as it is."""
        inputs, alpha = ctx.saved_tensors
        return torch.addcmul(gradients[0], gradients[0], (inputs * (2 * alpha)).sin_()), None


def with_fast_activations(model: Any) -> None:
    """Let the model's activations be `Snake`, until it is loaded again."""
    for module in model.modules():
        if type(module).__name__ == "Snake1d":
            module.forward = partial(_activation, module)


def _activation(module: Any, inputs: Tensor) -> Tensor:
    activated: Tensor = Snake.apply(inputs, module.alpha)
    return activated


def embedded(model: Any, samples_BN: Tensor) -> Tensor:
    """(B, N) -> (B, T, C), what is quantised."""
    acoustic_BCT = model.acoustic_encoder(F.pad(samples_BN[:, None], (model.pad, model.pad)))
    frames = samples_BN.shape[1] // model.config.hop_length
    semantic = acoustic_BCT.new_zeros(len(samples_BN), model.config.semantic_model_config.hidden_size, frames)
    found: Tensor = model.fc(torch.cat([acoustic_BCT[..., :frames], semantic], dim=1).transpose(1, 2))
    return found


def decoded(model: Any, embedded_BTC: Tensor) -> Tensor:
    """(B, T, C) -> (B, N)."""
    samples: Tensor = model.acoustic_decoder(model.fc2(embedded_BTC).transpose(1, 2))[:, 0]
    return samples


def quantised(model: Any, embedded_BTC: Tensor) -> Tensor:
    """The nearest vectors of the codebooks."""
    found: Tensor = model.quantizer.decode(model.quantizer.encode(embedded_BTC.transpose(1, 2))).transpose(1, 2)
    return found


def crops(recordings: list[np.ndarray], rng: np.random.Generator) -> Iterator[Tensor]:
    """Batches (B, N) of random crops, without end."""
    sizes = np.array([len(one) for one in recordings], dtype=float)
    while True:
        batch = []
        for number in rng.choice(len(recordings), BATCH, p=sizes / sizes.sum()):
            start = rng.integers(len(recordings[number]) - CROP + 1)
            batch.append(recordings[number][start : start + CROP])
        yield torch.from_numpy(np.stack(batch))


def log_mel(samples_BN: Tensor, filters_MF: Tensor) -> Tensor:
    """(B, N) -> (B, M, T), to the base of 10."""
    size = 2 * (filters_MF.shape[1] - 1)
    spectrum = torch.stft(samples_BN, size, size // 4, window=torch.hann_window(size), return_complex=True)
    return (filters_MF @ spectrum.abs()).clamp_min(1e-5).log10()


def train(model: Any, batches: Iterator[Tensor], steps: int, lr: float, with_codes: bool) -> None:
    """Minimise the log-mel distance of recordings and their copies."""
    parameters = [*model.acoustic_decoder.parameters(), *model.fc2.parameters()]
    if not with_codes:
        parameters += [*model.acoustic_encoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.8, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    filters = [torch.from_numpy(mel_filters(RATE, size, bands, 40.0, RATE / 2)) for size, bands in MEL_SIZES]
    for step in track("decoder on codes" if with_codes else "autoencoder", range(steps)):
        samples = next(batches)
        with torch.set_grad_enabled(not with_codes):
            between = embedded(model, samples)
            between = quantised(model, between) if with_codes else between
        copy = decoded(model, between)
        distances = [(log_mel(copy, own) - log_mel(samples, own)).abs().mean() for own in filters]
        loss = torch.stack(distances).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 24:
            print(f"step {step + 1}: log-mel distance {loss.item():.3f}", flush=True)


@torch.no_grad()
def fit_codebooks(model: Any, recordings: list[np.ndarray]) -> None:
    """Residual k-means: each codebook is fitted to what those before it leave."""
    order = np.random.default_rng(0).permutation(len(recordings))
    enough = np.searchsorted(np.cumsum([len(recordings[i]) for i in order]), FITTED_SECONDS * RATE)
    chosen = [recordings[i] for i in order[: enough + 1]]
    whole = [one[: len(one) // model.config.hop_length * model.config.hop_length] for one in chosen]
    residual_NC = torch.cat([embedded(model, torch.from_numpy(one)[None])[0] for one in track("embedding", whole)])
    for quantizer in track("k-means", list(model.quantizer.quantizers)):
        centres = k_means(residual_NC, CODES)
        quantizer.codebook.embed.copy_(centres)
        residual_NC = residual_NC - centres[torch.cdist(residual_NC, centres).argmin(1)]


def k_means(points_NC: Tensor, count: int, rounds: int = 12) -> Tensor:
    """(count, C) centres. One that loses its points moves to a random point."""
    if len(points_NC) < 10 * count:
        raise SystemExit(f"{len(points_NC)} frames are too few for codebooks of {count} codes; give more recordings")
    centres = points_NC[torch.randperm(len(points_NC))[:count]].clone()
    for _ in range(rounds):
        nearest = torch.cdist(points_NC, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points_NC)
        sizes = torch.bincount(nearest, minlength=count)
        empty = sizes == 0
        sums[empty] = points_NC[torch.randint(len(points_NC), (int(empty.sum()),))]
        centres = sums / sizes.clamp_min(1)[:, None]
    return centres


def main() -> None:
    """Train and write the codec."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("codec", type=Path)
    parser.add_argument("--steps", type=int, default=2000, help="of the autoencoder; the decoder gets half as many")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    files = sorted(audio_files(arguments.recordings))
    recordings = [read_audio(file, RATE)[0] for file in track("reading", files)]
    recordings = [one for one in recordings if len(one) >= CROP]
    print(f"{len(recordings)} recordings, {sum(map(len, recordings)) / RATE / 60:.1f} minutes")
    model = new_codec()
    with_fast_activations(model)
    batches = crops(recordings, np.random.default_rng(0))
    train(model, batches, arguments.steps, 1e-3, with_codes=False)
    fit_codebooks(model.eval(), recordings)
    train(model.train(), batches, arguments.steps // 2, 5e-4, with_codes=True)
    model.eval().save_pretrained(arguments.codec)
    HiggsCodec.load(arguments.codec).require(CODEBOOKS, CODES)
    print(f"written: {arguments.codec}")


if __name__ == "__main__":
    main()
