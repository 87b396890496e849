"""How long `make demo` takes once .venv is there: the packaged voice adapted, stopped, resumed, evaluated and reported.

    python benchmarks/demo.py [--out FILE.md]

The demo trains for at most four minutes, and for fewer steps where other programs need the cores.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from phonate.compute.resources import cores
from phonate.training.tracking import read_metrics

_HEADER = """# The demo from beginning to end

    python benchmarks/demo.py --out benchmarks/results/demo.md

What `make demo` runs once `.venv` is there: the packaged voice is adapted to the 20 packaged recordings, stopped,
resumed, evaluated and reported. It trains for at most four minutes, 150 steps, fewer where others need the cores.
{machine}, {cores} cores; torch {torch}. One run.

| | wall, min | processor, min | load before and after | steps |
|---|---|---|---|---|
"""


def main() -> None:
    """Run the demo once, and write its row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    out: Path | None = parser.parse_args().out
    before, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "phonate", "demo"], cwd=place, check=True)
        took = time.monotonic() - began
        steps = max(line["step"] for line in read_metrics(Path(place) / "runs/demo/metrics.jsonl"))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime
    load = f"{before:.1f} and {os.getloadavg()[0]:.1f}"
    row = f"| packaged recordings | {took / 60:.1f} | {processor / 60:.1f} | {load} | {steps} of 150 |\n"
    table = _HEADER.format(machine=platform.machine(), cores=cores(), torch=torch.__version__) + row
    print(table)
    if out is not None:
        out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
