"""Memory and time of one training step of the autoregressive voice with and without gradient checkpointing.

    OMP_NUM_THREADS=1 python benchmarks/gradient_checkpointing.py [--width N] [--frames N] [--rounds 3] [--out FILE.md]
    python benchmarks/gradient_checkpointing.py --device cuda --sentences 32 --rounds 10

Four sentences, forward and backward, in fp32 (on a GPU with TF32, as the trainer does by default). Memory: each setting
runs one step in a process of its own, with an allocator that gives back what is freed. `kept` is what the forward pass
holds for the backward pass, weights left out; `peak` is by how much the step raises the process's memory over that of
weights and gradients (Linux), on a GPU what tensors take; `cut` is what that is less than without; `of all` the same
with the weights, gradients and Adam's two moments, which nobody saves, on both sides. Time: all settings take turns in
one process; `/ none` is the median over rounds of the ratio of processor times, on a GPU of the time until it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from gauges import clock, used
from phonate.nn.sequences import Segments, segments_for
from phonate.tasks.speech.model import AutoregressiveModel
from phonate.tasks.speech.settings import SpeechModel

SEGMENTS = ("none", "1", "2", "3", "4", "6", "auto")
_MIB = 2**20
_COPIES = 4 * 4
"""Bytes of a parameter in training: itself, its gradient and Adam's two moments, in fp32."""
_HEADER = """# What gradient checkpointing saves, and what it costs

    OMP_NUM_THREADS=1 python {command}

One step, forward and backward, of {sentences} sentences of {frames} frames by the autoregressive voice of width {width}
(6 + 6 blocks, {parameters:.1f} M parameters, with gradients and Adam's moments {states:.0f} MiB). `kept`: what the
forward pass holds for the backward pass. `peak`: by how much the step raises the memory over weights and gradients.
`cut`: what that is less than without; `of all`: the same with weights, gradients and moments on both sides. `/ none`:
{clock}, median over {rounds} rounds of the ratio to none in the same round. `auto` is {auto} segments here.

{machine}, {cores} cores, one thread, load {load:.2f}; torch {torch}, Python {python}
"""


def segments_of(name: str) -> Segments:
    """A setting as the model takes it."""
    return None if name == "none" else "auto" if name == "auto" else int(name)


def network(segments: str, width: int, device: torch.device) -> AutoregressiveModel:
    """The model, with a gradient for each parameter."""
    torch.manual_seed(0)
    settings = SpeechModel(
        kind="autoregressive", width=width, feed_forward=4 * width, checkpoint_segments=segments_of(segments)
    )
    with device:
        model = AutoregressiveModel(settings, 63, 1, 80)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


def batch_of(sentences: int, frames: int, device: torch.device) -> dict[str, Tensor]:
    """Sentences of equal length."""
    tokens = frames // 5
    with device:
        return {
            "tokens": torch.randint(1, 63, (sentences, tokens)),
            "durations": torch.full((sentences, tokens), 5),
            "target": torch.rand(sentences, frames, 80),
            "token_lengths": torch.full((sentences,), tokens),
            "lengths": torch.full((sentences,), frames),
            "speaker_id": torch.zeros(sentences, dtype=torch.long),
        }


def step(model: AutoregressiveModel, batch: dict[str, Tensor]) -> None:
    """Forward and backward."""
    terms = model.terms(model.teacher_forced(batch), batch)
    torch.stack([total for total, _ in terms.values()]).sum().backward()


def memory(segments: str, options: argparse.Namespace) -> dict[str, float]:
    """MiB kept and at the peak of one step."""
    device = torch.device(options.device)
    model, batch = network(segments, options.width, device), batch_of(options.sentences, options.frames, device)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    before = used(device, peak=False)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        terms = model.terms(model.teacher_forced(batch), batch)
    torch.stack([total for total, _ in terms.values()]).sum().backward()
    peak = used(device, peak=True) - before
    return {"kept": sum(kept.values()) / _MIB, "peak": peak / _MIB}


def on_gpu(segments: str, options: argparse.Namespace) -> dict[str, float]:
    """`memory` of tensors, once the libraries have taken their own."""
    memory(segments, argparse.Namespace(**{**vars(options), "sentences": 1}))
    torch.cuda.reset_peak_memory_stats()
    return memory(segments, options)


def times(options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each setting's steps, in turns, after one that is not counted."""
    device = torch.device(options.device)
    model, batch = network("none", options.width, device), batch_of(options.sentences, options.frames, device)
    taken: dict[str, list[float]] = {name: [] for name in SEGMENTS}
    for name in SEGMENTS if device.type == "cuda" else ["none"]:
        model.encoder.segments = model.decoder.segments = segments_of(name)
        step(model, batch)
    for number in range(options.rounds):
        shift = number * 3 % len(SEGMENTS)
        for name in SEGMENTS[shift:] + SEGMENTS[:shift]:
            model.encoder.segments = model.decoder.segments = segments_of(name)
            started = clock(device)
            step(model, batch)
            taken[name].append(clock(device) - started)
    return taken


def in_a_process_of_its_own(segments: str, options: argparse.Namespace) -> dict[str, float]:
    """`memory`, with what is freed given back to the system."""
    sizes = ["--width", options.width, "--frames", options.frames, "--sentences", options.sentences]
    ran = subprocess.run(
        [sys.executable, __file__, "--segments", segments, "--device", options.device, *map(str, sizes)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


def table(figures: dict[str, dict[str, float]], taken: dict[str, list[float]], options: argparse.Namespace) -> str:
    """All of it as Markdown."""
    plain, device = figures["none"], torch.device(options.device)
    gpu = device.type == "cuda"
    model = network("none", options.width, torch.device("cpu"))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    states = parameters * _COPIES / _MIB
    lines = [
        _HEADER.format(
            command=shlex.join(sys.argv),
            sentences=options.sentences,
            frames=options.frames,
            width=options.width,
            parameters=parameters / 1e6,
            states=states,
            clock="time until the GPU is done" if gpu else "processor time",
            rounds=len(taken["none"]),
            auto=segments_for(device),
            machine=torch.cuda.get_device_name(device) if gpu else platform.machine(),
            cores=os.cpu_count(),
            load=os.getloadavg()[0],
            torch=torch.__version__,
            python=platform.python_version(),
        ),
        "| segments | kept, MiB | peak, MiB | cut | of all | step, s | / none |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in SEGMENTS:
        kept, peak = figures[name]["kept"], figures[name]["peak"]
        cut, of_all = 1 - peak / plain["peak"], 1 - (peak + states) / (plain["peak"] + states)
        ratio = statistics.median(own / base for own, base in zip(taken[name], taken["none"], strict=True))
        lines.append(
            f"| {name} | {kept:.0f} | {peak:.0f} | {100 * cut:.0f} % | {100 * of_all:.0f} % "
            f"| {statistics.median(taken[name]):.3g} | {ratio:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run every setting and print the table; or one step of the setting that is named, and print its memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--frames", type=int, default=500)
    parser.add_argument("--sentences", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--segments", choices=SEGMENTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    if options.segments:
        print(json.dumps(memory(options.segments, options)))
        return
    measured = on_gpu if options.device == "cuda" else in_a_process_of_its_own
    figures = {name: measured(name, options) for name in SEGMENTS}
    text = table(figures, times(options), options)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
