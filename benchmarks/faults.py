"""Runs that are killed at random moments, beside the same run undisturbed: every weight, optimizer value and loss.

    python benchmarks/faults.py [--kills 20] [--seed 0] [--tasks conversion speech diarization language] [--out FILE]

For each task a small synthetic corpus is trained on once without a disturbance, with augmentation and two loader
processes, saving in the background every two steps. Then the same command is started again and again with `--resume
auto`, and its whole process group gets SIGKILL after a random time, until as many kills have hit a living process; then
it runs to its end. Compared are the tensors of the last checkpoint (weights, optimizer, averages, generators), bit for
bit, and every line of metrics. `language` trains on two ranks that divide its weights (FSDP2). Processes are forked
from one that has imported everything, so that kills fall into training more often than into imports.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile

os.environ.setdefault("OMP_NUM_THREADS", "1")

SAMPLE_RATE = 16_000
STEPS = 12
COMMON = [
    "size=tiny", "training.batch_size=4", f"training.max_steps={STEPS}", "training.performance.num_workers=2",
    "training.checkpoint={interval: 2, save_total_limit: 2}", "training.validation.metric_for_best_model=step",
    "training.validation.interval=8", "training.validation.previews=false",
    "training.logging={interval: 1, tensorboard: false, system: false, verbosity: quiet}",
    "training.scheduler.warmup_steps=2",
]  # fmt: skip
TASKS = {
    "conversion": ["data.augmentation={}"],
    "speech": ["data.durations=learnt", "data.aligner_steps=20", "training.ema.decay=0.9"],
    "diarization": ["data.augmentation={}", "data.samples=120"],
    "language": ["training.distributed.strategy=fsdp", "model.vocabulary=300"],
}
RANKS = {"language": 2}
CLOCK = ("steps_per_second", "samples_per_second", "data_wait", "time")


def tone(rng: np.random.Generator, pitch: float, seconds: float) -> np.ndarray:
    """A voiced sound (samples,) whose loudness comes and goes."""
    t = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    phase = 2 * np.pi * pitch * t + 3 * np.sin(2 * np.pi * 2 * t)
    sound = sum(np.sin(k * phase) / k for k in range(1, 9)) * (0.55 + 0.45 * np.sin(2 * np.pi * 3 * t))
    return (0.08 * sound + 0.002 * rng.standard_normal(len(t))).astype(np.float32)


def voices(folder: Path) -> None:
    """Two voices with texts."""
    rng = np.random.default_rng(0)
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    for speaker, pitch in (("ann", 120.0), ("ben", 200.0)):
        (folder / speaker).mkdir(parents=True)
        for number in range(10):
            path = folder / speaker / f"{speaker}{number}.wav"
            soundfile.write(path, tone(rng, pitch, rng.uniform(1.2, 2.2)), SAMPLE_RATE)
            path.with_suffix(".txt").write_text(" ".join(rng.choice(words, 3)) + "\n")


def meetings(folder: Path) -> None:
    """Recordings in which two voices take turns."""
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    for number in range(6):
        parts, lines, at = [], [], 0.0
        for turn in range(10):
            seconds = float(rng.uniform(1.0, 2.5))
            parts.append(tone(rng, (120.0, 200.0)[turn % 2] * (1 + 0.05 * number), seconds))
            lines.append(f"SPEAKER m{number} 1 {at:.3f} {seconds:.3f} <NA> <NA> s{turn % 2}{number} <NA> <NA>")
            at += seconds
        soundfile.write(folder / f"m{number}.wav", np.concatenate(parts), SAMPLE_RATE)
        (folder / f"m{number}.rttm").write_text("\n".join(lines) + "\n")


def texts(folder: Path) -> None:
    """Sentences to learn."""
    rng = np.random.default_rng(2)
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    folder.mkdir(parents=True)
    lines = [" ".join(rng.choice(words, 12)) for _ in range(400)]
    (folder / "texts.txt").write_text("\n\n".join(lines) + "\n")


CORPORA = {"diarization": meetings, "language": texts}


def start(arguments: list[str], log: Path, ranks: int) -> int:
    """`phonate` with these arguments in as many processes, in a group of their own; returns the id of the first."""
    pid = os.fork()
    with contextlib.suppress(PermissionError):  # the other of both was first
        os.setpgid(pid, pid or os.getpid())
    if pid:
        return pid
    if ranks > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        rank = next((one for one in range(1, ranks) if os.fork() == 0), 0)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from phonate.cli import main

    code = 1
    try:
        code = main(arguments)
    finally:
        os._exit(code)


def ended(pid: int) -> int | None:
    """The exit code of a process; None while it lives."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return None if not found else os.waitstatus_to_exitcode(status)


