"""Mixed precision on a CPU: time and memory of training steps in bf16 beside fp32, for models that the recipes train.

    OMP_NUM_THREADS=1 python benchmarks/precision.py [--rounds 5] [--out FILE.md]

Time: forward under the trainer's own `Precision`, backward, clipping and fused AdamW, both formats in turns in one
process; the ratio is the median over rounds of processor times in the same round. Memory: a forward and a backward
pass in a process of its own, with an allocator that gives back what is freed; `peak` is by how much they raise the
process's memory over that of weights and gradients (Linux), `cut` how much less that is in bf16; `of all` the same with
weights, gradients and Adam's two moments, which stay fp32, on both sides. CUDA is not measured here.
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phonate.config.resolve import resolve
from phonate.tasks.conversion.features.extractor import FeatureExtractor
from phonate.tasks.conversion.model import VoiceTransformer
from phonate.tasks.conversion.networks import build_model
from phonate.tasks.speech.model import build_acoustic
from phonate.tasks.speech.models.autoregressive import loss_terms
from phonate.tasks.speech.models.parallel import NOISE, Prosody
from phonate.training.precision.precision import Precision

FORMATS = ("fp32", "bf16")
CPU = torch.device("cpu")
_MIB = 2**20
_COPIES = 4 * 4
"""Bytes of a parameter in training: itself, its gradient and Adam's two moments, in fp32."""
_FRAMES_PER_TOKEN = 5
_HEADER = """# Mixed precision on a processor

    OMP_NUM_THREADS=1 python {command}

Steps in bf16 (autocast, as `training.mixed_precision=bf16` does) beside fp32: 16 clips of 160 frames, or sentences of
250 frames, 16 by `speech` (without its discriminator) and 4 by `speech-autoregressive` (without checkpointing). `step`
is the median processor time with clipping and AdamW, `faster` by how much more work bf16 does in the same time, median
over {rounds} rounds in turns; `items / s` are clips or sentences. `peak`: by how much forward and backward raise the
process's memory over weights and gradients; `cut`: how much less that is in bf16; `of all`: the same with weights,
gradients and Adam's moments on both sides. Only processors that multiply in bf16 gain: this one {native}. Nothing here
is about CUDA or MPS.

{machine}, {cores} cores, one thread, load {load:.2f}; torch {torch}, Python {python}.
"""

Case = tuple[nn.Module, Callable[[], Tensor], int]
"""A model, what gives a batch's loss, and the items of the batch."""


def transformer(model: VoiceTransformer, items: int, frames: int) -> Case:
    """Mels to mels, by distance."""
    batch: dict[str, Tensor] = {"features": torch.rand(items, frames, model.input_dim)}
    if model.n_speakers:
        batch["speaker_id"] = torch.arange(items) % model.n_speakers
    if model.prosody_dim:
        batch["prosody"] = torch.rand(items, frames, model.prosody_dim)
    target_BTM = torch.rand(items, frames, model.output_dim)
    return model, lambda: (model(**batch).float() - target_BTM).abs().mean(), items


def published() -> Case:
    """The VoiceTransformer by its defaults: width 512, 6 layers."""
    return transformer(VoiceTransformer(), 16, 160)


def conversion() -> Case:
    """The recipe `conversion`, with three speakers."""
    recipe: Any = resolve("conversion", ["data.path=."]).recipe
    extractor, mels = FeatureExtractor(recipe.data), recipe.data.audio.n_mels
    model = build_model(recipe.model, 3, mels, mels, extractor.prosody_dim)
    return transformer(model, recipe.training.batch_size, recipe.data.crop_frames)


def sentences(items: int, frames: int) -> dict[str, Tensor]:
    """A batch of speech of one length."""
    tokens = frames // _FRAMES_PER_TOKEN
    return {
        "tokens": torch.randint(1, 63, (items, tokens)),
        "durations": torch.full((items, tokens), _FRAMES_PER_TOKEN),
        "target": torch.rand(items, frames, 80),
        "token_lengths": torch.full((items,), tokens),
        "lengths": torch.full((items,), frames),
        "speaker_id": torch.zeros(items, dtype=torch.long),
    }


