"""Mixed precision: time and memory of training steps in bf16 beside fp32, for models that the recipes train.

    OMP_NUM_THREADS=1 python benchmarks/precision.py [--rounds 5] [--out FILE.md]
    python benchmarks/precision.py --device cuda --batches 8 [--rounds 20]      # fp16 too

Time: forward under the trainer's own `Precision`, backward, clipping and fused AdamW, the formats in turns in one
process; the ratio is the median over rounds of processor times in the same round, on a GPU of the time until it is
done. Memory: a forward and a backward pass, on a CPU in a process of its own, with an allocator that gives back what is
freed; `peak` is by how much they raise the process's memory over that of weights and gradients (Linux), on a GPU what
tensors take; `cut` how much less that is than in fp32; `of all` the same with weights, gradients and Adam's two
moments, which stay fp32, on both sides. On a GPU fp32 multiplies matrices in TF32, as the trainer does by default.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gauges import clock, used
from phonate.compute.resources import multiplies_in_bf16
from phonate.config.resolve import resolve
from phonate.tasks.conversion.features import FeatureExtractor
from phonate.tasks.conversion.model import VoiceTransformer, build_model
from phonate.tasks.speech.model import NOISE, Prosody, build_acoustic
from phonate.training.precision import Precision

FORMATS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "bf16", "fp16")}
_MIB = 2**20
_COPIES = 4 * 4
"""Bytes of a parameter in training: itself, its gradient and Adam's two moments, in fp32."""
_FRAMES_PER_TOKEN = 5
_HEADER = """# Mixed precision on a {place}

    OMP_NUM_THREADS=1 python {command}

Steps in mixed precision (autocast, as `training.mixed_precision` does) beside fp32: {clips} clips of 160 frames, or
sentences of 250 frames, {clips} by `speech` (without its discriminator) and {sentences} by `speech-autoregressive`
(without checkpointing). `step` is the median {clock}, with clipping and AdamW; `faster` is by how much
more work is done in the same time, median over {rounds} rounds in turns; `items / s` are clips or sentences. `peak`: by
how much forward and backward raise the memory over weights and gradients; `cut`: how much less that is than in fp32;
`of all`: the same with weights, gradients and Adam's moments on both sides. {note}

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


def published(batches: int) -> Case:
    """The VoiceTransformer by its defaults: width 512, 6 layers."""
    return transformer(VoiceTransformer(), 16 * batches, 160)


def conversion(batches: int) -> Case:
    """The recipe `conversion`, with three speakers."""
    recipe: Any = resolve("conversion", ["data.path=."]).recipe
    extractor, mels = FeatureExtractor(recipe.data), recipe.data.audio.n_mels
    model = build_model(recipe.model, 3, mels, mels, extractor.prosody_dim)
    return transformer(model, batches * recipe.training.batch_size, recipe.data.crop_frames)


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


def speech(batches: int) -> Case:
    """The acoustic model of the recipe `speech`, without its discriminator."""
    recipe: Any = resolve("speech", ["data.path=."]).recipe
    model = build_acoustic(recipe.model, 63, 1, recipe.data.audio.n_mels)
    batch = sentences(batches * recipe.training.batch_size, 250)
    shape = batch["lengths"].shape[0], 250
    prosody = Prosody(batch["durations"], torch.rand(batch["tokens"].shape), torch.rand(*shape, 2))
    noise_BTN = torch.randn(*shape, NOISE)

    def loss() -> Tensor:
        said = model(batch["tokens"], batch["token_lengths"], prosody, noise_BTN, batch["lengths"], batch["speaker_id"])
        away = (said.mel_BTM.float() - batch["target"]).abs().mean()
        return away + said.predicted_BL2.float().square().mean() + said.pitch_BT2.float().square().mean()

    return model, loss, shape[0]


def autoregressive(batches: int) -> Case:
    """The recipe `speech-autoregressive` (width 512, 6 + 6 blocks), everything kept."""
    recipe: Any = resolve("speech-autoregressive", ["data.path=.", "model.checkpoint_segments=null"]).recipe
    model, batch = build_acoustic(recipe.model, 63, 1, recipe.data.audio.n_mels), sentences(4 * batches, 250)

    def loss() -> Tensor:
        terms = model.terms(model.teacher_forced(batch), batch)
        return torch.stack([total.float() / batch["lengths"].sum() for total, _ in terms.values()]).sum()

    return model, loss, 4 * batches


CASES: dict[str, Callable[[int], Case]] = {
    "conversion": conversion,
    "speech": speech,
    "speech-autoregressive": autoregressive,
    "VoiceTransformer, width 512": published,
}


def case_on(device: torch.device, case: str, batches: int) -> Case:
    """The case with its weights and its batch on a device."""
    torch.manual_seed(0)
    with device:
        return CASES[case](batches)


def memory(device: torch.device, case: str, name: str, batches: int) -> dict[str, float]:
    """MiB at the peak of a forward and a backward pass, and millions of parameters."""
    model, loss, _ = case_on(device, case, batches)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    precision = Precision(name, device)
    before = used(device, peak=False)
    with precision.autocast():
        value = loss()
    precision.backward(value)
    peak = used(device, peak=True) - before
    return {"peak": peak / _MIB, "parameters": sum(parameter.numel() for parameter in parameters)}


def in_a_process_of_its_own(device: torch.device, case: str, name: str, batches: int) -> dict[str, float]:
    """`memory`, with what is freed given back to the system."""
    sizes = ["--device", device.type, "--batches", str(batches)]
    ran = subprocess.run(
        [sys.executable, __file__, "--memory", case, name, *sizes],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


def on_gpu(device: torch.device, case: str, name: str, batches: int) -> dict[str, float]:
    """`memory` of tensors, once the libraries have taken their own."""
    memory(device, case, name, 1)
    torch.cuda.reset_peak_memory_stats(device)
    return memory(device, case, name, batches)


def times(device: torch.device, case: str, batches: int, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Seconds of steps in each format, in turns; the first rounds are not counted."""
    formats = FORMATS[device.type]
    warm_up = 5 if device.type == "cuda" else 1
    taken: dict[str, list[float]] = {name: [] for name in formats}
    steps: dict[str, Callable[[], None]] = {}
    items = 0
    for name in formats:
        model, loss, items = case_on(device, case, batches)
        steps[name] = stepper(model, loss, Precision(name, device))
    for number in range(rounds + warm_up):
        for name in formats if number % 2 else reversed(formats):
            started = clock(device)
            steps[name]()
            if number >= warm_up:
                taken[name].append(clock(device) - started)
    return taken, items


