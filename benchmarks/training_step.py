"""How long an optimizer step of a shipped recipe takes, for these sources beside an older revision.

    git worktree add /tmp/older REVISION
    OMP_NUM_THREADS=1 python benchmarks/training_step.py --other /tmp/older/src [--rounds 3] [--out FILE.md]

`phonate train RECIPE` on the packaged recordings, adversarial from its first step, in processes in turns. A callback
from a plug-in notes the processor time of each step; the first ones, in which memory is allocated, are left out. Each
process of a recipe trains on the same batches. The ratio is the median over rounds of the mean step's.
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
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
RECORDINGS = SOURCES / "phonate" / "base" / "recordings"
RECIPES = {
    "speech": ("training.init_from=null", "training.adversarial_start=1"),
    "vocoder": ("training.adversarial_start=1",),
    "conversion": (),
    "recognition": (),
}
FORMATS = ("fp32", "bf16")
MARK = "steps "
SKIPPED, STEPS = 4, 8
PLUGIN = f"""
import os, sys, time
from phonate.training.callbacks import CALLBACKS, Callback

class Clock(Callback):
    times = []

    def on_optimizer_step(self, trainer):
        self.times.append(time.process_time())
        if len(self.times) > {SKIPPED + STEPS}:
            print("{MARK}", (self.times[-1] - self.times[{SKIPPED}]) / {STEPS}, file=sys.stderr, flush=True)
            os._exit(0)

CALLBACKS.register("clock", Clock)
"""
_HEADER = """# An optimizer step

    OMP_NUM_THREADS=1 python {command}

`phonate train RECIPE` on the packaged recordings, with its discriminator where it has one: seconds of processor time
of a step, mean of {steps}; medians of {rounds} rounds in turns, and the median of the ratios of the rounds. {machine},
{cores} cores, one thread, load {load:.2f}; Python {python}, torch {torch}.

| recipe | format | step | older | ratio |
|---|---|---|---|---|
"""


def step(recipe: str, number_format: str, sources: Path, folder: Path) -> float:
    """Processor seconds of a step with the sources in `sources`."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    command = [sys.executable, "-m", "phonate", "--plugin", "clock.py", "train", recipe, "data.path=clips"]
    command += [*RECIPES[recipe], f"training.mixed_precision={number_format}", "training.max_steps=60"]
    command += ["data.cache_dir=cache", "training.callbacks=[{type: clock}]", "--output", "run", "--mode", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    told = [line.split()[1] for line in ran.stderr.splitlines() if line.startswith(MARK)]
    if not told:
        raise SystemExit(f"{shlex.join(command)} ended with {ran.returncode}:\n{ran.stderr}")
    return float(told[0])


def main() -> None:
    """Run all in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, metavar="SRC", help="the folder src of an older revision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sides = {"ours": SOURCES, "older": options.other.resolve()}
    taken: dict[tuple[str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(RECORDINGS, folder / "clips")
        (folder / "clock.py").write_text(PLUGIN, encoding="utf-8")
        for _ in range(options.rounds):
            for recipe in options.recipes:
                for number_format in FORMATS:
                    both = [step(recipe, number_format, sources, folder) for sources in sides.values()]
                    taken.setdefault((recipe, number_format), []).append(both)
    text = _HEADER.format(
        command=shlex.join(sys.argv),
        steps=STEPS,
        rounds=options.rounds,
        machine=platform.machine(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
    )
    for (recipe, number_format), rounds in taken.items():
        ours, older = (statistics.median(side) for side in zip(*rounds, strict=True))
        ratio = statistics.median(one / other for one, other in rounds)
        text += f"| {recipe} | {number_format} | {ours:.3f} | {older:.3f} | {ratio:.2f} |\n"
    text += f"\nMeasured on {datetime.date.today().isoformat()}.\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