def speech() -> Case:
    """The acoustic model of the recipe `speech`, without its discriminator."""
    recipe: Any = resolve("speech", ["data.path=."]).recipe
    model = build_acoustic(recipe.model, 63, 1, recipe.data.audio.n_mels)
    batch = sentences(recipe.training.batch_size, 250)
    shape = batch["lengths"].shape[0], 250
    prosody = Prosody(batch["durations"], torch.rand(batch["tokens"].shape), torch.rand(*shape, 2))
    noise_BTN = torch.randn(*shape, NOISE)

    def loss() -> Tensor:
        said = model(batch["tokens"], batch["token_lengths"], prosody, noise_BTN, batch["lengths"], batch["speaker_id"])
        away = (said.mel_BTM.float() - batch["target"]).abs().mean()
        return away + said.predicted_BL2.float().square().mean() + said.pitch_BT2.float().square().mean()

    return model, loss, shape[0]


def autoregressive() -> Case:
    """The recipe `speech-autoregressive` (width 512, 6 + 6 blocks), everything kept."""
    recipe: Any = resolve("speech-autoregressive", ["data.path=.", "model.checkpoint_segments=null"]).recipe
    model, batch = build_acoustic(recipe.model, 63, 1, recipe.data.audio.n_mels), sentences(4, 250)

    def loss() -> Tensor:
        terms = loss_terms(model, batch)
        return torch.stack([total.float() / count for total, count in terms.values()]).sum()

    return model, loss, 4


CASES: dict[str, Callable[[], Case]] = {
    "conversion": conversion,
    "speech": speech,
    "speech-autoregressive": autoregressive,
    "VoiceTransformer, width 512": published,
}


def held(name: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most so far. (ru_maxrss would count what its parent held, too.)"""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def memory(case: str, name: str) -> dict[str, float]:
    """MiB at the peak of a forward and a backward pass, and millions of parameters."""
    torch.manual_seed(0)
    model, loss, _ = CASES[case]()
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    precision = Precision(name, CPU)
    before = held("VmRSS")
    with precision.autocast():
        value = loss()
    precision.backward(value)
    peak = held("VmHWM") - before
    return {"peak": peak / _MIB, "parameters": sum(parameter.numel() for parameter in parameters)}


def in_a_process_of_its_own(case: str, name: str) -> dict[str, float]:
    """`memory`, with what is freed given back to the system."""
    ran = subprocess.run(
        [sys.executable, __file__, "--memory", case, name],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


def times(case: str, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Processor seconds of steps in each format, in turns; the first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in FORMATS}
    steps: dict[str, Callable[[], None]] = {}
    items = 0
    for name in FORMATS:
        torch.manual_seed(0)
        model, loss, items = CASES[case]()
        steps[name] = stepper(model, loss, Precision(name, CPU))
    for number in range(rounds + 1):
        for name in FORMATS if number % 2 else reversed(FORMATS):
            started = time.process_time()
            steps[name]()
            if number:
                taken[name].append(time.process_time() - started)
    return taken, items


def stepper(model: nn.Module, loss: Callable[[], Tensor], precision: Precision) -> Callable[[], None]:
    """One training step of `model`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        with precision.autocast():
            value = loss()
        precision.backward(value)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def row(case: str, rounds: int) -> str:
    """The line of a case."""
    used = {name: in_a_process_of_its_own(case, name) for name in FORMATS}
    taken, items = times(case, rounds)
    states = used["fp32"]["parameters"] * _COPIES / _MIB
    plain, mixed = used["fp32"]["peak"], used["bf16"]["peak"]
    gain = statistics.median(base / own for base, own in zip(taken["fp32"], taken["bf16"], strict=True)) - 1
    seconds = {name: statistics.median(taken[name]) for name in FORMATS}
    return (
        f"| {case} | {used['fp32']['parameters'] / 1e6:.1f} | {seconds['fp32']:.2f} | {seconds['bf16']:.2f} "
        f"| {100 * gain:+.0f} % | {items / seconds['fp32']:.1f} | {items / seconds['bf16']:.1f} "
        f"| {plain:.0f} | {mixed:.0f} | {100 * (1 - mixed / plain):.0f} % "
        f"| {100 * (1 - (mixed + states) / (plain + states)):.0f} % |"
    )


def multiplies_in_bf16() -> bool:
    """Whether the processor has such instructions (Linux)."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def main() -> None:
    """Measure every model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "FORMAT"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        print(json.dumps(memory(*options.memory)))
        return
    header = _HEADER.format(
        command=shlex.join(sys.argv),
        rounds=options.rounds,
        native="does" if multiplies_in_bf16() else "does not",
        machine=platform.machine(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        torch=torch.__version__,
        python=platform.python_version(),
    )
    lines = [
        header,
        "| model | M parameters | step fp32, s | bf16 | faster | items / s fp32 | bf16 | peak fp32, MiB | bf16 | cut "
        "| of all |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(row(case, options.rounds) for case in CASES),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
