"""Runs that are killed at random moments, beside the same run undisturbed: every weight, optimizer value and loss.

    python benchmarks/faults.py [--kills 20] [--seed 0] [--tasks conversion speech diarization language]
                                [--peers transformers lightning] [--out FILE]

For each task a small synthetic corpus is trained on once without a disturbance, with augmentation and two loader
processes, saving in the background every two steps. Then the same command is started again and again with `--resume
auto`, and its whole process group gets SIGKILL after a random time, until as many kills have hit a living process; then
it runs to its end. Compared are the tensors of the last checkpoint (weights, optimizer, averages, generators), bit for
bit, and every line of metrics. `language` trains on two ranks that divide its weights (FSDP2). Processes are forked
from one that has imported everything, so that kills fall into training more often than into imports.

Peers train a small network on vectors to which noise is added as they are loaded, by two loader processes, and are
killed and resumed alike, as their documentation says; compared are the weights at the end. That two runs undisturbed
are the same is seen first. A peer that can't resume is asked no more.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from importlib.metadata import version
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
    """Start `phonate` as `ranks` processes in a group of their own; returns the id of the first."""
    pid = os.fork()
    with contextlib.suppress(PermissionError):  # the other process was first
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
        if code == 0 and fresh:  # the machine is less busy than before
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
    found = {"task": task, "kills": hits, "in a save": unfinished, "tensors": compared, "lines": len(rows(whole))}
    return found | {"differing": 0}


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


# ------------------------------------------------------------------------------------------ Peers

PEER_STEPS, PEER_SAVES, PEER_BATCH = 100, 5, 8
PEER_SIZE, PEER_WIDTH, PEER_KILLS = 200, 1024, 5


def noisy_vectors() -> object:
    """A data set whose vectors get noise from torch, NumPy and Python as they are loaded."""
    import torch

    class Vectors(torch.utils.data.Dataset):
        def __init__(self) -> None:
            generator = torch.Generator().manual_seed(0)
            self.inputs = torch.randn(PEER_SIZE, 64, generator=generator)
            self.labels = self.inputs.roll(1, 1)

        def __len__(self) -> int:
            return PEER_SIZE

        def __getitem__(self, index: int) -> dict[str, object]:
            noise = torch.randn(64) * np.random.uniform(0.5, 1.5) * random.uniform(0.5, 1.5)
            return {"inputs": self.inputs[index] + 0.1 * noise, "labels": self.labels[index]}

    return Vectors()


def network() -> object:
    """A network with dropout that a step takes some milliseconds for."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(64, PEER_WIDTH)]
    for _ in range(4):
        layers += [nn.GELU(), nn.Dropout(0.2), nn.Linear(PEER_WIDTH, PEER_WIDTH)]
    return nn.Sequential(*layers, nn.GELU(), nn.Linear(PEER_WIDTH, 64))


def transformers_peer(folder: Path) -> None:
    """transformers.Trainer, from its last checkpoint."""
    from torch import nn
    from transformers import Trainer, TrainingArguments, set_seed
    from transformers.trainer_utils import get_last_checkpoint

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, inputs, labels):
            outputs = self.network(inputs)
            return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}

    set_seed(0)
    options = TrainingArguments(
        output_dir=str(folder), max_steps=PEER_STEPS, save_steps=PEER_SAVES, save_total_limit=2, learning_rate=1e-3,
        per_device_train_batch_size=PEER_BATCH, dataloader_num_workers=2, use_cpu=True, report_to=[], seed=0,
        logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(Model(), options, train_dataset=noisy_vectors())
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if folder.exists() else None)
    trainer.save_model(str(folder / "final"))


