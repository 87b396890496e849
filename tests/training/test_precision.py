"""Loss scaling against its arithmetic and against torch's own, and which number format a run gets."""

from __future__ import annotations

import copy
import math
import random

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_trainer import lines, same, settings, train, weights

from phonate.config.errors import InputError
from phonate.nn import kernels
from phonate.training import precision
from phonate.training.precision import MPSGradScaler, Precision, resolve, scaler_for

CPU, CUDA, MPS = (torch.device(name) for name in ("cpu", "cuda", "mps"))


def model_and_optimizer(lr=0.1):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def test_unscaled_gradients_are_the_true_ones():
    model, optimizer = model_and_optimizer()
    x = torch.randn(5, 3)
    model(x).square().sum().backward()
    true = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    scaler = MPSGradScaler(1024.0)
    scaler.scale(model(x).square().sum()).backward()
    assert torch.equal(model.weight.grad, 1024.0 * true[0])
    scaler.unscale_(optimizer)
    assert all(torch.equal(p.grad, gradient) for p, gradient in zip(model.parameters(), true, strict=True))


def test_clipping_sees_the_true_gradients():
    """The usual fault: an unscale_ that does nothing. A norm of 0.1 must pass a clipping at 1 as it is."""

    def clipped(scaler):
        model, optimizer = model_and_optimizer(lr=1.0)
        before = model.weight.detach().clone()
        (scaler.scale((model.weight * 0.1 / math.sqrt(6)).sum())).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return (before - model.weight.detach()).norm().item()

    class Faulty(MPSGradScaler):
        def unscale_(self, optimizer):
            gradients = [p.grad.clone() for p in optimizer.param_groups[0]["params"] if p.grad is not None]
            super().unscale_(optimizer)
            for p, gradient in zip([optimizer.param_groups[0]["params"][0]], gradients, strict=True):
                p.grad.copy_(gradient)

    assert clipped(MPSGradScaler()) == pytest.approx(0.1, rel=1e-6)
    assert clipped(Faulty()) != pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_an_overflow_skips_the_step_and_lowers_the_scale(bad):
    model, optimizer = model_and_optimizer()
    before = copy.deepcopy(model.state_dict())
    scaler = MPSGradScaler(8.0)
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    model.bias.grad[1] = bad
    scaler.step(optimizer)
    scaler.update()
    assert same(before, model.state_dict())
    assert scaler.get_scale() == 4.0


