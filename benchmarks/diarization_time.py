"""How long diarizing a long recording takes, for these sources beside an older revision.

    git worktree add ../older REVISION
    OMP_NUM_THREADS=1 python benchmarks/diarization_time.py --other ../older/src [--hours 4] [--rounds 2]
        [--sizes default tiny] [--out FILE.md]

The made-up recording and the untrained models of `diarization_memory.py`, whose voices are compared; the two sides in
turns, one at a time. Processor time of `Diarizer.diarize` alone, as it depends less on what else the machine does:
medians. `turns` and `speakers` of both sides tell whether they do the same.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
_HEADER = """# Time of diarization

    OMP_NUM_THREADS=1 python {command}

A recording of {hours:g} h, voices compared; seconds of processor time, medians of {rounds} rounds in turns, and the
ratio to the older revision. {machine}, one thread, {cores} cores shared with other work, load {load:.2f}; Python
{python}, torch {torch}. {date}.

| model | seconds | older | ratio | turns | older | speakers | older |
|---|---|---|---|---|---|---|---|
"""


def one(path: Path, size: str) -> None:
    """Diarize `path` and print processor seconds, turns and speakers."""
    import numpy as np
    import soundfile

    from diarization_memory import RATE, untrained

    diarizer = untrained(size)
    first = soundfile.read(path, frames=60 * RATE, dtype="float32")[0]
    middle = float(np.median(diarizer.analyse(first).windows.probabilities[0]))
    diarizer.decoding = diarizer.decoding.model_copy(update={"threshold": middle})
    started = time.process_time()
    diarization = diarizer.diarize(path, max_speakers=8)
    seconds = time.process_time() - started
    print(json.dumps([seconds, len(diarization.turns), len(diarization.speakers)]))


def measured(path: Path, size: str, sources: Path) -> list[float]:
    """What `one` prints with the sources in `sources`."""
    command = [sys.executable, __file__, "--one", str(path), "--sizes", size]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: list[float] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Run both sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, metavar="SRC", help="the folder src of an older revision")
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", default=["default", "tiny"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        one(args.one, args.sizes[0])
        return
    if args.other is None:
        parser.error("--other SRC: which sources to compare with")
    import torch

    from diarization_memory import write_recording

    rows = ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.flac"
        write_recording(path, args.hours)
        for size in args.sizes:
            ours, older = [], []
            for _ in range(args.rounds):
                older.append(measured(path, size, args.other.resolve()))
                ours.append(measured(path, size, SOURCES))
            mine, theirs = (statistics.median(seconds for seconds, _, _ in side) for side in (ours, older))
            (_, turns, speakers), (_, their_turns, their_speakers) = ours[0], older[0]
            rows += (
                f"| {size} | {mine:.1f} | {theirs:.1f} | {mine / theirs:.2f} | {turns} | {their_turns} | {speakers} "
                f"| {their_speakers} |\n"
            )
            print(rows.splitlines()[-1], flush=True)
    text = rows and _HEADER.format(
        command=shlex.join(sys.argv),
        hours=args.hours,
        rounds=args.rounds,
        machine=platform.machine(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        python=platform.python_version(),
        torch=torch.__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    if args.out is not None:
        args.out.write_text(text + rows, encoding="utf-8")


if __name__ == "__main__":
    main()
