from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

import phonate
from phonate.cli import main
from phonate.compute import device as devices
from phonate.compute import resources
from phonate.compute.resources import GIB, Gpu, NoDeviceError, ResourceDetector, forget_fallbacks, nvidia
from phonate.config.errors import InputError, PhonateError

BLOCK = """
================================================================================
Available Compute Resources
================================================================================

GPU 0: NVIDIA GeForce GTX 1660 SUPER
  Memory: 5.55 GB free / 5.62 GB total
  Compute: 7.5

GPU 1: Quadro P1000
  Memory: 3.89 GB free / 3.94 GB total
  Compute: 6.1

CPU: 12 cores
  RAM: 125.71 GB
"""


@dataclass
class Table:
    """A table of devices in the place of a machine."""

    listed: list[Gpu] = field(default_factory=list)
    asked: int = 0

    def gpus(self) -> list[Gpu]:
        self.asked += 1
        return self.listed

    def cores(self) -> int:
        return 12

    def memory_gb(self) -> float:
        return 125.71


def two() -> Table:
    return Table(
        [Gpu(0, "NVIDIA GeForce GTX 1660 SUPER", 5.55, 5.62, "7.5"), Gpu(1, "Quadro P1000", 3.89, 3.94, "6.1")]
    )


def test_the_devices_are_a_block_of_text():
    assert ResourceDetector(two()).text() + "\n" == BLOCK


def test_the_devices_are_a_table(monkeypatch, capsys):
    monkeypatch.setattr("phonate.compute.resources.SystemProbe", two)
    assert main(["resources"]) == 0
    lines = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [
        ["device", "memory", "computes with", "name"],
        ["GPU 0", "5.55 of 5.62 GiB free", "CUDA, capability 7.5", "NVIDIA GeForce GTX 1660 SUPER"],
        ["GPU 1", "3.89 of 3.94 GiB free", "CUDA, capability 6.1", "Quadro P1000"],
    ]
    bf16 = {True: "yes", False: "no", None: "not known"}[resources.multiplies_in_bf16()]
    assert lines[3][:3] == ["CPU", "125.71 GiB", f"12 cores; bf16 instructions: {bf16}"]


