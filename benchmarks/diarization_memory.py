"""Memory and time that diarizing a long recording takes.

    OMP_NUM_THREADS=1 python benchmarks/diarization_memory.py [--hours 4] [--size small] [--stitching embeddings]

An untrained model diarizes a made-up recording of vowels in several voices and pauses, written as FLAC. Its threshold
is the median of its probabilities, so that it "hears" speakers in half of all frames: as many voices are embedded and
clustered as in a meeting, and more. `peak` is the largest resident set of the process, which includes the libraries.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
import torch

from phonate.config.documents import parse
from phonate.config.resolve import resolve_document
from phonate.data.features import FEATURES
from phonate.tasks.diarization.inference import Diarizer
from phonate.tasks.diarization.model import build_model

RATE = 16_000


def write_recording(path: Path, hours: float) -> None:
    """Vowels of random pitch and timbre for half a second to three seconds, and pauses, a minute at a time."""
    rng = np.random.default_rng(0)
    voices = [(rng.uniform(90, 240), rng.uniform(0.3, 1.2)) for _ in range(6)]
    with soundfile.SoundFile(path, "w", RATE, 1, subtype="PCM_16") as file:
        for _ in range(round(60 * hours)):
            minute = 0.003 * rng.normal(size=60 * RATE).astype(np.float32)
            at = 0
            while at < len(minute):
                pitch, tilt = voices[rng.integers(len(voices))]
                length = min(int(rng.uniform(0.5, 3.0) * RATE), len(minute) - at)
                phase = 2 * np.pi * pitch * np.arange(length) / RATE
                minute[at : at + length] += sum(0.1 * h**-tilt * np.sin(h * phase) for h in range(1, 20))
                at += length + int(rng.uniform(0.0, 1.0) * RATE)
            file.write(minute.clip(-1, 1))


def untrained(size: str) -> Diarizer:
    """A model with random weights."""
    text = f"task: diarization\nsize: {size}\ndata: {{path: unused}}\nmodel: {{num_speakers: 3}}\n"
    recipe = resolve_document(parse(text, "recipe.yaml")).recipe
    torch.manual_seed(0)
    features = FEATURES.get(recipe.data.feature_name)(recipe.data)
    return Diarizer(build_model(recipe, features.width, []), recipe)


def peak_gigabytes() -> float:
    """The largest resident set so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def main() -> None:
    """Print a line of figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--size", default="small")
    parser.add_argument("--stitching", choices=("embeddings", "overlap"), default="embeddings")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.flac"
        write_recording(path, args.hours)
        diarizer = untrained(args.size)
        first = soundfile.read(path, frames=60 * RATE, dtype="float32")[0]
        middle = float(np.median(diarizer.analyse(first).windows.probabilities[0]))
        diarizer.decoding = diarizer.decoding.model_copy(update={"threshold": middle, "stitching": args.stitching})
        before, started = peak_gigabytes(), time.perf_counter()
        found = diarizer.diarize(path, max_speakers=8 if args.stitching == "embeddings" else None)
        seconds = time.perf_counter() - started
    print(
        f"{args.hours:g} h, {args.size}, {args.stitching}: {len(found.turns)} turns of {len(found.speakers)} speakers; "
        f"{seconds:.0f} s, {3600 * args.hours / seconds:.0f} x real time; peak {peak_gigabytes():.2f} GiB "
        f"({before:.2f} before)"
    )


if __name__ == "__main__":
    main()
