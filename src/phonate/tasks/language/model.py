"""Causal language models of Hugging Face: made anew or loaded, with what of them is trained."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from phonate.config.errors import CheckpointError, InputError, MissingPackageError
from phonate.config.registry import nearest
from phonate.tasks.language.settings import LanguageModel, LoRASettings
from phonate.tasks.language.tokenizer import TextTokenizer

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_GRAIN = 32
"""Hidden units of a feed-forward network come in multiples of this."""


def require(*packages: str) -> None:
    """Raise MissingPackageError where one of `packages` is absent."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            extra = "qlora" if name == "bitsandbytes" else "language"
            raise MissingPackageError(f"language models need the package {name}; pip install 'phonate[{extra}]'")


def new_model(settings: LanguageModel, tokenizer: TextTokenizer, max_length: int) -> nn.Module:
    """A Llama of the settings' sizes (Touvron et al. 2023, https://arxiv.org/abs/2302.13971) for a tokenizer, its
    weights drawn from torch's generator. The head is the embedding."""
    from transformers import LlamaConfig

    hidden = -(-settings.width * 8 // (3 * _GRAIN)) * _GRAIN
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


def from_config(values: Mapping[str, Any]) -> nn.Module:
    """The model of a configuration (`model_type` and what belongs to it), with fresh weights in fp32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # without types
    kept = {name: value for name, value in values.items() if name not in ("model_type", "dtype", "torch_dtype")}
    config = AutoConfig.for_model(values["model_type"], **kept)
    model: nn.Module = auto.from_config(config, trust_remote_code=False, dtype=torch.float32)
    return model


def load_base(settings: LanguageModel, device: torch.device) -> nn.Module:
    """The model `settings.name` on `device`, from safetensors, without remote code.

    Raises InputError where there is none, or where its file lacks weights, which would start at random.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    auto, their_logging = cast(Any, AutoModelForCausalLM), cast(Any, logging)  # without types
    options: dict[str, Any] = {"dtype": torch.float32}
    if settings.adapted:
        options["dtype"] = "auto" if settings.dtype == "auto" else DTYPES[settings.dtype]
    if device.type != "cpu":
        options["device_map"] = {"": device}  # each tensor straight to the device, not by way of host memory
    if settings.trains == "qlora":
        options["quantization_config"] = _quantization(settings)
    verbosity, bars = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity_error()
    their_logging.disable_progress_bar()
    try:
        model, found = auto.from_pretrained(
            settings.name,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told below
            **options,
        )
    except Exception as error:  # of a damaged file: its readers have errors of their own
        raise InputError(
            f"model.name: {settings.name}: no causal language model can be loaded ({' '.join(str(error).split())})"
        ) from error
    finally:
        their_logging.set_verbosity(verbosity)
        if bars:
            their_logging.enable_progress_bar()
    if missing := sorted(found["missing_keys"]):
        raise InputError(f"model.name: {settings.name}: its file lacks {len(missing)} weights, such as {missing[0]}")
    if odd := sorted(found["mismatched_keys"]):
        name, there, wanted = odd[0]
        raise InputError(
            f"model.name: {settings.name}: {name} is {tuple(there)} in its file, {tuple(wanted)} by its config.json"
        )
    loaded: nn.Module = model
    return loaded


def _quantization(settings: LanguageModel) -> Any:
    """4-bit weights, computed with in `dtype`. Raises InputError where bitsandbytes can't."""
    from transformers import BitsAndBytesConfig

    make: Any = BitsAndBytesConfig  # without types
    require("bitsandbytes")
    dtype = torch.bfloat16 if settings.dtype == "auto" else DTYPES[settings.dtype]
    try:
        importlib.import_module("bitsandbytes")
        return make(
            load_in_4bit=True,
            bnb_4bit_quant_type=settings.quantization,
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    except (ImportError, OSError, RuntimeError) as error:
        raise InputError(
            f"model.strategy: qlora: bitsandbytes does not run here ({' '.join(str(error).split())}); use lora"
        ) from error


def prepare(model: nn.Module, settings: LanguageModel) -> nn.Module:
    """`model` with gradients where `settings.trains` says, and adapters where they are wanted."""
    lm: Any = model
    with warnings.catch_warnings():
        # peft, and this file for the sake of transformers 5.0, call checkpointing by the name that it had first
        warnings.simplefilter("ignore", FutureWarning)
        if settings.trains == "freeze":
            _freeze(lm, settings.trained_layers)
        elif settings.adapted:
            lm = with_adapters(lm, settings.lora)
        if settings.gradient_checkpointing:
            lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained: nn.Module = lm
    return trained


def with_adapters(model: nn.Module, lora: LoRASettings) -> nn.Module:
    """`model` with fresh adapters, which change nothing yet. Raises InputError for a target that matches no layer."""
    from peft import LoraConfig, get_peft_model

    linear = [name for name, module in model.named_modules() if is_linear(module)]
    for target in lora.targets or ():
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            last = sorted({name.rpartition(".")[2] for name in linear})
            raise InputError(
                f"model.lora.targets: no linear layer of this model is called {target}; {nearest(target, last)}"
            )
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # it computes with any number
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets) if lora.targets else "all-linear",
        task_type="CAUSAL_LM",
    )
    adapted: nn.Module = get_peft_model(model, config)
    return adapted