def test_the_devices_as_json(monkeypatch, capsys):
    monkeypatch.setattr("phonate.compute.resources.SystemProbe", two)
    assert main(["resources", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["devices"]
    assert [(device["type"], device["id"]) for device in found] == [("cuda", 0), ("cuda", 1), ("cpu", 0)]
    assert found[1]["name"] == "Quadro P1000"
    assert found[1]["memory_gb"] == 3.94
    assert found[1]["compute_capability"] == "6.1"
    assert found[2]["cores"] == 12
    assert found[2]["memory_gb"] == 125.71
    assert found[2]["bf16"] is resources.multiplies_in_bf16()


@pytest.mark.parametrize(
    ("told", "has"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 avx2\n", True),
        ("processor\t: 0\nflags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx512f avx2\nbugs\t\t: bf16\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd svebf16 i8mm bf16\nCPU part\t: 0xd40\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd\n", False),
    ],
)
def test_linux_says_whether_a_processor_multiplies_in_bf16(tmp_path, told, has):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(told)
    assert resources.multiplies_in_bf16(tmp_path) is has


@pytest.mark.parametrize(
    ("told", "has"),
    [
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": True}, True),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "arm64", "bf16": True}, True),
        ({"architecture": "ppc64le"}, None),
    ],
)
def test_elsewhere_torch_says_it(tmp_path, monkeypatch, told, has):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told)
    assert resources.multiplies_in_bf16(tmp_path) is has


def test_this_machine_is_looked_at_without_torch():
    code = (
        "import sys; from phonate.cli import main; code = main(['resources'])\n"
        "assert not {'torch', 'numpy'} & set(sys.modules); sys.exit(code)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert f"{resources.memory_bytes() / GIB:.2f} GiB" in ran.stdout
    assert f"{resources.cores()} cores" in ran.stdout


def test_the_name_is_public():
    assert phonate.ResourceDetector is ResourceDetector


def test_memory_of_a_device():
    detector = ResourceDetector(two())
    assert detector.get_device_memory(1) == (3.89, 3.94)
    with pytest.raises(InputError, match="GPU 2: 2 "):
        detector.get_device_memory(2)


def test_the_gpu_with_most_free_memory_on_request():
    detector = ResourceDetector(Table([Gpu(0, "a", 6.0, 8.0, "7.5"), Gpu(1, "b", 70.0, 80.0, "9.0")]))
    assert detector.select_best_device(min_memory_gb=5.0, prefer="most_free") == "cuda:1"
    assert detector.select_best_device(min_memory_gb=5.0, prefer="first") == "cuda:0"
    with pytest.raises(InputError, match="first or most_free"):
        detector.select_best_device(prefer="best")


def test_the_reason_for_the_cpu_is_logged_once(caplog):
    forget_fallbacks()
    caplog.set_level(logging.INFO, logger="phonate")
    for _ in range(3):
        assert ResourceDetector(two()).select_best_device(min_memory_gb=20.0) == "cpu"
    assert caplog.text.count("Falling back to CPU") == 1
    forget_fallbacks()
    assert ResourceDetector(two()).select_best_device(min_memory_gb=20.0) == "cpu"
    assert caplog.text.count("Falling back to CPU") == 2


@pytest.mark.parametrize(
    ("free", "wanted", "chosen"),
    [
        ([5.55, 3.89], 5.0, "cuda:0"),
        ([3.89, 5.55], 5.0, "cuda:1"),
        ([6.0, 80.0], 5.0, "cuda:0"),  # the first that will do, not the largest
        ([5.0], 5.0, "cuda:0"),
        ([4.99], 5.0, "cpu"),
        ([0.1], 0.0, "cuda:0"),
        ([], 0.0, "cpu"),
    ],
)
def test_the_first_with_enough_free_memory_is_taken(free, wanted, chosen):
    table = Table([Gpu(i, f"G{i}", value, 80.0, "9.0") for i, value in enumerate(free)])
    assert ResourceDetector(table).select_best_device("mixed", wanted) == chosen


def test_five_gb_are_wanted_unless_told_otherwise():
    assert ResourceDetector(Table([Gpu(0, "G", 4.9, 80.0, "9.0")])).select_best_device() == "cpu"


def test_gpu_mode_without_one():
    with pytest.raises(RuntimeError, match=r"GPU mode .*no CUDA devices") as caught:
        ResourceDetector(Table()).select_best_device("gpu")
    assert isinstance(caught.value, PhonateError)
    with pytest.raises(RuntimeError, match=r"6\.5 GB .*5\.55 of 5\.62.*3\.89"):
        ResourceDetector(two()).select_best_device("gpu", 6.5)


def test_mixed_mode_says_why_it_falls_back(caplog):
    forget_fallbacks()
    with caplog.at_level(logging.INFO, "phonate"):
        assert ResourceDetector(two()).select_best_device("mixed", 20) == "cpu"
    assert "Falling back to CPU: no device has 20.0 GB free" in caplog.text


def test_a_machine_without_a_gpu_needs_no_word_about_it(caplog, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    forget_fallbacks()
    with caplog.at_level(logging.INFO, "phonate"):
        assert ResourceDetector(Table()).select_best_device("mixed") == "cpu"
        assert str(devices.choose("mixed", probe=Table())) == "cpu"
    assert not caplog.text


def test_cpu_mode_never_looks_at_gpus():
    table = two()
    assert ResourceDetector(table).select_best_device("cpu") == "cpu"
    assert devices.choose("cpu", probe=table) == torch.device("cpu")
    assert table.asked == 0


@pytest.mark.parametrize(("mode", "memory"), [("fast", 5.0), ("mixed", -1.0), ("mixed", float("nan"))])
def test_what_can_not_be_asked_for(mode, memory):
    with pytest.raises(InputError, match=f"'{mode}'|{memory} GB"):
        ResourceDetector(two()).select_best_device(mode, memory)


def test_apple_gpus_are_called_mps():
    table = Table([Gpu(0, "Apple GPU", 9.0, 16.0, "Metal", "mps")])
    assert ResourceDetector(table).select_best_device("gpu") == "mps"
    assert (
        "GPU 0: Apple GPU\n  Memory: 9.00 GB free / 16.00 GB total\n  Compute: Metal" in ResourceDetector(table).text()
    )


# --- what training takes


def test_training_takes_what_was_selected(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert devices.choose("gpu", min_memory_gb=2.0, probe=two()) == torch.device("cuda", 0)
    assert devices.choose("mixed", min_memory_gb=9.0, probe=two()) == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert devices.choose("mixed", probe=two()) == torch.device("cuda", 1)


def test_a_gpu_that_is_named_is_the_one_that_is_listed(monkeypatch):
    """NVML is asked first: it settles CUDA's order, for which it is too late once CUDA was started."""
    table = two()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2 if table.asked else 0)
    assert devices.choose(device="cuda:1", probe=table) == torch.device("cuda", 1)
    assert devices.choose(device="cpu", probe=table) == torch.device("cpu")
    assert table.asked == 1


def test_gpus_that_torch_has_and_nvml_has_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: ((1 + 7 * number) * GIB, 8 * GIB))
    about = SimpleNamespace(name="AMD", major=9, minor=4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: about)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert devices.choose("gpu", min_memory_gb=5.0, probe=Table()) == torch.device("cuda", 1)


def test_a_gpu_that_torch_can_not_use(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(NoDeviceError, match=r"no CUDA devices .*GeForce GTX 1660"):
        devices.choose("gpu", probe=two())
    assert devices.choose("mixed", probe=two()) == torch.device("cpu")
    assert "can't use NVIDIA GeForce" in caplog.text


# --- NVML and the variables of CUDA


@dataclass
class Card:
    uuid: str
    name: str = "NVIDIA A100"
    free: float = 30.0
    instances: list[Card | None] | None = None  # of MIG; None for a gap
    is_instance: bool = False
    parent: Card | None = None


class Nvml:
    """What this project asks of the module pynvml, with cards of our own. Errors are the module's."""

    nvmlMemory_v2 = pynvml.nvmlMemory_v2
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, cards: list[Card], old: bool = False, fails: Exception | None = None) -> None:
        self.cards, self.old, self.fails, self.running = cards, old, fails, 0
        for card in cards:
            for instance in card.instances or []:
                if instance is not None:
                    instance.is_instance, instance.parent = True, card

    def __getattr__(self, name: str):
        assert name.startswith("NVMLError"), f"{name} is not there"
        return getattr(pynvml, name)

    def nvmlInit(self):
        if self.fails:
            raise self.fails
        self.running += 1

    def nvmlShutdown(self):
        self.running -= 1

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for card in self.cards:
            for one in [card, *(card.instances or [])]:
                if one is not None and one.uuid == uuid:
                    return one
        raise pynvml.NVMLError_NotFound()

    def nvmlDeviceGetName(self, card):
        return card.name.encode() if self.old else card.name

    def nvmlDeviceGetUUID(self, card):
        return card.uuid.encode() if self.old else card.uuid

    def nvmlDeviceGetMemoryInfo(self, card, version=None):
        if version is not None and self.old:
            raise pynvml.NVMLError_FunctionNotFound()
        total, reserved = 40 * GIB, GIB
        return SimpleNamespace(free=int(card.free * GIB), total=total, reserved=reserved)

    def nvmlDeviceIsMigDeviceHandle(self, card):
        if self.old:
            raise pynvml.NVMLError_FunctionNotFound()
        return card.is_instance

    def nvmlDeviceGetMigMode(self, card):
        if card.instances is None:
            raise pynvml.NVMLError_NotSupported()
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card):
        return len(card.instances)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, index):
        if card.instances[index] is None:
            raise pynvml.NVMLError_NotFound()
        return card.instances[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, card):
        return card.parent

    def nvmlDeviceGetCudaComputeCapability(self, card):
        assert not card.is_instance, "an instance has none of its own"
        return (8, 0)