def lightning_peer(folder: Path) -> None:
    """lightning's Trainer, from the last checkpoint of its callback."""
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from safetensors.torch import save_file

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            return torch.nn.functional.mse_loss(self.network(batch["inputs"]), batch["labels"])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    lightning.seed_everything(0, workers=True)
    loader = torch.utils.data.DataLoader(
        noisy_vectors(), batch_size=PEER_BATCH, shuffle=True, num_workers=2, persistent_workers=True
    )
    saving = ModelCheckpoint(folder, every_n_train_steps=PEER_SAVES, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=PEER_STEPS, callbacks=[saving], logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    module = Module()
    last = folder / "last.ckpt"
    trainer.fit(module, loader, ckpt_path=last if last.exists() else None)
    save_file(module.state_dict(), folder / "final.safetensors")


PEERS = {"transformers": transformers_peer, "lightning": lightning_peer}


def start_peer(name: str, folder: Path, log: Path) -> int:
    """Train in a process of its own group; returns its id."""
    pid = os.fork()
    with contextlib.suppress(PermissionError):
        os.setpgid(pid, pid or os.getpid())
    if pid:
        return pid
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 1
    try:
        PEERS[name](folder)
        code = 0
    except BaseException:  # noqa: BLE001 - its last line is reported
        traceback.print_exc()
    finally:
        os._exit(code)


def final_weights(folder: Path) -> dict[str, object]:
    """What a peer's training came to; {} where it did not get to its end."""
    from safetensors.torch import load_file

    files = [*folder.glob("final.safetensors"), *folder.glob("final/*.safetensors")]
    return {name: value for file in files for name, value in load_file(file).items()}


def measure_peer(name: str, kills: int, rng: random.Random, folder: Path) -> dict[str, object]:
    """As `measure`, with a peer: how many tensors differ in the end, or why it can't resume."""
    import torch

    log, place, hits = folder / f"{name}.txt", folder / name, 0

    def trained(run: str) -> dict[str, object]:
        _, status = os.waitpid(start_peer(name, place / run, log), 0)
        return {} if os.waitstatus_to_exitcode(status) else final_weights(place / run)

    def differing(one: dict[str, object], other: dict[str, object]) -> int:
        return sum(key not in other or not torch.equal(one[key], other[key]) for key in one)

    whole, began = trained("whole"), time.monotonic()
    again, seconds = trained("again"), time.monotonic() - began
    if not whole or differing(whole, again):
        raise SystemExit(f"{name}: two runs undisturbed differ\n{log.read_text()[-3000:]}")
    code = None
    while hits < kills and code is None:
        pid, began, delay = start_peer(name, place / "killed", log), time.monotonic(), rng.uniform(0.2, 0.7) * seconds
        while (code := ended(pid)) is None and time.monotonic() - began < delay:
            time.sleep(0.01)
        if code is None:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            hits += 1
        print(f"{name}: {hits} of {kills} kills", file=sys.stderr, flush=True)
    last = trained("killed") if code is None else final_weights(place / "killed")
    why = log.read_text().strip().rpartition("\n")[2]
    found = differing(whole, last) if last else f"can't resume: {why[:60]}"
    result = {"task": f"{name} {version(name)}", "kills": hits, "in a save": "", "tensors": len(whole), "lines": ""}
    return result | {"differing": found}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="for each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="*", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--peers", nargs="*", choices=[*PEERS], default=[], help="which must be installed")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    for module in ("phonate.workflows.train", *arguments.peers):  # what every process would import
        importlib.import_module(module)

    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        results = [measure(task, arguments.kills, rng, Path(temporary)) for task in arguments.tasks]
        results += [measure_peer(name, PEER_KILLS, rng, Path(temporary)) for name in arguments.peers]
    lines = ["| " + " | ".join(results[0]) + " |", "|" + "---|" * len(results[0])]
    lines += ["| " + " | ".join(map(str, one.values())) + " |" for one in results]
    table = "\n".join(lines)
    print(table)
    if arguments.out:
        command = "python benchmarks/faults.py " + " ".join(sys.argv[1:])
        arguments.out.write_text(f"# Runs that are killed at random moments\n\n`{command}`\n\n{table}\n")


if __name__ == "__main__":
    main()
