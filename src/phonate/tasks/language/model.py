"""Causal language models: new ones, and what is trained of pretrained ones."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.nn.pretrained import add_adapters, from_config, load_pretrained
from phonate.tasks.language.settings import LanguageModel

_MULTIPLE = 32
"""The hidden width of a feed-forward network is a multiple of this."""


def new_model(settings: LanguageModel, tokenizer: TextTokenizer, max_length: int) -> nn.Module:
    """A Llama of the settings' sizes (Touvron et al. 2023, https://arxiv.org/abs/2302.13971) for a tokenizer, its
    weights drawn from torch's global generator. The head is tied to the embedding."""
    from transformers import LlamaConfig

    hidden = -(-settings.width * 8 // (3 * _MULTIPLE)) * _MULTIPLE
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.tokenizer.bos_token_id,
        eos_token_id=tokenizer.tokenizer.eos_token_id,
        pad_token_id=tokenizer.tokenizer.pad_token_id,
    )
    return from_config(config.to_dict())


def load_base(settings: LanguageModel, device: torch.device) -> nn.Module:
    """The pretrained model `settings.name` on `device`, in the precision that `settings.trains` needs.

    Raises InputError as `load_pretrained`.
    """
    assert settings.name is not None
    dtype = settings.dtype if settings.adapted else "fp32"
    quantization = settings.quantization if settings.trains == "qlora" else None
    return load_pretrained(settings.name, dtype, quantization, device)


def prepare(model: nn.Module, settings: LanguageModel) -> nn.Module:
    """`model` with gradients where `settings.trains` says, and with adapters where they are wanted."""
    lm: Any = model
    with warnings.catch_warnings():
        # peft, and this file for the sake of transformers 5.0, enable gradient checkpointing by its former name
        warnings.simplefilter("ignore", FutureWarning)
        if settings.trains == "freeze":
            freeze(lm, settings.trained_layers)
        elif settings.adapted:
            lm = add_adapters(lm, settings.lora)
        if settings.gradient_checkpointing:
            lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained: nn.Module = lm
    return trained


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The layers of a language model: its longest list of modules. Empty where it has none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=nn.ModuleList())


def freeze(model: Any, layers: int) -> None:
    """Freeze all but the top `layers` layers, the modules after them, and the head.

    Raises InputError for a model without a list of layers, or with fewer.
    """
    stack = layers_of(model)
    if not len(stack):
        raise InputError("model.strategy: freeze: this model has no list of layers; use lora")
    name = next(name for name, module in model.named_modules() if module is stack)
    if layers > len(stack):
        raise InputError(f"model.trained_layers: {layers}; this model has {len(stack)} layers")
    model.requires_grad_(False)
    owner = model.get_submodule(name.rpartition(".")[0])
    children = list(owner.children())
    tops: list[nn.Module] = [*stack[len(stack) - layers :], *children[children.index(stack) + 1 :]]
    for module in (*tops, model.get_output_embeddings()):
        module.requires_grad_(True)


@torch.no_grad()
def isolates_packed(model: nn.Module, vocabulary: int) -> bool:
    """Whether `model` computes two packed sequences as it computes each alone, given nothing but their positions."""
    device = next(model.parameters()).device
    ids = torch.arange(1, 13, device=device)[None] % vocabulary
    positions = torch.tensor([[*range(7), *range(5)]], device=device)
    training = model.training
    model.eval()
    try:
        together = logits(model, ids, positions)[:, 7:]
        alone = logits(model, ids[:, 7:], positions[:, 7:])
        crossed = logits(model, ids, torch.arange(12, device=device)[None])[:, 7:]
    finally:
        model.train(training)
    # relative to the effect of attending to the first sequence, because 16-bit models are not exact
    return float((together - alone).abs().max()) < 0.05 * float((crossed - alone).abs().max()) + 1e-5


def logits(model: nn.Module, input_ids: Tensor, position_ids: Tensor) -> Tensor:
    """Logits (B, L, vocabulary) of the next token at each position.

    There is no attention mask: without one, and without a cache, transformers lets a token attend to its own run of
    positions only, on every device and with every attention implementation.
    """
    scores: Tensor = model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
    return scores


def logits_at(model: nn.Module, input_ids: Tensor, position_ids: Tensor, where: Tensor) -> Tensor:
    """Logits (N, vocabulary) at some positions only.

    The head, which is the widest layer by far, is given the hidden states of these positions and no others.

    Args:
        model: A causal language model of transformers.
        input_ids: (B, L).
        position_ids: (B, L).
        where: (N,) indices into a flattened (B * L).
    """
    gather = _gather_of(model.get_output_embeddings())  # type: ignore[operator]
    gather.where = where
    try:
        return logits(model, input_ids, position_ids)[0]
    finally:
        gather.where = None


class _Gather:
    """A forward pre-hook of a head that keeps some positions of its input (B, L, width)."""

    where: Tensor | None = None
    """(N,) indices into a flattened (B * L); None: all."""

    def __init__(self) -> None:
        self._run = self._select
        if "torch._dynamo" in sys.modules:  # the next line would import the compiler, which takes a second or two
            # torch.compile would compile the model for each number of positions
            self._run = torch.compiler.disable(self._select)  # type: ignore[no-untyped-call]

    def __call__(self, head: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
        selected: tuple[Tensor] | None = self._run(inputs[0])
        return selected

    def _select(self, hidden_BLD: Tensor) -> tuple[Tensor] | None:
        return None if self.where is None else (hidden_BLD.flatten(0, 1)[self.where][None],)


def _gather_of(head: nn.Module) -> _Gather:
    """The head's hook. It is registered once and kept, because torch.compile compiles a model again whenever its hooks
    change."""
    for hook in head._forward_pre_hooks.values():
        if isinstance(hook, _Gather):
            return hook
    gather = _Gather()
    head.register_forward_pre_hook(gather)
    return gather
