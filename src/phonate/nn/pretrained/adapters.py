"""Low-rank adapters beside pretrained weights: added, saved, merged into their base."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from phonate.config.errors import CheckpointError, InputError
from phonate.config.registry import nearest
from phonate.nn.pretrained.loading import DTYPES, require
from phonate.nn.pretrained.settings import Dtype, LoRASettings

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
def copy_tensors(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into those of a model, in place. Raises CheckpointError unless names and shapes agree."""
    if different := sorted(wanted.keys() ^ tensors.keys()):
        where = "the model" if different[0] in tensors else "the checkpoint"
        raise CheckpointError(f"the checkpoint does not fit the model: {where} has no {different[0]}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)} in the checkpoint, {tuple(wanted[name].shape)} in the model"
            raise CheckpointError(f"the checkpoint does not fit the model: {name} is {shapes}")
        wanted[name].copy_(tensor)


def base_fingerprint(model: nn.Module) -> str:
    """A hash of the frozen weights that adapters belong to: names, shapes, and 64 values of each."""
    digest = hashlib.sha256()
    for name, tensor in _frozen(model):
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


def merge(request: MergeRequest, made: Mergeable) -> MergeReport:
    """Merge adapters in fp32 and write the model, with `merge.json`, the report.

    Raises:
        InputError: The folder is not empty.
        CheckpointError: The merged model differs from the one with adapters. Nothing is written then.
    """
    dtype = _dtype_of(made.model) if request.dtype == "auto" else DTYPES[request.dtype]
    with new_folder(request.target) as folder:
        adapted = made.model.float().eval()
        with torch.no_grad():
            expected = made.logits(adapted).float()
            merged = merge_adapters(adapted)
            difference = float((made.logits(merged).float() - expected).abs().max())
        largest = float(expected.abs().max())
        if not difference <= TOLERANCE * max(1.0, largest):  # NaN is not
            raise CheckpointError(
                f"{request.source}: merged in fp32, its logits differ by {difference:.2g} from those with adapters "
                f"(largest logit {largest:.3g}); nothing was written"
            )
        made.save(merged.to(dtype), folder)
        if request.quantization is not None:
            _quantise(folder, request.quantization, made)
        with torch.no_grad():
            stored = made.logits(made.read(folder, None).eval()).float()
        report = MergeReport(
            source=str(request.source),
            base=made.base,
            base_fingerprint=made.base_fingerprint,
            dtype=str(dtype).removeprefix("torch."),
            quantization=request.quantization,
            largest_logit=largest,
            merge_difference=difference,
            stored_error=float((stored - expected).norm() / expected.norm()),
            stored_agreement=float((stored.argmax(-1) == expected.argmax(-1)).float().mean()),
            bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
            versions=_versions(request.quantization),
        )
        (folder / REPORT).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    return report


def _quantise(folder: Path, kind: Stored, made: Mergeable) -> None:
    """Replace the model in `folder` by the same with quantised linear layers."""
    model = made.read(folder, "nf4" if kind == "int4" else kind)
    for file in folder.glob("*.safetensors*"):  # shards and their index
        file.unlink()
    made.save(model, folder)


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


def _versions(quantization: Stored | None) -> dict[str, str]:
    names = ["phonate", "torch", "transformers", "peft", *(["bitsandbytes"] if quantization else [])]
    return {name: version(name) for name in names}


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
            raise InputError(f"--format peft: {request.source} has no adapters; use --format transformers")
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
        raise InputError(f"{source}: has no adapters to merge; export it with --format transformers")
    if quantised:
        raise InputError("adapters can't be merged into quantised weights; merge them into the base in full precision")
