"""Looking after memory: on a memory and a clock of the test's own, on this machine, and in a real run."""

from __future__ import annotations

import logging

import pytest
import torch
from test_trainer import lines, train

from phonate.compute.device import Usage, host_usage, out_of_memory, usage_of
from phonate.compute.resources import DeviceType
from phonate.training.memory import AdaptiveMemoryManager, Pressure

CUDA = torch.device("cuda")


class World:
    """A memory of 100 bytes and a clock. A look takes 0.1 ms, a clean-up 50 ms."""

    def __init__(self, used=10.0, freed=0.0) -> None:
        self.used, self.freed, self.now = used, freed, 0.0
        self.cleaned: list[bool] = []

    def probe(self):
        self.now += 1e-4
        return Usage(self.used, 100.0)

    def clean(self, thorough):
        self.now += 0.05
        self.cleaned.append(thorough)
        self.used -= self.freed

    def manager(self, device=CUDA, **options):
        return AdaptiveMemoryManager(device, probe=self.probe, clean=self.clean, clock=lambda: self.now, **options)


@pytest.mark.parametrize(
    ("device", "share", "pressure"),
    [
        ("cuda", 0.599, 0), ("cuda", 0.60, 1), ("cuda", 0.749, 1), ("cuda", 0.75, 2), ("cuda", 0.85, 2),
        ("cuda", 0.851, 3), ("mps", 0.64, 0), ("mps", 0.7, 1), ("mps", 0.9, 2), ("mps", 0.91, 3),
        ("cpu", 0.69, 0), ("cpu", 0.75, 1), ("cpu", 0.85, 2), ("cpu", 0.95, 3),
    ],
)  # fmt: skip
def test_pressure_has_the_thresholds_of_the_device(device, share, pressure):
    world = World(used=100 * share)
    manager = world.manager(torch.device(device))
    assert manager.check() == pressure
    assert manager.metrics()["memory/pressure"] == pressure


@pytest.mark.parametrize(("used", "cleaned"), [(10, []), (59, []), (70, []), (80, [False]), (90, [True])])
def test_only_high_and_critical_pressure_is_cleaned_up(used, cleaned):
    world = World(used=used)
    world.manager().check()
    assert world.cleaned == cleaned


def test_the_pressure_after_a_clean_up_is_what_is_left():
    world = World(used=80, freed=50)
    manager = world.manager()
    assert manager.check() is Pressure.LOW
    assert manager.metrics()["memory/cleanup_count"] == 1


def test_every_batch_is_counted_and_memory_is_looked_at_by_the_clock():
    world = World()
    manager = world.manager()
    for _ in range(10_000):  # 16 ms each: 160 s
        world.now += 0.016
        manager.check()
    assert manager.checks == 10_000
    assert 150 <= manager.looks <= 162
    assert manager.overhead_percent < 0.1


@pytest.mark.parametrize("look", [1e-4, 0.05])
def test_full_memory_is_watched_more_closely_and_still_under_one_percent(look):
    """However dear a look or a clean-up is, and although no clean-up helps."""
    world = World(used=95)

    def probe():
        world.now += look
        return Usage(world.used, 100.0)

    manager = AdaptiveMemoryManager(CUDA, probe=probe, clean=world.clean, clock=lambda: world.now)
    for _ in range(100_000):
        world.now += 0.016
        manager.check()
    assert manager.looks > (4000 if look < 1e-3 else 50)
    assert manager.overhead_percent < 1.0
    assert 3 <= manager.cleanup_count < 20  # ever more seldom, for they give nothing back
    assert manager.metrics()["memory/cleanup_overhead_percent"] == pytest.approx(manager.overhead_percent)


def test_clean_ups_that_help_are_repeated():
    world = World(used=80, freed=30)
    manager = world.manager()
    for _ in range(50_000):  # 800 s
        world.now += 0.016
        world.used = min(world.used + 0.05, 80)
        manager.check()
    assert manager.cleanup_count > 30
    assert manager.overhead_percent < 1.0


def test_a_rise_to_critical_pressure_is_cleaned_up_at_once_and_thoroughly():
    """Although clean-ups at high pressure gave nothing back and are minutes apart by now."""
    world = World(used=80)
    manager = world.manager()
    for _ in range(25_000):  # 400 s
        world.now += 0.016
        manager.check()
    assert set(world.cleaned) == {False}
    world.used, rose = 95, world.now
    while True not in world.cleaned:
        world.now += 0.016
        manager.check()
    assert world.now - rose < 1.0
    thorough = world.cleaned.count(True)
    for _ in range(1900):  # 30 s: the back-off begins anew, too
        world.now += 0.016
        manager.check()
    assert world.cleaned.count(True) > thorough


def test_memory_that_rises_and_falls_all_the_time_costs_under_one_percent():
    world = World()
    manager = world.manager()
    for batch in range(50_000):
        world.now += 0.016
        world.used = 95 if batch % 64 < 32 else 10
        manager.check()
    assert manager.cleanup_count > 10
    assert manager.overhead_percent < 1.0


