from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import profile

from phonate.nn.products import WideProducts


def operators(network: nn.Module, rows: int) -> set[str]:
    with profile() as seen, WideProducts():
        network(torch.zeros(rows, 32))
    return {one.key for one in seen.key_averages()}


def test_wide_products_are_those_of_torch_up_to_rounding() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 8, bias=False))
    x_BTD = torch.randn(3, 100, 32)
    with torch.no_grad():
        expected_BTD = network(x_BTD)
        with WideProducts():
            assert torch.allclose(network(x_BTD), expected_BTD, atol=1e-5)
            assert torch.allclose(network(x_BTD.transpose(0, 1)), expected_BTD.transpose(0, 1), atol=1e-5)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="the processor has no AVX-512")
def test_onednn_computes_many_rows_without_gradients() -> None:
    network, name = nn.Linear(32, 8), "mkldnn::_linear_pointwise"
    with torch.no_grad():
        assert name in operators(network, 64)
        assert name not in operators(network, 63)
    assert name not in operators(network, 64)


def test_gradients_flow() -> None:
    network = nn.Linear(32, 8)
    with WideProducts():
        network(torch.ones(64, 32)).sum().backward()
    assert network.weight.grad is not None
    assert torch.equal(network.weight.grad, torch.full((8, 32), 64.0))
