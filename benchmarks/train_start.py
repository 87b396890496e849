"""How long a training takes from its command to its first step, for these sources beside an older revision.

    git worktree add /tmp/older REVISION
    OMP_NUM_THREADS=1 python benchmarks/train_start.py --other /tmp/older/src [--rounds 9] [--out FILE.md]

Runs start in turns, one at a time, with prepared data, compiled modules and files in the page cache. A callback from a
plug-in notes when the first batch goes into the model and ends the process after the first step of the optimizer.
Medians. Processor time is compared, as it depends less on what else the machine does. The imports of torch and numpy,
measured in the same turns, and the step's own computation, which is in the second figure, are parts of both sides.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trained_beside import MARK, RECORDINGS, arguments, conditions, measured, prepare, publish, sides

RECIPES = {
    "speech": ("speech", "size=tiny", "data.path=clips"),
    "conversion": ("conversion", "size=tiny", "data.path=clips"),
    "language": ("language", "size=tiny", "data.path=text.txt", "training.batch_size=2"),
}
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
        print("{MARK}", *self.reached, file=sys.stderr, flush=True)
        os._exit(0)

CALLBACKS.register("measure", Stop)
"""
_HEADER = """# From the command to the first step

    OMP_NUM_THREADS=1 python {command}

`phonate train RECIPE size=tiny`, data prepared, modules compiled: until the first batch goes into the model, and until
the optimizer's first step is done. Seconds of processor time (of wall time): medians of {rounds} rounds in turns
and ratios. {machine}, {cores} cores shared with other work, load {load:.2f}; Python {python}, torch {torch}.

| recipe | first batch | older | ratio | first step | older | ratio |
|---|---|---|---|---|---|---|
"""


def start(recipe: str, side: str, sources: Path, folder: Path) -> list[float]:
    """Wall and processor seconds until the first batch, then until the first step, with the sources in `sources`.

    Each side has its own cache: the older revision does not read a newer one's.
    """
    started = time.time()
    batch, batch_cpu, step, step_cpu = measured([*RECIPES[recipe], f"data.cache_dir=cache-{side}"], sources, folder)
    return [batch - started, batch_cpu, step - started, step_cpu]


def imports() -> float:
    """Processor seconds of a process that imports torch and numpy, without looking for garbage, as a start does."""
    code = "import gc; gc.disable(); import numpy, torch, time; print(time.process_time())"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def write_text(folder: Path) -> None:
    """A corpus of text: the sentences of the clips."""
    table = (RECORDINGS / "metadata.csv").read_text(encoding="utf-8")
    sentences = [line.partition(",")[2].strip('"') for line in table.splitlines()[1:]]
    (folder / "text.txt").write_text("\n\n".join(sentences * 5), encoding="utf-8")


def main() -> None:
    """Run all in turns and print the table."""
    given = arguments(__doc__, RECIPES, rounds=9)
    taken: dict[tuple[str, str], list[list[float]]] = {}
    alone: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, PLUGIN)
        write_text(folder)
        for number in range(given.rounds + 1):
            alone.append(imports())
            for recipe in given.recipes:
                for side, sources in sides(given).items():
                    figures = start(recipe, side, sources, folder)
                    if number:  # the first round prepares the data and compiles the modules
                        taken.setdefault((recipe, side), []).append(figures)
    text = _HEADER.format(rounds=given.rounds, **conditions())
    for recipe in given.recipes:
        ours, older = (
            [statistics.median(one) for one in zip(*taken[recipe, side], strict=True)] for side in sides(given)
        )
        text += f"| {recipe} |"
        for wall, cpu in ((0, 1), (2, 3)):
            text += f" {ours[cpu]:.2f} ({ours[wall]:.2f}) | {older[cpu]:.2f} ({older[wall]:.2f}) |"
            text += f" {ours[cpu] / older[cpu]:.2f} |"
        text += "\n"
    text += (
        f"\n`import numpy, torch` alone, in the same turns: {statistics.median(alone[1:]):.2f} s of processor time.\n"
    )
    publish(text, given.out)


if __name__ == "__main__":
    main()
