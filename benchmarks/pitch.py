"""Gross errors of F0 (frames over 20 % off) in telephone speech, children's voices and singing, by several methods.

    pip install praat-parselmouth pyworld swift-f0 "setuptools<81"
    python benchmarks/pitch.py RECORDINGS

RECORDINGS: a folder with the folders in `CLIPS`; of each the last two fifths, by name, are used: others served to
choose what the detector is set to. The reference is where Praat and Harvest agree to 5 % on the recording as it is.
Children and singers are the same recordings, synthesised again by WORLD with another pitch, which is known.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soxr
from scipy.signal import butter, fftconvolve, firwin, sosfiltfilt

from phonate.audio.decoding import FloatArray, read_audio
from phonate.audio.pitch import f0, f0_stream

CLIPS = {
    "tts_en_kathleen": 4,
    "tts_en_lj": 3,
    "tts_de_kerstin": 4,
    "spk_en_librispeech": 9,
    "asr_en_an4": 5,
    "voice_ar_commands": 5,
}
SECONDS, HOP = 4.0, 0.01
Track = npt.NDArray[np.floating]
Method = Callable[[FloatArray, int], Track]


def at_hop(track: Track, hop: float, seconds: float) -> Track:
    """The track at multiples of 10 ms."""
    frames = np.round(np.arange(1 + int(seconds / HOP)) * HOP / hop).astype(int)
    return track[np.clip(frames, 0, len(track) - 1)]


def phonate(method: str) -> Method:
    """`f0`, or its stream."""

    def track(sound: FloatArray, rate: int) -> Track:
        hop = round(HOP * rate)
        if method != "stream":
            return at_hop(f0(sound, rate, hop, method), hop / rate, len(sound) / rate)  # type: ignore[arg-type]
        stream = f0_stream(rate, hop)
        pieces = [stream.push(sound), stream.finish(1 + len(sound) // hop)]
        return at_hop(np.concatenate(pieces), hop / rate, len(sound) / rate)

    return track


def praat(sound: FloatArray, rate: int, lowest: float = 60.0, highest: float = 600.0) -> Track:
    """Praat's autocorrelation method."""
    import parselmouth

    pitch = parselmouth.Sound(sound.astype(np.float64), rate).to_pitch_ac(
        time_step=HOP, pitch_floor=lowest, pitch_ceiling=highest
    )
    values = pitch.selected_array["frequency"]
    frames = np.round((np.arange(1 + int(len(sound) / rate / HOP)) * HOP - pitch.xs()[0]) / HOP).astype(int)
    inside = (frames >= 0) & (frames < len(values))
    return np.where(inside, values[np.clip(frames, 0, len(values) - 1)], 0.0)


def wheel() -> Method:
    """The swift-f0 package, with onnxruntime."""
    from swift_f0 import SwiftF0

    detector = SwiftF0(threads=1)

    def track(sound: FloatArray, rate: int) -> Track:
        found = detector.detect(sound, rate, 46.9, 1100.0)
        return at_hop(np.where(found.confidence >= 0.5, found.pitch_hz, 0.0), 0.016, len(sound) / rate)

    return track


def reference(sound: FloatArray, rate: int) -> Track:
    """F0 where Praat and Harvest agree, else 0."""
    import pyworld

    own = praat(sound, rate, 50.0)
    values, times = pyworld.harvest(sound.astype(np.float64), rate, f0_floor=50.0, f0_ceil=600.0, frame_period=10.0)
    values = at_hop(pyworld.stonemask(sound.astype(np.float64), values, times, rate), HOP, len(sound) / rate)
    agree = (own > 0) & (values > 0) & (np.abs(own / np.maximum(values, 1.0) - 1.0) < 0.05)
    return np.where(agree, np.sqrt(own * values), 0.0)


def telephone(sound: FloatArray, rate: int, sharp: bool) -> FloatArray:
    """8 kHz mu-law, 300 to 3,400 Hz; `sharp`: nothing is left under 300 Hz."""
    narrow = soxr.resample(sound, rate, 8000)
    if sharp:
        narrow = fftconvolve(narrow, firwin(401, [300, 3400], pass_zero=False, fs=8000), "same")
    else:
        narrow = sosfiltfilt(butter(2, [300, 3400], "bandpass", fs=8000, output="sos"), narrow)
    narrow = 0.5 * narrow / np.abs(narrow).max()
    codes = np.round(127.5 * (np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256) + 1)) / 127.5 - 1
    return (np.sign(codes) * (256 ** np.abs(codes) - 1) / 255).astype(np.float32)


