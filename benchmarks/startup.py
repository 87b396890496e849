"""How long a person waits for a mistake in a recipe to be told, and for a first sentence, beside imports alone.

    OMP_NUM_THREADS=1 python benchmarks/startup.py [--rounds 15] [--out FILE.md]
    OMP_NUM_THREADS=1 python benchmarks/startup.py --piper en_US-joe-medium.onnx [--piper OTHER.onnx] [--out FILE.md]

Commands are started in turns, one at a time, with compiled modules and files in the page cache. Medians of wall time,
of processor time and of peak memory. Peers that are not installed are an error: pip install "phonate[bench]".
`--piper` compares the first sentence with that of Piper's command (pip install piper-tts) in this voice, and nothing
else; the ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PYTHON = (sys.executable, "-c")
SPEAK = "phonate speak, the first sentence"
COMMANDS = {
    "Python itself": (*PYTHON, "pass"),
    "phonate --help": (sys.executable, "-m", "phonate", "--help"),
    "phonate, a mistake in a recipe": (sys.executable, "-m", "phonate", "train", "recipe.yaml"),
    SPEAK: (sys.executable, "-m", "phonate", "speak", "Hello.", "-o", "hello.wav"),
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

| | wall time, ms | processor time, ms | peak memory, MB |
|---|---|---|---|
"""


class Taken(NamedTuple):
    """What a command took."""

    wall: float
    """Milliseconds, as the next."""
    cpu: float
    memory: float
    """10^6 bytes at most."""


def run(command: tuple[str, ...], folder: Path) -> Taken:
    """What a command takes."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        ran = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        _, status, used = os.wait4(ran.pid, 0)
        wall = time.perf_counter() - started
        ran.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode()
    mistaken = "recipe.yaml" in command
    if ran.returncode != (2 if mistaken else 0) or (mistaken and MEND not in said):
        raise SystemExit(f"{shlex.join(command)} ended with {ran.returncode}:\n{said}")
    return Taken(wall * 1e3, (used.ru_utime + used.ru_stime) * 1e3, used.ru_maxrss * 1024 / 1e6)


def main() -> None:
    """Run all in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--piper", type=Path, action="append", metavar="MODEL.onnx")
    options = parser.parse_args()
    commands = COMMANDS if not options.piper else {SPEAK: COMMANDS[SPEAK]}
    for model in options.piper or ():
        piper = (sys.executable, "-m", "piper", "-m", str(model.absolute()), "-f", "theirs.wav", "--", "Hello.")
        commands = {**commands, f"Piper, {model.stem}": piper}
    taken: dict[str, list[Taken]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
        for number in range(options.rounds + 1):
            for name, command in commands.items():
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
        wall, cpu, memory = (statistics.median(values) for values in zip(*figures, strict=True))
        text += f"| {name} | {wall:.0f} | {cpu:.0f} | {memory:.0f} |\n"
    for name in (one for one in taken if one.startswith("Piper")):
        cpu, memory = (
            statistics.median(
                getattr(ours, of) / getattr(theirs, of) for ours, theirs in zip(taken[SPEAK], taken[name], strict=True)
            )
            for of in ("cpu", "memory")
        )
        text += f"\n`phonate speak` / {name}: processor time {cpu:.2f}, memory {memory:.2f}.\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
