"""Training steps of the recipe `speech` with `training.performance.split_by_length`, beside whole batches.

    OMP_NUM_THREADS=1 python benchmarks/split_by_length.py CORPUS [CORPUS ...] [--steps 12] [--out FILE.md]

Each corpus is a folder or table as `phonate train speech` takes it; texts that are missing are transcribed. `make
base-tables` makes `build/base/voice.csv` (one speaker) and `build/base/half.csv` (the same and 94 others). Two models
of the same weights train on the same batches in turns, in fp32, without dropout, and with the discriminator from the
second step on. Printed:

- padding      share of the frames in whole batches
- parts        parts of a batch, mean over steps
- step         median processor time of a step, of whole batches and in parts
- x            median over steps of the ratio of whole to parts
- apart        by how much the two losses differ at most, relative to the loss
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import torch

from gauges import clock
from phonate.config.resolve import resolve
from phonate.data.loading import accumulation_groups
from phonate.tasks.speech.task import SpeechTask
from phonate.training.run import Run
from phonate.training.trainer import Trainer

HEADER = """# Batches in parts of similar length

    OMP_NUM_THREADS=1 {command}

Steps of the recipe `speech` on whole batches of 16 and with `training.performance.split_by_length`: two models of the
same weights on the same batches in turns, in fp32, without dropout. Medians over {steps} steps of processor time.
`padding`: share of the frames in whole batches; `apart`: the largest relative difference between the two losses.

{machine}, {cores} cores, {threads} thread(s), load {load:.2f}; torch {torch}, Python {python}

| corpus | padding | parts | whole batches, s | in parts, s | x | apart |
|---|---|---|---|---|---|---|
"""
OPTIONS = {
    "data.judged": 0,
    "data.transcribe": "base",
    "model.dropout": 0.0,
    "model.predictor_dropout": 0.0,
    "training.init_from": None,
    "training.mixed_precision": "fp32",
    "training.scheduler.warmup_steps": 0,
    "training.adversarial_start": 1,
    "training.validation.metric_for_best_model": "step",
}


@dataclass
class Turns:
    """One of the two trainings, step by step."""

    trainer: Trainer
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        source = self.trainer.train_source
        self._groups = accumulation_groups(chain.from_iterable(map(source.epoch, range(10**6))), 1)

    def step(self, number: int) -> None:
        """Train for one step."""
        step = self.trainer.train_step
        (group,) = islice(self._groups, 1)
        step.meter.clear()
        started = clock(self.trainer.device)
        step(group, number, None)
        self.seconds.append(clock(self.trainer.device) - started)
        self.losses.append(step.meter.means(step.weights, self.trainer.ranks)["loss"])
        self.parts.append(len(group))


def turns(corpus: str, split: bool, steps: int, folder: Path) -> Turns:
    """The training on `corpus`."""
    given = {**OPTIONS, "data.path": corpus, "training.max_steps": steps + 1}
    resolved = resolve("speech", {**given, "training.performance.split_by_length": split})
    trainer = Trainer(SpeechTask(resolved.recipe), resolved.recipe.training, Run(folder / str(split)))
    trainer.model.train()
    return Turns(trainer)


def row(corpus: str, steps: int) -> str:
    """The line of the table for `corpus`."""
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = (turns(corpus, split, steps, Path(folder)) for split in (False, True))
        for number in range(steps + 1):
            for one in (whole, parts) if number % 2 else (parts, whole):
                one.step(number)
    pairs = list(zip(whole.seconds[1:], parts.seconds[1:], strict=True))  # the first step warms up
    apart = max(abs(a - b) / abs(a) for a, b in zip(whole.losses, parts.losses, strict=True))
    cells = [
        Path(corpus).stem,
        f"{whole.trainer.train_source.padding(0):.0%}",
        f"{statistics.mean(parts.parts):.1f}",
        *(f"{statistics.median(column):.2f}" for column in zip(*pairs, strict=True)),
        f"{statistics.median(a / b for a, b in pairs):.2f}",
        f"{apart:.1e}",
    ]
    return "| " + " | ".join(cells) + " |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="training steps with batches in parts of similar length")
    parser.add_argument("corpus", nargs="+", help="folder or table")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, help="write the table to this file too, as markdown")
    args = parser.parse_args()
    text = HEADER.format(
        command=shlex.join(["python", *sys.argv]),
        steps=args.steps,
        machine=platform.machine(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        load=os.getloadavg()[0],
        torch=torch.__version__,
        python=platform.python_version(),
    )
    text += "".join(row(corpus, args.steps) for corpus in args.corpus)
    print(text)
    if args.out:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
