"""The command generate."""

from __future__ import annotations

import argparse
import inspect
import sys
from typing import Any

from phonate.cli.parsing import add_base_option, add_device

GENERATION_OPTIONS = ("max_tokens", "temperature", "seed", "beam_width")


def generate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate generate`."""
    parser.add_argument("run", metavar="RUN", help="a run of the task language or sequence, or a checkpoint")
    parser.add_argument("prompt", metavar="PROMPT", help="the text to start from; - reads standard input")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="at most N tokens (default: language 200, sequence data.max_length)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="language: 0 takes the likeliest token each time (default: 0.7)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="language: seed of the random draws (default: 0)")
    parser.add_argument(
        "--beam-width", type=int, metavar="K", help="sequence: hypotheses kept (default: the recipe's beam_width)"
    )
    add_base_option(parser)
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print prompt and text as JSON")


def generate(args: argparse.Namespace) -> int:
    """Write text with a trained model: an answer, a continuation, a translation or a label.

    RUN is a run's folder or one of its checkpoints; PROMPT is the text, or - to read it from standard input. A language
    model that was trained on responses answers, one that was trained on plain text continues; a model of sequences
    writes the target of a source, by beam search, or tells its label. Text is printed as it is generated.
    """
    from phonate.cli.output import WARNINGS, log_to_console, print_json
    from phonate.config.errors import InputError
    from phonate.workflows.load import load, task_of

    prompt = args.prompt
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8-sig", "surrogateescape")
    log_to_console(WARNINGS)
    generator: Any = load(args.run, device=args.device, base=args.base)
    if not hasattr(generator, "generate"):
        what = f"holds a model of the task {task_of(args.run)}, which generates no text"
        raise InputError(f"{args.run}: {what}; give a run of language or sequence")
    options = {name: getattr(args, name) for name in GENERATION_OPTIONS if getattr(args, name) is not None}
    for name in options.keys() - inspect.signature(generator.generate).parameters.keys():
        raise InputError(f"--{name.replace('_', '-')}: this model has no use for it; leave it out")
    if args.json:
        print_json({"prompt": prompt, "text": generator.generate(prompt, **options)})
    else:
        for piece in generator.stream(prompt, **options):
            print(piece, end="", flush=True)
        print()
    return 0
