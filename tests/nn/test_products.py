from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import profile

from phonate.nn import kernels
from phonate.nn.products import add_linear, causal_attention, linear, over_rows, wide_products
from phonate.nn.sequences import RotaryPositions, rotate
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


needs_kernel = pytest.mark.skipif(
    kernels.attending(torch.zeros(1, 1, 16)) is None, reason="needs a processor with AVX-512 and a C compiler (cc)"
)


def rotation_of(lengths: list[int], size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position, of both halves of a head."""
    halves = zip(*(RotaryPositions(size)(length) for length in lengths), strict=True)
    cosines, sines = (torch.cat(one).repeat(1, 2) for one in halves)
    return cosines, sines


@needs_kernel
@pytest.mark.parametrize("lengths", [[1], [64], [3, 1, 63, 65, 128, 300]], ids=str)
@pytest.mark.parametrize(("heads", "groups", "size"), [(6, 2, 16), (2, 2, 80), (4, 1, 128)])
def test_causal_attention_and_its_gradients_are_those_of_torch(
    lengths: list[int], heads: int, groups: int, size: int
) -> None:
    torch.manual_seed(0)
    rotation, starts = rotation_of(lengths, size), torch.tensor([0, *lengths]).cumsum(0)
    packed = 2.0 * torch.randn(sum(lengths), heads + 2 * groups, size)
    weights = torch.randn(sum(lengths), size, heads)

    def expected(packed_NHE: Tensor) -> Tensor:
        parts = []
        for one, turns in zip(
            packed_NHE.split(lengths), zip(*(x.split(lengths) for x in rotation), strict=True), strict=True
        ):
            query, key, value = one.transpose(0, 1).split([heads, groups, groups])
            query, key = (rotate(x, tuple(turn[:, : size // 2] for turn in turns)) for x in (query, key))
            given = (x[None] for x in (query, key, value))
            attended = F.scaled_dot_product_attention(*given, is_causal=True, scale=0.2, enable_gqa=True)
            parts.append(attended[0].transpose(0, 1))
        return torch.cat(parts)

    def ours(packed_NHE: Tensor) -> Tensor:
        attended = causal_attention(*packed_NHE.split([heads, groups, groups], 1), rotation, starts.int(), 0.2)
        assert attended is not None
        return attended

    def with_gradient(attention: Callable[[Tensor], Tensor], given: Tensor) -> list[Tensor]:
        given = given.clone().requires_grad_()
        attended = attention(given)
        (attended * weights.transpose(1, 2)).sum().backward()  # a gradient that is not contiguous
        assert given.grad is not None
        return [attended.detach(), given.grad]

    found, again = (with_gradient(ours, packed) for _ in range(2))
    for one, other, exact in zip(found, again, with_gradient(expected, packed.double()), strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one.double(), exact, rtol=1e-4, atol=1e-5 * float(exact.abs().max()))


@needs_kernel
def test_threads_do_not_change_causal_attention() -> None:
    given = torch.randn(700, 10, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    rotation, results, threads = rotation_of([300, 400], 16), [], torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            out = causal_attention(*given.split([6, 2, 2], 1), rotation, torch.tensor([0, 300, 700]), 0.25)
            assert out is not None
            results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(*both) for both in zip(*results, strict=True))


@needs_kernel
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_causal_attention_hides_no_number_that_is_none(value: float) -> None:
    query, key = torch.randn(100, 1, 16), torch.randn(100, 1, 16)
    query[50, 0, 3] = value
    out = causal_attention(query, key, key, rotation_of([100], 16), torch.tensor([0, 100]), 0.25)
    assert out is not None
    assert out[50].isnan().all()
    assert out[:50].isfinite().all()


@needs_kernel
@pytest.mark.parametrize("other", [1, 3, 4])
def test_causal_attention_reads_fp32_alone(other: int) -> None:
    given = [*torch.zeros(3, 9, 1, 16), *rotation_of([9], 16)]
    given[other] = given[other].bfloat16()  # half the memory
    with pytest.raises(AssertionError):
        causal_attention(given[0], given[1], given[2], (given[3], given[4]), torch.tensor([0, 9]), 1.0)


@needs_kernel
@pytest.mark.parametrize("starts", [[0, 8], [0, 10], [1, 9]])
def test_causal_attention_leaves_out_no_row_and_reads_none_beyond(starts: list[int]) -> None:
    query = torch.zeros(9, 1, 16)
    with pytest.raises(AssertionError):
        causal_attention(query, query, query, rotation_of([9], 16), torch.tensor(starts), 1.0)


@pytest.mark.parametrize(
    "query", [torch.zeros(9, 1, 24), torch.zeros(9, 1, 16).bfloat16(), torch.zeros(9, 1, 16).double()]
)
def test_causal_attention_leaves_what_it_has_no_kernel_for_to_torch(query: Tensor) -> None:
    rotation = rotation_of([9], query.shape[2])
    assert causal_attention(query, query, query, rotation, torch.tensor([0, 9]), 1.0) is None


def test_without_a_compiler_causal_attention_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_kernels", lambda: None)
    query = torch.zeros(9, 1, 16)
    assert causal_attention(query, query, query, rotation_of([9], 16), torch.tensor([0, 9]), 1.0) is None
