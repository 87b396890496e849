"""How long a training takes from its command to its first step, for these sources beside an older revision.

    git worktree add /tmp/older REVISION
    OMP_NUM_THREADS=1 python benchmarks/train_start.py --other /tmp/older/src [--rounds 9] [--out FILE.md]

Runs start in turns, one at a time, with prepared data, compiled modules and files in the page cache. A callback from a
plug-in ends each where its first batch goes into the model. Medians of wall time and of processor time.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
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
FIRST = "first batch at "
PLUGIN = f"""
import os, sys, time
from phonate.training.callbacks import CALLBACKS, Callback

class Stop(Callback):
    def on_batch_begin(self, trainer, batch):
        sys.stderr.write(f"{FIRST}{{time.time()}}\\n")
        sys.stderr.flush()
        os._exit(0)

CALLBACKS.register("stop_at_first_batch", Stop)
"""
_HEADER = """# From the command to the first step

    OMP_NUM_THREADS=1 python {command}

`phonate train RECIPE size=tiny`, data prepared, up to the first batch. Medians of {rounds} rounds in turns. {machine},
{cores} cores, load {load:.2f}; Python {python}.

| recipe | these sources, s (processor) | older ones, s (processor) | ratio |
|---|---|---|---|
"""


def start(recipe: str, sources: Path, folder: Path) -> tuple[float, float]:
    """Wall and processor seconds of a start with the sources in `sources`."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    command = [sys.executable, "-m", "phonate", "--plugin", "stop.py", "train", *RECIPES[recipe]]
    command += ["training.callbacks=[{type: stop_at_first_batch}]", "--output", "run", "--mode", "cpu"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    reached = [line for line in ran.stderr.splitlines() if line.startswith(FIRST)]
    if not reached:
        raise SystemExit(f"{shlex.join(command)} ended with {ran.returncode}:\n{ran.stderr}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(reached[0].removeprefix(FIRST)) - started, processor


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
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
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
    )
    for recipe in options.recipes:
        (ours, cpu), (older, older_cpu) = (
            [statistics.median(values) for values in zip(*taken[recipe, side], strict=True)] for side in sides
        )
        text += f"| {recipe} | {ours:.2f} ({cpu:.2f}) | {older:.2f} ({older_cpu:.2f}) | {ours / older:.2f} |\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
