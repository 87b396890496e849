"""Models of Hugging Face from a folder or the hub: safetensors only, no remote code, errors in one line."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from phonate.config.errors import InputError, MissingPackageError, quiet_transformers, tolerate_broken_torchaudio
from phonate.config.resolve import Recipe
from phonate.nn.pretrained.settings import Dtype, Quantization

RecipeT = TypeVar("RecipeT", bound=Recipe[Any, Any, Any])
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def require(*packages: str) -> None:
    """Raise MissingPackageError if one of `packages` is not installed."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            extra = "qlora" if name == "bitsandbytes" else "language"
            raise MissingPackageError(f"pretrained models need the package {name}; pip install 'phonate[{extra}]'")
    tolerate_broken_torchaudio()
    # peft imports bitsandbytes where it is installed, which warns on CPUs that a package of faster kernels is missing
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def from_config(values: Mapping[str, Any]) -> nn.Module:
    """The causal language model of a configuration (`model_type` and its values), freshly initialised in fp32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # untyped
    kept = {name: value for name, value in values.items() if name not in ("model_type", "dtype", "torch_dtype")}
    config = AutoConfig.for_model(values["model_type"], **kept)
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
    with quiet_transformers():
        try:
            model, found = loader.from_pretrained(
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
    _require_all_weights(name, found)
    loaded: nn.Module = model
    if dtype != "auto" and quantization is None and getattr(model, "is_quantized", False):
        for parameter in loaded.parameters():  # transformers leaves them as they are in quantised files
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(DTYPES[dtype])
    return loaded


def _require_all_weights(name: str, found: Mapping[str, Any]) -> None:
    """Raises InputError unless the file had every weight, in its shape; `found` is what transformers says of it."""
    if missing := sorted(found["missing_keys"]):
        raise InputError(f"model.name: {name}: its file lacks {len(missing)} weights, such as {missing[0]}")
    if mismatched := sorted(found["mismatched_keys"]):
        weight, there, wanted = mismatched[0]
        raise InputError(
            f"model.name: {name}: {weight} is {tuple(there)} in its file, {tuple(wanted)} by its config.json"
        )


def pretrained_file(name: str, file: str) -> Path | None:
    """A file of a model in a folder or on the hub; None if it has none. Raises InputError if there is no such model."""
    if (folder := Path(name)).is_dir():
        return folder / file if (folder / file).is_file() else None
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"model.name: {name}: the model can't be loaded (no such folder)")
    require("transformers")
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(
            name,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
    except (OSError, ValueError) as error:  # no such name, or no valid one
        raise InputError(f"model.name: {name}: the model can't be loaded ({' '.join(str(error).split())})") from error
    return None if found is None else Path(found)


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
    raise InputError(
        f"{checkpoint}: was trained on the model {name}, which is not there; give the folder that it is in now with "
        "--base (base= in Python)"
    )


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
