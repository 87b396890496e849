"""What a simulated conversation costs: 30 s of four speakers at 16 kHz, and the filter banks of it.

    OMP_NUM_THREADS=1 python benchmarks/conversations.py [--rounds 60] [--seconds 30]

Clips are voiced sounds made on the spot, six of 2 to 7 s of each of twelve speakers; what is heard in them changes no
cost. Time is that of the processor (process_time), the median of the rounds; every round is another conversation.
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

import numpy as np
import soundfile
import soxr
import torch

from phonate.audio.kaldi import KaldiFeatures
from phonate.audio.settings import KaldiSettings
from phonate.config.randomness import generator
from phonate.data.conversations import ConversationSimulator
from phonate.data.settings import AcousticSettings, SimulationSettings
from phonate.tasks.diarization.data import simulator_of
from phonate.tasks.diarization.settings import DiarizationData

RATE, SPEAKERS, CLIPS = 16_000, 12, 6
DRY = AcousticSettings(reverberation=0.0, noise=0.0)
FULL = AcousticSettings(reverberation=1.0, noise=1.0)


def write_clips(folder: Path) -> None:
    """Harmonics with breath noise between half seconds of silence."""
    rng = np.random.default_rng(0)
    for speaker in range(SPEAKERS):
        (folder / f"s{speaker}").mkdir(parents=True)
        for clip in range(CLIPS):
            at = np.arange((2 + clip) * RATE) / RATE
            voice = sum(np.sin(2 * np.pi * (90 + 15 * speaker) * h * at) / h for h in range(1, 15))
            sound = 0.1 * voice + 0.005 * rng.standard_normal(len(at))
            soundfile.write(folder / f"s{speaker}" / f"{clip}.wav", np.pad(sound, RATE // 2), RATE, subtype="PCM_16")


def milliseconds(rounds: int, make: Callable[[int], object]) -> float:
    """Median processor time of `make(round)`."""
    make(-1)
    spent = []
    for number in range(rounds):
        started = time.process_time()
        make(number)
        spent.append(1000 * (time.process_time() - started))
    return statistics.median(spent)


def simulators(clips: Path, cache: Path) -> dict[str, ConversationSimulator]:
    """Name -> simulator of four speakers."""

    def simulator(**settings: object) -> ConversationSimulator:
        simulation = SimulationSettings.model_validate({"speakers": (4, 4), **settings})
        return simulator_of(DiarizationData(path=str(clips), cache_dir=str(cache), simulation=simulation))

    return {
        "turns alone": simulator(acoustics=DRY, speed=None),
        "with speeds": simulator(acoustics=DRY),
        "with speeds, noise and a room each time": simulator(acoustics=FULL),
        "as the defaults say": simulator(),
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    samples, features = round(args.seconds * RATE), KaldiFeatures(KaldiSettings())
    with tempfile.TemporaryDirectory() as folder:
        write_clips(Path(folder) / "clips")
        made = simulators(Path(folder) / "clips", Path(folder) / "cache")
        rows = {
            name: milliseconds(args.rounds, lambda number, one=one: one.conversation(samples, generator(number)))
            for name, one in made.items()
        }
        whole = made["as the defaults say"]
        waveform = whole.conversation(samples, generator(0)).waveform_N
        rows["filter banks"] = milliseconds(args.rounds, lambda _: features(waveform))
        rows["a sample: conversation and filter banks"] = milliseconds(
            args.rounds, lambda number: features(whole.conversation(samples, generator(number)).waveform_N)
        )
    print(
        f"{args.seconds:g} s, {args.rounds} rounds, one thread, load {os.getloadavg()[0]:.2f}; torch "
        f"{torch.__version__}, soxr {soxr.__version__}, numpy {np.__version__}, Python {platform.python_version()}\n"
    )
    print("| | ms | times real time |\n|---|---|---|")
    for name, spent in rows.items():
        print(f"| {name} | {spent:.1f} | {1000 * args.seconds / spent:.0f} |")


if __name__ == "__main__":
    main()
