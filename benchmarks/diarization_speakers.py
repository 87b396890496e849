"""Makes the corpus of the diarization benchmark: synthetic speakers, and conversations of some that no other part has.

    python benchmarks/diarization_speakers.py FOLDER [--speakers 80] [--sentences 20] [--conversations 100]

Writes FOLDER/speakers/train/NAME/NN.wav and FOLDER/speakers/test/NAME/NN.wav, clips of espeak-ng's variants (80
speakers are about 1.3 hours), and FOLDER/conversations/NNNN.wav with ref.rttm: conversations of 30 s of two test
speakers each, 44 % of the speech overlapped, with noise. A model trains on conversations simulated of the first:

    phonate train diarization data.path=FOLDER/speakers 'data.simulation={speakers: [2, 2], overlap: 0.44}'

The same call writes the same bytes. Variants that sound alike (iven, iven2) are all in training.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from phonate.config.randomness import generator
from phonate.data.conversations import write_conversations
from phonate.data.settings import AcousticSettings, SimulationSettings
from phonate.tasks.diarization.data import simulator_of
from phonate.tasks.diarization.settings import DiarizationData
from phonate.workflows.demo.embedded import Speaker, say, sentences

OVERLAP = 0.44
TEST = (
    "Alicia Andrea Denis Henrique Jacky Lee Mario Reed adam announcer aunty boris david f2 f5 grandpa john linda m2 m6 "
    "marcelo pablo sandro travis"
)
TRAIN = (
    "Alex Andy Annie Diogo Gene Gene2 Hugo Marco Michael Mike Nguyen RicishayMax RicishayMax2 RicishayMax3 Storm anika "
    "antonio belinda benjamin caleb ed edward edward2 f1 f3 f4 grandma gustave ian iven iven2 iven3 iven4 kaukovalta "
    "klatt klatt2 klatt3 klatt4 m1 m3 m4 m5 m7 m8 max michel miguel mike2 norbert paul pedro quincy rob robert shelby "
    "steph steph2 steph3 victor zac"
)
ACCENTS = ("en-us", "en", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-029")


def speaker(variant: str) -> Speaker:
    """A variant with an accent, a pitch and a pace of its own."""
    rng = generator("benchmark speaker", variant)
    accent = ACCENTS[int(rng.integers(len(ACCENTS)))]
    return Speaker(variant, f"{accent}+{variant}", int(rng.integers(30, 71)), int(rng.integers(140, 186)))


def make_speakers(folder: Path, train: list[str], test: list[str], count: int) -> None:
    """The clips of both splits; every speaker reads sentences of their own."""
    names = [*train, *test]
    texts = sentences(count * len(names))
    say(
        [
            (
                folder / ("train" if variant in train else "test") / variant / f"{number:02d}.wav",
                texts[place * count + number],
                speaker(variant),
            )
            for place, variant in enumerate(names)
            for number in range(count)
        ]
    )


def make_conversations(folder: Path, clips: Path, count: int, cache: str | None) -> float:
    """The conversations of the test speakers; returns the share of the speech that is overlapped."""
    acoustics = AcousticSettings(reverberation=0.0, noise=1.0, snr_db=(10.0, 25.0))
    simulation = SimulationSettings(speakers=(2, 2), overlap=OVERLAP, speed=None, acoustics=acoustics)
    data = DiarizationData(path=str(clips), simulation=simulation, cache_dir=cache)
    written = write_conversations(folder, simulator_of(data), count, 30.0)
    speech = overlap = 0.0
    for turns in written.values():
        changes = sorted([(turn.start, 1) for turn in turns] + [(turn.end, -1) for turn in turns])
        talking, earlier = 0, 0.0
        for at, change in changes:
            speech += (at - earlier) * (talking > 0)
            overlap += (at - earlier) * (talking > 1)
            talking, earlier = talking + change, at
    return overlap / speech


def main() -> None:
    """Write the corpus and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--speakers", type=int, default=80, help="in all; 3 in 10 of them are test speakers")
    parser.add_argument("--sentences", type=int, default=20, help="of each speaker")
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--cache-dir", help="of the prepared clips (default: ~/.cache/phonate)")
    args = parser.parse_args()
    train, test = TRAIN.split(), TEST.split()
    if not 8 <= args.speakers <= len(train) + len(test):
        parser.error(f"--speakers {args.speakers}: from 8 to {len(train) + len(test)}")
    tested = round(0.3 * args.speakers)
    started = time.perf_counter()
    make_speakers(args.folder / "speakers", train[: args.speakers - tested], test[:tested], args.sentences)
    print(f"{args.speakers} speakers, {tested} of them for the test: {time.perf_counter() - started:.0f} s")
    clips, folder = args.folder / "speakers" / "test", args.folder / "conversations"
    share = make_conversations(folder, clips, args.conversations, args.cache_dir)
    print(f"{args.conversations} conversations of 30 s, {100 * share:.1f} % of the speech overlapped")


if __name__ == "__main__":
    main()
