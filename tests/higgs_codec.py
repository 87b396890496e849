"""A small codec of Higgs Audio v2: 24 kHz, 25 frames per second, 8 codebooks of 1024 codes, as the released one has."""

from __future__ import annotations

from pathlib import Path

import torch

from phonate.audio.higgs_codec import codec_class


def small_codec_folder(folder: Path, *, seed: int = 0) -> Path:
    """Write a codec with random weights into `folder`, as `save_pretrained` does. Kernel sizes, and with them the
    context of a frame, are those of the released codec."""
    from transformers import DacConfig, HiggsAudioV2TokenizerConfig, HubertConfig

    acoustic = DacConfig(
        encoder_hidden_size=4,
        decoder_hidden_size=64,
        hidden_size=16,
        downsampling_ratios=[8, 5, 4, 2, 3],
        upsampling_ratios=[8, 5, 4, 2, 3],
        sampling_rate=24000,
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
        codebook_dim=16,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = codec_class()(config).eval()
        _seed_weights(model)
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def _seed_weights(model: torch.nn.Module) -> None:
    """transformers sets codebooks to zero (every code would be 0), and convolutions so small that nothing is heard."""
    for module in model.acoustic_encoder.modules():
        if isinstance(module, torch.nn.Conv1d):
            torch.nn.init.kaiming_normal_(module.weight)
    for module in model.acoustic_decoder.modules():  # so that no layer changes the level by much
        if isinstance(module, torch.nn.ConvTranspose1d):
            torch.nn.init.normal_(module.weight, std=(2 * module.in_channels) ** -0.5)
        elif isinstance(module, torch.nn.Conv1d):
            torch.nn.init.normal_(module.weight, std=0.5 * (module.in_channels * module.kernel_size[0]) ** -0.5)
    torch.nn.init.normal_(model.fc.weight, std=0.2)
    for quantizer in model.quantizer.quantizers:
        torch.nn.init.normal_(quantizer.project_in.weight, std=0.5)
        torch.nn.init.normal_(quantizer.project_out.weight, std=0.1)
        torch.nn.init.normal_(quantizer.codebook.embed)
    sound = model.decode(torch.randint(0, 1024, (1, 8, 50)), return_dict=False)
    model.acoustic_decoder.conv2.weight.div_(10 * sound.std())
