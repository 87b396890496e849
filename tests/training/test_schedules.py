"""Schedules against torch's own, and the ways in which they have gone wrong elsewhere."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.config.errors import CheckpointError, InputError
from phonate.training.registries import SCHEDULES
from phonate.training.schedules import Schedule, build_schedule
from phonate.training.settings import SchedulerSettings

TYPES = ["cosine", "cosine_restarts", "linear", "exponential", "step", "plateau", "onecycle", "constant"]
DECAYING = ["cosine", "cosine_restarts", "linear", "onecycle"]
scheduler = torch.optim.lr_scheduler


def build(total: int = 1000, peak: float = 0.1, steps_per_epoch: int = 100, **options: object) -> Schedule:
    return build_schedule(SchedulerSettings(**options), peak, total, steps_per_epoch)


def read_by(name: str, **options: object) -> dict[str, object]:
    """Of `options` those that the schedule has."""
    return {key: value for key, value in options.items() if key in (SCHEDULES.get(name).reads or ())}


def rates(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.lr(step) for step in range(steps)]


def by_torch(make: object, steps: int, lr: float = 0.1) -> list[float]:
    """The rates of a torch scheduler that is stepped after every optimizer step."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_cosine_is_torchs():
    expected = by_torch(lambda o: scheduler.CosineAnnealingLR(o, T_max=200, eta_min=0.01), 201)
    assert rates(build(total=200, type="cosine", min_lr=0.01), 201) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mult", [1, 2, 3])
def test_restarts_are_torchs(mult):
    expected = by_torch(lambda o: scheduler.CosineAnnealingWarmRestarts(o, T_0=20, T_mult=mult, eta_min=0.001), 700)
    ours = rates(build(type="cosine_restarts", cycle_steps=20, cycle_mult=mult, min_lr=0.001), 700)
    assert ours == pytest.approx(expected, rel=1e-6)


def test_restarts_take_their_length_in_epochs():
    ours = build(type="cosine_restarts", cycle_steps="2 epochs", steps_per_epoch=50)
    assert ours.lr(100) == pytest.approx(0.1)
    assert ours.lr(99) < 0.001
    assert rates(ours, 300) == pytest.approx(rates(build(type="cosine_restarts", cycle_steps=100), 300))


def test_cycles_fill_the_decay():
    schedule = build(total=400, type="cosine_restarts", num_cycles=4, min_lr=0.001)
    assert [step for step in range(400) if schedule.lr(step) == pytest.approx(0.1)] == [0, 100, 200, 300]
    growing = build(total=700, type="cosine_restarts", num_cycles=3, cycle_mult=2)
    assert [step for step in range(700) if growing.lr(step) == pytest.approx(0.1)] == [0, 100, 300]
    assert schedule.lr(400) == 0.001
    with pytest.raises(InputError, match="num_cycles"):
        build(type="cosine_restarts", num_cycles=3, cycle_steps=10)


def test_linear_is_torchs():
    expected = by_torch(lambda o: scheduler.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=200), 250)
    assert rates(build(total=200, type="linear", min_lr=0.01), 250) == pytest.approx(expected, rel=1e-6)


def test_step_is_torchs():
    expected = by_torch(lambda o: scheduler.StepLR(o, step_size=30, gamma=0.5), 200)
    assert rates(build(type="step", step_size=30, gamma=0.5), 200) == pytest.approx(expected, rel=1e-6)


def test_exponential_is_torchs_at_every_interval():
    expected = by_torch(lambda o: scheduler.ExponentialLR(o, gamma=0.95), 10)
    ours = build(type="exponential", step_size="1 epochs", steps_per_epoch=50)
    assert [ours.lr(50 * epoch) for epoch in range(10)] == pytest.approx(expected, rel=1e-6)
    assert ours.lr(0) > ours.lr(25) > ours.lr(50)


@pytest.mark.parametrize("total", [100, 20_000])
def test_exponential_ends_at_a_hundredth_of_the_peak_where_its_decay_is_not_given(total):
    ours = build(total=total + 20, type="exponential", warmup_steps=20)
    assert ours.lr(20) == pytest.approx(0.1)
    assert ours.lr(20 + total // 2) == pytest.approx(0.01)
    assert ours.lr(20 + total) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("given", "factor"), [({"step_size": 1000}, 0.95), ({"gamma": 0.5}, 0.5), ({"step_size": 1000, "gamma": 0.5}, 0.5)]
)
def test_exponential_decays_as_the_recipe_says_however_long_the_run_is(given, factor):
    for total in (100, 20_000):
        ours = build(total=total, type="exponential", **given)
        assert [ours.lr(step) for step in (0, 1000, 2000)] == pytest.approx([0.1, 0.1 * factor, 0.1 * factor**2])