def test_the_scale_grows_after_so_many_good_steps_in_a_row():
    model, optimizer = model_and_optimizer(lr=0.0)
    scaler = MPSGradScaler(8.0, growth_interval=3)
    scales = []
    for number in range(9):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        if number == 4:
            model.bias.grad[0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [8, 8, 16, 16, 8, 8, 8, 16, 16]


def test_it_behaves_as_torchs_own():
    """Two hundred steps with overflows here and there, clipping and two optimizers; saved and restored half-way."""
    runs = []
    for make in (lambda: torch.amp.GradScaler("cpu", 1024.0, growth_interval=5),
                 lambda: MPSGradScaler(1024.0, growth_interval=5)):  # fmt: skip
        rng, scaler = random.Random(1), make()
        pairs = [model_and_optimizer(), model_and_optimizer(0.01)]
        trace = []
        for number in range(200):
            x = torch.full((2, 3), rng.uniform(-1, 1))
            for model, optimizer in pairs:
                optimizer.zero_grad()
                scaler.scale(model(x).square().sum()).backward()
                if rng.random() < 0.1:
                    model.weight.grad[0, 0] = rng.choice([math.inf, math.nan])
                if rng.random() < 0.5:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
            scaler.update()
            trace.append(scaler.get_scale())
            if number == 100:
                state, scaler = scaler.state_dict(), make()
                scaler.load_state_dict(state)
        runs.append((trace, [model.state_dict() for model, _ in pairs], scaler.state_dict()))
    (trace, states, saved), (our_trace, our_states, our_saved) = runs
    assert our_trace == trace
    assert len(set(trace)) > 5
    assert all(same(a, b) for a, b in zip(states, our_states, strict=True))
    assert our_saved == saved


def test_a_fixed_scale_is_set_by_update():
    model, optimizer = model_and_optimizer()
    scaler = MPSGradScaler(8.0)
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    scaler.step(optimizer)
    scaler.update(512.0)
    assert scaler.get_scale() == 512.0


def test_calls_in_the_wrong_order_are_refused():
    model, optimizer = model_and_optimizer()
    scaler = MPSGradScaler()
    with pytest.raises(RuntimeError, match="nothing was unscaled"):
        scaler.update()
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="once per step"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already"):
        scaler.step(optimizer)
    half = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    half.grad = torch.ones_like(half)
    with pytest.raises(ValueError, match="fp16"):
        scaler.unscale_(torch.optim.SGD([half], lr=0.1))
    for options in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"init_scale": 0.0}, {"growth_interval": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            MPSGradScaler(**options)


def test_which_scaler_a_device_gets():
    assert isinstance(scaler_for(MPS, 8.0), MPSGradScaler)
    own = scaler_for(CPU, 8.0)
    assert isinstance(own, torch.amp.GradScaler)
    assert own.get_scale() == 8.0


def fine(name, device):
    pass


def failing(name, device):
    raise RuntimeError("not implemented for 'Half'")


@pytest.mark.parametrize(
    ("setting", "device", "native", "expected"),
    [
        ("auto", CPU, False, "fp32"), (True, CPU, False, "fp32"), (False, CUDA, True, "fp32"),
        ("fp32", CUDA, True, "fp32"), ("auto", CUDA, True, "bf16"), (True, CUDA, False, "fp16"),
        ("auto", MPS, False, "fp16"), ("fp16", MPS, False, "fp16"), ("bf16", MPS, False, "bf16"),
    ],
)  # fmt: skip
def test_the_format_of_a_device(monkeypatch, setting, device, native, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert resolve(setting, device, fine) == expected


def test_a_format_that_fails_falls_back_and_says_so(caplog):
    assert resolve("auto", MPS, failing) == "fp32"
    assert "not implemented for 'Half'" in caplog.text
    assert "training in fp32" in caplog.text


def test_a_format_that_was_asked_for_and_fails_is_refused():
    with pytest.raises(InputError, match=r"training\.mixed_precision: mps .*use fp32 or auto"):
        resolve("fp16", MPS, failing)


def test_the_formats_are_tried_out_for_real():
    assert resolve("bf16", CPU) == "bf16"
    assert resolve("fp16", CPU) == "fp16"


@pytest.mark.parametrize(("has", "said"), [(False, True), (True, False), (None, False)])
def test_bf16_on_a_processor_without_its_instructions_is_said_to_be_slow(monkeypatch, caplog, has, said):
    monkeypatch.setattr("phonate.training.precision.multiplies_in_bf16", lambda: has)
    assert Precision("bf16", CPU).name == "bf16"
    assert ("this processor has no instructions for bf16; fp32 is faster" in caplog.text) == said


def test_a_run_with_our_scaler_learns_what_it_learns_with_torchs_and_resumes_exactly(tmp_path, monkeypatch):
    changes = {"mixed_precision": "fp16", "checkpoint": {"interval": 4}}
    own = train(tmp_path / "torch", **changes)
    monkeypatch.setattr(precision, "scaler_for", lambda device, **options: MPSGradScaler(**options))
    ours = train(tmp_path / "ours", **changes)
    assert same(weights(own), weights(ours))
    scales = [[row["grad_scale"] for row in lines(tmp_path / name, "train")] for name in ("torch", "ours")]
    assert scales[0] == scales[1]
    resumed = train(tmp_path / "ours", resume=tmp_path / "ours/checkpoints/step-00000004", **changes)
    assert same(weights(ours), weights(resumed))
    # a run that was begun with torch's goes on with ours
    moved = train(tmp_path / "torch", resume=tmp_path / "torch/checkpoints/step-00000004", **changes)
    assert same(weights(ours), weights(moved))


def test_the_loss_scale_starts_and_grows_as_the_settings_say(tmp_path):
    scaling = {"amp_init_scale": 64.0, "amp_growth_factor": 4.0, "amp_growth_interval": 2}
    train(tmp_path, mixed_precision="fp16", max_steps=6, logging={"interval": 1, "tensorboard": False}, **scaling)
    assert [row["grad_scale"] for row in lines(tmp_path, "train")] == [64, 256, 256, 1024, 1024, 4096]


def test_a_warning_holds_only_the_first_sentence_of_torchs_message(caplog):
    def refused(name, device):
        raise RuntimeError("Could not run 'aten::mm' with 'MPS'. It is only available for these backends: [CPU]")

    assert resolve("auto", MPS, refused) == "fp32"
    assert "Could not run 'aten::mm' with 'MPS'" in caplog.text
    assert "backends" not in caplog.text


def test_fixed_loss_scale_survives():
    fixed = Precision("fp16", CPU, loss_scale=256.0)
    assert fixed.scale == 256.0
    assert settings(amp_loss_scale=256.0).amp_loss_scale == 256.0


@pytest.mark.gpu
def test_a_scaler_on_a_real_gpu_behaves_as_torchs_own():
    runs = []
    for scaler in (torch.amp.GradScaler("cuda", 1024.0, growth_interval=3), MPSGradScaler(1024.0, growth_interval=3)):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(20):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((2, 3), number / 20, device="cuda")).square().sum()).backward()
            if number == 7:
                model.weight.grad[0, 0] = math.inf
            scaler.step(optimizer)
            scaler.update()
        runs.append((scaler.get_scale(), model.weight.detach().clone()))
    assert runs[0][0] == runs[1][0]
    assert torch.allclose(runs[0][1], runs[1][1])