def sung(sound: FloatArray, rate: int, number: int) -> Iterator[tuple[str, FloatArray, Track]]:
    """A child that speaks, a glide with vibrato up to 1,000 Hz (or from there), and a note that is held."""
    import pyworld

    samples = sound[: 4 * rate].astype(np.float64)
    own, times = pyworld.harvest(samples, rate, f0_floor=60.0, f0_ceil=600.0)
    own = pyworld.stonemask(samples, own, times, rate)
    envelope, noise = pyworld.cheaptrick(samples, own, times, rate), pyworld.d4c(samples, own, times, rate)
    median = float(np.median(own[own > 0]))
    bins = np.arange(envelope.shape[1])
    smaller = np.exp([np.interp(bins / 1.25, bins, np.log(row + 1e-16)) for row in envelope])
    lowest, highest, note = (220.0, 1000.0, 523.25) if median > 150 else (90.0, 500.0, 261.6)
    glide = lowest * (highest / lowest) ** np.linspace(*((0, 1) if number % 2 else (1, 0)), len(own))
    vibrato = 2 ** (0.5 / 12 * np.sin(2 * np.pi * 5.5 * times))
    for name, pitch, spectrum in (
        ("child", own * 1.25 * 330 / median, smaller),
        ("sung glide", np.where(own > 0, glide * vibrato, 0.0), envelope),
        ("held note", np.where(own > 0, note, 0.0), envelope),
    ):
        made = pyworld.synthesize(pitch, np.ascontiguousarray(spectrum), noise, rate).astype(np.float32)[: len(samples)]
        inside = np.lib.stride_tricks.sliding_window_view(np.pad(pitch > 0, 2), 5).all(axis=1)
        yield name, made, at_hop(np.where(inside, pitch, 0.0), 0.005, len(made) / rate)


def cases(folder: Path) -> Iterator[tuple[str, str, FloatArray, int, Track]]:
    """Condition, recording, sound, rate and reference."""
    number = 0
    for name, count in CLIPS.items():
        files = sorted((folder / name).rglob("*.flac"))
        later = files[3 * len(files) // 5 :]
        for path in later[:: max(1, len(later) // count)][:count]:
            sound, rate = read_audio(path)
            sound = sound[: int(SECONDS * rate)]
            truth = reference(sound, rate)
            if (truth > 0).sum() < 20:
                continue
            yield "as recorded", path.name, sound, rate, truth
            yield "telephone", path.name, telephone(sound, rate, sharp=False), 8000, truth
            yield "telephone, sharp filter", path.name, telephone(sound, rate, sharp=True), 8000, truth
            if number % 7 == 0:
                for condition, made, pitch in sung(sound, rate, number // 7):
                    yield condition, path.name, made, rate, pitch
                    yield f"{condition}, telephone", path.name, telephone(made, rate, sharp=False), 8000, pitch
            number += 1


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", type=Path)
    arguments = parser.parse_args()
    methods: dict[str, Method] = {
        "phonate": phonate("swift"),
        "phonate, stream": phonate("stream"),
        "before (yin)": phonate("yin"),
        "swift-f0": wheel(),
        "Praat": praat,
    }
    counts: dict[tuple[str, str], list[npt.NDArray[np.int64]]] = {}
    seconds, took = 0.0, dict.fromkeys(methods, 0.0)
    for condition, _, sound, rate, truth in cases(arguments.recordings):
        seconds += len(sound) / rate
        for name, method in methods.items():
            began = time.process_time()
            track = method(sound, rate)
            took[name] += time.process_time() - began
            frames = min(len(track), len(truth))
            voiced, heard = truth[:frames] > 0, track[:frames] > 0
            gross = voiced & heard & (np.abs(track[:frames] / np.maximum(truth[:frames], 1.0) - 1.0) > 0.2)
            counts.setdefault((condition, name), []).append(
                np.array([gross.sum(), (voiced & heard).sum(), voiced.sum()], dtype=np.int64)
            )
    print("| | recordings |", " | ".join(methods), "|\n|", "---|" * (2 + len(methods)))
    for condition in dict.fromkeys(condition for condition, _ in counts):
        cells = []
        for name in methods:
            rows = np.array(counts[condition, name])
            wrong, both, voiced = rows.sum(axis=0)
            worst = 100 * (rows[:, 0] / np.maximum(rows[:, 1], 1)).max()
            cells.append(f"{100 * wrong / both:.2f} / {worst:.1f} / {100 * (1 - both / voiced):.0f}")
        print(f"| {condition} | {len(rows)} |", " | ".join(cells), "|")
    print("| times real time | |", " | ".join(f"{seconds / took[name]:.0f}" for name in methods), "|")


if __name__ == "__main__":
    main()
