"""Let a trained language model answer a prompt, or go on with a text.

RUN is a run's folder or one of its checkpoints; PROMPT is the text, or - to read it from standard input. A model that
learnt responses answers, one that learnt plain text goes on.
"""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate generate`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task language, or a checkpoint")
    parser.add_argument("prompt", metavar="PROMPT", help="what to answer or go on with; - reads standard input")
    parser.add_argument("--max-tokens", type=int, default=200, metavar="N", help="at most so many (default: 200)")
    parser.add_argument(
        "--temperature", type=float, default=0.7, metavar="T", help="0: always the likeliest token (default: 0.7)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another seed, another text (default: 0)")
    parser.add_argument("--json", action="store_true", help="print prompt and text as JSON")


def run(args: argparse.Namespace) -> int:
    """Generate, and print the text."""
    from phonate.cli.output import print_json
    from phonate.tasks.language.inference import Generator

    prompt = args.prompt
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8-sig", "surrogateescape")
    text = Generator.load(args.run).generate(prompt, args.max_tokens, args.temperature, args.seed)
    if args.json:
        print_json({"prompt": prompt, "text": text})
    else:
        print(text)
    return 0
