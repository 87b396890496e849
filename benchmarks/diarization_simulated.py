"""Diarization of simulated conversations: models, and the pipeline of pretrained parts, on the same ones.

    OMP_NUM_THREADS=1 python benchmarks/diarization_simulated.py SPEECH [SPEECH ...] --turns LABELS
        [--models base/diarizer ...] [--out FILE.md]

Twelve conversations of a minute with random turns, and twelve with the turns of real meetings (`--turns`, such as an
RTTM file), of two to four speakers of the folders SPEECH, with reverberation, noise and low levels. No collar,
overlapping speech counted. `off` is by how many speakers the conversations are off, all together.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import phonate
from diarization_pipeline import diarize
from phonate.config.randomness import generator
from phonate.data.annotations import SpeakerTurn
from phonate.data.conversations import turns_of
from phonate.evaluation.diarization import DiarizationErrors, score
from phonate.pretrained import SpeakerEncoder
from phonate.tasks.diarization.data import simulator_of
from phonate.tasks.diarization.settings import DiarizationData

RATE, SECONDS, COUNT = 16_000, 60, 12
ACOUSTICS = {
    "reverberation": 0.6,
    "direct_to_reverberant_db": [0, 14],
    "noise": 0.9,
    "snr_db": [10, 40],
    "level_db": [-46, -24],
}
TALK = {
    "speakers": [2, 4],
    "overlap": 0.2,
    "turn_seconds": 2.5,
    "pause_seconds": 0.6,
    "label_pauses_from": 0.5,
    "gain_db": 6.0,
    "speed": None,
    "acoustics": ACOUSTICS,
}
_HEADER = """# Diarization of simulated conversations

    OMP_NUM_THREADS=1 python {command}

Percent of the speech; load {load:.1f}.

| turns | model | DER | missed | false alarm | confusion | off |
|---|---|---|---|---|---|---|
"""
Conversation = tuple[np.ndarray, list[SpeakerTurn]]
Diarize = Callable[[np.ndarray], list[SpeakerTurn]]


def conversations(kind: str, paths: list[str], **changes: Any) -> list[Conversation]:
    """Waveforms (N,) in the range of 16 bits, and who speaks when."""
    data = {"audio": {"feature_type": "samples"}, "simulation": {"path": paths, **TALK, **changes}}
    simulator = simulator_of(DiarizationData.model_validate(data))
    result = []
    for number in range(COUNT):
        one = simulator.conversation(RATE * SECONDS, generator("benchmark", kind, number))
        result.append(
            (np.round(one.waveform_N.clip(-1, 1) * 32767).astype(np.float32) / 32767, turns_of(one, simulator))
        )
    return result


def of_model(name: str) -> Diarize:
    """By a run or a checkpoint."""
    model = phonate.load(name, "diarization")
    return lambda waveform_N: model.diarize(waveform_N, sample_rate=RATE).turns


def row(kind: str, name: str, talks: list[Conversation], speakers: Diarize) -> str:
    """A line of the table."""
    total, off = DiarizationErrors(), 0
    for waveform_N, truth in talks:
        turns = speakers(waveform_N)
        total += score(truth, turns, regions=[(0.0, SECONDS)])
        off += abs(len({turn.speaker for turn in truth}) - len({turn.speaker for turn in turns}))
    parts = (total.wrong, total.miss, total.false_alarm, total.confusion)
    shares = " | ".join(f"{100 * part / total.speech:.1f}" for part in parts)
    return f"| {kind} | {name} | {shares} | {off} |\n"


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speech", nargs="+")
    parser.add_argument("--turns", required=True)
    parser.add_argument("--models", nargs="+", default=["base/diarizer"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    judge = SpeakerEncoder()
    systems: dict[str, Diarize] = {"pipeline of pretrained parts": lambda one: diarize(one, judge, 0.4, 0.35)}
    for name in args.models:
        systems[Path(name).name] = of_model(name)
    kinds: Mapping[str, Any] = {"random": {}, "of meetings": {"turns_from": args.turns}}
    rows = ""
    for kind, changes in kinds.items():
        talks = conversations(kind, args.speech, **changes)
        for name, speakers in systems.items():
            rows += row(kind, name, talks, speakers)
            print(rows.splitlines()[-1], flush=True)
    if args.out is not None:
        text = _HEADER.format(command=shlex.join(sys.argv), load=os.getloadavg()[0]) + rows
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
