"""What preparing a corpus costs (check, decode, resample, features, cache), beside an older revision.

    git worktree add --detach /tmp/older REVISION
    OMP_NUM_THREADS=1 python benchmarks/preparing.py RECORDINGS [MORE ...] --other /tmp/older/src [--rounds 5]

RECORDINGS: a folder of clips, of which the first `--clips`, by name, are written as the kinds in `KINDS`, each as one
corpus; of MORE folders they are taken as they are. In each round both revisions prepare each corpus for `conversion`
(mels at 22,050 Hz) into empty caches, in turns, in a process that has loaded the features: once, which includes what
else is imported or made once, and once more, as more recordings would take. And in each `phonate data prepare` does so,
with all that a process needs to begin and to end. Files are in the page cache. Seconds are of the processor, which
depend less on what else the machine does. Ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import av
import numpy as np

from phonate.audio.decoding import probe, read_audio
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


def prepared(sources: Path, corpus: Path, folder: Path) -> tuple[tuple[float, ...], int]:
    """Seconds of the first time, of another, and of the command; and how many clips can be used."""
    cache = folder / "cache"
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    run = partial(subprocess.run, env=environment, capture_output=True, text=True, check=True, cwd=folder)
    shutil.rmtree(cache, ignore_errors=True)
    ran = run([sys.executable, "-c", TIMED, str(corpus), str(cache)])
    first, again, count = ran.stdout.strip().splitlines()[-1].strip("[]").split(", ")
    shutil.rmtree(cache)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run([sys.executable, "-m", "phonate", "data", "prepare", str(corpus), "--cache-dir", str(cache)])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (float(first), float(again), command), int(count)


Round = list[tuple[float, ...]]
"""Seconds as of `prepared`, of now and of the older revision."""


def compared(corpus: Path, other: Path, folder: Path, rounds: int) -> list[Round]:
    """Both revisions, in turns."""
    prepared(other, corpus, folder)  # compiles modules, and reads the files
    counts, measured = set(), []
    for number in range(rounds):
        sides = [SOURCES, other] if number % 2 else [other, SOURCES]
        spent = {side: prepared(side, corpus, folder) for side in sides}
        counts |= {count for _, count in spent.values()}
        measured.append([spent[side][0] for side in (SOURCES, other)])
    assert len(counts) == 1, f"{corpus}: {counts} clips are used"
    return measured


def added(rounds: Sequence[Round]) -> Round:
    """The same round of several corpora as one."""
    return [tuple(map(sum, zip(*(one[side] for one in rounds), strict=True))) for side in (0, 1)]


def seconds_of(clips: Sequence[Path]) -> float:
    """Of all of them."""
    return sum(probe(clip).duration for clip in clips)


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost of preparing a corpus, beside an older revision")
    parser.add_argument("recordings", type=Path)
    parser.add_argument("more", type=Path, nargs="*")
    parser.add_argument("--other", type=Path, required=True, help="the folder src of another revision")
    parser.add_argument("--clips", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    clips, *others = [
        sorted(VoiceDataDetector(folder).get_voice_files())[: args.clips] for folder in (args.recordings, *args.more)
    ]
    rows: list[str] = []

    def tell(title: str, rounds: list[Round]) -> None:
        rows.append(row(title, rounds))
        print(rows[-1], flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measured = []
        for title, kind in KINDS.items():
            corpus = folder / kind[0] / str(kind[3])
            corpus.mkdir(parents=True)
            for number, clip in enumerate(clips):
                write_as(corpus / f"{number:04d}.{kind[0]}", read_audio(clip, kind[3])[0], kind)
            measured.append(compared(corpus, args.other, folder, args.rounds))
            tell(title, measured[-1])
        tell("all", [added(rounds) for rounds in zip(*measured, strict=True)])
        for number, some in enumerate(others):
            corpus = folder / str(number)
            corpus.mkdir()
            for clip in some:
                shutil.copy(clip, corpus / clip.name)
            rate = probe(some[0]).sample_rate / 1000
            title = f"{len(some)} others, {seconds_of(some) / 60:.0f} min, {some[0].suffix[1:].upper()}, {rate:g} kHz"
            tell(title, compared(corpus, args.other, folder, args.rounds))
    revision = subprocess.run(
        ["git", "-C", str(args.other), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    words = ["benchmarks/preparing.py", "RECORDINGS", *["MORE"] * len(others), "--other", "OLDER/src"]
    text = f"""# Preparing a corpus

    OMP_NUM_THREADS=1 python {shlex.join(words)} --clips {args.clips} --rounds {args.rounds}

{len(clips)} clips, {seconds_of(clips) / 60:.0f} minutes, of each kind. Seconds of processor time, medians of
{args.rounds} rounds in turns: of a process's first corpus, of one more, and of `phonate data prepare`, of which most is
starting Python, and in the older revision torch.
Two cores of a server, shared with other work, load {os.getloadavg()[0]:.1f};
Python {platform.python_version()}. The older revision is {revision}.

| | first: now | older | now / older | one more: now | older | now / older | command: now | older | now / older |
|---|---|---|---|---|---|---|---|---|---|
"""
    text += "\n".join(rows) + f"\n\nMeasured on {datetime.date.today():%Y-%m-%d}.\n"
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")


def row(title: str, rounds: list[Round]) -> str:
    """One line of the table."""
    cells = [title]
    for what in range(3):
        now, older = (statistics.median(one[side][what] for one in rounds) for side in (0, 1))
        ratio = statistics.median(one[0][what] / one[1][what] for one in rounds)
        cells += [f"{now:.2f}", f"{older:.2f}", f"{ratio:.2f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
