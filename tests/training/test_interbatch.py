"""Where time goes: on a clock of the test's own, on events of the test's own, and in a real run."""

from __future__ import annotations

import json
import logging
import time

import pytest
import torch
from small_tasks import RegressionTask
from test_trainer import same, train, weights

from phonate.training.profiling import STAGES, EventTimeline, HostTimeline, InterbatchProfiler, Profile

CPU = torch.device("cpu")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


COSTS = {"data": 0.003, "forward": 0.004, "backward": 0.008, "step": 0.002, "gap": 0.001}


def profiled(clock, profiler, steps, micro_batches=1, pause=0.0):
    for _ in range(steps):
        clock.now += COSTS["data"]
        profiler.mark("data")
        for _ in range(micro_batches):
            for stage in ("forward", "backward"):
                clock.now += COSTS[stage]
                profiler.mark(stage)
        clock.now += COSTS["step"]
        profiler.mark("step")
        if pause:
            profiler.mark("gap")
            clock.now += pause
            profiler.mark("pause")
        clock.now += COSTS["gap"]
        if profiler.end_step(items=4):
            return True
    return False


def test_each_stage_has_its_own_time_and_all_add_up_to_the_wall():
    clock = Clock()
    profiler = InterbatchProfiler(10, CPU, warm_up=2, clock=clock)
    assert profiled(clock, profiler, 20, micro_batches=3, pause=0.5)
    found = profiler.profile
    expected = {**{k: 10 * v for k, v in COSTS.items()}, "forward": 0.12, "backward": 0.24, "pause": 5.0}
    assert found.seconds == pytest.approx(expected)
    assert sum(found.seconds.values()) == pytest.approx(found.wall_seconds)
    assert (found.steps, found.items) == (10, 40)


def test_the_first_steps_do_not_count_and_later_ones_cost_nothing():
    clock = Clock()
    profiler = InterbatchProfiler(3, CPU, warm_up=2, clock=clock)
    clock.now += 60.0  # compiling
    assert profiled(clock, profiler, 10)
    before = profiler.profile
    profiled(clock, profiler, 10)
    assert profiler.profile == before
    assert before.wall_seconds == pytest.approx(3 * sum(COSTS.values()))


class Gpu:
    """A stream that does what it was given one after the other, behind the host."""

    def __init__(self, clock) -> None:
        self.clock, self.free_at, self.waits = clock, clock.now, 0

    def work(self, seconds):
        self.free_at = max(self.free_at, self.clock.now) + seconds

    def wait(self):
        self.waits += 1
        self.clock.now = max(self.clock.now, self.free_at)

    def event(self):
        return GpuEvent(self)


class GpuEvent:
    def __init__(self, gpu) -> None:
        self.gpu = gpu

    def record(self):
        self.gpu.work(0.0)
        self.at = self.gpu.free_at

    def query(self):
        return self.gpu.clock.now >= self.at

    def elapsed_time(self, later):
        return 1000 * (later.at - self.at)


@pytest.mark.parametrize("data", [0.001, 0.050])
def test_on_a_gpu_the_times_are_the_gpus_and_no_step_waits(data):
    """The host runs ahead: launching takes it 1 ms where the GPU computes for 20. Data that are loaded meanwhile
    cost nothing; data that are not are what the GPU waits for."""
    clock = Clock()
    gpu = Gpu(clock)
    profiler = InterbatchProfiler(
        50, torch.device("cuda"), warm_up=1, timeline=EventTimeline(gpu.event, gpu.wait), clock=clock
    )
    for _ in range(51):
        clock.now += data
        profiler.mark("data")
        for stage, seconds in (("forward", 0.006), ("backward", 0.012), ("step", 0.002)):
            clock.now += 0.0003
            gpu.work(seconds)
            profiler.mark(stage)
        profiler.end_step(items=8)
    found = profiler.profile
    assert gpu.waits == 2  # where the profile begins and where it ends
    assert sum(found.seconds.values()) == pytest.approx(found.wall_seconds, rel=0.02)
    assert found.seconds["forward"] == pytest.approx(50 * 0.006, rel=0.06)  # a launch that it waited for, at most
    assert found.seconds["backward"] == pytest.approx(50 * 0.012, rel=0.06)
    assert (found.share("data") > 0.2) == (data > 0.02)


