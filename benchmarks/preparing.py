"""What preparing a corpus costs (check, decode, resample, features, cache), beside an older revision.

    git worktree add --detach /tmp/older REVISION
    OMP_NUM_THREADS=1 python benchmarks/preparing.py RECORDINGS --other /tmp/older/src [--rounds 5] [--out FILE.md]

RECORDINGS: a folder of clips, of which the first `--clips`, by name, are written as the kinds in `KINDS`, each as one
corpus. In each round both revisions prepare each corpus for `conversion` (mels at 22,050 Hz) into empty caches, in
turns, each in a process of its own that has loaded the features: once, which includes what else is imported or made
once, and once more, as more recordings would take. Files are in the page cache. Seconds are of the processor, which
depend less on what else the machine does. Ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import av
import numpy as np

from phonate.audio.decoding import read_audio
from phonate.data.voices import VoiceDataDetector

SOURCES = Path(__file__).resolve().parents[1] / "src"
KINDS = {
    "WAV, 48 kHz, stereo": ("wav", "wav", "pcm_s16le", 48_000, 2),
    "FLAC, 22.05 kHz": ("flac", "flac", "flac", 22_050, 1),
    "FLAC, 44.1 kHz": ("flac", "flac", "flac", 44_100, 1),
    "MP3, 44.1 kHz, stereo": ("mp3", "mp3", "libmp3lame", 44_100, 2),
    "M4A, 48 kHz": ("m4a", "ipod", "aac", 48_000, 1),
    "AAC, 48 kHz": ("aac", "adts", "aac", 48_000, 1),
    "Opus": ("opus", "ogg", "libopus", 48_000, 1),
}
"""Name -> suffix, FFmpeg's container and codec, Hz, channels."""
TIMED = """
import json, sys, time
try:
    from phonate.data.prepared import prepare
except ImportError:  # in older revisions
    from phonate.data.store.prepared import prepare
from phonate.data.settings import VoiceData
from phonate.data.features import FEATURES
settings = [VoiceData(path=sys.argv[1], cache_dir=f"{sys.argv[2]}/{number}") for number in range(2)]
FEATURES.get(settings[0].feature_name)(settings[0])
spent = []
for one in settings:
    before = time.process_time()
    prepared = prepare(one)
    spent.append(time.process_time() - before)
print(json.dumps([*spent, len(prepared.index)]))
"""


def write_as(path: Path, clip: np.ndarray, kind: tuple[str, str, str, int, int]) -> None:
    """A clip (N,) at the rate of the kind as a file."""
    _, container, codec, rate, channels = kind
    with av.open(str(path), "w", format=container) as file:
        layout = "stereo" if channels == 2 else "mono"
        stream = file.add_stream(codec, rate=rate, layout=layout)
        resampler = av.AudioResampler(stream.format.name, layout, rate, stream.codec_context.frame_size or 1024)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(clip[None]), format="flt", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))


def prepared(sources: Path, corpus: Path, folder: Path) -> tuple[float, float, int]:
    """Seconds of the first time and of another, and how many clips can be used."""
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", TIMED, str(corpus), str(cache)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=folder)
    first, again, count = ran.stdout.strip().splitlines()[-1].strip("[]").split(", ")
    return float(first), float(again), int(count)


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost of preparing a corpus, beside an older revision")
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--other", type=Path, required=True, help="the folder src of another revision")
    parser.add_argument("--clips", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    clips = sorted(VoiceDataDetector(args.recordings).get_voice_files())[: args.clips]
    rows: list[str] = []
    sums: list[list[tuple[float, float]]] = [[(0.0, 0.0), (0.0, 0.0)] for _ in range(args.rounds)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds = 0.0
        for title, kind in KINDS.items():
            corpus, seconds = folder / kind[0] / str(kind[3]), 0.0
            corpus.mkdir(parents=True)
            for number, clip in enumerate(clips):
                samples, rate = read_audio(clip, kind[3])
                write_as(corpus / f"{number:04d}.{kind[0]}", samples, kind)
                seconds += len(samples) / rate
            counts = set()
            prepared(args.other, corpus, folder)  # compiles modules, and reads the files
            rounds = []
            for number in range(args.rounds):
                sides = [SOURCES, args.other] if number % 2 else [args.other, SOURCES]
                spent = {side: prepared(side, corpus, folder) for side in sides}
                counts |= {one[2] for one in spent.values()}
                rounds.append([spent[side][:2] for side in (SOURCES, args.other)])
                for side in (0, 1):
                    before = sums[number][side]
                    sums[number][side] = (before[0] + rounds[-1][side][0], before[1] + rounds[-1][side][1])
            assert len(counts) == 1, f"{title}: {counts} clips are used"
            rows.append(row(title, rounds))
            print(rows[-1], flush=True)
    rows.append(row("all", sums))
    print(rows[-1])
    revision = subprocess.run(
        ["git", "-C", str(args.other), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    command = f"python {shlex.join(['benchmarks/preparing.py', 'RECORDINGS', '--other', 'OLDER/src'])}"
    text = f"""# Preparing a corpus

    OMP_NUM_THREADS=1 {command} --clips {len(clips)} --rounds {args.rounds}

{len(clips)} clips, {seconds / 60:.0f} minutes, of each kind. Seconds of processor time, medians of
{args.rounds} rounds in turns: of a process's first corpus, and of one more.
Two cores of a server, shared with other work, load {os.getloadavg()[0]:.1f};
Python {platform.python_version()}. The older revision is {revision}.

| | first: now | older | now / older | one more: now | older | now / older |
|---|---|---|---|---|---|---|
"""
    text += "\n".join(rows) + f"\n\nMeasured on {datetime.date.today():%Y-%m-%d}.\n"
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")


def row(title: str, rounds: list[list[tuple[float, float]]]) -> str:
    """One line of the table; each round has (first, one more) of now and of the older revision."""
    cells = [title]
    for time in (0, 1):
        now, older = (statistics.median(one[side][time] for one in rounds) for side in (0, 1))
        ratio = statistics.median(one[0][time] / one[1][time] for one in rounds)
        cells += [f"{now:.2f}", f"{older:.2f}", f"{ratio:.2f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
