from __future__ import annotations

import dataclasses
import gc
import inspect
import os
import subprocess
import sys
import weakref
from importlib import metadata

import pytest

from phonate.compute import importing
from phonate.compute.importing import aside, faster_import, lasting

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="libraries are bound otherwise there")


def _fail() -> None:
    with faster_import():
        assert inspect.getmodule(sys._getframe()) is sys.modules[__name__]
        assert inspect.getmodule(inspect.getmodule) is sys.modules["phonate.compute.importing"]
        assert sys.getdlopenflags() != _FLAGS
        first, second = _point(), _point()
        assert first is not second
        assert first.__init__.__code__ is second.__init__.__code__
        assert (repr(first(1)), second(2).x) == ("_point.<locals>.Point(x=1)", 2)
        raise ImportError("no torch here")


def _point() -> type:
    @dataclasses.dataclass
    class Point:
        x: int

    return Point


_FLAGS, _LOOK_UP = sys.getdlopenflags(), inspect.getmodule


def test_what_changes_while_torch_is_imported_is_put_back() -> None:
    finders = [*sys.meta_path]
    with pytest.raises(ImportError):
        _fail()
    assert (sys.getdlopenflags(), inspect.getmodule, sys.meta_path) == (_FLAGS, _LOOK_UP, finders)
    assert _point().__init__.__code__ is not _point().__init__.__code__


def test_what_imports_make_is_not_looked_through_for_garbage() -> None:
    with lasting():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()


RARE = """
import sys
from phonate.compute.importing import faster_import

with faster_import():
    import torch

assert not {"torch.distributions.kl", "torch.export.dynamic_shapes", "torch.masked._ops"} & sys.modules.keys()
torch.manual_seed(0)
first = torch.randn(3)
torch.manual_seed(0)
assert torch.equal(torch.distributions.Normal(0.0, 1.0).sample((3,)), first)
assert torch.export.export(torch.nn.ReLU(), (first,)).module()(first).min() == 0
from torch.masked import masked_tensor
assert masked_tensor(first, first > 0).sum() > 0
assert torch.nn.quantized.Quantize(0.5, 0, torch.qint8)(first).dtype is torch.qint8
"""


def test_what_a_training_does_not_use_is_there_when_it_is_asked_for() -> None:
    subprocess.run([sys.executable, "-c", RARE], check=True, timeout=120)


DEFERRED = """
import sys
from phonate.compute.importing import faster_import

with faster_import():
    import torch

assert "torch._refs" not in sys.modules
drawn = torch.rand(2, generator=torch.Generator().manual_seed(1))
assert "torch._refs" not in sys.modules
{first}
torch.manual_seed(1)
assert torch.equal(torch.rand(2), drawn)
assert torch.equal(torch.rand(2, generator=torch.Generator().manual_seed(1)), drawn)
shape = torch.nn.Conv1d(3, 4, 3, device="meta")(torch.empty(2, 3, 9, device="meta")).shape
assert shape == (2, 4, 7)
assert "torch._refs" in sys.modules
"""


TOGETHER = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from phonate.compute.importing import faster_import

with faster_import():
    import torch

together = Barrier(3)

def shape(_):
    together.wait()
    return torch.nn.Conv1d(3, 4, 3, device="meta")(torch.empty(2, 3, 9, device="meta")).shape

with ThreadPoolExecutor(3) as threads:
    assert set(threads.map(shape, range(3))) == {(2, 4, 7)}
"""


def test_threads_that_make_such_tensors_together_have_their_kernels() -> None:
    subprocess.run([sys.executable, "-c", TOGETHER], check=True, timeout=120)


@pytest.mark.skipif(
    "torch._meta_registrations" not in importing._lazy_modules(), reason="kernels of this torch are not deferred"
)
@pytest.mark.parametrize(
    "first",
    [
        "",
        "torch.ones(3).to('meta')",
        "from torch import _refs\nassert _refs.__spec__.origin == _refs.__file__",
        "assert torch.compile(torch.sin, backend='aot_eager')(torch.zeros(2)).sum() == 0",
    ],
    ids=["made", "moved", "imported", "compiled"],
)
def test_tensors_without_data_have_their_kernels(first: str) -> None:
    ran = subprocess.run([sys.executable, "-c", DEFERRED.format(first=first)], stderr=subprocess.PIPE, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("version", "wait"), [("2.10.0", True), ("2.14.1+cpu", True), ("2.15.0", False), ("3.0", False)]
)
def test_kernels_of_a_later_torch_do_not_wait(monkeypatch: pytest.MonkeyPatch, version: str, wait: bool) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    assert ("torch._meta_registrations" in importing._lazy_modules()) == wait
    assert "torch.distributions" in importing._lazy_modules()


def test_garbage_is_sought_only_in_what_is_made_aside():
    gc.unfreeze()
    earlier = len(gc.get_objects())
    with aside():
        assert len(gc.get_objects()) < 100 < earlier
        cycle = [_Link()]
        cycle.append(cycle)
        gone = weakref.ref(cycle[0])
        del cycle
        gc.collect()
        assert gone() is None
        with aside():
            pass
        assert gc.get_freeze_count() > 100, "another one's"
    assert gc.get_freeze_count() == 0


class _Link:
    pass


@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP there")
@pytest.mark.parametrize(
    ("given", "counts"),
    [({}, "GOMP_SPINCOUNT = '1000'"), ({"GOMP_SPINCOUNT": "7"}, "= '7'"), ({"OMP_WAIT_POLICY": "passive"}, "= '0'")],
)
def test_threads_do_not_wait_long_by_spinning(given: dict[str, str], counts: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    ran = subprocess.run(
        [sys.executable, "-c", "import phonate, torch"],
        env={**environment, **given, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in ran.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    assert lines
    assert all(line.endswith(counts) for line in lines)
