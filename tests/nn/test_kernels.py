from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phonate.nn import bands, kernels
from phonate.nn.convolution import ConvNeXt, Tanh
from phonate.nn.feed_forward import FeedForward
from phonate.nn.sequences import RotaryPositions, frame_mask
from phonate.nn.transformer import LayerShape, Stack
from phonate.nn.vocoder import MelDiscriminator
from phonate.training.adversarial import _generator_terms

FAST = kernels.of(torch.bfloat16)
pytestmark = pytest.mark.skipif(FAST is None, reason="needs a C compiler that works (cc)")
multiplies = pytest.mark.skipif(
    FAST is None or not FAST.multiplies, reason="needs products of bf16 in the processor and its compiler"
)

Network = tuple[nn.Module, Callable[[Tensor], Tensor]]


def _blocks() -> Network:
    network, mask_BT = ConvNeXt(64, 2), frame_mask(torch.tensor([700, 650, 300]), 700)
    return network, lambda x_BTD: network(x_BTD, mask_BT)


def _layers(causal: bool) -> Network:
    shape = LayerShape(64, 4, 128, 0.0, "pre", "gelu", causal=causal, window=50 if causal else None)
    network, mask_BT = Stack(shape, 2, RotaryPositions(16)), frame_mask(torch.tensor([1400, 1300, 0]), 1400)[:, ::2]
    return network, lambda x_BTD: network(x_BTD, None if causal else mask_BT)


