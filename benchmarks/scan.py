"""What scanning and validating a folder of recordings costs, beside librosa doing the same.

    OMP_NUM_THREADS=1 python benchmarks/scan.py [--files 10000] [--rounds 5] [--folder DIR]

The recordings are of 1 to 5 s: harmonics of a gliding pitch with breath noise, of which every tenth is too quiet, and
every fifth as loud as it can be. Of ten, six are WAV at 22.05 kHz, two WAV at 16 kHz, one is FLAC, one Ogg Vorbis. Both
sides find the files, decode them to mono (30 s at most), judge by the peak, and by RMS and mean spectral centroid as
they are at 16 kHz, and decide by the same rules. They must take the same files.

Each kind is cut into as many parts as there are rounds. In a round both sides go through the same part, in another
order each time, in one process each; times are processor time. The ratio is the median over rounds of librosa's time
over phonate's, and for all kinds together that of the sums. Left to itself phonate takes as many processes as there are
cores: the whole folder is timed so in the end, in wall time.
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

from phonate.audio.quality import VoiceLevels, voice_score
from phonate.compute.resources import cores
from phonate.data.settings import VoiceRules
from phonate.data.voices import VoiceDataDetector, validate_voice_files

KINDS = {"WAV, 22.05 kHz": (".wav", 22_050, 6), "WAV, 16 kHz": (".wav", 16_000, 2)}
KINDS |= {"FLAC, 22.05 kHz": (".flac", 22_050, 1), "Ogg Vorbis, 22.05 kHz": (".ogg", 22_050, 1)}
"""Name -> suffix, samples a second, how many of ten files."""
LONGEST = 5.0
SUFFIXES = (".wav", ".mp3", ".flac", ".ogg", ".m4a")
RULES = VoiceRules()


def voice(rate: int, seed: int) -> np.ndarray:
    """Five seconds that peak at 1, float32."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(LONGEST * rate)) / rate
    pitch = rng.uniform(90.0, 240.0)
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.15 * np.sin(2 * np.pi * rng.uniform(0.5, 2.0) * at))) / rate
    formants = rng.uniform((400, 1100, 2300), (800, 1900, 3100))
    sound = np.zeros_like(at)
    for harmonic in range(1, int(5000 / pitch)):
        gain = sum(np.exp(-(((harmonic * pitch - formant) / 250.0) ** 2)) for formant in formants) + 0.02
        sound += gain * np.sin(harmonic * phase)
    sound *= 0.1 + np.abs(np.sin(np.pi * rng.uniform(2.0, 4.0) * at))
    sound += 0.02 * np.abs(sound).max() * rng.standard_normal(len(at))
    return (sound / np.abs(sound).max()).astype(np.float32)


def write_recordings(folder: Path, files: int, parts: int) -> None:
    """`files` recordings in a sub-folder a kind with `parts` sub-folders each."""
    rng = np.random.default_rng(0)
    for kind, (suffix, rate, tenths) in KINDS.items():
        voices = [voice(rate, seed) for seed in range(20)]
        for number in range(max(parts, files * tenths // 10)):
            gain = 0.005 if number % 10 == 9 else 0.999 if number % 5 == 0 else rng.uniform(0.1, 0.8)
            samples = gain * voices[number % len(voices)][: int(rate * rng.uniform(1.0, LONGEST))]
            path = folder / kind / f"{number % parts}" / f"{number:05d}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, samples, rate)


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
        samples, rate = librosa.load(path, sr=None, mono=True, duration=RULES.max_seconds)
        peak = float(np.abs(samples).max())
        samples = librosa.resample(samples, orig_sr=rate, target_sr=RULES.sample_rate)
        rms = float(np.sqrt(np.mean(samples**2)))
        centroid = float(librosa.feature.spectral_centroid(y=samples, sr=RULES.sample_rate).mean())
        if voice_score(VoiceLevels(rms, peak, centroid), min(whole, RULES.max_seconds))[0] >= RULES.min_quality:
            taken.add(path.name)
    return taken


def in_turns(folder: Path, rounds: int) -> tuple[dict[str, list[tuple[float, float]]], int]:
    """Seconds of (librosa, phonate) in each round by kind, and how many files both take."""
    sides: dict[str, Callable[[Path], set[str]]] = {"librosa": by_librosa, "phonate": by_phonate}
    rng = np.random.default_rng(1)
    seconds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    taken = 0
    for part in range(rounds):
        for kind in KINDS:
            spent, found = {}, {}
            for side in rng.permutation(list(sides)).tolist():
                start = time.process_time()
                found[side] = sides[side](folder / kind / f"{part}")
                spent[side] = time.process_time() - start
            assert found["librosa"] == found["phonate"], found["librosa"] ^ found["phonate"]
            taken += len(found["phonate"])
            seconds[kind].append((spent["librosa"], spent["phonate"]))
    return seconds, taken


def row(name: str, files: int, rounds: list[tuple[float, float]]) -> str:
    """One line of the table."""
    librosas, ours = (1e3 * sum(side) / files for side in zip(*rounds, strict=True))
    ratio = statistics.median(theirs / own for theirs, own in rounds)
    return f"| {name} | {files} | {librosas:.3f} | {ours:.3f} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost of scanning and validating recordings")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name) / "recordings"
        write_recordings(folder, args.files, args.rounds)
        write_recordings(Path(name) / "warm", 20, 1)
        for side in (by_librosa, by_phonate):
            side(Path(name) / "warm")
        seconds, taken = in_turns(folder, args.rounds)
        counts = {kind: len(VoiceDataDetector(folder / kind).get_voice_files()) for kind in KINDS}
        start = time.perf_counter()
        validate_voice_files(VoiceDataDetector(folder), RULES)
        spread = time.perf_counter() - start
    files = sum(counts.values())
    print(
        f"{files} files, {args.rounds} rounds, {cores()} cores, load {os.getloadavg()[0]:.2f}; librosa "
        f"{librosa.__version__}, numpy {np.__version__}, Python {platform.python_version()}\n"
        f"Both sides take the same {taken} files. Times are in ms a file.\n"
    )
    print("| | files | librosa | phonate | librosa / phonate |\n|---|---|---|---|---|")
    for kind, rounds in seconds.items():
        print(row(kind, counts[kind], rounds))
    together = [tuple(map(sum, zip(*parts, strict=True))) for parts in zip(*seconds.values(), strict=True)]
    print(row("all", files, together))
    print(f"\nphonate in {cores()} processes: {spread:.1f} s of wall time, {1e3 * spread / files:.3f} ms a file.")


if __name__ == "__main__":
    main()