def test_recipes_of_earlier_versions_say_the_interval_of_every_schedule():
    assert build(type="cosine", step_size=1000).lr(0) == 0.1


def test_onecycle_is_torchs():
    def one_cycle(optimizer: torch.optim.Optimizer) -> object:
        return scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=1001, final_div_factor=1e9, cycle_momentum=False)

    expected = by_torch(one_cycle, 1000)
    ours = rates(build(total=1000, type="onecycle", max_lr=0.5), 1000)
    # torch ends the rise at 0.3 * 1001 - 1: within two steps of ours.
    assert ours == pytest.approx(expected, abs=0.006)
    assert max(ours) == pytest.approx(0.5)
    assert ours[0] == pytest.approx(0.5 / 25)
    assert ours.index(max(ours)) == 300


def test_onecycle_takes_the_optimizers_rate_as_peak():
    assert max(rates(build(type="onecycle", peak=0.3), 1000)) == pytest.approx(0.3)


def test_constant_is_constant():
    assert set(rates(build(type="constant"), 50)) == {0.1}


def test_plateau_is_torchs():
    metrics = [3, 2, 2, 2.5, 2, 1.9, 1.9, 1.9, 1.9, 1.9, 1.9, 1.8, 5, 5, 5, 5, 5, 5, 5, 5]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    reference = scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, threshold=0.0, min_lr=0.02)
    ours = build(type="plateau", gamma=0.5, patience=2, min_lr=0.02)
    for metric in metrics:
        reference.step(metric)
        ours.observe(metric)
        assert ours.lr(10) == pytest.approx(optimizer.param_groups[0]["lr"])
    assert ours.lr(10) == 0.02


def test_plateau_watches_its_metric_in_its_mode_and_takes_nan_for_no_improvement():
    up = build(type="plateau", mode="max", patience=0, metric="accuracy")
    assert up.metric == "accuracy"
    for metric in (0.1, 0.2, 0.3):
        up.observe(metric)
    assert up.lr(0) == pytest.approx(0.1)
    up.observe(math.nan)
    assert up.lr(0) == pytest.approx(0.01)
    assert all(build(type=name).metric is None for name in TYPES if name != "plateau")


def test_plateau_goes_on_from_its_state():
    one, other = build(type="plateau", patience=1), build(type="plateau", patience=1)
    for metric in (1.0, 2.0, 2.0, 2.0):
        one.observe(metric)
    other.restore(json.loads(json.dumps(one.state())))
    for metric in (2.0, 0.5, 2.0, 2.0):
        one.observe(metric)
        other.observe(metric)
        assert one.lr(7) == other.lr(7)
    assert one.lr(7) == pytest.approx(0.0001)
    with pytest.raises(CheckpointError, match="plateau"):
        other.restore({})


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("warmup", [1, 10, 100])
def test_warm_up_is_linear_and_meets_the_curve(name, warmup):
    schedule = build(type=name, warmup_steps=warmup)
    top = schedule.lr(warmup)
    rise = rates(schedule, warmup + 1)
    steps = [after - before for before, after in zip([0.0, *rise], rise, strict=False)]
    assert steps == pytest.approx([top / (warmup + 1)] * (warmup + 1))
    assert rise[0] > 0
    # No jump: the curve goes on as it would begin without warm-up.
    bare = build(total=1000 - warmup, type=name, **read_by(name, decay_steps=1000 - warmup))
    assert [schedule.lr(warmup + k) for k in range(50)] == pytest.approx([bare.lr(k) for k in range(50)])


@pytest.mark.parametrize("name", TYPES)
@given(total=st.integers(1, 2000), warmup=st.integers(0, 300), step=st.integers(0, 5000), low=st.floats(0, 0.1))
@settings(max_examples=40)
def test_rates_are_finite_between_floor_and_peak_and_pure(name, total, warmup, step, low):
    options = {"type": name, "warmup_steps": warmup, "min_lr": low, **read_by(name, step_size=7)}
    schedule = build(total=total, **options)
    rate = schedule.lr(step)
    assert rate <= 0.1 * (1 + 1e-9)
    assert rate >= (low if step >= warmup else 0)
    assert rate == build(total=total, **options).lr(step)


