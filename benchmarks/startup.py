"""How long a person waits for a mistake in a recipe to be told, and for a first sentence, beside imports alone.

    OMP_NUM_THREADS=1 python benchmarks/startup.py [--rounds 15] [--out FILE.md]

Commands are started in turns, one at a time, with compiled modules and files in the page cache. Medians of wall time
and of processor time. Peers that are not installed are an error: pip install "phonate[bench]".
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PYTHON = (sys.executable, "-c")
COMMANDS = {
    "Python itself": (*PYTHON, "pass"),
    "phonate --help": (sys.executable, "-m", "phonate", "--help"),
    "phonate, a mistake in a recipe": (sys.executable, "-m", "phonate", "train", "recipe.yaml"),
    "phonate speak, the first sentence": (sys.executable, "-m", "phonate", "speak", "Hello.", "-o", "hello.wav"),
    "import torch": (*PYTHON, "import torch"),
    "import transformers.Trainer": (*PYTHON, "from transformers import Trainer"),
    "import lightning": (*PYTHON, "from lightning import pytorch"),
}
RECIPE = "task: speech\ndata:\n  path: my_voice\ntraining:\n  optimizer:\n    lrr: 0.001\n"
MEND = "did you mean lr?"
_HEADER = """# How soon a mistake is told

    OMP_NUM_THREADS=1 python {command}

A recipe with `training.optimizer.lrr`, and the line that says so; `phonate speak "Hello."`; and imports alone. Medians
of {rounds} rounds in turns, everything in the page cache. {machine}, {cores} cores, load {load:.2f}; Python {python}.

| | wall time, ms | processor time, ms |
|---|---|---|
"""


def run(command: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Wall and processor milliseconds of a command."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    mistaken = "recipe.yaml" in command
    if ran.returncode != (2 if mistaken else 0) or (mistaken and MEND not in ran.stderr):
        raise SystemExit(f"{shlex.join(command)} ended with {ran.returncode}:\n{ran.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1e3, cpu * 1e3


def main() -> None:
    """Run all in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
        for number in range(options.rounds + 1):
            for name, command in COMMANDS.items():
                figures = run(command, Path(folder))
                if number:
                    taken[name].append(figures)
    text = _HEADER.format(
        command=shlex.join(sys.argv),
        rounds=options.rounds,
        machine=platform.machine(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        python=platform.python_version(),
    )
    for name, figures in taken.items():
        wall, cpu = (statistics.median(values) for values in zip(*figures, strict=True))
        text += f"| {name} | {wall:.0f} | {cpu:.0f} |\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
