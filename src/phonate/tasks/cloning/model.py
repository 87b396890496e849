"""The network of a recipe, whether it fits tokenizer and data, and the memory that a step takes.

What a layer keeps for the backward pass depends on the kind of adapters, their dropout, the precision and the kernels,
so that it is measured: on one layer and a few tokens, when the network is built. Everything else is counted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from phonate.compute.device import usage_of
from phonate.config.errors import InputError
from phonate.tasks.cloning.loading import load_base, load_network
from phonate.tasks.cloning.network import Attention, CloningNetwork, Paths, run_layer
from phonate.tasks.cloning.sequences import BOS, CODEBOOK_SIZE, CODEBOOKS, EOS, CloningTokenizer
from phonate.tasks.cloning.settings import CloningModel

# ----------------------------- The network of a recipe, and whether it fits the tokenizer and the data


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


logger = logging.getLogger(__name__)

# ---- How much memory a training step takes, and whether activations must be recomputed to make it fit

OPTIMIZER_BYTES = 12.0
"""Per trained number, beside its value: the gradient and AdamW's two moments, in fp32."""
LOGIT_BYTES = 16.0
"""Per logit, at most: the logit, its fp32 copy, log-probabilities and gradient."""
USABLE = 0.85
"""Share of the free memory that is planned with; the rest is for fragmentation and what is not counted."""
_PROBES = (64, 192)
"""Tokens of the two measurements, whose difference leaves out what does not grow with the tokens."""


@dataclass(frozen=True)
class Load:
    """The largest micro-batch."""

    tokens: int
    """B * L."""
    audio_positions: int
    """Positions with audio logits."""
    text_positions: int
    """Positions with text logits."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a training step takes beside the weights."""

    optimizer: float
    """Gradients and moments of what is trained."""
    layers: int
    layer_token: float
    """What one layer keeps for each token."""
    hidden_token: float
    """A token's hidden state, all that a checkpointed layer keeps."""
    audio_position: float
    """Logits of one position and what the loss makes of them."""
    text_position: float

    def needed(self, load: Load, checkpointing: bool) -> float:
        """Bytes at the peak, which is at the beginning of the backward pass.

        One layer's activations come on top: its gradients, or with checkpointing what is recomputed.
        """
        kept = self.hidden_token if checkpointing else self.layer_token
        working = (2.0 if checkpointing else 1.0) * self.layer_token
        logits = load.audio_positions * self.audio_position + load.text_positions * self.text_position
        return self.optimizer + load.tokens * (self.layers * kept + working) + logits


def measure(network: CloningNetwork, autocast: torch.dtype | None = None) -> StepMemory:
    """What a step of `network` takes when it computes in `autocast` (None: in the precision of its weights)."""
    base = network.base
    weight = base.model.embed_tokens.weight
    few, many = (_kept_by_a_layer(network, tokens, autocast) for tokens in _PROBES)
    trained = sum(one.numel() for one in network.parameters() if one.requires_grad)
    text_width = 0 if base.text_lm_head is None else network.config.vocab_size
    return StepMemory(
        optimizer=OPTIMIZER_BYTES * trained,
        layers=len(base.model.layers),
        layer_token=(many - few) / (_PROBES[1] - _PROBES[0]),
        hidden_token=float(network.config.hidden_size * weight.element_size()),
        audio_position=LOGIT_BYTES * network.config.num_codebooks * network.config.codebook_size,
        text_position=LOGIT_BYTES * text_width,
    )


def choose_checkpointing(
    network: CloningNetwork, wanted: Literal["auto"] | bool, load: Load, autocast: torch.dtype | None = None
) -> str:
    """Turn gradient checkpointing of `network` on or off, log why in one line, and return that line.

    Args:
        network: On the device that it is trained on.
        wanted: "auto": on if the largest micro-batch would not fit otherwise.
        load: That micro-batch.
        autocast: The precision of training, if it is not that of the weights.
    """
    step = measure(network, autocast)
    device = network.base.model.embed_tokens.weight.device
    usage = usage_of(device)()
    without, with_it = step.needed(load, checkpointing=False), step.needed(load, checkpointing=True)
    free = USABLE * (usage.total - usage.used)
    network.checkpointing = without > free if wanted == "auto" else wanted
    line = (
        f"gradient checkpointing {'on' if network.checkpointing else 'off'}"
        f"{'' if wanted == 'auto' else ' as set'}: a micro-batch of {load.tokens} tokens takes about "
        f"{without / 1e9:.1f} GB without it, {with_it / 1e9:.1f} GB with it; {free / 1e9:.1f} GB are available on "
        f"{device}"
    )
    if (with_it if network.checkpointing else without) > free:
        logger.warning("%s. That is too little: lower training.batch_size or data.max_length", line)
    else:
        logger.info("%s", line)
    return line


def _kept_by_a_layer(network: CloningNetwork, tokens: int, autocast: torch.dtype | None) -> float:
    """Bytes that the first layer keeps for the backward pass of one sequence, half of it audio."""
    base: Any = network.base
    weight = base.model.embed_tokens.weight
    hidden_1LH = torch.randn(
        1, tokens, network.config.hidden_size, dtype=weight.dtype, device=weight.device, requires_grad=True
    )
    positions_1L = torch.arange(tokens, device=weight.device)[None]
    rotary = base.model.rotary_emb(hidden_1LH, positions_1L)
    audio, text = positions_1L[0, : tokens // 2], positions_1L[0, tokens // 2 :]
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    training = network.training
    network.train()
    with torch.enable_grad(), torch.autocast(weight.device.type, dtype=autocast, enabled=autocast is not None):
        attention = Attention(sequences=positions_1L, places=positions_1L[0])
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = run_layer(base.model.layers[0], hidden_1LH, rotary, attention, Paths(audio, text))
    network.train(training)
    for shared in (*network.parameters(), *rotary, positions_1L):
        kept.pop(shared.untyped_storage().data_ptr(), None)
    del output  # until here it held what was kept, so that no storage was counted twice or reused
    return float(sum(kept.values()))
