"""Low-rank adapters beside the linear layers of a pretrained model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.nn.pretrained.loading import require
from phonate.nn.pretrained.settings import LoRASettings


def add_adapters(model: nn.Module, settings: LoRASettings) -> nn.Module:
    """`model` with freshly initialised adapters, which change nothing yet; its own weights are frozen.

    Args:
        model: A model of transformers.
        settings: Kind and size of the adapters, and the layers that get one.

    Raises InputError for a target that matches no linear layer, naming the nearest one.
    """
    require("peft")
    from peft import LoraConfig, get_peft_model

    check_targets(model, settings.targets or ())
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # any number will do
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets) if settings.targets else "all-linear",
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        # peft enables gradient checkpointing by its former name
        warnings.simplefilter("ignore", FutureWarning)
        adapted: nn.Module = get_peft_model(model, config)
    return adapted


def check_targets(model: nn.Module, targets: Sequence[str]) -> None:
    """Raise InputError for a target that matches no linear layer; peft ignores it as long as another one matches."""
    linear = [name for name, module in model.named_modules() if is_linear(module)]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            parts = target.count(".") + 1
            ends = sorted({".".join(name.split(".")[-parts:]) for name in linear})
            raise InputError(f"model.lora.targets: no linear layer's name ends in {target}; {nearest(target, ends)}")


def is_linear(module: nn.Module) -> bool:
    """Whether an adapter can be put beside `module`: a linear layer, GPT-2's Conv1D, or a 4-bit one."""
    return isinstance(module, nn.Linear) or type(module).__name__ in ("Conv1D", "Linear4bit")


def merge_adapters(model: nn.Module) -> nn.Module:
    """`model`, made by `add_adapters`, with its adapters added to the weights: a model that needs no peft."""
    adapted: Any = model
    merged: nn.Module = adapted.merge_and_unload()
    return merged