@pytest.mark.parametrize("name", DECAYING)
def test_decay_ends_at_the_floor_and_stays_there(name):
    schedule = build(total=500, type=name, warmup_steps=50, min_lr=0.002)
    assert schedule.lr(499) == pytest.approx(0.002, rel=0.5)
    assert [schedule.lr(step) for step in (500, 501, 700, 10_000)] == pytest.approx([0.002] * 4)
    sooner = build(total=500, type=name, warmup_steps=50, min_lr=0.002, decay_steps=100)
    assert sooner.lr(150) == pytest.approx(0.002)


@pytest.mark.parametrize("name", ["exponential", "step", "plateau"])
def test_the_floor_holds_for_endless_decay(name):
    schedule = build(type=name, min_lr=0.004, **read_by(name, step_size=2, patience=0))
    for _ in range(50):
        schedule.observe(1.0)
    assert schedule.lr(900) == 0.004


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_the_rate_never_rises_again(name):
    """A period of as many steps as there are epochs would swing up and down for the whole run."""
    ours = rates(build(total=1000, type=name), 2000)
    assert all(after <= before for before, after in pairwise(ours))
    swinging = by_torch(lambda o: scheduler.CosineAnnealingLR(o, T_max=10), 1000)
    assert any(after > before for before, after in pairwise(swinging))


def test_linear_falls():
    """LinearLR's defaults rise from a third to the whole within five steps and never fall."""
    assert rates(build(total=4, type="linear"), 5) == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.0])


def test_a_scale_from_outside_keeps_the_floor():
    schedule = build(type="constant", min_lr=0.03)
    schedule.scale = 0.5
    assert schedule.lr(5) == pytest.approx(0.05)
    schedule.scale = 0.1
    assert schedule.lr(5) == pytest.approx(0.03)


def test_contradictions_are_refused():
    with pytest.raises(InputError, match=r"scheduler\.min_lr"):
        build(type="cosine", min_lr=1.0)
    with pytest.raises(InputError, match="did you mean cosine"):
        build(type="cosin")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"type": "cosine", "num_cycles": 3}, r"scheduler\.num_cycles: .*decay_steps"),
        ({"type": "cosine", "gamma": 0.5}, r"scheduler\.gamma: cosine"),
        ({"type": "linear", "step_size": 7}, r"scheduler\.step_size: linear"),
        ({"type": "constant", "decay_steps": 7}, r"scheduler\.decay_steps: constant"),
        ({"type": "step", "patience": 7}, r"scheduler\.patience: step"),
        ({"type": "plateau", "cycle_steps": 7}, r"scheduler\.cycle_steps: plateau"),
    ],
)
def test_numbers_that_change_nothing_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        build(**options)


def test_every_number_is_read_by_some_schedule():
    read = {name for kind in TYPES for name in SCHEDULES.get(kind).reads or ()}
    assert read | {"type", "warmup_steps", "min_lr", "max_lr"} == set(SchedulerSettings.model_fields)


@pytest.mark.parametrize("name", TYPES)
def test_max_lr_is_the_peak_of_every_type(name):
    given, own = build(type=name, max_lr=0.5), build(type=name, peak=0.5)
    assert rates(given, 50) == pytest.approx(rates(own, 50))


def test_a_registered_schedule(monkeypatch):
    class Halving(Schedule):
        def curve(self, step: int) -> float:
            return self.peak / 2**step

    monkeypatch.setattr(SCHEDULES, "_registered", {})
    SCHEDULES.register("halving", Halving)
    assert rates(build(type="halving"), 3) == pytest.approx([0.1, 0.05, 0.025])


def test_schedules_and_callbacks_import_no_torch():
    code = (
        "import sys; from phonate.training.schedules import build_schedule; "
        "from phonate.training.settings import SchedulerSettings as S, TrainingSettings, CallbackSettings as C; "
        "from phonate.training.callbacks import CALLBACKS, build_callbacks; "
        "[build_schedule(S(type=t), 1.0, 10, 1) for t in ('cosine', 'plateau')]; "
        "[CALLBACKS.get(name) for name in CALLBACKS.names()]; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
