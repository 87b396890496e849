"""Run the whole pipeline in a few minutes: corpus, training, interruption, resume, inference, scores, report.

Without --data it trains on two minutes of recordings that come with phonate; with it, on your own recordings and their
texts, or with --task conversion on a folder with a sub-folder for each of two or more speakers. With --synthetic, and
for conversion without --data, it makes a corpus of synthetic speech (needs phonate[espeak]).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phonate.workflows.demo.demo import Demo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate demo`."""
    parser.add_argument(
        "--data", metavar="DIR", type=Path, help="your recordings, with texts or a sub-folder per speaker"
    )
    parser.add_argument(
        "--language", metavar="CODE", help="the language of your recordings, such as de (default: English)"
    )
    parser.add_argument(
        "--task",
        choices=("speech", "conversion"),
        default="speech",
        help="text-to-speech or voice conversion (default: speech)",
    )
    parser.add_argument(
        "--synthetic", action="store_true", help="train from scratch on speech of espeak-ng (needs phonate[espeak])"
    )
    parser.add_argument("--output", metavar="RUN", type=Path, help="the run's folder (default: runs/demo)")
    parser.add_argument(
        "--minutes", type=float, help="minutes of training (default: 5, fewer where the demo would exceed ten)"
    )


def run(args: argparse.Namespace) -> int:
    """Print progress, then the scores, the report's path and what to type next."""
    from phonate.config.errors import InputError
    from phonate.workflows.demo.demo import demo, free_folder

    if args.minutes is not None and not args.minutes > 0:
        raise InputError(f"--minutes {args.minutes:g}: must be more than 0")
    output = args.output or free_folder(Path("runs/demo"))
    say = partial(print, flush=True)
    made = demo(output, args.data, args.minutes, say, args.task, args.synthetic, args.language)
    _print(made)
    return 0


def _print(made: Demo) -> None:
    from phonate.cli.output import print_table

    if made.evaluation is not None:
        print()
        print_table(made.evaluation.rows(made.metrics), made.evaluation.header(made.metrics))
        print("\u2191 higher is better, \u2193 lower is better\n")
    print(f"report: {made.report}")
    print("next:")
    for command in made.next_commands:
        print(f"  {command}")
