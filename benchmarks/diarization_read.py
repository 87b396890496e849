"""Diarization of read speech, and names by voice: the package's diarizer on two people who read in turns.

    OMP_NUM_THREADS=1 python benchmarks/diarization_read.py SPEAKERS [--model base/diarizer] [--out FILE.md]

SPEAKERS is a folder with a folder of clips for each speaker. Each pair of speakers is one recording: their clips in
turns, with pauses, all but the first clip of each, which is what `known` hears; it hears the first clips of all
speakers, so also of some who are not in the recording. Speech in a clip is what Silero's detector finds, without pauses
of half a second and more. No collar. `named` is the share of the speech that is under the right name, `wrong` under
that of somebody else.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile

import phonate
from phonate.audio.decoding import read_audio
from phonate.data.annotations import SpeakerTurn
from phonate.evaluation.diarization import DiarizationErrors, score
from phonate.pretrained import speech_spans

RATE = 16_000
PAUSE_MS = 500
_HEADER = """# Diarization of read speech

    OMP_NUM_THREADS=1 python {command}

Percent of the speech. {model}; load {load:.1f}.

| speakers | seconds | found | DER | missed | false alarm | confusion | named | wrong |
|---|---|---|---|---|---|---|---|---|
"""


def conversation(clips: dict[str, list[Path]]) -> tuple[np.ndarray, list[SpeakerTurn]]:
    """The clips in turns, and who reads when."""
    rng = np.random.default_rng(0)
    parts, turns, at = [], [], 0.0
    for number in range(min(map(len, clips.values()))):
        for speaker, paths in clips.items():
            samples = read_audio(paths[number], RATE)[0]
            pause = (0.0005 * rng.normal(size=int(rng.uniform(0.1, 0.6) * RATE))).astype(np.float32)
            spans = speech_spans(samples, RATE, PAUSE_MS)
            turns += [SpeakerTurn(at + start, at + end, speaker) for start, end in spans]
            parts += [samples, pause]
            at += (len(samples) + len(pause)) / RATE
    return np.concatenate(parts), turns


def shared(one: list[SpeakerTurn], other: list[SpeakerTurn]) -> float:
    """Seconds that turns of two lists have in common."""
    return sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in one for b in other)


def row(name: str, seconds: float, errors: DiarizationErrors, found: str, named: float, wrong: float) -> str:
    """A line of the table."""
    parts = (errors.miss + errors.false_alarm + errors.confusion, errors.miss, errors.false_alarm, errors.confusion)
    shares = " | ".join(f"{100 * part / errors.speech:.1f}" for part in (*parts, named, wrong))
    return f"| {name} | {seconds:.0f} | {found} | {shares} |\n"


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speakers", type=Path)
    parser.add_argument("--model", default="base/diarizer")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    clips = {one.name: sorted(one.iterdir()) for one in sorted(args.speakers.iterdir()) if one.is_dir()}
    known = {name: paths[0] for name, paths in clips.items()}
    diarizer = phonate.load(args.model)
    rows, total, seconds, all_named, all_wrong = "", DiarizationErrors(), 0.0, 0.0, 0.0
    for pair in itertools.combinations(clips, 2):
        samples, truth = conversation({name: clips[name][1:] for name in pair})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pair.flac"
            soundfile.write(path, samples, RATE)
            diarization = diarizer.diarize(path, known=known)
        errors = score(truth, diarization.turns)
        named = wrong = 0.0
        for speaker in pair:
            own = [turn for turn in truth if turn.speaker == speaker]
            named += shared(own, [turn for turn in diarization.turns if turn.speaker == speaker])
            others = [turn for turn in diarization.turns if turn.speaker in clips and turn.speaker != speaker]
            wrong += shared(own, others)
        rows += row(", ".join(pair), len(samples) / RATE, errors, str(len(diarization.speakers)), named, wrong)
        print(rows.splitlines()[-1], flush=True)
        total += errors
        seconds, all_named, all_wrong = seconds + len(samples) / RATE, all_named + named, all_wrong + wrong
    rows += row("all", seconds, total, "", all_named, all_wrong)
    print(rows.splitlines()[-1])
    text = _HEADER.format(command=shlex.join(sys.argv), model=args.model, load=os.getloadavg()[0]) + rows
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
