"""What benchmarks that train with these sources and with an older revision, in turns, have in common.

A callback in a plug-in measures, prints figures behind `MARK` and ends the process.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
RECORDINGS = SOURCES / "phonate" / "base" / "recordings"
MARK = "measured"


def arguments(
    description: str | None,
    recipes: Iterable[str],
    rounds: int,
    formats: Iterable[str] = (),
    busy: Sequence[int] = (),
) -> argparse.Namespace:
    """`other`, `rounds`, `recipes`, `out`, `formats` and `busy`, as given on the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, metavar="SRC", help="the folder src of an older revision")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--recipes", nargs="+", choices=[*recipes], default=[*recipes])
    if formats:
        parser.add_argument("--formats", nargs="+", choices=[*formats], default=[*formats])
    if busy:
        parser.add_argument("--busy", type=int, nargs="+", default=busy, metavar="N", help="programs that run beside")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def sides(given: argparse.Namespace) -> dict[str, Path]:
    """The sources of both."""
    return {"ours": SOURCES, "older": given.other.resolve()}


def prepare(folder: Path, plugin: str) -> None:
    """A corpus of clips, and the plug-in."""
    shutil.copytree(RECORDINGS, folder / "clips")
    (folder / "measure.py").write_text(plugin, encoding="utf-8")


def step_clock(clock: str, skipped: int, steps: int) -> str:
    """The plug-in that measures the mean seconds of `steps` optimizer steps after `skipped` ones, and ends the process.
    `clock`: a function of the module time."""
    return f"""
import os, sys, time
from phonate.training.callbacks import CALLBACKS, Callback

class Clock(Callback):
    times = []

    def on_optimizer_step(self, trainer):
        self.times.append(time.{clock}())
        if len(self.times) > {skipped + steps}:
            print("{MARK}", (self.times[-1] - self.times[{skipped}]) / {steps}, file=sys.stderr, flush=True)
            os._exit(0)

CALLBACKS.register("measure", Clock)
"""


def measured(train: Sequence[str], sources: Path, folder: Path) -> list[float]:
    """The figures that the callback `measure` prints in a new run of `phonate train` with `sources`."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    command = [sys.executable, "-m", "phonate", "--plugin", "measure.py", "train", *train]
    command += ["training.callbacks=[{type: measure}]", "--output", "run", "--mode", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    figures = [line.split()[1:] for line in ran.stderr.splitlines() if line.startswith(MARK)]
    if not figures:
        raise SystemExit(f"{shlex.join(command)} ended with {ran.returncode}:\n{ran.stderr}")
    return [float(one) for one in figures[0]]


def conditions() -> dict[str, object]:
    """The command and the machine, as headers of results name them."""
    return {
        "command": shlex.join(sys.argv),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def publish(text: str, out: Path | None) -> None:
    """Print the result, and write it."""
    text += f"\nMeasured on {datetime.date.today().isoformat()}.\n"
    print(text)
    if out:
        out.write_text(text, encoding="utf-8")
