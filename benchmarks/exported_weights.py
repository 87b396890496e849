"""What weights in fewer bits save in an exported voice, and what they cost in words and naturalness.

    python benchmarks/exported_weights.py RUN CORPUS [--rounds 5] [--out benchmarks/results/exported_weights.md]

RUN is a run of the task speech whose recipe names a vocoder, CORPUS has recordings with texts that it was not trained
on, such as the held_out.csv of scripts/prepare_base.py. Each text is spoken by the voice exported with each --dtype,
and with onnxruntime's dynamic quantisation, which multiplies in 8 bits too. MB is the file, and the same compressed by
gzip; rtf is processor time on one core over the length of what was spoken, of the first 30 texts, which the files speak
in turns, as a median over rounds. `clips differ` is the mean difference of a clip's MOS from that of fp32, with its
standard error.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from phonate.evaluation.held_out import Clip, clips_of
from phonate.evaluation.words import character_error_rate, count_word_errors
from phonate.pretrained import MosPredictor, Transcriber
from phonate.tasks.speech.export import export
from phonate.tasks.speech.graph import DTYPES
from phonate.tasks.speech.inference import Synthesiser
from phonate.training.checkpoints import best_or_latest

Sentences = list[np.ndarray]
"""The tokens (1, L) of each sentence of a text."""
_TIMED = 30


def files(run: Path, folder: Path) -> dict[str, Path]:
    """The voice in each form."""
    checkpoint = best_or_latest(run)
    found = {dtype: export(checkpoint, folder / dtype, "onnx", dtype=dtype)[0] for dtype in DTYPES}
    quantised = folder / "dynamic.onnx"
    quantize_dynamic(
        found["fp32"], quantised, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8
    )
    return {**found, "int8, all products by onnxruntime": quantised}


def on_one_thread(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def spoken(session: onnxruntime.InferenceSession, sentences: Sentences) -> np.ndarray:
    """The samples (N,) of a text, by the first speaker."""
    first = {"scales": np.ones(3, dtype=np.float32), "sid": np.zeros(1, dtype=np.int64)}
    given = {one.name: first[one.name] for one in session.get_inputs() if one.name in first}
    return np.concatenate([session.run(None, {"input": one, **given})[0][0, 0] for one in sentences])


def real_time_factors(
    sessions: dict[str, onnxruntime.InferenceSession], texts: list[Sentences], rate: int, rounds: int
) -> dict[str, float]:
    factors: dict[str, list[float]] = {name: [] for name in sessions}
    rng = np.random.default_rng(0)
    for number in range(rounds + 1):
        spent, made = dict.fromkeys(sessions, 0.0), dict.fromkeys(sessions, 0.0)
        for text in texts:
            for name in rng.permutation(list(sessions)).tolist():
                before = time.process_time()
                samples = spoken(sessions[name], text)
                spent[name] += time.process_time() - before
                made[name] += len(samples) / rate
        for name in sessions if number else ():  # the first round warms up
            factors[name].append(spent[name] / made[name])
    return {name: statistics.median(values) for name, values in factors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="weights of exported voices in fewer bits")
    parser.add_argument("run", type=Path)
    parser.add_argument("corpus")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    voice = Synthesiser.load(args.run)
    clips: list[Clip] = list(clips_of(voice.data, args.corpus))
    texts = [[np.array([voice.inventory.ids(one)]) for one in voice.sentences(clip.text)] for clip in clips]
    recogniser, judge = Transcriber(threads=1), MosPredictor()
    lines = [
        f"`python benchmarks/exported_weights.py RUN CORPUS --rounds {args.rounds}`: {len(clips)} texts, one core "
        f"({platform.machine()}, load {os.getloadavg()[0]:.1f}), torch {torch.__version__}, onnxruntime "
        f"{onnxruntime.__version__}.",
        "",
        "| | MB | MB, gzip | rtf | WER | CER | MOS | clips differ |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        made = files(args.run, Path(folder))
        sessions = {name: on_one_thread(path) for name, path in made.items()}
        factors = real_time_factors(sessions, texts[:_TIMED], voice.sample_rate, args.rounds)
        unchanged = np.zeros(len(clips))
        for name, session in sessions.items():
            sounds = [spoken(session, text) for text in texts]
            heard = [recogniser.transcribe(sound, voice.sample_rate) for sound in sounds]
            wanted = [clip.text for clip in clips]
            scores = np.array([judge.score(sound, voice.sample_rate) for sound in sounds])
            unchanged = scores if name == "fp32" else unchanged
            differ = scores - unchanged
            size, packed = made[name].stat().st_size, len(gzip.compress(made[name].read_bytes()))
            lines.append(
                f"| {name} | {size / 1e6:.1f} | {packed / 1e6:.1f} | {factors[name]:.4f} "
                f"| {count_word_errors(wanted, heard).rate:.1%} | {character_error_rate(wanted, heard):.1%} "
                f"| {scores.mean():.3f} "
                f"| {differ.mean():+.3f} ± {differ.std() / len(clips) ** 0.5:.3f} |"
            )
            print(lines[-1], flush=True)
    print("\n".join(lines))
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
