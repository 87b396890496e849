"""Predict the mels of a voice's own corpus, with the recorded durations, energy and pitch (teacher forcing).

A vocoder that is fine-tuned on them (data.predicted=FOLDER, training.init_from=VOCODER) sounds better with that
voice: predicted mels are smoother than recorded ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate predict`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task speech, or a checkpoint")
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, required=True, help="a new folder")


def run(args: argparse.Namespace) -> int:
    """Predict, and print how many."""
    from phonate.tasks.speech.speaking import predict_corpus

    count = predict_corpus(args.run, args.output)
    print(f"{args.output}: mels of {count} recordings")
    return 0