@hypothesis.settings(deadline=None, max_examples=60)
@given(
    init=st.sampled_from([1.0, 1024.0, 65536.0, 2.0**126]),
    growth=st.sampled_from([1.5, 2.0, 4.0]),
    backoff=st.sampled_from([0.25, 0.5, 0.9]),
    interval=st.integers(1, 4),
    steps=st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from([0.0, math.inf, math.nan])), max_size=25),
    restored=st.integers(0, 25),
)
# the scale does not grow past what fp32 can hold
@hypothesis.example(2.0**126, 2.0, 0.5, 1, [(False, False, 0.0)] * 4, 2)
def test_any_course_is_that_of_torchs_own(init, growth, backoff, interval, steps, restored):
    """Steps (unscaled early or not, clipped or not, what the gradient holds) under any options, restored on the way."""
    options = {"growth_factor": growth, "backoff_factor": backoff, "growth_interval": interval}
    courses = []
    for make in (lambda: torch.amp.GradScaler("cpu", init, **options), lambda: MPSGradScaler(init, **options)):
        scaler, (model, optimizer), course = make(), model_and_optimizer(), []
        for number, (early, clipping, bad) in enumerate(steps):
            if number == restored:
                state, scaler = scaler.state_dict(), make()
                scaler.load_state_dict(state)
            optimizer.zero_grad()
            scaler.scale(model(torch.full((2, 3), 0.3)).sum() * 1e-3).backward()
            if bad:
                model.bias.grad[0] = bad
            if early or clipping:
                scaler.unscale_(optimizer)
            if clipping:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
            scaler.step(optimizer)
            scaler.update()
            course.append([scaler.get_scale(), *model.weight.detach().flatten(), *model.bias.detach()])
        courses.append(torch.tensor(course, dtype=torch.float64))
    assert torch.allclose(*courses, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("before", "now"), [(True, False), (False, True), (True, True), (None, False)])
@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_a_resume_says_where_steps_are_computed_by_other_means(name, before, now, monkeypatch, caplog):
    monkeypatch.setattr(kernels, "used", lambda: before)
    state = Precision(name, CPU).state()
    monkeypatch.setattr(kernels, "compiled", lambda: now)
    resumed = Precision(name, CPU)
    caplog.clear()
    resumed.restore(state)
    told = [line for line in caplog.messages if "C compiler" in line]
    assert len(told) == (before is not None and before != now)
    if told:
        first, second = ("with a", "without one") if before else ("without a", "with one")
        assert told == [f"{name} was computed {first} C compiler, and is now {second}: results differ by rounding"]
    Precision("fp16", CPU).restore(state)  # it needs none of that


def test_gradients_of_a_phase_alone_are_those_of_a_backward_pass_each_in_memory_of_its_own():
    """The sums over ranks, and clipping, change them in place."""
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    first, second, unused = parameters
    for times in (1.0, 2.0):
        Precision("fp32", CPU).backward((first + second).sum(), parameters)
        first.grad.mul_(2.0)
        assert second.grad.tolist() == 3 * [times]
    assert first.grad.tolist() == 3 * [6.0]
    assert unused.grad is None
