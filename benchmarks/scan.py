"""What scanning and validating a folder of recordings costs, beside librosa doing the same.

    OMP_NUM_THREADS=1 python benchmarks/scan.py [--files 10000] [--rounds 5] [--folder DIR]

The folder has recordings of 1 to 5 s of noise under a slow envelope, half of them WAV at 22.05 kHz, the others WAV at
16 kHz, FLAC at 22.05 kHz and Ogg Vorbis at 22.05 kHz. Both sides find the files, decode them to 16 kHz mono (30 s at
most), compute RMS, peak and mean spectral centroid, and decide by the same rules. They must take the same files.

The folder is cut into as many parts as there are rounds. In a round both sides go through the same part, in another
order each time, in one process each; times are processor time. The ratio is the median over rounds of librosa's time
over phonate's. Then phonate goes through the whole folder in as many processes as it takes by itself, which is wall
time.
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

import librosa
import numpy as np
import soundfile

from phonate.audio.quality import voice_score
from phonate.compute.limits import cores
from phonate.data.voice_files import VoiceDataDetector
from phonate.data.voice_validation import VoiceRules, validate_voice_files

KINDS = ((".wav", 22_050), (".wav", 22_050), (".wav", 22_050), (".wav", 16_000), (".flac", 22_050), (".ogg", 22_050))
SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".m4a")
RULES = VoiceRules()


def write_recordings(folder: Path, files: int, parts: int) -> None:
    """`files` recordings in `parts` sub-folders of like content; every tenth is too quiet."""
    rng = np.random.default_rng(0)
    for number in range(files):
        suffix, rate = KINDS[number % len(KINDS)]
        length = int(rate * rng.uniform(1.0, 5.0))
        envelope = np.abs(np.sin(np.pi * np.arange(length) / rate))
        samples = envelope * rng.standard_normal(length) * (0.002 if number % 10 == 9 else 0.1)
        path = folder / f"{number % parts}" / f"{number:05d}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, samples.astype(np.float32), rate)


def by_phonate(folder: Path) -> set[str]:
    """Names of the files that are taken."""
    usable, _ = validate_voice_files(VoiceDataDetector(folder), RULES, processes=1)
    return {file.path.name for file in usable}


def by_librosa(folder: Path) -> set[str]:
    """The same, as one would write it with librosa."""
    taken = set()
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in SUFFIXES:
            continue
        if (whole := librosa.get_duration(path=path)) < RULES.min_seconds:
            continue
        samples, rate = librosa.load(path, sr=RULES.sample_rate, mono=True, duration=RULES.max_seconds)
        rms = float(np.sqrt(np.mean(samples**2)))
        peak = float(np.abs(samples).max())
        centroid = float(librosa.feature.spectral_centroid(y=samples, sr=rate).mean())
        if voice_score(rms, peak, centroid, min(whole, RULES.max_seconds))[0] >= RULES.min_quality:
            taken.add(path.name)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost of scanning and validating recordings")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    args = parser.parse_args()
    sides: dict[str, Callable[[Path], set[str]]] = {"librosa": by_librosa, "phonate": by_phonate}
    timings: dict[str, list[float]] = {name: [] for name in sides}
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        write_recordings(folder, args.files, args.rounds)
        write_recordings(folder / "warm", 12, 1)
        for side in sides.values():
            side(folder / "warm")
        taken = 0
        for part in range(args.rounds):
            found = {}
            for name in rng.permutation(list(sides)).tolist():
                start = time.process_time()
                found[name] = sides[name](folder / f"{part}")
                timings[name].append(time.process_time() - start)
            assert found["librosa"] == found["phonate"], found["librosa"] ^ found["phonate"]
            taken += len(found["phonate"])
        start = time.perf_counter()
        validate_voice_files(VoiceDataDetector(folder), RULES)
        spread = time.perf_counter() - start
    print(
        f"{args.files} files, {args.rounds} rounds, {cores()} cores, load {os.getloadavg()[0]:.2f}; librosa "
        f"{librosa.__version__}, numpy {np.__version__}, Python {platform.python_version()}\n"
        f"Both sides take the same {taken} files.\n"
    )
    print("| | ms / file | librosa's time / |\n|---|---|---|")
    for name, values in timings.items():
        ratio = statistics.median(base / value for base, value in zip(timings["librosa"], values, strict=True))
        print(f"| {name}, one process | {1e3 * sum(values) / args.files:.3f} | {ratio:.2f} |")
    print(f"\nphonate in {cores()} processes: {spread:.1f} s of wall time, {1e3 * spread / args.files:.3f} ms a file.")


if __name__ == "__main__":
    main()
