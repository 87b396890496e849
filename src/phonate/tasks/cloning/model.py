"""The network of a recipe, and whether it fits the tokenizer and the data."""

from __future__ import annotations

import torch

from phonate.config.errors import InputError
from phonate.tasks.cloning.network.loading import load_base, load_network
from phonate.tasks.cloning.network.network import CloningNetwork
from phonate.tasks.cloning.sequences.sequence import BOS, CODEBOOK_SIZE, CODEBOOKS, EOS
from phonate.tasks.cloning.sequences.tokens import CloningTokenizer
from phonate.tasks.cloning.settings import CloningModel


def build(settings: CloningModel, device: torch.device) -> CloningNetwork:
    """The pretrained network on `device`, with fresh adapters or trained whole. Raises InputError as `load_network`."""
    if settings.strategy == "lora":
        return load_network(settings, device)
    return CloningNetwork(load_base(settings.name, "fp32", None, device, settings.text_head))


def check_fit(network: CloningNetwork, tokenizer: CloningTokenizer, max_length: int) -> None:
    """Raise InputError for a network with other codebooks or tokens than samples are written with, or one that takes
    no sequences of `max_length`."""
    config, special = network.config, tokenizer.specials
    expected = {
        "num_codebooks": CODEBOOKS,
        "codebook_size": CODEBOOK_SIZE + 2,
        "audio_stream_bos_id": BOS,
        "audio_stream_eos_id": EOS,
        "audio_token_id": special.frame,
        "audio_delay_token_id": special.delay,
        "audio_bos_token_id": special.audio_start,
    }
    for name, value in expected.items():
        if getattr(config, name) != value:
            raise InputError(
                f"model.name: its config.json has {name} {getattr(config, name)}; codec and tokenizer need {value}"
            )
    if len(tokenizer) > config.vocab_size:
        raise InputError(f"model.name: its tokenizer has {len(tokenizer)} tokens, its model {config.vocab_size}")
    longest = config.max_position_embeddings
    if longest is not None and max_length > longest:
        raise InputError(f"data.max_length: {max_length}; this model takes {longest} at most")
