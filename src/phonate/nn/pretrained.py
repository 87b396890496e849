"""Models of Hugging Face from a folder or the hub (safetensors only, no remote code, errors in one line), and low-rank
adapters beside their weights: added, saved, merged.

peft computes each layer by itself: its own dropout of the input, passes over the output to scale and to add what the
adapter gives, and the gradients of the input as separate sums. Where several layers read one input, as the projections
of queries, keys and values do, one dropout mask is drawn for all of them here, their adapters are one matrix product,
and every sum is a part of a product.

Shapes: N tokens, I inputs, O outputs, R the rank; RR the ranks of all layers together.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from phonate.compute.remote import downloaded, missing_model
from phonate.compute.system import require_space, writing
from phonate.config.errors import (
    CheckpointError,
    InputError,
    MissingPackageError,
    option,
    quiet_transformers,
    tolerate_broken_torchaudio,
)
from phonate.config.registry import nearest
from phonate.config.resolve import Recipe
from phonate.nn.products import add_linear, linear, over_rows
from phonate.nn.sequences import NUMBERS, on_processor, random_numbers, zeros_of
from phonate.nn.settings import Dtype, LoRASettings, Quantization, require_packages

RecipeT = TypeVar("RecipeT", bound=Recipe[Any, Any, Any])
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def require(*packages: str, extra: str = "language") -> None:
    """Raise MissingPackageError if one of `packages` is not installed, and prepare their import."""
    require_packages(*packages, extra=extra)
    prepare_import()


def prepare_import() -> None:
    """Let the packages of pretrained models be imported, without warnings that help nobody."""
    tolerate_broken_torchaudio()
    # peft imports bitsandbytes where it is installed, which warns on CPUs that a package of faster kernels is missing
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    # once for each product: "inputs will be cast from torch.float32 to float16 during quantization"
    logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)


def _refuse_adapters(name: str) -> None:
    if (Path(name) / "adapter_config.json").is_file():  # transformers would take the base that it names
        raise InputError(
            f"model.name: {name}: holds adapters to another model; merge them into that, and name the merged folder"
        )


def from_config(values: Mapping[str, Any]) -> nn.Module:
    """The causal language model of a configuration (`model_type` and its values), freshly initialised in fp32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # untyped
    options = {name: value for name, value in values.items() if name not in ("model_type", "dtype", "torch_dtype")}
    config = AutoConfig.for_model(values["model_type"], **options)
    model: nn.Module = auto.from_config(config, trust_remote_code=False, dtype=torch.float32)
    return model


def load_pretrained(
    name: str,
    dtype: Dtype = "fp32",
    quantization: Quantization | Literal["int8"] | None = None,
    device: torch.device | None = None,
    loader: Any = None,
    unquantized: Sequence[str] = (),
    **more: Any,
) -> nn.Module:
    """A pretrained model with all of its weights.

    Args:
        name: A folder, or a name on the hub, which is then downloaded.
        dtype: What the weights are held in; "auto": as in their files. Quantised layers stay quantised.
        quantization: Hold linear layers in 4 bits (nf4, fp4) or 8 (int8) instead; with 4 bits, compute in `dtype`
            ("auto": bf16).
        device: Where each weight is put as it is read, not by way of host memory; None: the CPU.
        loader: The class whose `from_pretrained` is called; None: AutoModelForCausalLM.
        unquantized: Names of linear layers that are not quantised; none: the head, as transformers knows it.
        more: Keywords for `from_pretrained`; with a `state_dict`, weights are taken from it, and none are read.

    Raises:
        InputError: There is no such model, or its file lacks weights or has some of other shapes.
        MissingPackageError: A package is not installed.
    """
    require("transformers")
    if loader is None:
        from transformers import AutoModelForCausalLM

        loader = AutoModelForCausalLM
    options: dict[str, Any] = {**more, "dtype": "auto" if dtype == "auto" else DTYPES[dtype]}
    if quantization is not None:
        options["quantization_config"] = _quantization(quantization, dtype, unquantized)
    if device is not None and device.type != "cpu":
        options["device_map"] = {"": device}
    options["local_files_only"] = "state_dict" not in more and _is_downloaded(name)  # else the hub is asked for each
    _refuse_adapters(name)
    with quiet_transformers():
        try:
            model, info = loader.from_pretrained(
                None if "state_dict" in more else name,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below
                **options,
            )
        except Exception as error:  # damaged files: each reader raises its own errors
            why = " ".join(str(error).split())
            raise InputError(f"model.name: {name}: the model can't be loaded ({why})") from error
    _refuse_other_weights(name, info)
    loaded: nn.Module = model
    if dtype != "auto" and quantization is None and getattr(model, "is_quantized", False):
        for parameter in loaded.parameters():  # transformers leaves them as they are in quantised files
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(DTYPES[dtype])
    return loaded


