"""What a corpus of 100,000 hours costs before its first batch, and shards at an address beside shards on a disk.

    OMP_NUM_THREADS=1 python benchmarks/scale.py [--rows 20000000] [--clips 400] [--rounds 5]

1. An index of 20 million rows of 18 s in 20,000 shards is written as preparing writes it, but for the sound, which
   shards have. A new process each opens it and plans an epoch: seconds, and the highest memory of the process, for
   batches by number and by length.
2. A corpus in shards is read, as training reads it, from the disk and from an S3 server on loopback, in turns, each
   time from nothing kept. The ratio is the median over rounds of S3's speed over the disk's in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import write_audio
from phonate.audio.settings import AudioConfig
from phonate.data.batches import Streams, epoch_plan
from phonate.data.cache import Index, Places, Strings
from phonate.data.loading import BatchSource
from phonate.data.prepared import WholeRecordings, prepare
from phonate.data.settings import VoiceData
from phonate.workflows.datasets.shards import write_shards

SECONDS, SHARDS, FRAMES = 18, 20_000, 1800


def strings(pattern: str, count: int) -> Strings:
    """`count` numbered strings of equal length, without a Python object for each."""
    width = len(pattern % 0)
    data = np.empty((count, width), dtype=np.uint8)
    for start in range(0, count, 1 << 18):
        part = np.char.mod(pattern, np.arange(start, min(count, start + (1 << 18)))).astype(f"S{width}")
        data[start : start + len(part)] = part.view(np.uint8).reshape(-1, width)
    return Strings(data.reshape(-1), np.arange(count + 1, dtype=np.int64) * width)


def write_index(folder: Path, rows: int) -> None:
    """The index of `rows` rows."""
    rng = np.random.default_rng(0)
    frames = rng.integers(FRAMES // 2, FRAMES * 3 // 2, rows)
    shard = np.arange(rows) * SHARDS // rows
    size = frames * 160
    start = np.concatenate([[0], np.cumsum(size)])
    first = np.searchsorted(shard, np.arange(SHARDS))
    ids = strings("%012d", rows)
    Index(
        id=ids,
        path=ids,
        speakers=strings("speaker%05d", 10_000),
        segment_first=np.arange(rows + 1),
        segment_start=np.zeros(rows),
        segment_end=frames / 100,
        segment_speaker=rng.integers(0, 10_000, rows),
        segment_text=strings("a text of some forty letters, as is usual %012d", rows),
        recording=np.arange(rows),
        official_split=np.zeros(rows, dtype=np.int64),
        sample_start=np.concatenate([[0], np.cumsum(frames * 160)]),
        frame_start=np.concatenate([[0], np.cumsum(frames)]),
        places=Places(
            shards=strings("s3://bucket/corpus/%06d.tar", SHARDS),
            stamps=strings("%06d", SHARDS),
            names=ids,
            shard=shard,
            offset=start[:-1] - start[first[shard]],
            size=size,
            start=np.zeros(rows),
            end=np.full(rows, np.nan),
            channel=np.full(rows, -1),
        ),
    ).save(folder)


def megabytes() -> float:
    """The highest memory of this process so far."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def open_and_plan(folder: Path, kind: str) -> dict[str, float]:
    """Seconds and megabytes of opening an index and of planning an epoch of it."""
    before, began = megabytes(), time.perf_counter()
    index = Index.load(folder)
    opened, held = time.perf_counter() - began, megabytes() - before
    began = time.perf_counter()
    assert index.places is not None
    streams = Streams(np.asarray(index.places.shard), index.places.run)
    located = time.perf_counter() - began
    size: dict[str, Any] = {"batch_size": 256} if kind == "number" else {"max_frames": 400_000}
    began = time.perf_counter()
    batches = epoch_plan(0, 0, index.frames, streams=streams, **size)
    planned = time.perf_counter() - began
    assert sum(map(len, batches)) == len(index)
    return {
        "open_s": opened, "open_MB": held, "runs_s": located, "plan_s": planned, "all_MB": megabytes() - before,
        "batches": len(batches),
    }  # fmt: skip


