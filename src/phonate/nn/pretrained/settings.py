"""Settings of pretrained models. Free of torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from phonate.config.settings import Settings

Dtype = Literal["auto", "fp32", "fp16", "bf16"]
Quantization = Literal["nf4", "fp4"]


class LoRASettings(Settings):
    """Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685)."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """An adapter's output is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Dropout on the inputs of an adapter."""
    targets: tuple[str, ...] | None = None
    """Ends of the names of the linear layers that get an adapter, such as [q_proj, v_proj] or [self_attn.o_proj].
    Null: all linear layers but the head."""
    rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead (Kalajdzievski 2023, https://arxiv.org/abs/2312.03732)."""
    dora: bool = False
    """Train the magnitude of each weight vector apart from its direction (DoRA; Liu et al. 2024,
    https://arxiv.org/abs/2402.09353)."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Biases that are trained as well: those of every layer, or of the layers that have an adapter."""
    modules_to_save: tuple[str, ...] | None = None
    """Ends of the names of modules that are trained whole, in fp32, and get no adapter, such as [lm_head]. Each names
    one module."""
