"""What a Ray cluster of two workers costs beside two processes or threads of this machine, on the same corpus.

    OMP_NUM_THREADS=1 python benchmarks/cluster.py [--clips 128] [--rounds 3]

In turns, each time into an empty cache: the corpus is prepared (threads beside Ray), then the pitch of each recording
is computed (processes beside Ray). Each does so twice in a row and the second time counts: workers have been started
and have imported what they need, which takes either as long. The time to start Ray is told apart. The ratio is the
median over rounds of Ray's seconds over the machine's in the same round.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from phonate.audio.decoding import write_audio
from phonate.audio.settings import AudioConfig
from phonate.data.derived import open_pitch
from phonate.data.prepared import prepare
from phonate.data.settings import ExecutorName, VoiceData


def write_corpus(folder: Path, clips: int) -> None:
    """Noise of 1 to 3 s at 22,050 Hz, as FLAC."""
    rng = np.random.default_rng(0)
    for number in range(clips):
        wave = np.cumsum(rng.standard_normal(22_050 * int(rng.integers(1, 4)))).astype(np.float32)
        write_audio(folder / f"s{number % 4}" / f"{number}.flac", 0.5 * wave / np.abs(wave).max(), 22_050)


def seconds(folder: Path, executor: ExecutorName) -> tuple[float, float]:
    """Of preparing the corpus and of its pitch."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    data = VoiceData(
        path=str(folder / "corpus"),
        audio=AudioConfig(sample_rate=16_000),
        cache_dir=str(folder / "cache"),
        executor=executor,
    )
    began = time.perf_counter()
    prepared = prepare(data)
    middle = time.perf_counter()
    open_pitch(prepared, data.audio, "swift")
    return middle - began, time.perf_counter() - middle


def main() -> None:
    """Print the table."""
    import ray

    parser = argparse.ArgumentParser()
    parser.add_argument("--clips", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    names: tuple[ExecutorName, ExecutorName] = ("local", "ray")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "corpus", args.clips)
        began = time.perf_counter()
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        connected = time.perf_counter() - began
        times: dict[str, list[tuple[float, float]]] = {executor: [] for executor in names}
        for number in range(args.rounds):
            for executor in names if number % 2 else reversed(names):
                seconds(folder, executor)
                times[executor].append(seconds(folder, executor))
            print(f"round {number + 1}: {times['local'][-1]} {times['ray'][-1]}", file=sys.stderr)
    print(f"{args.clips} clips; a local Ray of two workers starts within {connected:.1f} s\n")
    print("| work | this machine s | Ray s | ratio |\n|---|---|---|---|")
    for part, work in enumerate(("prepare", "pitch")):
        local, cluster = ([one[part] for one in times[executor]] for executor in names)
        ratio = statistics.median(b / a for a, b in zip(local, cluster, strict=True))
        print(f"| {work} | {statistics.median(local):.1f} | {statistics.median(cluster):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