class Waveforms(WholeRecordings):
    """Recordings as they are."""

    def __init__(self, prepared: Any) -> None:
        super().__init__(prepared, range(len(prepared.index)), 100.0)

    def get(self, index: int, rng: np.random.Generator) -> Any:
        """The waveform and the mel."""
        return self.prepared.cache.waveform(index), self.prepared.cache.features(index)

    def collate(self, items: list[Any]) -> Any:
        """A list."""
        return {"items": items}


def read_in_turns(folder: Path, clips: int, rounds: int) -> tuple[list[float], list[float], float]:
    """Seconds of epochs from the disk and from S3, and the hours of sound."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "data"))
    from s3_server import s3_server

    rng = np.random.default_rng(0)
    for number in range(clips):
        wave = np.cumsum(rng.standard_normal(16_000 * int(rng.integers(3, 12)))).astype(np.float32)
        write_audio(folder / "corpus" / f"s{number % 4}" / f"{number}.wav", 0.5 * wave / np.abs(wave).max(), 16_000)
    data = VoiceData(
        path=str(folder / "corpus"), audio=AudioConfig(sample_rate=16_000), cache_dir=str(folder / "cache")
    )
    with s3_server() as (address, objects, _):
        os.environ |= {
            "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        }  # fmt: skip
        shards = folder / "shards"
        write_shards(data, str(shards), "16", lambda *_: None)
        objects.update({f"voices/shards/{file.name}": file.read_bytes() for file in shards.iterdir()})
        places = {"disk": str(shards), "s3": "s3://voices/shards"}
        sources = {
            name: prepare(data.model_copy(update={"path": path, "cache_dir": str(folder / name)}))
            for name, path in places.items()
        }
        times: dict[str, list[float]] = {"disk": [], "s3": []}
        for number in range(rounds + 1):
            for name in ("disk", "s3") if number % 2 else ("s3", "disk"):
                shutil.rmtree(folder / name / "runs", ignore_errors=True)
                began = time.perf_counter()
                for _ in BatchSource(Waveforms(sources[name]), seed=0, batch_size=16).epoch(number):
                    pass
                if number:
                    times[name].append(time.perf_counter() - began)
        hours = float(sources["disk"].index.frames.sum()) / 100 / 3600
    return times["disk"], times["s3"], hours


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plan", nargs=2, metavar=("FOLDER", "KIND"))
    args = parser.parse_args()
    if args.plan:
        print(json.dumps(open_and_plan(Path(args.plan[0]), args.plan[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.rows:
            index = Path(folder) / "index"
            index.mkdir()
            write_index(index, args.rows)
            size = sum(file.stat().st_size for file in index.iterdir()) / 1e9
            print(f"{args.rows:,} rows, {args.rows * SECONDS / 3600:,.0f} h, {size:.1f} GB of index\n")
            print(
                "| batches by | open s | open MB | runs s | plan s | all MB | batches |\n|---|---|---|---|---|---|---|"
            )
            for kind in ("number", "length"):
                command = [sys.executable, __file__, "--plan", str(index), kind]
                one = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                values = (one["open_s"], one["open_MB"], one["runs_s"], one["plan_s"], one["all_MB"], one["batches"])
                cells = [f"{value:.3g}" if value < 100 else f"{value:.0f}" for value in values]
                print(f"| {' | '.join([kind, *cells])} |")
            shutil.rmtree(index)
        if args.clips:
            disk, s3, hours = read_in_turns(Path(folder), args.clips, args.rounds)
            ratio = statistics.median(a / b for a, b in zip(disk, s3, strict=True))
            print(
                f"\nAn epoch of {hours:.2f} h: {statistics.median(disk):.2f} s from the disk, "
                f"{statistics.median(s3):.2f} s from S3; S3 at {ratio:.2f} of the disk's speed"
            )


if __name__ == "__main__":
    main()
