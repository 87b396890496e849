"""Transcribe a recording.

RUN is a run's folder or one of its checkpoints; the recording may be of any format, rate and length.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate transcribe`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task recognition, or a checkpoint")
    parser.add_argument("recording", metavar="IN.wav", help="the recording to transcribe")
    parser.add_argument(
        "--beam",
        type=int,
        metavar="N",
        help="hypotheses that the search keeps; 1 is the fastest, without the language model (default: the recipe's)",
    )
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu (default), cuda:0, mps")
    parser.add_argument("--json", action="store_true", help="print the text as JSON")


def run(args: argparse.Namespace) -> int:
    """Transcribe, and print the text."""
    from phonate.cli.output import print_json
    from phonate.workflows.load import load

    transcriber = load(args.run, "recognition", device=args.device)
    text = transcriber.transcribe(args.recording, args.beam)
    if args.json:
        beam = transcriber.recipe.model.beam if args.beam is None else args.beam
        print_json({"recording": args.recording, "text": text, "beam": beam})
    else:
        print(text)
    return 0
