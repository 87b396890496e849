"""The whole path in a few minutes: corpus, training, a stop, a resume, what the model can do then, a report.

Without --data it makes a small corpus of synthetic speech (needs phonate[espeak,align]). With it, it learns from your
own recordings and their texts, or with --task conversion from a folder with a sub-folder for each of two or more
speakers.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate demo`."""
    parser.add_argument(
        "--data", metavar="DIR", type=Path, help="your recordings, with texts or a sub-folder a speaker"
    )
    parser.add_argument(
        "--task",
        choices=("speech", "conversion"),
        default="speech",
        help="speak texts, or convert voices (default: speech)",
    )
    parser.add_argument("--output", metavar="RUN", type=Path, help="the run's folder (default: runs/demo)")
    parser.add_argument("--minutes", type=float, help="about how long training takes (default: 3.5)")


def run(args: argparse.Namespace) -> int:
    """Say what is done as it is done; the last line says where the report is."""
    from phonate.config.errors import InputError
    from phonate.workflows.demo.demo import demo, free_folder

    if args.minutes is not None and args.minutes <= 0:
        raise InputError(f"--minutes {args.minutes:g}: training takes more than no time")
    output = args.output or free_folder(Path("runs/demo"))
    report = demo(output, args.data, args.minutes, lambda line: print(line, flush=True), args.task)
    print(f"report: {report}")
    return 0