def three() -> list[Card]:
    return [Card("GPU-aa11", free=1.0), Card("GPU-bb22", free=2.0), Card("GPU-bb33", free=3.0)]


@pytest.mark.parametrize(
    ("listed", "free"),
    [
        (None, [1.0, 2.0, 3.0]),
        ("", []),
        ("-1", []),
        ("2", [3.0]),
        ("2,0", [3.0, 1.0]),
        (" 1 , 0 ", [2.0, 1.0]),
        ("0,7,1", [1.0]),  # the list ends at the first that is not there
        ("0,-1,1", [1.0]),
        ("1,1", []),
        ("0,GPU-aa11", []),  # the same device twice
        ("GPU-bb33,GPU-aa", [3.0, 1.0]),
        ("GPU-bb", []),  # of two GPUs
        ("GPU-zz", []),
        ("1gpu", [2.0]),
        ("none", []),
    ],
)
def test_only_visible_gpus_are_listed(listed, free):
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    found = nvidia(Nvml(three()), environ)
    assert [gpu.free_gb for gpu in found] == free
    assert [gpu.id for gpu in found] == list(range(len(free)))
    assert {gpu.capability for gpu in found} <= {"8.0"}


def test_the_drivers_own_memory_is_no_programs():
    assert nvidia(Nvml(three()), {})[0].total_gb == 39.0
    assert nvidia(Nvml(three(), old=True), {})[0].total_gb == 40.0  # an old driver does not tell


def divided() -> list[Card]:
    instances = [None, Card("MIG-1", "A100 MIG 1g.5gb", 4.5), Card("MIG-2", "A100 MIG 2g.10gb", 9.5)]
    return [Card("GPU-aa11"), Card("GPU-bb22", instances=instances)]


