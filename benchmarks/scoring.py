"""What scoring a diarization costs, beside pyannote.metrics and spy-der, and how well they agree.

    OMP_NUM_THREADS=1 python benchmarks/scoring.py [REF.rttm HYP.rttm REF.uem] [--rounds 7]

Without files a meeting of half an hour and one of four hours are made up: four speakers with pauses and overlaps, and a
hypothesis with shifted, lost and confused turns. All scorers have turns in their own form in memory before the clock
starts; collar 0, overlap counted. The times are medians over rounds. `largest difference` is that of DER, as a share.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version

from pyannote.core import Annotation, Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate
from spyder import DER

from phonate.data.annotations import Region, SpeakerTurn, read_rttm, read_uem
from phonate.evaluation.diarization import score_recordings

Recordings = dict[str, list[SpeakerTurn]]
Uem = dict[str, list[Region]]


def conversation(rng: random.Random, seconds: float) -> list[SpeakerTurn]:
    """Turns of four speakers who listen to each other now and then."""
    found = []
    for speaker in range(4):
        at = rng.uniform(0.0, 10.0)
        while at < seconds - 6.0:
            length = rng.uniform(0.2, 5.0)
            found.append(SpeakerTurn(at, at + length, f"speaker{speaker}"))
            at += length + rng.uniform(0.1, 14.0)
    return sorted(found)


def altered(rng: random.Random, turns: list[SpeakerTurn]) -> list[SpeakerTurn]:
    """A hypothesis."""
    found, ends = [], dict[str, float]()
    for turn in turns:
        speaker = turn.speaker if rng.random() < 0.85 else f"speaker{rng.randrange(5)}"
        start = max(ends.get(speaker, 0.0), turn.start + rng.uniform(-0.3, 0.3))
        end = turn.end + rng.uniform(-0.3, 0.3)
        if rng.random() < 0.9 and end > start + 0.05:
            found.append(SpeakerTurn(start, end, speaker))
            ends[speaker] = end
    return sorted(found)


def annotation(name: str, turns: list[SpeakerTurn]) -> Annotation:
    """pyannote's form."""
    found = Annotation(uri=name)
    for track, turn in enumerate(turns):
        found[Segment(turn.start, turn.end), track] = turn.speaker
    return found


def pyannote_scorer(reference: Recordings, hypothesis: Recordings, uem: Uem, both: bool) -> Callable[[], float]:
    """DER of all recordings; with `both` JER, too, which phonate and dscore always give."""
    listed = [
        (
            annotation(name, reference[name]),
            annotation(name, hypothesis[name]),
            Timeline([Segment(*one) for one in uem[name]], uri=name),
        )
        for name in reference
    ]

    def run() -> float:
        metrics = [DiarizationErrorRate()] + ([JaccardErrorRate()] if both else [])
        for one, two, regions in listed:
            for metric in metrics:
                metric(one, two, uem=regions)
        return float(abs(metrics[0]))

    return run


def spyder_scorer(reference: Recordings, hypothesis: Recordings, uem: Uem) -> Callable[[], float]:
    """DER of all recordings."""
    one, two = (
        {name: [(turn.speaker, turn.start, turn.end) for turn in found[name]] for name in reference}
        for found in (reference, hypothesis)
    )
    return lambda: float(DER(one, two, uem=uem)["Overall"].der)


def measured(run: Callable[[], float], rounds: int) -> tuple[float, float]:
    """DER and median seconds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        der = run()
        times.append(time.perf_counter() - started)
    return der, statistics.median(times)


def compare(name: str, reference: Recordings, hypothesis: Recordings, uem: Uem, rounds: int) -> None:
    """Print a row for each scorer."""
    scorers = {
        "phonate (DER and JER)": lambda: score_recordings(reference, hypothesis, uem=uem).total.der,
        "spy-der (DER)": spyder_scorer(reference, hypothesis, uem),
        "pyannote.metrics (DER)": pyannote_scorer(reference, hypothesis, uem, False),
        "pyannote.metrics (DER and JER)": pyannote_scorer(reference, hypothesis, uem, True),
    }
    found = {scorer: measured(run, rounds) for scorer, run in scorers.items()}
    ours = found["phonate (DER and JER)"]
    for scorer, (der, seconds) in found.items():
        print(
            f"| {name} | {scorer} | {100 * der:.4f} | {1000 * seconds:.2f} | "
            f"{seconds / ours[1]:.1f} | {abs(der - ours[0]):.1e} |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="REF.rttm, HYP.rttm and REF.uem")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "pyannote.metrics", "spy-der"))
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {packages}\n")
    print("| recording | scorer | DER % | ms | x phonate | largest difference |")
    print("|---|---|---|---|---|---|")
    for name, seconds in (("30 minutes, made up", 1800.0), ("4 hours, made up", 14400.0)):
        rng = random.Random(0)
        turns = conversation(rng, seconds)
        compare(name, {"m": turns}, {"m": altered(rng, turns)}, {"m": [(0.0, seconds)]}, args.rounds)
    if args.files:
        reference, hypothesis, uem = args.files
        found = read_rttm(reference)
        compare(f"{len(found)} recordings of the files", found, read_rttm(hypothesis), read_uem(uem), args.rounds)


if __name__ == "__main__":
    main()