@pytest.mark.parametrize("cost", [0.02, 0.5])
def test_a_cpu_gets_freed_pages_back_at_low_pressure_for_under_one_percent(cost):
    world = World()
    returned: list[float] = []

    def give_back():
        world.now += cost
        returned.append(world.now)

    manager = world.manager(torch.device("cpu"), return_pages=give_back)
    for _ in range(50_000):
        world.now += 0.016
        manager.check()
    assert manager.cleanup_count == 0
    assert len(returned) > 5
    assert manager.overhead_percent < 1.0


def test_a_gpu_has_no_pages_to_return():
    world = World()
    manager = world.manager()
    for _ in range(50_000):
        world.now += 0.016
        manager.check()
    assert manager.overhead_percent < 0.2  # the looks alone


def test_critical_pressure_is_said_once_with_what_to_change(caplog):
    world = World(used=95)
    manager = world.manager()
    for _ in range(1000):
        world.now += 1.0
        manager.check()
    (record,) = caplog.records
    for remedy in ("training.batch_size", "model.checkpoint_segments", "training.mixed_precision"):
        assert remedy in record.getMessage()


def test_an_emergency_is_cleaned_up_at_once_and_counted():
    world = World(used=80)
    manager = world.manager()
    manager.check()
    manager.emergency()
    assert world.cleaned == [False, True]
    assert manager.cleanup_count == 2


def test_pressure_on_cuda_comes_from_what_the_device_has_free(monkeypatch):
    """Not from torch's own tensors: here they hold 1 % and other processes 79 %."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20, 100))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: 1)
    assert AdaptiveMemoryManager(CUDA, clean=lambda thorough: None).check() is Pressure.HIGH


def test_pressure_on_mps_is_measured_by_what_metal_recommends(monkeypatch):
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 70)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 100)
    assert usage_of(torch.device("mps"))() == Usage(70.0, 100.0)


def group_v2(folder, limit, current, idle):
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {idle}\nactive_file 5\n")


def test_the_control_groups_limit_counts(tmp_path):
    machine = host_usage(tmp_path)
    assert 1e8 < machine.used < machine.total
    group_v2(tmp_path, 1000, 950, 50)
    assert host_usage(tmp_path) == Usage(900.0, 1000.0)  # files in its cache are as good as free
    group_v2(tmp_path, "max", 950, 50)
    assert host_usage(tmp_path).total == machine.total


def test_the_limit_of_a_control_group_of_version_1_counts(tmp_path):
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("980\n")
    (folder / "memory.stat").write_text("cache 3\ntotal_inactive_file 10\n")
    assert host_usage(tmp_path) == Usage(970.0, 1000.0)


def test_the_machines_memory_beside_a_gpus(caplog):
    full = World(used=99)
    gpu = World(used=1)
    manager = gpu.manager(host=full.manager(torch.device("cpu")))
    manager.check()
    assert "of cpu are in use" in caplog.text


def test_a_run_reports_its_memory_and_can_do_without(tmp_path):
    train(tmp_path / "a", logging={"system": True})
    for row in lines(tmp_path / "a", "train"):
        assert row["memory/pressure"] in {0, 1, 2, 3}
        assert row["memory/cleanup_count"] >= 0
        assert row["memory/cleanup_overhead_percent"] < 50
    train(tmp_path / "b", logging={"system": True}, performance={"memory_management": False})
    assert "memory/pressure" not in lines(tmp_path / "b", "train")[0]


def test_every_batch_is_checked(tmp_path):
    trainer = train(tmp_path / "run", max_steps=6, gradient_accumulation_steps=2)
    assert trainer.memory.checks == 12


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_says_that_memory_ran_out(error, said):
    assert out_of_memory(error) == said


def test_device_types():
    assert [kind.value for kind in DeviceType] == ["cuda", "mps", "cpu"]
    assert DeviceType.of(torch.device("cuda", 1)) is DeviceType.CUDA
    assert DeviceType.of("mps:0") is DeviceType.MPS
    with pytest.raises(ValueError, match="xpu"):
        DeviceType.of("xpu")


def test_cleaning_up_a_cpu_gives_memory_back(caplog):
    caplog.set_level(logging.WARNING)
    manager = AdaptiveMemoryManager(torch.device("cpu"), thresholds=(0.0, 0.0, 0.0))
    assert manager.check() is Pressure.CRITICAL
    assert manager.cleanup_count == 1


@pytest.mark.gpu
def test_on_a_real_gpu_the_cache_goes_back_to_the_device():
    device = torch.device("cuda", 0)
    block = torch.empty(2**30, dtype=torch.uint8, device=device)
    del block
    held = usage_of(device)().used
    manager = AdaptiveMemoryManager(device, thresholds=(0.0, 0.0, 1.0))
    manager.check()
    assert held - manager.usage.used >= 2**30
