"""Linear attention against its quadratic definition, and against three published mistakes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from phonate.nn import linear_attention as blocks
from phonate.nn.attention import SelfAttention
from phonate.nn.linear_attention import RandomFeatures, causal_attention, draw_projection, key_sums, read_sums
from phonate.nn.sequences import RotaryPositions, rotate

EPSILON = 1e-4
HEADS, DIM, FEATURES = 2, 8, 12


def features(x: Tensor, projection: Tensor) -> Tensor:
    """phi, written down as in the paper but for the maximum."""
    scaled = x / x.shape[-1] ** 0.25
    return (scaled @ projection.T - scaled.square().sum(-1, keepdim=True) / 2).clamp_max(30.0).exp() + EPSILON


def reference(
    query: Tensor, key: Tensor, value: Tensor, projection: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attention by the matrix of all pairs."""
    weight = features(query, projection) @ features(key, projection).mT
    if mask is not None:
        weight = weight * mask[:, None, None, :].to(weight.dtype)
    weight = weight.tril() if causal else weight
    return weight @ value / weight.sum(-1, keepdim=True)


def drawn(frames: int = 150, batch: int = 3, parts: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    """Queries, keys and values (parts, B, H, T, E), in memory as a linear layer gives them."""
    torch.manual_seed(0)
    packed = torch.randn(batch, frames, parts, HEADS, DIM, dtype=dtype)
    return packed.permute(2, 0, 3, 1, 4).requires_grad_()


def projection(dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(1)
    return draw_projection(FEATURES, DIM).to(dtype)


def ragged(frames: int, batch: int = 3) -> Tensor:
    """Lengths of all frames, half of them, one."""
    return torch.arange(frames) < torch.tensor([[frames], [max(1, frames // 2)], [1]])[:batch]


def both(packed: Tensor, mask: Tensor | None = None, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
    return read_sums(packed[0], key_sums(packed[1:], projection(packed.dtype), mask, rotation), projection(), rotation)


def causal(packed: Tensor, mask: Tensor | None = None, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
    return causal_attention(packed, projection(packed.dtype), mask, rotation)[0]


def gradient(out: Tensor, of: Tensor, mask: Tensor | None) -> Tensor:
    """Of a sum that weighs each output cell differently; padding is left out."""
    torch.manual_seed(2)
    weight = torch.randn(out.shape, dtype=out.dtype)
    if mask is not None:
        weight = weight * mask[:, None, :, None]
    return torch.autograd.grad((out * weight).sum(), of)[0]


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("ours", [both, causal])
@pytest.mark.parametrize("frames", [1, 64, 150])
def test_outputs_and_gradients_are_those_of_the_quadratic_form(
    frames: int, ours: Callable[..., Tensor], masked: bool, rotary: bool
) -> None:
    packed, mask = drawn(frames), ragged(frames) if masked else None
    rotation = RotaryPositions(DIM).double()(frames) if rotary else None
    query, key, value = packed
    if rotation is not None:
        query, key = rotate(query, rotation), rotate(key, rotation)
    wanted = reference(query, key, value, projection(), mask, causal=ours is causal)
    got = ours(packed, mask, rotation)
    real = torch.ones(3, frames, dtype=torch.bool) if mask is None else mask
    assert torch.allclose(got.transpose(1, 2)[real], wanted.transpose(1, 2)[real], rtol=1e-12, atol=1e-13)
    expected = gradient(wanted, packed, mask)
    assert torch.allclose(gradient(got, packed, mask), expected, rtol=1e-10, atol=1e-12)
    assert float(expected.abs().max()) > 1e-3


def test_attention_to_a_memory_of_another_length() -> None:
    query, memory = drawn(70, parts=1), drawn(90, parts=2)
    mask = ragged(90)

    def results() -> tuple[Tensor, Tensor]:
        got = read_sums(query[0], key_sums(memory, projection(), mask), projection())
        return got, reference(query[0], memory[0], memory[1], projection(), mask)

    assert torch.allclose(*results(), rtol=1e-12, atol=1e-13)
    for of in (query, memory):
        assert torch.allclose(*(gradient(out, of, None) for out in results()), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_gradients_by_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_CPU_BLOCK", 3)
    monkeypatch.setattr(blocks, "_CPU_ROWS", 2)
    packed = drawn(7, batch=2)
    assert torch.autograd.gradcheck(lambda x: causal(x, ragged(7, 2)), (packed,), fast_mode=True)
    assert torch.autograd.gradcheck(lambda x: both(x, ragged(7, 2)), (packed,), fast_mode=True)


def test_features_past_the_cut_off_have_no_gradient_and_no_overflow() -> None:
    """A key along the longest direction, just as long: its exponent is as large as exponents get."""
    directions = 4.0 * projection()
    packed = drawn(5, batch=1).detach().clone()
    packed[:2, 0, :, 2] = directions[0] * DIM**0.25
    packed.requires_grad_()
    wanted = reference(*packed, directions, causal=True)
    got = causal_attention(packed, directions)[0]
    assert torch.allclose(got, wanted, rtol=1e-12)
    assert torch.allclose(gradient(got, packed, None), gradient(wanted, packed, None), rtol=1e-9, atol=1e-12)
    single = packed.detach().float().requires_grad_()
    assert gradient(causal_attention(single, directions.float())[0], single, None).isfinite().all()


@pytest.mark.parametrize("loudness", [1e-3, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("ours", [both, causal])
def test_ragged_lengths_are_finite_at_any_loudness_in_float32(ours: Callable[..., Tensor], loudness: float) -> None:
    packed = (loudness * drawn(150).detach()).float().requires_grad_()
    mask = ragged(150)
    mask[2] = False  # an item of no frames at all
    out = ours(packed, mask, None) if ours is causal else read_sums(
        packed[0], key_sums(packed[1:], projection().float(), mask), projection().float()
    )  # fmt: skip
    assert out.isfinite().all()
    assert gradient(out, packed, mask).isfinite().all()
    assert torch.autograd.grad(causal(packed, mask).sum(), packed)[0].isfinite().all()  # of padding, too


# ---------------------------------------------------------------- mistakes of others, which the tests must see


def stabilised_features(x: Tensor, projection: Tensor, over: tuple[int, ...]) -> Tensor:
    """The published phi, with the largest exponent subtracted."""
    scaled = x / x.shape[-1] ** 0.25
    exponent = scaled @ projection.T - scaled.square().sum(-1, keepdim=True) / 2
    return (exponent - exponent.amax(dim=over, keepdim=True)).exp() + EPSILON


def published(packed: Tensor, mask: Tensor | None, causal: bool, directions: Tensor | None = None) -> Tensor:
    """As in performer-pytorch 1.1.4: the maximum is over all keys of all time, and padding is masked in V alone."""
    query, key, value = packed
    if mask is not None:
        value = value * mask[:, None, :, None]
    directions = projection() if directions is None else directions
    weight = stabilised_features(query, directions, (-1,)) @ stabilised_features(key, directions, (-1, -2)).mT
    weight = weight.tril() if causal else weight
    return weight @ value / weight.sum(-1, keepdim=True)


def change_by_padding(attention: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Relative change of 50 real frames by 50 frames of padding."""
    packed, mask = drawn(100, batch=1).detach(), torch.arange(100)[None] < 50
    alone = attention(packed[:, :, :, :50], mask[:, :50])
    return float((attention(packed, mask)[:, :, :50] - alone).norm() / alone.norm())


def change_by_the_future(attention: Callable[[Tensor, Tensor], Tensor], loudness: float) -> float:
    """Relative change of 50 frames by the loudness of the next 50, with heads of 64."""
    torch.manual_seed(3)
    packed, directions = 0.5 * torch.randn(3, 1, HEADS, 100, 64).double(), draw_projection(128, 64).double()
    other = packed.clone()
    other[:, :, :, 50:] *= loudness
    before, after = (attention(x, directions)[:, :, :50] for x in (packed, other))
    return float((before - after).norm() / before.norm())


def test_padding_is_masked_in_keys_and_values() -> None:
    assert change_by_padding(both) < 1e-12
    assert change_by_padding(causal) < 1e-12
    assert change_by_padding(lambda packed, mask: published(packed, mask, causal=False)) > 0.1


@pytest.mark.parametrize("loudness", [0.1, 2.0, 3.0, 1e4])
def test_the_future_does_not_leak_through_a_maximum(loudness: float) -> None:
    assert change_by_the_future(lambda packed, w: causal_attention(packed, w)[0], loudness) == 0.0
    if loudness in {2.0, 3.0}:
        assert change_by_the_future(lambda packed, w: published(packed, None, True, w), loudness) > 0.01


def test_a_last_block_filled_with_zeros_would_divide_zero_by_zero() -> None:
    """The frames that fill up the last block have no keys: their 0 / 0 is cut off, but not from the gradients."""
    packed = drawn(5, batch=1)
    filled = F.pad(packed, (0, 0, 0, 3))
    query, key = features(filled[0], projection()), features(filled[1], projection())
    real = (torch.arange(8) < 5).double()[:, None]
    weight = (query * real) @ (key * real).mT
    faulty = (weight @ filled[2] / weight.sum(-1, keepdim=True))[:, :, :5]
    assert faulty.isfinite().all()
    assert gradient(faulty, packed, None).isnan().any()
    assert gradient(causal(packed), packed, None).isfinite().all()


# ------------------------------------------------------------------------------------------- cost and quality


def kept_bytes(frames: int) -> int:
    """Bytes kept for the backward pass, without the input and the weights."""
    torch.manual_seed(0)
    module = SelfAttention(32, 4, features=64, causal=True)
    x = torch.randn(1, frames, 32, requires_grad=True)
    seen: dict[int, int] = {x.untyped_storage().data_ptr(): 0}

    def count(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            seen.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        module(x)
    return sum(seen.values())


def test_features_are_not_kept() -> None:
    """What is kept grows with the frames: queries, keys, values and the output, and no features of 4 heads x 64."""
    more = kept_bytes(1024) - kept_bytes(512)
    assert more == 512 * 4 * (3 * 32 + 32)


_PEAK = """
import torch
from phonate.nn.sequences import RotaryPositions
from phonate.nn.attention import SelfAttention
torch.set_num_threads(1)
def resident(field):
    return int(next(line for line in open("/proc/self/status") if line.startswith(field)).split()[1]) / 1024
def train(frames):
    x = torch.randn(1, frames, 128, requires_grad=True)
    before = resident("VmRSS")
    out = module(x, None, RotaryPositions(32)(frames))
    out.backward(torch.ones(()).expand_as(out))
    return resident("VmHWM") - before
module = SelfAttention(128, 4, features=128, causal=True)
train(256)
print(train(65536))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_training_64k_frames_takes_under_350_megabytes_a_layer() -> None:
    # What is freed goes back to the system at once: else fragments of the heap count, up to 90 MB by chance.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run([sys.executable, "-c", _PEAK], capture_output=True, text=True, check=True, env=environment)
    assert 100 < float(done.stdout) < 350


def error_to_softmax(count: int, draw: Callable[[int, int], Tensor] = draw_projection) -> float:
    """Relative error of linear attention to softmax, averaged over draws, with inputs of standard deviation 0.5."""
    torch.manual_seed(0)
    packed = 0.5 * torch.randn(3, 1, 8, 256, 64)
    wanted = F.scaled_dot_product_attention(*packed)
    errors = []
    for _ in range(4):
        directions = draw(count, 64)
        got = read_sums(packed[0], key_sums(packed[1:], directions), directions)
        errors.append(float((got - wanted).norm() / wanted.norm()))
    return sum(errors) / len(errors)


def test_more_features_are_nearer_to_softmax() -> None:
    errors = [error_to_softmax(count) for count in (64, 256, 1024)]
    assert errors[0] > 1.2 * errors[1] > 1.8 * errors[2]
    assert errors[2] < 0.3
    assert errors[1] < 0.9 * error_to_softmax(256, torch.randn)
    assert errors[1] < 0.9 * error_to_softmax(256, as_long_as_gaussian)


def as_long_as_gaussian(count: int, dim: int) -> Tensor:
    """Orthogonal directions with the lengths of Gaussian vectors."""
    return F.normalize(draw_projection(count, dim)) * torch.randn(count, dim).norm(dim=1, keepdim=True)


def test_directions_are_orthogonal_in_blocks_of_one_length_and_favour_no_side() -> None:
    """LAPACK's QR alone gives first coordinates of one sign."""
    torch.manual_seed(0)
    directions = draw_projection(150, 64)
    assert directions.shape == (150, 64)
    for block in directions.split(64):
        assert torch.allclose(block @ block.T, 64.0 * torch.eye(len(block)), atol=1e-3)
    firsts = torch.stack([draw_projection(64, 64)[:, 0] for _ in range(20)])
    assert 0.4 < float((firsts > 0).float().mean()) < 0.6
    assert 0.2 < float((firsts[:, 0] > 0).float().mean()) < 0.8


def test_redrawing_changes_the_buffer_and_stays_on_its_device() -> None:
    module = RandomFeatures(20, 8).double()
    before = module.projection_ME.clone()
    torch.manual_seed(5)
    module.redraw_features()
    first = module.projection_ME.clone()
    assert not torch.equal(before, first)
    assert first.dtype == torch.float64
    torch.manual_seed(5)
    module.redraw_features()
    assert torch.equal(module.projection_ME, first)
    assert list(module.state_dict()) == ["projection_ME"]


@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_computes_features_in_float32(causal: bool) -> None:
    torch.manual_seed(0)
    module = SelfAttention(32, 4, features=64, causal=causal)
    x = torch.randn(2, 100, 32, requires_grad=True)
    wanted = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = module(x)
    assert got.dtype == torch.bfloat16
    assert float((got - wanted).detach().norm() / wanted.detach().norm()) < 0.03
    assert torch.autograd.grad(got.float().square().sum(), x)[0].isfinite().all()


def test_compiled_models_run_it_as_it_is() -> None:
    torch.manual_seed(0)
    module = SelfAttention(32, 4, features=64, causal=True)
    x = torch.randn(2, 100, 32)
    plain = module(x)
    compiled: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        compiled.append(graph.code)
        return graph.forward

    assert torch.allclose(torch.compile(module, backend=backend)(x), plain, atol=1e-6)
    assert "linear" in "".join(compiled), "the layers around it"
    assert "exp_" not in "".join(compiled), "none of its features"


@pytest.mark.slow
def test_no_compiler_is_imported_for_it() -> None:
    script = """
import sys, torch
from phonate.nn.attention import SelfAttention
SelfAttention(8, 2, features=4, causal=True)(torch.randn(1, 5, 8)).sum().backward()
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_default_number_of_features_is_that_of_the_paper() -> None:
    from phonate.nn.settings import LayerSettings

    assert LayerSettings(attention_type="linear").features == int(64 * math.log(64)) == 266
    assert LayerSettings().features is None


@pytest.mark.parametrize(("batch", "longest"), [(1, 1024), (32, 256), (500, 128)])
def test_blocks_on_other_devices_are_larger_and_cover_every_frame(batch: int, longest: int) -> None:
    x = torch.empty(3, batch, 8, 3000, 16, device="meta")
    assert list(blocks.batch_blocks(x)) == [slice(0, batch)]
    found = blocks.frame_blocks(x)
    assert [block.start for block in found] == [0, *(block.stop for block in found[:-1])]
    assert found[-1].stop == 3000
    assert found[0].stop == longest
