"""What reading cached features costs, beside arrays in memory and beside making them anew.

    OMP_NUM_THREADS=1 python benchmarks/feature_cache.py [--clips 480] [--rounds 15] [--folder DIR]

Clips of 1 to 10 s of noise are prepared as a corpus. Padded batches of 16 are then made of them in random order. The
sources take turns, in another order in each round; they write into one buffer, since allocating it would cost more than
reading:

- in memory    a list of float32 arrays: the floor
- cache        FeatureCache: one memory-mapped file, in the page cache
- files        one .npy file a clip
- cache, 2 workers   the cache behind BatchSource with two loader processes
- waveforms    mel spectrograms computed from the cached waveforms (what augmentation costs at least)
- recordings   mel spectrograms computed from the files: decoded, resampled, normalised (fewer clips are timed)

Times are processor time (of the loader with processes, which overlaps with them, wall time). The ratio is the median
over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phonate.audio.decoding import FloatArray, write_audio
from phonate.audio.processor import AudioProcessor
from phonate.data.batches import Batch
from phonate.data.loading import BatchSource
from phonate.data.prepared import PreparedCorpus, prepare
from phonate.data.settings import VoiceData

BATCH = 16
SLOW = 32
"""Clips of a round for the sources that compute features."""
Read = Callable[[int], FloatArray]


def write_corpus(folder: Path, clips: int) -> None:
    """Recordings of two speakers at 22.05 kHz."""
    rng = np.random.default_rng(0)
    for number in range(clips):
        samples = rng.standard_normal(int(22_050 * rng.uniform(1.0, 10.0))) * 0.1
        write_audio(folder / f"speaker{number % 2}" / f"{number:05d}.wav", samples, 22_050)


def padded(arrays: list[FloatArray]) -> torch.Tensor:
    """(B, longest, width), zeros after each end."""
    out = np.zeros((len(arrays), max(map(len, arrays)), arrays[0].shape[1]), dtype=np.float32)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(out)


def read_all(read: Read, order: list[int], buffer: FloatArray) -> None:
    """Make the batches of an epoch, one after the other in `buffer` (BATCH, longest, width)."""
    for start in range(0, len(order), BATCH):
        arrays = [read(i) for i in order[start : start + BATCH]]
        longest = max(map(len, arrays))
        for row, array in zip(buffer, arrays, strict=False):
            row[: len(array)] = array
            row[len(array) : longest] = 0.0


class Features:
    """The cached features as samples of the loader."""

    cached = True

    def __init__(self, prepared: PreparedCorpus) -> None:
        self.ids = prepared.index.id
        self.lengths = prepared.index.frames
        self.frames_per_second = 86.0
        self.cache = prepared.cache

    def get(self, index: int, rng: np.random.Generator) -> FloatArray:
        """The features of a clip."""
        return self.cache.features(index)

    def collate(self, items: list[Any]) -> Batch:
        """A padded batch."""
        return {"features": padded(items)}


def sources(prepared: PreparedCorpus, folder: Path) -> dict[str, tuple[Read, int | None]]:
    """Name -> how a clip's features are got, and how many clips of a round are timed (None: all)."""
    cache, processor = prepared.cache, AudioProcessor()
    paths = prepared.index.path[:]
    memory = [np.array(cache.features(i)) for i in range(len(paths))]
    files = folder / "files"
    files.mkdir()
    for number, array in enumerate(memory):
        np.save(files / f"{number}.npy", array)
    return {
        "in memory": (memory.__getitem__, None),
        "cache": (cache.features, None),
        "files": (lambda i: np.load(files / f"{i}.npy"), None),
        "waveforms": (lambda i: processor.mel(cache.waveform(i)), SLOW),
        "recordings": (lambda i: processor.mel(processor.load(paths[i])), SLOW),
    }


def measure(prepared: PreparedCorpus, folder: Path, rounds: int) -> dict[str, list[float]]:
    """Microseconds a clip of each source, round by round; the first round only warms up."""
    reads = sources(prepared, folder)
    working = BatchSource(Features(prepared), seed=0, batch_size=BATCH, num_workers=2)
    timings: dict[str, list[float]] = {name: [] for name in [*reads, "cache, 2 workers"]}
    rng = np.random.default_rng(1)
    longest = int(prepared.index.frames.max())
    buffer = np.zeros((BATCH, longest, prepared.cache.features(0).shape[1]), dtype=np.float32)
    for number in range(rounds + 1):
        order = rng.permutation(len(prepared.index)).tolist()
        for name in rng.permutation(list(reads)).tolist():
            read, limit = reads[name]
            part = order[:limit]
            start = time.process_time()
            read_all(read, part, buffer)
            timings[name].append(1e6 * (time.process_time() - start) / len(part))
        start = time.perf_counter()
        for _ in working.epoch(number):
            pass
        timings["cache, 2 workers"].append(1e6 * (time.perf_counter() - start) / len(order))
    working.close()
    return {name: values[1:] for name, values in timings.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost of reading cached features")
    parser.add_argument("--clips", type=int, default=480)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        write_corpus(folder / "corpus", args.clips)
        start = time.perf_counter()
        prepared = prepare(VoiceData(path=str(folder / "corpus"), cache_dir=str(folder / "cache")))
        seconds = time.perf_counter() - start
        again = time.perf_counter()
        prepare(VoiceData(path=str(folder / "corpus"), cache_dir=str(folder / "cache")))
        again = time.perf_counter() - again
        timings = measure(prepared, folder, args.rounds)
    print(
        f"{args.clips} clips, {prepared.report['seconds'] / 60:.0f} min of audio, {args.rounds} rounds, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}; numpy {np.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}\n"
        f"Prepared in {seconds:.1f} s ({1e3 * seconds / args.clips:.0f} ms a clip), found again in {again:.2f} s.\n"
    )
    print("| | us / clip | / in memory |\n|---|---|---|")
    for name, values in timings.items():
        ratio = statistics.median(v / floor for v, floor in zip(values, timings["in memory"], strict=True))
        print(f"| {name} | {statistics.median(values):.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
