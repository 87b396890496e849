"""Answer a prompt, or continue a text, with a trained language model.

RUN is a run's folder or one of its checkpoints; PROMPT is the text, or - to read it from standard input. A model that
was trained on responses answers, one that was trained on plain text continues. Text is printed as it is generated.
"""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate generate`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task language, or a checkpoint")
    parser.add_argument("prompt", metavar="PROMPT", help="what to answer or to continue; - reads standard input")
    parser.add_argument("--max-tokens", type=int, default=200, metavar="N", help="at most N tokens (default: 200)")
    parser.add_argument(
        "--temperature", type=float, default=0.7, metavar="T", help="0: always the likeliest token (default: 0.7)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the random draws (default: 0)")
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu (default), cuda:0, mps")
    parser.add_argument("--json", action="store_true", help="print prompt and text as JSON")


def run(args: argparse.Namespace) -> int:
    """Generate, and print the text."""
    from phonate.cli.output import print_json
    from phonate.workflows.load import load

    prompt = args.prompt
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8-sig", "surrogateescape")
    generator = load(args.run, "language", device=args.device)
    asked = prompt, args.max_tokens, args.temperature, args.seed
    if args.json:
        print_json({"prompt": prompt, "text": generator.generate(*asked)})
    else:
        for piece in generator.stream(*asked):
            print(piece, end="", flush=True)
        print()
    return 0