@pytest.mark.parametrize(
    ("listed", "free"),
    [(None, [4.5]), ("MIG-2", [9.5]), ("MIG-2,MIG-1", [9.5]), ("0", [30.0]), ("1", [4.5]), ("MIG-7", [])],
)
def test_an_instance_of_a_divided_gpu(listed, free):
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    found = nvidia(Nvml(divided()), environ)
    assert [gpu.free_gb for gpu in found] == free
    assert [gpu.capability for gpu in found] == ["8.0"] * len(free)


def test_a_divided_gpu_without_instances_computes_nothing():
    assert nvidia(Nvml([Card("GPU-a", instances=[None])]), {}) == []


def test_gpus_of_different_kinds_keep_their_numbers(caplog):
    cards = [Card("GPU-a", "Quadro P1000"), Card("GPU-b", "NVIDIA H200")]
    environ: dict[str, str] = {}
    nvidia(Nvml(cards), environ)
    assert environ == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    nvidia(Nvml(cards), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert "set it to PCI_BUS_ID" in caplog.text
    same: dict[str, str] = {}
    nvidia(Nvml(three()), same)
    assert same == {}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pynvml.NVMLError_LibraryNotFound(), ""),
        (pynvml.NVMLError_DriverNotLoaded(), ""),
        (pynvml.NVMLError_LibRmVersionMismatch(), "NVML can't list the GPUs"),
    ],
)
def test_machines_without_a_working_driver_have_no_gpus(error, said, caplog):
    assert nvidia(Nvml([], fails=error), {}) == []
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


def test_nvml_is_let_go():
    library = Nvml(three())
    nvidia(library, {})
    assert library.running == 0


@pytest.mark.gpu
def test_finding_gpus_starts_no_cuda():
    """The memory that this process holds on the GPU stays nothing, and the numbers are those of CUDA."""
    code = (
        "import os, pynvml, sys; from phonate import ResourceDetector\n"
        "d = ResourceDetector(); before = d.get_device_memory(0); d.get_available_devices(); d.select_best_device()\n"
        "assert 'torch' not in sys.modules\n"
        "pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "pids = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h)]; assert os.getpid() not in pids, pids\n"
        "import torch; free, total = torch.cuda.mem_get_info(0)\n"
        "assert abs(total / 2**30 - before[1]) < 0.05 * before[1], (total / 2**30, before)\n"
        "assert abs(free / 2**30 - before[0]) < 2, (free / 2**30, before)\n"
        "assert d.get_available_devices()[0]['name'] == torch.cuda.get_device_name(0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


# --- containers


def group(root: Path, membership: str, files: dict[str, str]) -> Path:
    """A file system with the files of control groups."""
    for name, text in {"proc/self/cgroup": membership, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MIB = 1024**2


@pytest.mark.parametrize(
    ("membership", "files", "cores", "memory"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 100000\n", "sys/fs/cgroup/memory.max": f"{64 * MIB}\n"}, 1, 64),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "100000 100000", "sys/fs/cgroup/a/b/memory.max": "max"}, 1, None),
        (  # that of a group above counts too
            "0::/a/b\n",
            {"sys/fs/cgroup/a/memory.max": f"{32 * MIB}", "sys/fs/cgroup/a/b/memory.max": f"{64 * MIB}"},
            None,
            32,
        ),
        (
            "3:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n",
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "90000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{16 * MIB}",
            },
            1,
            16,
        ),
        (
            "3:cpu:/\n2:memory:/\n",
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            None,
            None,
        ),
        ("", {}, None, None),
    ],
)
def test_limits_of_a_container(tmp_path, membership, files, cores, memory):
    import psutil

    root = group(tmp_path, membership, files)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert resources.cores(root) == (cores or allowed)
    assert resources.memory_bytes(root) == (memory * MIB if memory else psutil.virtual_memory().total)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_process_bound_to_one_core_has_one():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from phonate.compute.resources import cores; assert cores() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_work_of_a_worker_is_this_process_s_own() -> None:
    """While the worker is there, and where the system still counts it, after it has ended."""
    before = resources._processor_seconds()
    works = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", works], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        assert resources._processor_seconds() - before > 0.4
        worker.communicate(b"\n")
    if sys.platform == "linux":
        assert resources._processor_seconds() - before > 0.4


def test_ranks_of_one_launcher_are_no_other_programs() -> None:
    """This process is the launcher of another, which counts what both took of the cores."""
    code = (
        "import os\nfrom phonate.compute.resources import _processor_seconds\nprint(_processor_seconds())\n"
        "os.environ['LOCAL_RANK'] = '0'\nprint(_processor_seconds())"
    )
    before = time.process_time()
    alone, together = map(float, subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert together >= alone + before - 0.1  # the system counts in hundredths