def _refuse_other_weights(name: str, info: Mapping[str, Any]) -> None:
    """Raise InputError where the file of a model has not the weights of its config.json, by what transformers reports
    of loading it."""
    if missing := sorted(info["missing_keys"]):
        raise InputError(f"model.name: {name}: its file lacks {len(missing)} weights, such as {missing[0]}")
    if mismatched := sorted(info["mismatched_keys"]):
        weight, there, expected = mismatched[0]
        raise InputError(
            f"model.name: {name}: {weight} is {tuple(there)} in its file, {tuple(expected)} by its config.json"
        )


def _is_downloaded(name: str) -> bool:
    """Whether the files of a model on the hub are on this disk, all that it has of them."""
    try:
        index = downloaded(name, "model.safetensors.index.json")
        weights = (
            set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            if isinstance(index, Path)
            else {"model.safetensors"}
        )
        known = downloaded(name, "generation_config.json") is not None
        return known and all(isinstance(downloaded(name, file), Path) for file in ("config.json", *weights))
    except (KeyError, ValueError):  # a folder, or what is told by who reads it
        return False


def pretrained_file(name: str, file: str) -> Path | None:
    """A file of a model in a folder or on the hub; None if it has none. Raises InputError if there is no such model."""
    if (folder := Path(name)).is_dir():
        return folder / file if (folder / file).is_file() else None
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"model.name: {name}: the model can't be loaded (no such folder)")
    try:
        require("transformers")
    except MissingPackageError as error:
        raise MissingPackageError(f"{name}: no such folder; if it is a name on the hub, {error}") from error
    from transformers.utils.hub import cached_file

    with contextlib.suppress(ValueError):  # no name of a model, as is told below
        if (there := downloaded(name, file)) is not None:
            return there if isinstance(there, Path) else None
    if why := missing_model(name):
        raise InputError(f"model.name: {name}: the model can't be loaded ({why})")
    try:
        path = cached_file(
            name,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
    except (OSError, ValueError) as error:  # no such name, or no valid one
        raise InputError(f"model.name: {name}: the model can't be loaded ({' '.join(str(error).split())})") from error
    return None if path is None else Path(path)


def with_base(recipe: RecipeT, base: str | Path | None, checkpoint: Path) -> RecipeT:
    """The `recipe` of a checkpoint with `model.name` at `base`; None: where it was in training.

    Raises InputError where there is no such model, and says how to give it.
    """
    if base is not None:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"name": str(base)})})
    name = recipe.model.name
    with contextlib.suppress(InputError):  # what is wrong with the name is not what helps
        if pretrained_file(name, "config.json") is not None:
            return recipe
    raise base_is_gone(checkpoint, name)


def base_is_gone(checkpoint: Path, name: str | Path | None) -> InputError:
    """The error for adapters whose base `name` is not where it was in training."""
    return InputError(
        f"{checkpoint}: was trained on the model {name}, which is not there; give the folder that it is in now with "
        f"{option('base')}"
    )


def base_has_changed(checkpoint: Path, what: str, name: str | Path | None) -> CheckpointError:
    """The error for adapters to `what`, such as other weights, than the base `name` has now."""
    return CheckpointError(f"{checkpoint}: belongs to {what} than {name} has now")


def needs_no_base(source: str | Path) -> InputError:
    """The error for a base that was given with a model that is whole."""
    return InputError(f"{option('base')}: {source} is a whole model, not adapters to a base; leave it out")


