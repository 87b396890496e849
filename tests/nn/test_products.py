from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import profile

from phonate.nn.products import add_linear, causal_attention, linear, over_rows, wide_products
from phonate.nn.transformer import Activation, feed_forward


def operators(network: nn.Module, rows: int) -> set[str]:
    with profile() as seen, wide_products():
        network(torch.zeros(rows, 32))
    return {one.key for one in seen.key_averages()}


def test_wide_products_are_those_of_torch_up_to_rounding() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 8, bias=False))
    x_BTD = torch.randn(3, 100, 32)
    with torch.no_grad():
        expected_BTD = network(x_BTD)
        with wide_products():
            assert torch.allclose(network(x_BTD), expected_BTD, atol=1e-5)
            assert torch.allclose(network(x_BTD.transpose(0, 1)), expected_BTD.transpose(0, 1), atol=1e-5)


needs_avx512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="the processor has no AVX-512"
)


@needs_avx512
def test_onednn_computes_many_rows_without_gradients() -> None:
    network, name = nn.Linear(32, 8), "mkldnn::_linear_pointwise"
    with torch.no_grad():
        assert name in operators(network, 64)
        assert name not in operators(network, 63)
    assert name not in operators(network, 64)


@pytest.mark.parametrize("activation", ["gelu", "relu", "swiglu"])
def test_feed_forward_networks_are_the_same_up_to_rounding(activation: Activation) -> None:
    torch.manual_seed(0)
    network, x_BTD = feed_forward(32, 64, 0.0, activation), torch.randn(3, 100, 32)
    with torch.no_grad():
        expected_BTD = network(x_BTD)
        with wide_products():
            assert torch.allclose(network(x_BTD), expected_BTD, atol=1e-5)


@pytest.mark.parametrize("hidden", [0, 3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_is_the_same_up_to_rounding(is_causal: bool, hidden: int) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 80, 3, 4, 16).permute(2, 0, 3, 1, 4)
    mask_B11S = None if is_causal else (torch.arange(80) < 80 - hidden).expand(2, 1, 1, 80)
    attention = partial(F.scaled_dot_product_attention, query, key, value, attn_mask=mask_B11S, is_causal=is_causal)
    with torch.no_grad():
        expected_BHTE = attention()
        with wide_products():
            assert torch.allclose(attention(), expected_BHTE, atol=1e-5)


def test_gradients_flow() -> None:
    network = nn.Linear(32, 8)
    with wide_products():
        network(torch.ones(64, 32)).sum().backward()
    assert network.weight.grad is not None
    assert torch.equal(network.weight.grad, torch.full((8, 32), 64.0))


@pytest.mark.parametrize("rows", [10, 300])
def test_products_of_functions_are_those_of_torch(rows: int) -> None:
    torch.manual_seed(0)
    x_NI, weight_OI, bias_O, total_NO = torch.randn(rows, 24), torch.randn(8, 24), torch.randn(8), torch.randn(rows, 8)
    with torch.no_grad():
        expected_NO = F.linear(x_NI, weight_OI, bias_O)
        torch.testing.assert_close(linear(x_NI, weight_OI, bias_O), expected_NO, atol=1e-5, rtol=1e-5)
        expected_NO += total_NO - bias_O
        torch.testing.assert_close(add_linear(total_NO, x_NI, weight_OI), expected_NO, atol=1e-5, rtol=1e-5)
        part_NO = x_NI[:, 4:12]
        torch.testing.assert_close(over_rows(x_NI, part_NO), x_NI.t() @ part_NO, atol=1e-4, rtol=1e-5)


@needs_avx512
@pytest.mark.parametrize("frames", [64, 128, 300])
def test_causal_attention_and_its_gradients_are_those_of_torch(frames: int) -> None:
    torch.manual_seed(0)
    packed = torch.randn(frames, 10, 16, requires_grad=True)

    def gradient(attended_THE: torch.Tensor | None) -> torch.Tensor:
        assert attended_THE is not None
        return torch.autograd.grad((attended_THE * torch.linspace(-1.0, 1.0, 16)).square().sum(), packed)[0]

    query, key, value = packed.split([6, 2, 2], 1)
    ours = causal_attention(query, key, value, 0.3)
    heads = (one.transpose(0, 1)[None] for one in (query, key, value))
    theirs = F.scaled_dot_product_attention(*heads, is_causal=True, scale=0.3, enable_gqa=True)[0].transpose(0, 1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient(ours), gradient(theirs), atol=1e-5, rtol=1e-4)


@needs_avx512
def test_causal_attention_leaves_what_it_is_not_faster_for_to_torch() -> None:
    few, many = torch.zeros(63, 1, 8), torch.zeros(3000, 1, 8)
    assert all(causal_attention(x, x, x, 1.0) is None for x in (few, many, many[:200].bfloat16()))
