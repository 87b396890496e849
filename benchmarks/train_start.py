"""How long a training takes from its command to its first step, for these sources beside an older revision.

    git worktree add /tmp/older REVISION
    OMP_NUM_THREADS=1 python benchmarks/train_start.py --other /tmp/older/src [--rounds 9] [--out FILE.md]

Runs start in turns, one at a time, with prepared data, compiled modules and files in the page cache. A callback from a
plug-in notes when the first batch goes into the model and ends the process after the first step of the optimizer.
Medians. Processor time is compared, as it depends less on what else the machine does; the step's own computation, which
is in the second figure, is the same for both.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
RECORDINGS = SOURCES / "phonate" / "base" / "recordings"
RECIPES = {
    "speech": ("speech", "size=tiny", "data.path=clips", "data.cache_dir=cache"),
    "conversion": ("conversion", "size=tiny", "data.path=clips", "data.cache_dir=cache"),
    "language": ("language", "size=tiny", "data.path=text.txt", "training.batch_size=2"),
}
REACHED = "reached "
PLUGIN = f"""
import os, sys, time
from phonate.training.callbacks import CALLBACKS, Callback

class Stop(Callback):
    reached = []

    def note(self):
        self.reached += [time.time(), time.process_time()]

    def on_batch_begin(self, trainer, batch):
        if not self.reached:
            self.note()

    def on_optimizer_step(self, trainer):
        self.note()
        print("{REACHED}", *self.reached, file=sys.stderr, flush=True)
        os._exit(0)

CALLBACKS.register("stop_at_first_step", Stop)
"""
_HEADER = """# From the command to the first step

    OMP_NUM_THREADS=1 python {command}

`phonate train RECIPE size=tiny`, data prepared, modules compiled: until the first batch goes into the model, and until
the optimizer's first step is done. Seconds of processor time (of wall time): medians of {rounds} rounds in turns
and ratios. {machine}, {cores} cores shared with other work, load {load:.2f}; Python {python}, torch {torch}.

| recipe | first batch | older | ratio | first step | older | ratio |
|---|---|---|---|---|---|---|
"""


def start(recipe: str, sources: Path, folder: Path) -> list[float]:
    """Wall and processor seconds until the first batch, then until the first step, with the sources in `sources`."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    command = [sys.executable, "-m", "phonate", "--plugin", "stop.py", "train", *RECIPES[recipe]]
    command += ["training.callbacks=[{type: stop_at_first_step}]", "--output", "run", "--mode", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.time()
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    reached = [line.split()[1:] for line in ran.stderr.splitlines() if line.startswith(REACHED)]
    if not reached:
        raise SystemExit(f"{shlex.join(command)} ended with {ran.returncode}:\n{ran.stderr}")
    batch, batch_cpu, step, step_cpu = map(float, reached[0])
    return [batch - started, batch_cpu, step - started, step_cpu]


def prepare(folder: Path) -> None:
    """A corpus of clips, one of text, and the plug-in."""
    shutil.copytree(RECORDINGS, folder / "clips")
    table = (RECORDINGS / "metadata.csv").read_text(encoding="utf-8")
    sentences = [line.partition(",")[2].strip('"') for line in table.splitlines()[1:]]
    (folder / "text.txt").write_text("\n\n".join(sentences * 5), encoding="utf-8")
    (folder / "stop.py").write_text(PLUGIN, encoding="utf-8")


def main() -> None:
    """Run all in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, metavar="SRC", help="the folder src of an older revision")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sides = {"ours": SOURCES, "older": options.other.resolve()}
    taken: dict[tuple[str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for number in range(options.rounds + 1):
            for recipe in options.recipes:
                for side, sources in sides.items():
                    figures = start(recipe, sources, folder)
                    if number:  # the first round prepares the data and compiles the modules
                        taken.setdefault((recipe, side), []).append(figures)
    text = _HEADER.format(
        command=shlex.join(sys.argv),
        rounds=options.rounds,
        machine=platform.machine(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
    )
    for recipe in options.recipes:
        ours, older = ([statistics.median(one) for one in zip(*taken[recipe, side], strict=True)] for side in sides)
        text += f"| {recipe} |"
        for wall, cpu in ((0, 1), (2, 3)):
            text += f" {ours[cpu]:.2f} ({ours[wall]:.2f}) | {older[cpu]:.2f} ({older[wall]:.2f}) |"
            text += f" {ours[cpu] / older[cpu]:.2f} |"
        text += "\n"
    text += f"\nMeasured on {datetime.date.today().isoformat()}.\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