def is_linear(module: nn.Module) -> bool:
    """Whether an adapter can go beside it: a linear layer, GPT-2's form of one, or one of 4 bits."""
    return isinstance(module, nn.Linear) or type(module).__name__ in ("Conv1D", "Linear4bit")


def _freeze(model: Any, layers: int) -> None:
    """Take the gradients from all but the top `layers`, what follows them, and the head."""
    name, stack = _layers(model)
    if layers > len(stack):
        raise InputError(f"model.trained_layers: {layers}; this model has {len(stack)} layers")
    model.requires_grad_(False)
    owner = model.get_submodule(name.rpartition(".")[0])
    children = list(owner.children())
    tops: list[nn.Module] = [*stack[len(stack) - layers :], *children[children.index(stack) + 1 :]]
    for module in (*tops, model.get_output_embeddings()):
        module.requires_grad_(True)


def _layers(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """Name and list of the model's layers: the longest list of modules there is."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise InputError("model.strategy: freeze: this model has no list of layers; use lora")
    return max(lists, key=lambda found: len(found[1]))


def trained_tensors(model: nn.Module, everything: bool) -> dict[str, Tensor]:
    """The tensors a checkpoint holds, each once, though a head may be the embedding under another name: every
    parameter and buffer, or those parameters only that are trained."""
    state = model.state_dict()
    again = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: tensor for name, tensor in state.items() if name not in again and (everything or name in trained)}


@torch.no_grad()
def put_back(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into those of a model. Raises CheckpointError for names or shapes that do not fit."""
    if odd := sorted(wanted.keys() ^ tensors.keys()):
        where = "the model" if odd[0] in tensors else "the checkpoint"
        raise CheckpointError(f"the checkpoint does not fit the model: {where} has no {odd[0]}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)} there, {tuple(wanted[name].shape)} here"
            raise CheckpointError(f"the checkpoint does not fit the model: {name} is {shapes}")
        wanted[name].copy_(tensor)


def base_fingerprint(model: nn.Module) -> str:
    """Changes with the frozen weights that adapters belong to: names, shapes, and 64 numbers of each."""
    digest = hashlib.sha256()
    for name, tensor in _frozen(model):
        flat = tensor.detach().flatten()
        some = flat[:: max(1, flat.numel() // 64)][:64].float().cpu()
        digest.update(f"{name}{tuple(tensor.shape)}{some.tolist()}".encode())
    return digest.hexdigest()[:16]


def _frozen(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Floating-point parameters that are not trained. (Those of 4 bits look otherwise on each device.)"""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad and parameter.is_floating_point():
            yield name, parameter


@torch.no_grad()
def keeps_apart(model: nn.Module, vocabulary: int) -> bool:
    """Whether the model computes two documents in one sequence as it computes each alone, when only their positions
    tell where the second one begins."""
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
    # Against what sight of the first document changes, for 16-bit models are not exact.
    return float((together - alone).abs().max()) < 0.05 * float((crossed - alone).abs().max()) + 1e-5


def logits(model: nn.Module, input_ids: Tensor, position_ids: Tensor) -> Tensor:
    """Scores (B, L, vocabulary) of the token after each.

    There is no attention mask: without one, and without a cache, transformers lets a token see those of its own
    run of positions only, whatever the attention and the device.
    """
    found: Tensor = model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
    return found
