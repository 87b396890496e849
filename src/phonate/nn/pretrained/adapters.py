"""Low-rank adapters beside the linear layers of a pretrained model, and modules that are trained whole beside them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.nn.pretrained.loading import require
from phonate.nn.pretrained.settings import LoRASettings


def add_adapters(model: nn.Module, settings: LoRASettings, targets: Sequence[str] | None = None) -> nn.Module:
    """`model` with freshly initialised adapters, which change nothing yet; its own weights are frozen.

    Args:
        model: A model of transformers.
        settings: Kind and size of the adapters, the layers that get one, and what else is trained.
        targets: The layers, by the ends of their names, instead of `settings.targets`.

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
        task_type="CAUSAL_LM",
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
    """Raise InputError for a target that matches no linear layer; peft ignores it as long as another one matches."""
    linear = [name for name, module in model.named_modules() if is_linear(module)]
    for target in targets:
        if not any(_ends_in(name, target) for name in linear):
            raise InputError(
                f"model.lora.targets: no linear layer's name ends in {target}; {nearest(target, _ends(linear, target))}"
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
    found = [name for name in owned if name and _ends_in(name, end)]
    where = "model.lora.modules_to_save"
    if not found:
        alike = [name for name in _ends(owned, end) if name.endswith(end)]
        hint = f"did you mean {' or '.join(alike)}?" if alike else nearest(end, _ends(owned, end))
        raise InputError(f"{where}: no module's name ends in {end}; {hint}")
    if len(found) > 1:
        raise InputError(f"{where}: {end} names {len(found)} modules, such as {found[0]} and {found[1]}; name one")
    weights = {id(parameter) for parameter in model.get_submodule(found[0]).parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in weights and not name.startswith(f"{found[0]}."):
            raise InputError(f"{where}: {end} shares its weight with {name}, so it can't be trained apart from it")
    return found[0]


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
