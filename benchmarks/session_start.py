"""How long a session takes to its first training step: scan, validate, extract, analyse, prepare, with nothing cached.

    OMP_NUM_THREADS=1 python benchmarks/session_start.py FOLDER ... [--rounds 5] [--out FILE.md]

FOLDER has recordings. Each round is a session in a process of its own, with an empty cache; the clock runs from the
moment at which everything is imported to the end of the first optimizer step, after which the process ends.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from phonate.compute.resources import cores
from phonate.data.voices import VoiceDataDetector

SESSION = """
import json, os, sys, time
from phonate.training.trainer import Trainer
from phonate.workflows.session.session import TrainingSession

stages = {}
def say(line):
    stages.setdefault(line.split(" ", 1)[1].strip().split(" ")[0], time.perf_counter())
def first_step(trainer):
    now = time.perf_counter()
    marks = [stages[name] for name in ("Validating", "Extracting", "Analysing", "First")] + [now]
    print(json.dumps([now - begun, *(after - before for before, after in zip(marks, marks[1:]))]), flush=True)
    os._exit(0)

if __name__ == "__main__":
    Trainer._after_step = first_step
    begun = time.perf_counter()
    TrainingSession(device="cpu", voice_data_dir=sys.argv[1], say=say).run()
    raise SystemExit("the session ended before its first step")
"""
_HEADER = """# From the start of a session to its first training step

    OMP_NUM_THREADS=1 python {command}

Seconds beyond imports, nothing cached, the recipes as they are shipped: the first step is the vocoder's. Medians of
{rounds} rounds. {machine}, {cores} cores, load {load:.2f}; Python {python}.

| recordings | files | to the first step | validate | extract | analyse | prepare and step |
|---|---|---|---|---|---|---|
"""


def measure(folder: Path) -> list[float]:
    """Seconds in all, and of each stage."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "session.py"
        script.write_text(SESSION, encoding="utf-8")
        environment = {**os.environ, "XDG_CACHE_HOME": f"{place}/cache"}
        command = [sys.executable, str(script), str(folder.resolve())]
        ran = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{folder}: {ran.stdout}{ran.stderr}")
    found: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure every folder in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    found: dict[Path, list[list[float]]] = {folder: [] for folder in args.folders}
    for _ in range(args.rounds):
        for folder in args.folders:
            found[folder].append(measure(folder))
    names = [shlex.quote(folder.name if folder.is_absolute() else str(folder)) for folder in args.folders]
    text = _HEADER.format(
        command=f"benchmarks/session_start.py {' '.join(names)} --rounds {args.rounds}",
        rounds=args.rounds,
        machine=platform.machine(),
        cores=cores(),
        load=load,
        python=platform.python_version(),
    )
    for folder, rounds in found.items():
        files = VoiceDataDetector(folder).get_stats()["total_files"]
        seconds = [statistics.median(values) for values in zip(*rounds, strict=True)]
        text += f"| {folder.name} | {files:,} | " + " | ".join(f"{one:.1f} s" for one in seconds) + " |\n"
    print(text)
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