def _judged(channels: int) -> Network:
    network, cond_BTD = MelDiscriminator(8 * channels, 8, channels), torch.randn(3, 700, 8)

    def numbers(mel_BTM: Tensor) -> Tensor:
        ((scores, layers),) = network(mel_BTM.repeat(1, 1, channels // 8), cond_BTD)
        _, distance = _generator_terms([(scores, layers)], [(scores, [one.detach().roll(1, 2) for one in layers])])
        return (scores.float().mean() + distance) * torch.ones(64)

    return network, numbers


def _trained(build: Callable[[], Network], **autocast: Any) -> dict[str, Tensor]:
    """Output and gradients."""
    torch.manual_seed(0)
    network, function = build()
    x_BTD = torch.randn(3, 700, 64).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, **autocast):
        out_BTD = function(x_BTD)
    (out_BTD.float() * torch.linspace(-1.0, 1.0, 64)).sum().backward()
    assert x_BTD.grad is not None
    made = {name: one.grad for name, one in network.named_parameters() if one.grad is not None}
    return {"output": out_BTD.detach().float(), "input": x_BTD.grad, **made}


BUILDS = {
    "ConvNeXt": _blocks,
    "attention": partial(_layers, False),
    "causal attention": partial(_layers, True),
    "discriminator": partial(_judged, 8),
    "discriminator with convolutions by kernels": partial(_judged, 16),
}


@pytest.mark.parametrize("name", BUILDS)
def test_kernels_compute_what_torch_computes_up_to_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, again = _trained(BUILDS[name]), _trained(BUILDS[name])
    exact = _trained(BUILDS[name], enabled=False)
    monkeypatch.setattr(kernels, "of", lambda dtype: None)
    plain = _trained(BUILDS[name])
    assert fast.keys() == plain.keys() == exact.keys()
    assert len(fast) > 10
    assert any(not torch.equal(fast[one], plain[one]) for one in fast)  # it is the kernels that computed
    for one, values in fast.items():
        assert torch.equal(values, again[one]), one
        error, of_torch = (float((other[one] - exact[one]).norm() / exact[one].norm()) for other in (fast, plain))
        assert error < 0.002 + 1.1 * of_torch < 0.06, (one, error, of_torch)


def _convolved(layer: nn.Conv2d, x_BTCK: Tensor, exact: bool = False) -> list[Tensor]:
    """What a layer makes, and gradients of x, weights and biases."""
    with torch.autocast("cpu", torch.bfloat16, enabled=not exact):
        if exact:
            x_BCTK, weight_OCIJ = (one.bfloat16().float() for one in (x_BTCK.transpose(1, 2), layer.weight))
            made = F.conv2d(x_BCTK, weight_OCIJ, layer.bias, layer.stride, layer.padding)  # type: ignore[arg-type]
            made = F.leaky_relu(made, bands.SLOPE)
        else:
            ((_, (made,)),) = bands.judged([layer], nn.Conv2d(layer.out_channels, 1, 3, padding=1), [x_BTCK])
    directions = torch.randn(made.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    gradients = torch.autograd.grad((made.float() * directions).sum(), [x_BTCK, *layer.parameters()])
    return [made.detach(), *gradients]


@multiplies
def test_a_condition_has_the_gradients_of_fake_and_of_real_items() -> None:
    torch.manual_seed(0)
    network = MelDiscriminator(128, 8, 16)
    fake_BTM, real_BTM, cond_BTD = (
        torch.randn(3, 65, 128).requires_grad_(),
        torch.randn(3, 65, 128),
        torch.randn(3, 65, 8),
    )

    def gradients(
        of: dict[str, Tensor], exact: bool = False, goals: tuple[float, ...] = (0.0, 1.0)
    ) -> dict[str, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=not exact):
            judged = [scores for ((scores, _),) in network.of_both(1.0 * fake_BTM, real_BTM, cond_BTD)]
        loss = sum((scores.float() - goal).square().sum() for scores, goal in zip(judged, goals, strict=False))
        assert isinstance(loss, Tensor)
        return dict(zip(of, torch.autograd.grad(loss, list(of.values())), strict=True))

    weights = dict(network.named_parameters())
    everything = {"fake": fake_BTM, **weights}
    exact, apart, together = gradients(everything, exact=True), gradients(everything), gradients(weights)
    of_fake = gradients({"fake": fake_BTM}, goals=(0.0,))
    assert not torch.equal(apart["condition.weight"], together["condition.weight"])  # summed up before, and rounded
    for made in (apart, together, of_fake):
        for name, values in made.items():
            assert (values - exact[name]).norm() < 0.1 * exact[name].norm(), name


@multiplies
@pytest.mark.parametrize(
    ("count", "channels", "outputs", "kernel", "stride"),
    [
        (80, 2, 16, (5, 5), (1, 2)),
        (40, 16, 32, (5, 5), (2, 2)),
        (20, 32, 32, (5, 5), (2, 2)),
        (43, 6, 48, (3, 3), (2, 1)),
        (257, 2, 16, (3, 9), (1, 3)),
        (171, 16, 32, (3, 9), (1, 3)),
    ],
)
def test_convolutions_are_exact_up_to_the_rounding_of_bf16(
    count: int,
    channels: int,
    outputs: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    monkeypatch.delattr(bands, "_by_torch")
    layer = nn.Conv2d(channels, outputs, kernel, stride, (kernel[0] // 2, kernel[1] // 2))
    x_BTCK, threads = torch.randn(3, 33, channels, count).requires_grad_(), torch.get_num_threads()
    made = []
    for number in (1, 2):
        torch.set_num_threads(number)
        made.append(_convolved(layer, x_BTCK))
    torch.set_num_threads(threads)
    assert all(map(torch.equal, *made))
    exact = _convolved(layer, x_BTCK, exact=True)
    for one, other in zip(made[0], exact, strict=True):
        assert float((one.float() - other).norm() / other.norm()) < 0.005


def test_dropout_leaves_out_its_share_anew_each_time() -> None:
    fast = kernels.of(torch.bfloat16)
    assert fast is not None
    torch.manual_seed(0)
    x = torch.ones(1_003, 1_001, dtype=torch.bfloat16)
    made: list[Tensor] = []
    for seed in (1, 2):
        activated, again, slopes = (torch.ones_like(x) for _ in range(3))
        fast.gelu(x, seed, round(0.3 * 65536), activated)
        fast.gelu_backward(x, seed, round(0.3 * 65536), again, slopes)
        assert torch.equal(activated, again)
        assert torch.equal(activated == 0, slopes == 0)
        made.append((activated == 0).flatten())
    first, second = (one.float() - 0.3 for one in made)
    assert first.mean().abs() < 0.002
    assert (first * second).mean().abs() < 0.002
    for step in (1, 2, 3, 4, 512):  # neighbours know nothing of each other
        assert (first[step:] * first[:-step]).mean().abs() < 0.002


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    fast = kernels.of(torch.bfloat16)
    assert fast is not None
    made: list[list[Tensor]] = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.manual_seed(0)
        torch.set_num_threads(threads)
        x_BTD, grad_BTD = torch.randn(2, 3, 700, 200).bfloat16()
        x_RD, grad_RD = x_BTD.view(-1, 200), grad_BTD.view(-1, 200)
        activated, again = torch.empty_like(x_RD), torch.empty_like(x_RD)
        fast.gelu(x_RD, 1, 12768, activated)
        sums_D = fast.gelu_backward(x_RD, 1, 12768, again, grad_RD)
        assert torch.equal(activated, again)
        narrow = fast.narrowed(torch.randn(300, 200))
        weight_D = torch.randn(200)
        out_RD, stats_2R = fast.normed(x_RD, weight_D, weight_D, 1e-5)
        of_norm = fast.normed_backward(grad_RD, x_RD, weight_D, stats_2R, None)
        made.append(
            [
                out_RD,
                *of_norm,
                activated,
                grad_BTD,
                sums_D,
                *narrow,
                *fast.depthwise_backward(grad_BTD, x_BTD, 3, 2),
            ]
        )
    torch.set_num_threads(before)
    assert all(map(torch.equal, *made))


def test_what_is_not_a_number_stays_so() -> None:
    fast = kernels.of(torch.bfloat16)
    assert fast is not None
    x = torch.tensor([[float("nan"), float("inf"), 0.0, -100.0]], dtype=torch.bfloat16)
    activated, slopes = torch.empty_like(x), torch.ones_like(x)
    fast.gelu(x, 0, 0, activated)
    fast.gelu_backward(x, 0, 0, activated, slopes)
    assert activated[0, 0].isnan()
    assert slopes[0, 0].isnan()
    assert not activated[0, 1].isfinite()
    assert activated[0, 2:].tolist() == pytest.approx([0.0, 0.0])
    narrow, sums = fast.narrowed(torch.full((2, 3), float("nan")))
    assert narrow.isnan().all()
    assert sums.isnan().all()


def test_tangents_are_torchs() -> None:
    numbers = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    made = []
    for module in (Tanh(), nn.Tanh()):
        x = numbers.clone().requires_grad_()
        out = module(x)
        made.append((out.detach(), *torch.autograd.grad(out, x, numbers.flip(0).nan_to_num(1.0))))
    assert "_Tanh" in str(Tanh()(x).grad_fn)  # it is the kernels that computed
    torch.testing.assert_close(*made, rtol=0.0, atol=2e-38, equal_nan=True)  # but what has fewer digits


@pytest.fixture
def anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The library is asked for anew, with an empty cache: its folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels._kernels.cache_clear()
    yield tmp_path / "phonate" / "kernels"
    kernels._kernels.cache_clear()


@pytest.fixture
def short(anew: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, of a library that is compiled at once."""
    monkeypatch.setattr(kernels, "_SOURCE", tmp_path / "short.c")
    kernels._SOURCE.write_text("int seven(void) { return 7; }")
    return anew


def _loaded() -> Path:
    """The library that a process which asks now computes with."""
    fast = kernels._kernels.__wrapped__()
    assert fast is not None
    assert fast._library.seven() == 7
    return Path(fast._library._name)


def test_a_library_is_compiled_once_for_all_processes(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(8) as pool:  # at once
        assert len([*pool.map(lambda _: _loaded(), range(8))]) == 8
    files = [*short.iterdir()]
    assert all(kernels._name(file.name.partition("-")[0], file.read_bytes()) == file.name for file in files)
    ran, run = [], kernels._run
    monkeypatch.setattr(kernels, "_run", lambda command: (ran.append(command), run(command))[1])
    assert _loaded() in files
    assert len(ran) == 1  # what the compiler says of itself
    monkeypatch.setattr(kernels, "_OPTIONS", (*kernels._OPTIONS, "-DANOTHER"))
    assert _loaded().parent != short
    assert _loaded() not in files


def test_a_cached_library_that_is_not_whole_is_not_executed(short: Path) -> None:
    _loaded()
    (file,) = short.iterdir()
    whole = file.read_bytes()
    for content in (whole[:-1], b"", whole.replace(b"seven", b"eight")):
        (short / "other").write_bytes(content)
        (short / "other").replace(file)  # the one that is in use stays as it is
        assert _loaded().parent != short
        assert _loaded().parent == short


def test_a_cached_library_that_can_not_be_loaded_is_told_and_the_next_one_is_used(
    short: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of another system that shares the cache."""
    _loaded()
    (whole,) = short.iterdir()
    for number in range(16):  # in whatever order they are listed
        content = b"no library %d" % number
        (short / kernels._name(whole.name.partition("-")[0], content)).write_bytes(content)
    caplog.set_level("INFO")
    assert _loaded() == whole
    whole.unlink()
    assert _loaded().parent != short
    assert "short.c can't be used" in caplog.text


def _opened(folder: Path) -> None:
    folder.chmod(0o777)


def _linked(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to("moved")


def _of_another(folder: Path) -> None:
    os.chown(folder, os.geteuid() + 1, -1)


def _a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch(0o600)


@pytest.mark.parametrize("spoil", [_opened, _linked, _of_another, _a_file])
def test_where_others_may_write_nothing_is_executed(
    short: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    if spoil is _of_another and os.geteuid():
        pytest.skip("only root can give a folder away")
    _loaded()
    spoil(short)
    caplog.set_level("INFO")
    assert _loaded().parent != short
    assert f"can't be cached ({short} is not a folder that only you can open" in caplog.text


def test_without_a_home_each_process_compiles(
    short: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 2)  # no user has this number
    caplog.set_level("INFO")
    assert _loaded().name == "kernels.so"
    assert "home directory" in caplog.text


def test_without_a_compiler_torch_computes(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert kernels.of(torch.bfloat16) is None
    assert all(one.isfinite().all() for one in _trained(_blocks).values())


def test_fp32_is_left_to_torch() -> None:
    assert kernels.of(torch.float32) is None


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_of_a_compiler_is_none(name: str, anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", name)
    assert kernels.of(torch.bfloat16) is not None  # by the usual compiler


@pytest.mark.parametrize("broken", ["CC", "TMPDIR"])
def test_what_can_not_be_compiled_is_left_to_torch(broken: str, anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "CC":
        monkeypatch.setenv("CC", "cc 'unbalanced")
    else:
        monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    assert kernels.of(torch.bfloat16) is None


def test_without_products_of_bf16_torch_convolves(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -mno-avx512bf16")
    fast = kernels.of(torch.bfloat16)
    if fast is None:
        pytest.skip("this compiler knows no such option")
    assert not fast.multiplies
    made = _trained(BUILDS["discriminator with convolutions by kernels"])
    assert all(one.isfinite().all() for one in made.values())


def test_a_residual_that_is_not_contiguous_is_added() -> None:
    torch.manual_seed(0)
    network, before, x = FeedForward(40, 160, 0.0), torch.randn(1, 40, 80)[..., :40], torch.randn(1, 40, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sums = [network.added(residual, x) for residual in (before, before.contiguous())]
    torch.testing.assert_close(*sums)
