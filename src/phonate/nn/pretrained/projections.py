"""Linear layers with low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685) that read the same input.

peft computes each layer by itself: its own dropout of the input, and two passes over the output to scale and to add
what the adapter gives. Where several layers read one input, as the projections of queries, keys and values do, one
dropout mask is drawn for all of them here, and the sum is a part of the matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def project(inputs_NI: Tensor, layers: Sequence[nn.Module]) -> list[Tensor]:
    """What each of the `layers` gives for inputs (N, I): (N, O) each.

    Layers are linear ones, with an adapter of peft or without. Kinds of adapters other than plain ones compute by
    themselves.
    """
    dropped_NI: Tensor | None = None
    found = []
    for layer in layers:
        adapted: Any = layer
        name = _plain_adapter(layer, inputs_NI)
        if name is None:
            found.append(adapted(inputs_NI))
            continue
        if dropped_NI is None:
            dropped_NI = adapted.lora_dropout[name](inputs_NI)
        found.append(_add_adapter(adapted, name, adapted.base_layer(inputs_NI), dropped_NI))
    return found


def _add_adapter(layer: Any, name: str, output_NO: Tensor, dropped_NI: Tensor) -> Tensor:
    """`output_NO` with the adapter's part added in place."""
    if type(layer.base_layer) is not nn.Linear:  # the output of a quantised layer may be a view
        output_NO = output_NO.clone()
    low_NR: Tensor = layer.lora_A[name](dropped_NI)
    up_OR = layer.lora_B[name].weight
    # autocast leaves operations in place alone
    return output_NO.addmm_(low_NR.to(output_NO.dtype), up_OR.t().to(output_NO.dtype), alpha=layer.scaling[name])


def _plain_adapter(layer: nn.Module, inputs: Tensor) -> str | None:
    """The name of a layer's only adapter, if it is a plain one whose weights have the type that is computed in."""
    adapted: Any = layer
    if not hasattr(layer, "lora_A") or adapted.disable_adapters or adapted.merged:
        return None
    names = [name for name in adapted.active_adapters if name in adapted.lora_A]
    if len(names) != 1 or names[0] in adapted.lora_variant or adapted.lora_bias[names[0]]:
        return None
    autocast = torch.is_autocast_enabled(inputs.device.type)
    return names[0] if autocast or adapted.lora_A[names[0]].weight.dtype == inputs.dtype else None