def finish(arguments: list[str], log: Path, ranks: int) -> float:
    """Run to the end; returns the seconds that it took."""
    began = time.monotonic()
    pid = start(arguments, log, ranks)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(arguments)}\n{log.read_text()[-3000:]}")
    return time.monotonic() - began


def tensors(run: Path) -> dict[str, object]:
    """Everything in the last checkpoint."""
    from safetensors.torch import load_file

    folder = run / "checkpoints" / f"step-{STEPS:08d}"
    return {f"{path.stem}: {k}": v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


def rows(run: Path) -> list[dict[str, object]]:
    """Every line of metrics without what depends on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["split"] != "event"]
    return [{k: v for k, v in line.items() if k not in CLOCK and not k.startswith("time/")} for line in kept]


def measure(task: str, kills: int, rng: random.Random, folder: Path) -> dict[str, object]:
    """The undisturbed run and the killed one of a task."""
    import torch

    make, ranks = CORPORA.get(task, voices), RANKS.get(task, 1)
    corpus = folder / make.__name__
    if not corpus.exists():
        make(corpus)
    command = ["train", task, *COMMON, *TASKS[task], f"data.path={corpus}"]
    command += [] if task == "language" else [f"data.cache_dir={folder / 'cache'}"]
    command += ["--mode", "cpu", "--resume", "auto", "--output"]
    whole, killed = folder / task / "whole", folder / task / "killed"
    log = folder / f"{task}.txt"
    finish([*command, str(whole)], log, ranks)  # and fills the cache
    shutil.rmtree(whole)
    seconds = finish([*command, str(whole)], log, ranks)
    hits = unfinished = 0
    while hits < kills:
        if (killed / "checkpoints" / f"step-{STEPS:08d}").exists():  # it got to its end: begin another
            check(whole, killed, torch)
            shutil.rmtree(killed)
        fresh, began, delay = not killed.exists(), time.monotonic(), rng.uniform(0.0, 0.8 * seconds)
        pid = start([*command, str(killed)], log, ranks)
        while (code := ended(pid)) is None and time.monotonic() - began < delay:
            time.sleep(0.01)
        if code == 0 and fresh:  # the machine has less to do than before
            seconds = time.monotonic() - began
        if code is None:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            hits += 1
            unfinished += any((killed / "checkpoints").glob(".step-*")) if killed.exists() else 0
        elif code:
            raise SystemExit(f"{task}: exit code {code}\n{log.read_text()[-3000:]}")
        print(f"{task}: {hits} of {kills} kills", file=sys.stderr, flush=True)
    finish([*command, str(killed)], log, ranks)
    compared = check(whole, killed, torch)
    return {"task": task, "kills": hits, "in a save": unfinished, "tensors": compared, "lines": len(rows(whole))}


def check(whole: Path, killed: Path, torch) -> int:
    """Raise SystemExit unless both runs are the same to the bit; returns how many tensors were compared."""
    one, other = tensors(whole), tensors(killed)
    differing = [
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    ]
    if differing or rows(whole) != rows(killed):
        raise SystemExit(f"{killed}: NOT the same: {differing[:5] or 'metrics.jsonl'}")
    return len(one)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="for each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    import phonate.workflows.train  # noqa: F401 - what every process would import

    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        results = [measure(task, arguments.kills, rng, Path(temporary)) for task in arguments.tasks]
    head = "| " + " | ".join(results[0]) + " | differing |"
    lines = [head, "|" + "---|" * (len(results[0]) + 1)]
    lines += ["| " + " | ".join(map(str, one.values())) + " | 0 |" for one in results]
    table = "\n".join(lines)
    print(table)
    if arguments.out:
        command = "python benchmarks/faults.py " + " ".join(sys.argv[1:])
        arguments.out.write_text(f"# Runs that are killed at random moments\n\n`{command}`\n\n{table}\n")


if __name__ == "__main__":
    main()
