"""Write down what is said in a recording.

RUN is a run's folder or one of its checkpoints; the recording may be of any format, rate and length.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate transcribe`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task recognition, or a checkpoint")
    parser.add_argument("recording", metavar="IN.wav", help="the recording to write down")
    parser.add_argument(
        "--beam",
        type=int,
        metavar="N",
        help="texts that the search keeps; 1 is the quickest, without the language model (default: the recipe's)",
    )
    parser.add_argument("--json", action="store_true", help="print the text as JSON")


def run(args: argparse.Namespace) -> int:
    """Transcribe, and print the text."""
    from phonate.cli.output import print_json
    from phonate.tasks.recognition.inference import Transcriber

    transcriber = Transcriber.load(args.run)
    text = transcriber.transcribe_file(args.recording, args.beam)
    if args.json:
        beam = transcriber.recipe.model.beam if args.beam is None else args.beam
        print_json({"recording": args.recording, "text": text, "beam": beam})
    else:
        print(text)
    return 0