def _quantization(kind: Quantization | Literal["int8"], dtype: Dtype, unquantized: Sequence[str]) -> Any:
    """4-bit weights (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314), or 8-bit ones (Dettmers et al. 2022,
    https://arxiv.org/abs/2208.07339).

    Raises InputError if bitsandbytes does not run on this machine.
    """
    from transformers import BitsAndBytesConfig

    make: Any = BitsAndBytesConfig  # untyped
    require("bitsandbytes")
    skipped = list(unquantized) or None
    try:
        importlib.import_module("bitsandbytes")
        if kind == "int8":
            return make(load_in_8bit=True, llm_int8_skip_modules=skipped)
        return make(
            load_in_4bit=True,
            llm_int8_skip_modules=skipped,  # of 4-bit weights too, despite its name
            bnb_4bit_quant_type=kind,
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16 if dtype == "auto" else DTYPES[dtype],
        )
    except (ImportError, OSError, RuntimeError) as error:
        raise InputError(
            f"{kind} weights: bitsandbytes does not run here ({' '.join(str(error).split())}); leave them unquantised"
        ) from error


# ---------------------------------------------------------------- Linear layers with low-rank adapters


def project(inputs_NI: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """What each of the `layers` gives for inputs (N, I): (N, O) each.

    Layers are linear ones, with an adapter of peft or without. Adapters other than plain ones beside frozen weights
    compute by themselves.
    """
    adapters = [_plain_adapter(layer, inputs_NI) for layer in layers]
    plain = [one for one in adapters if one is not None]
    together = iter(_project_adapted(inputs_NI, plain) if plain else ())
    outputs = []
    for layer, adapter in zip(layers, adapters, strict=True):
        outputs.append(layer(inputs_NI) if adapter is None else next(together))
    return outputs


def kept_inputs(like: Tensor, dropout: float) -> tuple[Tensor, float]:
    """What dropout multiplies values like these with: 0 with the probability `dropout`, else 1; and the exact
    probability. On a processor integers, as it multiplies with booleans in three times as long."""
    if not on_processor(like):
        return torch.empty_like(like, dtype=torch.bool).bernoulli_(1.0 - dropout), dropout
    zeros = zeros_of(dropout)
    kept = random_numbers(like.numel()) >= zeros - NUMBERS // 2
    return kept.view(torch.int8).view(like.shape), zeros / NUMBERS


@dataclass(frozen=True)
class _Adapter:
    """A frozen linear layer and its adapter."""

    weight_OI: Tensor
    bias_O: Tensor | None
    down_RI: Tensor
    up_OR: Tensor
    scaling: float
    dropout: float


def _plain_adapter(layer: nn.Module, inputs: Tensor) -> _Adapter | None:
    """The layer's only adapter, if it is a plain one beside frozen weights, all of a type that is computed in."""
    adapted: Any = layer
    if not hasattr(layer, "lora_A") or adapted.disable_adapters or adapted.merged:
        return None
    names = [name for name in adapted.active_adapters if name in adapted.lora_A]
    if len(names) != 1 or names[0] in adapted.lora_variant or adapted.lora_bias[names[0]]:
        return None
    (name,) = names
    base, down, up, dropout = (
        adapted.base_layer,
        adapted.lora_A[name],
        adapted.lora_B[name],
        adapted.lora_dropout[name],
    )
    if type(base) is not nn.Linear or any(one.requires_grad for one in base.parameters()):
        return None
    if not torch.is_autocast_enabled(inputs.device.type) and not (
        inputs.dtype == base.weight.dtype == down.weight.dtype == up.weight.dtype
    ):
        return None
    probability = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    return _Adapter(base.weight, base.bias, down.weight, up.weight, adapted.scaling[name], probability)


def _project_adapted(inputs_NI: Tensor, adapters: Sequence[_Adapter]) -> tuple[Tensor, ...]:
    """(N, O) of each layer."""
    kind = inputs_NI.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs_NI.dtype
    kept_NI, scalings = None, [one.scaling for one in adapters]
    if adapters[0].dropout:
        kept_NI, probability = kept_inputs(inputs_NI, adapters[0].dropout)
        scalings = [scaling / (1 - probability) for scaling in scalings]
    trained = (weight.to(dtype) for one in adapters for weight in (one.down_RI, one.up_OR))
    frozen = [(one.weight_OI.to(dtype), None if one.bias_O is None else one.bias_O.to(dtype)) for one in adapters]
    outputs: tuple[Tensor, ...] = _Adapted.apply(inputs_NI.to(dtype), kept_NI, frozen, scalings, *trained)  # type: ignore[no-untyped-call]
    return outputs


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of each, on a processor few at a time: it converts a mask before a product, and new memory for that of all
    rows takes ten times as long as the product."""
    rows = 128 if on_processor(tensors[0]) else len(tensors[0])
    return zip(*(one.split(rows) for one in tensors), strict=True)  # type: ignore[no-untyped-call]


class _Adapted(torch.autograd.Function):
    """y_i = x W_i^T + b_i + s_i d A_i^T B_i^T for the layers i, where d is x times what dropout keeps."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs_NI: Tensor,
        kept_NI: Tensor | None,
        frozen: list[tuple[Tensor, Tensor | None]],
        scalings: list[float],
        *trained: Tensor,
    ) -> tuple[Tensor, ...]:
        downs, ups = trained[0::2], trained[1::2]
        dropped_NI = inputs_NI if kept_NI is None else torch.empty_like(inputs_NI)
        if kept_NI is not None:
            for one, kept, dropped in _pieces(inputs_NI, kept_NI, dropped_NI):
                torch.mul(one, kept, out=dropped)
        down_RRI = torch.cat(downs)
        low_NRR = linear(dropped_NI, down_RRI)
        ranks = [len(down) for down in downs]
        lows = low_NRR.split(ranks, 1)  # type: ignore[no-untyped-call]
        outputs = tuple(
            linear(inputs_NI, weight, bias).addmm_(low_NR, up_OR.t(), alpha=scaling)
            for (weight, bias), low_NR, up_OR, scaling in zip(frozen, lows, ups, scalings, strict=True)
        )
        ctx.save_for_backward(dropped_NI, kept_NI, down_RRI, low_NRR, *(weight for weight, _ in frozen), *ups)
        ctx.ranks, ctx.scalings = ranks, scalings
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dropped_NI, kept_NI, down_RRI, low_NRR, *rest = ctx.saved_tensors
        weights, ups = rest[: len(gradients)], rest[len(gradients) :]
        lows = zip(gradients, ups, ctx.scalings, strict=True)
        into_low_NRR = torch.cat([linear(gradient, up_OR.t()).mul_(scaling) for gradient, up_OR, scaling in lows], 1)
        into_downs = over_rows(into_low_NRR, dropped_NI).split(ctx.ranks)  # type: ignore[no-untyped-call]
        lows = zip(gradients, low_NRR.split(ctx.ranks, 1), ctx.scalings, strict=True)
        into_ups = [over_rows(gradient, low_NR).mul_(scaling) for gradient, low_NR, scaling in lows]
        into_inputs = None
        if ctx.needs_input_grad[0]:
            into_inputs = linear(into_low_NRR, down_RRI.t())
            if kept_NI is not None:
                for into, kept in _pieces(into_inputs, kept_NI):
                    into.mul_(kept)
            for gradient, weight_OI in zip(gradients, weights, strict=True):
                into_inputs = add_linear(into_inputs, gradient, weight_OI.t())
        pairs = zip(into_downs, into_ups, strict=True)
        return (into_inputs, None, None, None, *(one for pair in pairs for one in pair))


