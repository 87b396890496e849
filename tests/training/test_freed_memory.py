"""Memory that a run has freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import re, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
from small_tasks import RegressionTask
from test_trainer import train

def resident():
    return int(re.search(r"^Anonymous:\\s+(\\d+)", Path("/proc/self/smaps_rollup").read_text(), re.M).group(1)) // 1024

class Fragmenting(RegressionTask):
    kept = []
    def loss(self, model, batch, phase):
        # 320 MB in blocks that glibc takes from its heap, which a block above them keeps from shrinking
        blocks = [torch.ones(2_000_000 // 4) for _ in range(160)]
        self.kept.append(torch.ones(25_000))
        del blocks
        return super().loss(model, batch, phase)

train(Path({run!r}) / "warm", RegressionTask(), max_steps=1)
before = resident()
train(Path({run!r}) / "run", Fragmenting(), max_steps=4, validation={{"interval": 2}})
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc of Linux")
@pytest.mark.slow
def test_what_a_step_has_freed_is_returned_after_validation(tmp_path: Path) -> None:
    code = RUN.format(tests=str(Path(__file__).parent), run=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) < 150


LARGE = """
import re, sys
from pathlib import Path
import torch
from phonate.compute.system import limit_heap

def resident():
    return int(re.search(r"^Anonymous:\\s+(\\d+)", Path("/proc/self/smaps_rollup").read_text(), re.M).group(1)) // 1024

if {limited}:
    limit_heap()
torch.ones(30 * 2**18)  # 30 MB: once it is freed, glibc would take as much from its heap
before, kept = resident(), []
for _ in range(20):
    block = torch.ones(12 * 2**18)
    kept.append((torch.ones(25_000), block))
kept = [small for small, _ in kept]
del block
print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc of Linux")
@pytest.mark.parametrize("limited", [True, False])
def test_large_blocks_are_returned_when_they_are_freed(limited: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE.format(limited=limited)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kept = int(done.stdout.split()[-1])
    assert kept < 60 if limited else kept > 150
