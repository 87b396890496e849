from __future__ import annotations

import pytest
import torch
from torch import Tensor

from phonate.nn import kernels
from phonate.nn.convolution import ConvNeXt
from phonate.nn.feed_forward import FeedForward
from phonate.nn.sequences import random_numbers

pytestmark = pytest.mark.skipif(kernels.of(torch.bfloat16) is None, reason="needs a C compiler that works (cc)")


def _trained(dropout: float = 0.0) -> list[Tensor]:
    """Output and gradients of ConvNeXt blocks in bf16."""
    torch.manual_seed(0)
    network, x_BTD = ConvNeXt(64, 2, dropout=dropout), torch.randn(3, 700, 64).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out_BTD = network(x_BTD)
    (out_BTD.float() * torch.linspace(-1.0, 1.0, 64)).sum().backward()
    return [out_BTD.detach().float(), *(one.grad for one in (x_BTD, *network.parameters()) if one.grad is not None)]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_kernels_compute_what_torch_computes_up_to_rounding(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, again = _trained(dropout), _trained(dropout)
    monkeypatch.setattr(kernels, "of", lambda dtype: None)
    plain = _trained(dropout)
    assert len(fast) == len(plain) > 10
    assert not all(map(torch.equal, fast, plain))  # it is the kernels that computed
    assert all(map(torch.equal, fast, again))
    for one, other in zip(fast, plain, strict=True):
        assert float((one - other).norm() / other.norm()) < 0.01


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    fast = kernels.of(torch.bfloat16)
    assert fast is not None
    made: list[list[Tensor]] = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.manual_seed(0)
        torch.set_num_threads(threads)
        x_BTD, grad_BTD = torch.randn(2, 3, 700, 200).bfloat16()
        activated, slopes = torch.empty_like(x_BTD), torch.empty_like(x_BTD)
        fast.gelu(x_BTD, random_numbers(x_BTD.numel()), 12768, activated, slopes)
        sums_D = fast.slopes_product(grad_BTD.view(-1, 200), slopes.view(-1, 200))
        narrow = fast.narrowed(torch.randn(300, 200))
        made.append([activated, slopes, grad_BTD, sums_D, *narrow, *fast.depthwise_backward(grad_BTD, x_BTD, 3, 2)])
    torch.set_num_threads(before)
    assert all(map(torch.equal, *made))


def test_what_is_not_a_number_stays_so() -> None:
    fast = kernels.of(torch.bfloat16)
    assert fast is not None
    x = torch.tensor([float("nan"), float("inf"), 0.0, -100.0], dtype=torch.bfloat16)
    activated, slopes = torch.empty_like(x), torch.empty_like(x)
    fast.gelu(x, None, 0, activated, slopes)
    assert activated[0].isnan()
    assert slopes[0].isnan()
    assert not activated[1].isfinite()
    assert activated[2:].tolist() == pytest.approx([0.0, 0.0])
    narrow, sums = fast.narrowed(torch.full((2, 3), float("nan")))
    assert narrow.isnan().all()
    assert sums.isnan().all()


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    kernels._kernels.cache_clear()
    try:
        assert kernels.of(torch.bfloat16) is None
        assert all(one.isfinite().all() for one in _trained())
    finally:
        kernels._kernels.cache_clear()


def test_fp32_is_left_to_torch() -> None:
    assert kernels.of(torch.float32) is None


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_of_a_compiler_is_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", name)
    kernels._kernels.cache_clear()
    try:
        assert kernels.of(torch.bfloat16) is not None  # by the usual compiler
    finally:
        kernels._kernels.cache_clear()


@pytest.mark.parametrize("broken", ["CC", "TMPDIR"])
def test_what_can_not_be_compiled_is_left_to_torch(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "CC":
        monkeypatch.setenv("CC", "cc 'unbalanced")
    else:
        monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    kernels._kernels.cache_clear()
    try:
        assert kernels.of(torch.bfloat16) is None
    finally:
        kernels._kernels.cache_clear()


def test_a_residual_that_is_not_contiguous_is_added() -> None:
    torch.manual_seed(0)
    network, before, x = FeedForward(40, 160, 0.0), torch.randn(1, 40, 80)[..., :40], torch.randn(1, 40, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sums = [network.added(residual, x) for residual in (before, before.contiguous())]
    torch.testing.assert_close(*sums)
