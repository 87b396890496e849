"""The weights of partly trained models: which of them a checkpoint holds, and which base they belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from phonate.config.errors import CheckpointError


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