def test_the_hosts_clock_would_have_missed_it():
    """The usual fault: host times of asynchronous calls call everything data."""
    clock = Clock()
    gpu, timeline = Gpu(clock), HostTimeline(clock)
    timeline.begin()
    for _ in range(50):
        clock.now += 0.001
        timeline.mark("data")
        gpu.work(0.020)
        clock.now += 0.0003
        timeline.mark("forward")
    assert timeline.seconds["data"] > timeline.seconds["forward"]


def advice(**shares):
    seconds = {**dict.fromkeys(STAGES, 0.0), "forward": 1.0, "backward": 1.2, **shares}
    return " ".join(Profile(10, 10, sum(seconds.values()), seconds).advice())


@pytest.mark.parametrize(
    ("stage", "enough", "too_much", "remedy"),
    [
        ("data", 0.5, 0.6, "training.performance.num_workers to 2 to 4"),
        ("gap", 0.2, 0.3, "training.logging.interval"),
        ("backward", 1.5, 1.51, "gradient checkpointing"),
        ("pause", 0.5, 0.9, "training.validation.interval"),
    ],
)
def test_advice_names_the_remedy_past_its_limit(stage, enough, too_much, remedy):
    assert remedy not in advice(**{stage: enough})
    assert remedy in advice(**{stage: too_much})


def test_advice_on_a_gpu():
    even = Profile(1, 1, 2.2, {**dict.fromkeys(STAGES, 0.0), "forward": 1.0, "backward": 1.2})
    assert "no bottleneck found" in even.advice("bf16", "cuda", 0.9)[0]
    told = " ".join(even.advice("fp32", "cuda", 0.2))
    assert "training.mixed_precision: auto" in told
    assert "training.batch_size" in told


class Slow(RegressionTask):
    def loss(self, model, batch, phase):
        time.sleep(0.02)
        return super().loss(model, batch, phase)


def test_a_run_reports_where_its_time_went(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    train(tmp_path / "run", Slow(), max_steps=12, performance={"profile_batches": 8})
    found = json.loads((tmp_path / "run/profile/interbatch-rank0.json").read_text())
    assert (found["steps"], found["items"]) == (8, 32)
    assert sum(found["seconds"].values()) == pytest.approx(found["wall_seconds"], rel=0.02)
    # a sleep of 20 ms in each of the eight forward passes, and none in validations, which are pauses
    assert found["seconds"]["forward"] >= 8 * 0.02
    assert found["seconds"]["pause"] >= 4 * 0.02
    assert all(found["seconds"][stage] > 0 for stage in STAGES)
    assert "profile of 8 steps" in caplog.text
    assert found["advice"]
    assert found["advice"][0] in caplog.text


def test_a_run_that_ends_before_reports_what_there_was(tmp_path):
    train(tmp_path / "run", max_steps=6, performance={"profile_batches": 100})
    assert json.loads((tmp_path / "run/profile/interbatch-rank0.json").read_text())["steps"] == 3


def test_profiling_changes_nothing_that_is_learnt(tmp_path):
    plain = train(tmp_path / "a", performance={"memory_management": False})
    watched = train(tmp_path / "b", performance={"profile_batches": 4})
    assert same(weights(plain), weights(watched))


@pytest.mark.gpu
def test_on_a_real_gpu_stages_add_up_to_the_wall():
    device = torch.device("cuda")
    matrix = torch.randn(2048, 2048, device=device)
    profiler = InterbatchProfiler(50, device)
    for _ in range(60):
        time.sleep(0.001)
        profiler.mark("data")
        for stage in ("forward", "backward", "step"):
            for _ in range(10):
                matrix @ matrix
            profiler.mark(stage)
        if profiler.end_step(items=1):
            break
    found = profiler.profile
    assert found.steps == 50
    assert sum(found.seconds.values()) == pytest.approx(found.wall_seconds, rel=0.02)