# ------------------------------------------------------------------------------------------- RMS norms


def rms_norm(layer: Any, inputs: Tensor) -> Tensor:
    """What `layer`, an RMSNorm of transformers with `weight` (H,) and `variance_epsilon`, gives for inputs (..., H).

    With gradients, a frozen layer keeps its inputs and one number for each row instead of four tensors of their size in
    fp32, and its gradient takes a third of the passes over them. In other cases the layer computes by itself.
    """
    needed = torch.is_grad_enabled() and inputs.requires_grad and not layer.weight.requires_grad
    if not needed or torch.compiler.is_compiling():
        outputs: Tensor = layer(inputs)
        return outputs
    normed: Tensor = _FrozenRMSNorm.apply(inputs, layer.weight, layer.variance_epsilon)  # type: ignore[no-untyped-call]
    return normed


class _FrozenRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight_H: Tensor, epsilon: float) -> Tensor:
        exact = inputs.float()
        inverse = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        inverse = inverse.square_().div_(inputs.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(inputs, weight_H, inverse)
        normed: Tensor = weight_H * (exact * inverse).to(inputs.dtype)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        inputs, weight_H, inverse = ctx.saved_tensors
        exact, weighted = inputs.float(), (gradient * weight_H).float()
        # d(x / r) / dx = 1 / r - x x^T / (H r^3), with r the root mean square
        share = torch.linalg.vecdot(weighted, exact)[..., None] * inverse**3 / inputs.shape[-1]
        return weighted.mul_(inverse).addcmul_(exact, share, value=-1.0).to(inputs.dtype), None, None


# --------------------------------------------------------------- Gated feed-forward networks with SiLU


def gated_silu(gates: Tensor, values: Tensor) -> Tensor:
    """silu(gates) * values, all of one shape. The backward pass computes silu(gates) again instead of keeping it."""
    outputs: Tensor = _GatedSilu.apply(gates, values)  # type: ignore[no-untyped-call]
    return outputs


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(gates, values)
        return functional.silu(gates).mul_(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gates, values = ctx.saved_tensors
        into_gates = gradient * values
        torch.ops.aten.silu_backward.grad_input(into_gates, gates, grad_input=into_gates)
        return into_gates, functional.silu(gates).mul_(gradient)


# ---------------------------------------------------------------- The weights of partly trained models


def saved_tensors(model: nn.Module, trained_only: bool) -> dict[str, Tensor]:
    """The tensors a checkpoint holds, each once, even if it is tied to another one: every parameter and buffer, or
    with `trained_only` the parameters that require gradients, such as adapters."""
    state = model.state_dict()
    tied = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {
        name: tensor for name, tensor in state.items() if name not in tied and (not trained_only or name in trained)
    }


@torch.no_grad()
def copy_tensors(target: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into those of a model, in place. Raises CheckpointError unless names and shapes agree."""
    if different := sorted(target.keys() ^ tensors.keys()):
        where = "the model" if different[0] in tensors else "the checkpoint"
        raise CheckpointError(f"the checkpoint does not fit the model: {where} has no {different[0]}")
    for name, tensor in tensors.items():
        if tensor.shape != target[name].shape:
            shapes = f"{tuple(tensor.shape)} in the checkpoint, {tuple(target[name].shape)} in the model"
            raise CheckpointError(f"the checkpoint does not fit the model: {name} is {shapes}")
        target[name].copy_(tensor)


def base_fingerprint(model: nn.Module, quantised: bool = False) -> str:
    """A hash of the frozen weights that adapters belong to: names, shapes, and 64 values of each. `quantised`: of those
    alone that are the same where linear layers are quantised."""
    digest = hashlib.sha256()
    for name, tensor in _frozen(model):
        if quantised and name.endswith(".weight") and is_linear(model.get_submodule(name.removesuffix(".weight"))):
            continue
        flat = tensor.detach().flatten()
        values = flat[:: max(1, flat.numel() // 64)][:64].float().cpu()
        digest.update(f"{name}{tuple(tensor.shape)}{values.tolist()}".encode())
    return digest.hexdigest()[:16]


def _frozen(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Floating-point parameters that are not trained. (4-bit ones are stored differently on each device.)"""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad and parameter.is_floating_point():
            yield name, parameter


# ------------------------------------ Low-rank adapters beside the linear layers of a pretrained model


def add_adapters(
    model: nn.Module,
    settings: LoRASettings,
    targets: Sequence[str] | None = None,
    task: Literal["CAUSAL_LM"] | None = "CAUSAL_LM",
) -> nn.Module:
    """`model` with freshly initialised adapters, which change nothing yet; its own weights are frozen.

    Args:
        model: A model of transformers.
        settings: Kind and size of the adapters, the layers that get one, and what else is trained.
        targets: The layers, by the ends of their names, instead of `settings.targets`.
        task: What peft takes the model for when it reads saved adapters; None: any model.

    Raises InputError for a target that matches no linear layer or a module to save that is not one module, naming the
    nearest ones, and for biases that can't be trained.
    """
    require("peft")
    from peft import LoraConfig, get_peft_model

    targets = settings.targets if targets is None else targets
    check_targets(model, targets or ())
    whole = [_whole_module(model, name) for name in settings.modules_to_save or ()]
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # any number will do
        lora_dropout=settings.dropout,
        target_modules=list(targets) if targets else "all-linear",
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        bias=settings.bias,
        modules_to_save=whole or None,
        task_type=task,
    )
    with warnings.catch_warnings():
        # peft enables gradient checkpointing by its former name
        warnings.simplefilter("ignore", FutureWarning)
        adapted: nn.Module = get_peft_model(model, config)
    for name in whole:
        _train_in_fp32(adapted.get_submodule(f"base_model.model.{name}"))
    if settings.bias != "none":
        _check_biases(adapted, settings)
    return adapted


def check_targets(model: nn.Module, targets: Sequence[str]) -> None:
    """Raise InputError for a target that matches no linear layer, which peft ignores as long as another one matches,
    and for one whose weight is another module's, too: merging its adapter would change that one."""
    linear = [name for name, module in model.named_modules() if is_linear(module)]
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    shared = {name for name in linear if owners[id(model.get_submodule(name).weight)] > 1}
    for target in targets:
        if not any(_ends_in(name, target) for name in linear):
            raise InputError(
                f"model.lora.targets: no linear layer's name ends in {target}; {nearest(target, _ends(linear, target))}"
            )
        if any(_ends_in(name, target) for name in shared):
            raise InputError(
                f"model.lora.targets: {target} shares its weight with the embedding, so that an adapter to it could "
                "never be merged; leave it out"
            )


def is_linear(module: nn.Module) -> bool:
    """Whether an adapter can be put beside `module`: a linear layer, GPT-2's Conv1D, or a 4-bit one."""
    return isinstance(module, nn.Linear) or type(module).__name__ in ("Conv1D", "Linear4bit")


def merge_adapters(model: nn.Module) -> nn.Module:
    """`model`, made by `add_adapters`, with its adapters added to the weights: a model that needs no peft."""
    from peft.utils import ModulesToSaveWrapper

    adapted: Any = model
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            module.modules_to_save.to(_original_dtype(module))
    merged: nn.Module = adapted.merge_and_unload()
    return merged


def _whole_module(model: nn.Module, end: str) -> str:
    """The full name of the only module whose name ends in `end`. (peft would take lm_head for audio_lm_head too.)"""
    owned: list[str] = [name for name, module in model.named_modules() if any(True for _ in module.parameters())]
    names = [name for name in owned if name and _ends_in(name, end)]
    where = "model.lora.modules_to_save"
    if not names:
        alike = [name for name in _ends(owned, end) if name.endswith(end)]
        hint = f"did you mean {' or '.join(alike)}?" if alike else nearest(end, _ends(owned, end))
        raise InputError(f"{where}: no module's name ends in {end}; {hint}")
    if len(names) > 1:
        raise InputError(f"{where}: {end} names {len(names)} modules, such as {names[0]} and {names[1]}; name one")
    weights = {id(parameter) for parameter in model.get_submodule(names[0]).parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in weights and not name.startswith(f"{names[0]}."):
            raise InputError(f"{where}: {end} shares its weight with {name}, so it can't be trained apart from it")
    return names[0]


def _train_in_fp32(wrapper: nn.Module) -> None:
    """Hold the trained copy of a module in fp32; what goes in and out of it stays as the rest of the model needs it."""
    wrapper.get_submodule("modules_to_save").float()

    def widen(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(one.float() if one.is_floating_point() else one for one in inputs)

    def narrow(owner: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output.to(_original_dtype(owner))

    before: Callable[..., Any] = widen
    after: Callable[..., Any] = narrow
    wrapper.register_forward_pre_hook(before)
    wrapper.register_forward_hook(after)


def _original_dtype(wrapper: nn.Module) -> torch.dtype:
    return next(wrapper.get_submodule("original_module").parameters()).dtype


def _check_biases(adapted: nn.Module, settings: LoRASettings) -> None:
    """Raise InputError if no bias is trained, or in a precision in which small updates are lost."""
    trained = [
        (name, parameter)
        for name, parameter in adapted.named_parameters()
        if parameter.requires_grad and name.endswith(".bias")
    ]
    if not trained:
        owner = "layer" if settings.bias == "all" else "layer with an adapter"
        raise InputError(f"model.lora.bias: {settings.bias}; no {owner} of this model has a bias, set it to none")
    for name, parameter in trained:
        if parameter.dtype != torch.float32:
            raise InputError(
                f"model.lora.bias: {settings.bias}; {name.removeprefix('base_model.model.')} is held in "
                f"{str(parameter.dtype).removeprefix('torch.')}, too coarse to train it; set model.dtype to fp32"
            )


def _ends_in(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def _ends(names: Sequence[str], like: str) -> list[str]:
    """The last parts of `names`, as many as `like` has."""
    parts = like.count(".") + 1
    return sorted({".".join(name.split(".")[-parts:]) for name in names})


# --------------------------------------------------------- Adapters added to the weights of their base

Stored = Literal["int8", "int4"]
Logits = Callable[[nn.Module], Tensor]
"""Logits (N, V) of a model for inputs that are always the same."""

TOLERANCE = 1e-4
"""Largest difference of a logit that merging in fp32 may make, relative to the largest logit (at least 1)."""
REPORT = "merge.json"


@dataclass(frozen=True)
class MergeReport:
    """What was merged and written, and how exact it is."""

    source: str
    """The checkpoint whose adapters were merged."""
    base: str
    """The model they belong to."""
    base_fingerprint: str
    dtype: str
    """What the weights are stored in, where they are not quantised."""
    quantization: Stored | None
    """int8 or int4 (nf4): how the linear layers are stored."""
    largest_logit: float
    """Of the model with adapters, in fp32."""
    merge_difference: float
    """Largest difference of a logit between the model with adapters and the merged one, both in fp32."""
    stored_error: float
    """Of the logits of the model as it was written, read again: norm of the difference over the norm."""
    stored_agreement: float
    """Share of the positions whose most likely token is the same."""
    bytes: int
    """Size of the weights on disk."""
    versions: dict[str, str]
    """Of the packages that made it."""


@dataclass(frozen=True)
class MergeRequest:
    """What is merged, and where it goes."""

    source: Path
    """A checkpoint."""
    target: Path
    """A folder that does not exist, or is empty."""
    dtype: Dtype = "auto"
    """fp32, fp16, bf16, or auto: what the base's file has."""
    quantization: Stored | None = None
    base: str | None = None
    """Where the base is; None: where it was in training."""


@dataclass(frozen=True)
class Mergeable:
    """A model with adapters, and what merging needs to know of its kind."""

    model: nn.Module
    """As `add_adapters` makes it. Its weights become fp32, and it is used up."""
    base: str
    base_fingerprint: str
    logits: Logits
    """Works for the model with adapters, merged, and as `read` gives it."""
    save: Callable[[nn.Module, Path], None]
    """Writes a merged model, with all that is needed to use it, to a folder."""
    read: Callable[[Path, Literal["nf4", "int8"] | None], nn.Module]
    """Reads such a folder; with a quantization, quantising its linear layers."""


def merge(request: MergeRequest, mergeable: Mergeable) -> MergeReport:
    """Merge adapters in fp32 and write the model, with `merge.json`, the report.

    Raises:
        InputError: The folder is not empty.
        CheckpointError: The merged model differs from the one with adapters. Nothing is written then.
    """
    dtype = _dtype_of(mergeable.model) if request.dtype == "auto" else DTYPES[request.dtype]
    with new_folder(request.target) as folder:
        with writing(request.target):
            whole = dtype.itemsize * sum(one.numel() for one in mergeable.model.parameters())
            require_space(folder, whole if request.quantization is None else whole + whole // 2)
        adapted = mergeable.model.float().eval()
        with torch.no_grad():
            expected = mergeable.logits(adapted).float()
            merged = merge_adapters(adapted)
            difference = float((mergeable.logits(merged).float() - expected).abs().max())
        largest = float(expected.abs().max())
        if not difference <= TOLERANCE * max(1.0, largest):  # NaN is not
            raise CheckpointError(
                f"{request.source}: merged in fp32, its logits differ by {difference:.2g} from those with adapters "
                f"(largest logit {largest:.3g}); nothing was written"
            )
        if request.quantization is None:
            with writing(request.target):
                mergeable.save(merged.to(dtype), folder)
        else:
            _save_quantised(merged.to(dtype), mergeable, folder, request)
        with torch.no_grad():
            stored = mergeable.logits(mergeable.read(folder, None).eval()).float()
        gc.collect()  # the model that was read has files mapped, which Windows doesn't rename
        names = ["phonate", "torch", "transformers", "peft", *(["bitsandbytes"] if request.quantization else [])]
        report = MergeReport(
            source=str(request.source),
            base=mergeable.base,
            base_fingerprint=mergeable.base_fingerprint,
            dtype=str(dtype).removeprefix("torch."),
            quantization=request.quantization,
            largest_logit=largest,
            merge_difference=difference,
            stored_error=float((stored - expected).norm() / expected.norm()),
            stored_agreement=float((stored.argmax(-1) == expected.argmax(-1)).float().mean()),
            bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
            versions={name: version(name) for name in names},
        )
        (folder / REPORT).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    return report


def _save_quantised(merged: nn.Module, mergeable: Mergeable, folder: Path, request: MergeRequest) -> None:
    """Save the model whole in another folder, and what is read from that, quantised, in `folder`."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=folder.name) as whole:
        with writing(request.target):
            mergeable.save(merged, Path(whole))
        model = mergeable.read(Path(whole), "nf4" if request.quantization == "int4" else request.quantization)
        with writing(request.target):
            mergeable.save(model, folder)
        del model  # it has files mapped, which Windows doesn't remove
        gc.collect()


def _dtype_of(model: nn.Module) -> torch.dtype:
    """The type of most of the frozen weights."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target` that becomes it when all went well, and else disappears."""
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: already exists; name a new folder")
    folder = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    folder.mkdir(parents=True)
    try:
        yield folder
        if target.is_dir():
            target.rmdir()
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def export(
    request: MergeRequest,
    form: str,
    adapted: bool,
    model: Callable[[], nn.Module],
    merge: Callable[[MergeRequest], MergeReport],
    save: Callable[[nn.Module, Path], None],
) -> list[Path]:
    """Write a checkpoint's model to `request.target`; returns the files.

    With `form` peft its adapters, as peft does (adapter_config.json, adapter_model.safetensors; read by
    `peft.PeftModel.from_pretrained(base, target)`); with transformers the whole model: by `merge` where it is
    `adapted`, else by `save`.

    Raises InputError for a folder that is not empty, and for adapters where there are none.
    """
    if form == "peft":
        if not adapted:
            raise InputError(
                f"{option('form', form)}: {request.source} has no adapters; use {option('form', 'transformers')}"
            )
        with new_folder(request.target) as folder:
            peft_model: Any = model()
            peft_model.save_pretrained(folder)
            (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card
    elif adapted:
        merge(request)
    else:
        with new_folder(request.target) as folder:
            save(model(), folder)
    return sorted(file for file in request.target.iterdir() if file.is_file())


def check_mergeable(source: Path, adapted: bool, quantised: bool) -> None:
    """Raise InputError for a checkpoint without adapters, or with ones to quantised weights."""
    if not adapted:
        raise InputError(f"{source}: has no adapters to merge; export it with {option('form', 'transformers')}")
    if quantised:
        raise InputError("adapters can't be merged into quantised weights; merge them into the base in full precision")
