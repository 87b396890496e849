"""What a training framework costs per step, beside a plain PyTorch loop.

    python benchmarks/trainer_overhead.py [--rounds 40] [--out benchmarks/results/trainer_overhead.md]

Every framework runs in a process of its own and does the same work: Linear(8, 8), batches of 8 from the same
DataLoader, mean squared error, gradient clipping at 1.0, AdamW, a LambdaLR-like linear decay. The processes take
turns of 50 steps, so that whatever else the machine does hits all of them alike; the figure is processor time (all
threads) per step. phonate has everything on: metrics to JSON lines and TensorBoard every 50 steps (the default),
five callbacks that override every hook, the memory watch, progress. The peers run as their quick starts show, with
logging off. `naive` is the plain loop with torch's default AdamW, `fused` the same loop with fused=True.

At the end the sums of the parameters are compared: all must have done the same work. Peers that are not installed are
an error: pip install "phonate[bench]".
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from unittest.mock import MagicMock

TURN = 50
BATCH = 8
MARK = "turn: "
"""Begins our lines; frameworks print others."""


def data(steps: int, extra: int = 1):
    """The same batches for everyone; every TURN batches the reader waits for its turn."""
    import torch

    class Turns(torch.utils.data.Dataset):
        def __init__(self) -> None:
            generator = torch.Generator().manual_seed(1)
            self.x = torch.randn(64, BATCH, 8, generator=generator)
            self.y = torch.randn(64, BATCH, 8, generator=generator)
            self.asked = 0

        def __len__(self) -> int:
            return steps + extra

        def __getitem__(self, index: int):
            if self.asked % TURN == 0:
                wait_for_turn()
            self.asked += 1
            return {"features": self.x[index % 64], "target_features": self.y[index % 64]}

    return torch.utils.data.DataLoader(Turns(), batch_size=None, shuffle=False, num_workers=0)


_clock = {"start": None}


def wait_for_turn() -> None:
    """Report the processor time of the turn that ended and wait for the next."""
    now = time.process_time()
    if _clock["start"] is not None:
        print(MARK + json.dumps({"cpu": now - _clock["start"]}), file=sys.__stdout__, flush=True)
    else:
        print(MARK + json.dumps({"ready": True}), file=sys.__stdout__, flush=True)
    sys.stdin.readline()
    _clock["start"] = time.process_time()


def network():
    """The model, the same for everyone."""
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(8, 8)


def naive(steps: int, fused: bool = False):
    """The loop that one writes by hand."""
    import torch

    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused or None)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))
    for number, batch in enumerate(data(steps)):
        if number == steps:
            break
        loss = torch.nn.functional.mse_loss(model(batch["features"]), batch["target_features"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model


def fused(steps: int):
    """The same with fused AdamW."""
    return naive(steps, fused=True)


def phonate(steps: int):
    """Everything on."""
    import torch

    from phonate.data.loading import MicroBatch
    from phonate.training.callbacks import Callback
    from phonate.training.run import Run
    from phonate.training.settings import TrainingSettings
    from phonate.training.setup import Source
    from phonate.training.task import Task
    from phonate.training.trainer import Trainer

    class Loader(Source):
        max_frames = None

        def steps(self, epoch: int) -> int:
            return steps + 1

        def epoch(self, epoch: int, consumed=()):
            for batch in data(steps):
                yield MicroBatch(["batch"], batch, samples=1)

        def loading(self) -> str:
            return ""

    class Regression(Task):
        def model(self, device):
            return network().to(device)

        def dataset(self, split):
            raise AssertionError

        def loss(self, model, batch, phase):
            error = torch.nn.functional.mse_loss(model(batch["features"]), batch["target_features"], reduction="sum")
            return {"mse": (error, float(batch["features"].numel()))}

    class Empty(Callback):
        """Overrides every hook and does nothing in it."""

    for hook in [name for name in dir(Callback) if name.startswith("on_")]:
        setattr(Empty, hook, lambda self, *args: None)

    settings = TrainingSettings(
        max_steps=steps,
        batch_size=BATCH,
        mixed_precision="fp32",
        optimizer={"lr": 1e-3},
        scheduler={"type": "linear", "decay_steps": steps + 1},
        checkpoint={"interval": 10**9},
        logging={},
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        run.create(resuming=False)
        trainer = Trainer(Regression(), settings, run, train=Loader(), callbacks=[Empty() for _ in range(5)])
        trainer.fit()
        assert sum(1 for _ in run.metrics.open()) >= steps // 50
    return trainer.model


def ignite(steps: int):
    """pytorch-ignite's Engine."""
    import torch
    from ignite.engine import Engine, Events

    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))

    def step(engine, batch):
        loss = torch.nn.functional.mse_loss(model(batch["features"]), batch["target_features"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    engine = Engine(step)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: schedule.step())
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=steps), engine.terminate)
    engine.run(data(steps), max_epochs=1)
    return model


