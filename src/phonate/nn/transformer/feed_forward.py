"""Feed-forward networks of a layer. D: model."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

Activation = Literal["relu", "gelu", "silu", "glu", "geglu", "reglu", "swiglu"]


class Gated(nn.Module):
    """The first half of the units (..., 2 D) times the activation of the second half: (..., D) (Shazeer 2020)."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(..., 2 D) -> (..., D)."""
        value, gate = x.chunk(2, dim=-1)
        gated: Tensor = value * self.activation(gate)
        return gated


def _activations() -> dict[Activation, nn.Module]:
    return {
        "relu": nn.ReLU(),
        "gelu": nn.GELU(approximate="tanh"),
        "silu": nn.SiLU(),
        "glu": nn.GLU(),
        "geglu": Gated(nn.GELU(approximate="tanh")),
        "reglu": Gated(nn.ReLU()),
        "swiglu": Gated(nn.SiLU()),
    }


def feed_forward(d_model: int, d_ff: int, dropout: float, activation: Activation = "relu") -> nn.Sequential:
    """Feed-forward network: (..., D) -> (..., D).

    With an activation ending in `glu`, the first layer has 2 x `d_ff` units, half of which gate the others (Dauphin et
    al. 2017; Shazeer 2020).
    """
    return nn.Sequential(
        nn.Linear(d_model, 2 * d_ff if activation.endswith("glu") else d_ff),
        _activations()[activation],
        nn.Dropout(dropout),
        nn.Linear(d_ff, d_model),
    )