def stepper(model: nn.Module, loss: Callable[[], Tensor], precision: Precision) -> Callable[[], None]:
    """One training step of `model`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        with precision.autocast():
            value = loss()
        precision.backward(value)
        precision.unscale(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        precision.step(optimizer)
        precision.update()
        optimizer.zero_grad()

    return step


def titles(formats: tuple[str, ...]) -> str:
    """The head of the table."""
    others = formats[1:]
    cells = ["model", "M parameters", *(f"step {name}, s" for name in formats), *(f"{name} faster" for name in others)]
    cells += [*(f"items / s {name}" for name in formats), *(f"peak {name}, MiB" for name in formats)]
    cells += [f"{name} {what}" for name in others for what in ("cut", "of all")]
    return "| " + " | ".join(cells) + " |\n" + "|---" * len(cells) + "|"


def row(device: torch.device, case: str, batches: int, rounds: int) -> str:
    """The line of a case."""
    plain, *others = FORMATS[device.type]
    measured = on_gpu if device.type == "cuda" else in_a_process_of_its_own
    found = {name: measured(device, case, name, batches) for name in FORMATS[device.type]}
    taken, items = times(device, case, batches, rounds)
    states = found[plain]["parameters"] * _COPIES / _MIB
    peaks = {name: figures["peak"] for name, figures in found.items()}
    seconds = {name: statistics.median(values) for name, values in taken.items()}

    def gain(name: str) -> float:
        return statistics.median(base / own for base, own in zip(taken[plain], taken[name], strict=True)) - 1

    cells = [case, f"{found[plain]['parameters'] / 1e6:.1f}", *(f"{value:.3g}" for value in seconds.values())]
    cells += [f"{100 * gain(name):+.0f} %" for name in others]
    cells += [f"{items / value:.1f}" for value in seconds.values()] + [f"{value:.0f}" for value in peaks.values()]
    for name in others:
        cells.append(f"{100 * (1 - peaks[name] / peaks[plain]):.0f} %")
        cells.append(f"{100 * (1 - (peaks[name] + states) / (peaks[plain] + states)):.0f} %")
    return "| " + " | ".join(cells) + " |"


def header(device: torch.device, batches: int, rounds: int) -> str:
    """What was measured, how, and where."""
    gpu = device.type == "cuda"
    native = "does" if multiplies_in_bf16() else "does not"
    return _HEADER.format(
        place="GPU" if gpu else "processor",
        command=shlex.join(sys.argv),
        clips=16 * batches,
        sentences=4 * batches,
        clock="time until the GPU is done" if gpu else "processor time",
        rounds=rounds,
        note="fp32 multiplies matrices in TF32."
        if gpu
        else f"Only processors that multiply in bf16 gain: this one {native}.",
        machine=torch.cuda.get_device_name(device) if gpu else platform.machine(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        torch=torch.__version__,
        python=platform.python_version(),
    )


def main() -> None:
    """Measure every model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=FORMATS, default="cpu")
    parser.add_argument("--batches", type=int, default=1, help="of the recipe, in a step")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "FORMAT"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    if options.memory:
        print(json.dumps(memory(device, *options.memory, options.batches)))
        return
    rows = [row(device, case, options.batches, options.rounds) for case in CASES]
    lines = [header(device, options.batches, options.rounds), titles(FORMATS[device.type]), *rows]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