def speechbrain(steps: int):
    """SpeechBrain's Brain. (It imports torchaudio, which has no build for this torch: an empty module stands in.)"""
    for name in ("torchaudio", "torchaudio.transforms", "torchaudio.functional"):
        stub = types.ModuleType(name)
        stub.__spec__ = importlib.machinery.ModuleSpec(name, None)
        stub.__version__ = "2.11.0"  # type: ignore[attr-defined]
        stub.list_audio_backends = lambda: ["soundfile"]  # type: ignore[attr-defined]
        stub.__getattr__ = lambda attribute: MagicMock()  # type: ignore[method-assign]
        sys.modules[name] = stub
    import torch
    from speechbrain.core import Brain

    class Small(Brain):
        def compute_forward(self, batch, stage):
            return self.modules.model(batch["features"])

        def compute_objectives(self, predictions, batch, stage):
            return torch.nn.functional.mse_loss(predictions, batch["target_features"])

        def on_fit_batch_end(self, batch, outputs, loss, should_step):
            self.schedule.step()

        def init_optimizers(self):
            super().init_optimizers()
            self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 - step / (steps + 1))

    model = network()
    brain = Small(
        modules={"model": model},
        opt_class=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        run_opts={"device": "cpu", "max_grad_norm": 1.0, "noprogressbar": True},
    )

    brain.fit(range(1), data(steps, extra=0), progressbar=False)
    return model


def accelerate(steps: int):
    """accelerate's loop."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, data(steps), schedule)
    for number, batch in enumerate(loader):
        if number == steps:
            break
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(batch["features"]), batch["target_features"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(model)


def transformers(steps: int):
    """Hugging Face's Trainer."""
    import torch
    from transformers import Trainer, TrainingArguments

    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))

    class Small(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return torch.nn.functional.mse_loss(model(inputs["features"]), inputs["target_features"])

        def get_train_dataloader(self):
            return data(steps)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            max_grad_norm=1.0,
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
        )
        Small(model=model, args=arguments, optimizers=(optimizer, schedule)).train()
    return model


def lightning(steps: int):
    """Lightning's Trainer."""
    import logging

    import torch
    from lightning import pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Small(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch, index):
            return torch.nn.functional.mse_loss(self.model(batch["features"]), batch["target_features"])

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Small()
    with tempfile.TemporaryDirectory() as folder:
        pl.Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            max_steps=steps,
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, data(steps))
    return module.model


FRAMEWORKS = {
    "naive": naive,
    "fused": fused,
    "phonate": phonate,
    "ignite": ignite,
    "speechbrain": speechbrain,
    "accelerate": accelerate,
    "transformers": transformers,
    "lightning": lightning,
}


def child(name: str, rounds: int) -> None:
    """Train `rounds` turns and one more that is not counted, then report the parameters and the memory."""
    import torch

    torch.set_num_threads(1)
    steps = (rounds + 1) * TURN
    model = FRAMEWORKS[name](steps)
    total = sum(p.detach().double().sum().item() for p in model.parameters())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(MARK + json.dumps({"sum": total, "peak_mb": peak}), file=sys.__stdout__, flush=True)


class Peer:
    """A framework's process."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name = name
        self.times: list[float] = []
        self.result: dict[str, float] = {}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", name, "--rounds", str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        self.read()

    def read(self) -> dict[str, float]:
        """The next message."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        assert self.process.stderr is not None
        raise SystemExit(f"{self.name} failed (pip install 'phonate[bench]'):\n{self.process.stderr.read()[-3000:]}")

    def turn(self) -> None:
        """Let it do TURN steps."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        message = self.read()
        if "cpu" in message:
            self.times.append(message["cpu"] / TURN * 1e6)
        else:
            self.result = message


def main() -> None:
    """Run all in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child")
    parser.add_argument("--only", nargs="*", default=list(FRAMEWORKS))
    args = parser.parse_args()
    if args.child:
        child(args.child, args.rounds)
        return
    peers = [Peer(name, args.rounds) for name in args.only]
    for number in range(args.rounds + 2):
        for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
            if not peer.result:
                peer.turn()
    table = report(peers)
    print(table)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(table)


def report(peers: list[Peer]) -> str:
    """Median time of a step (the first turn left out), and its ratios to the plain loops."""
    rows = {peer.name: statistics.median(peer.times[1:]) for peer in peers}
    lines = [
        "| loop | µs a step | over naive | over fused | peak memory MB | parameter sum |",
        "|---|---|---|---|---|---|",
    ]
    for peer in peers:
        own = rows[peer.name]
        lines.append(
            f"| {peer.name} | {own:.0f} | {own / rows['naive']:.2f} | {own / rows['fused']:.2f} "
            f"| {peer.result['peak_mb']:.0f} | {peer.result['sum']:.7f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
