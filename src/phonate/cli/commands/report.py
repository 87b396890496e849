"""Write a run's report: one HTML page with curves, sounds, figures, and the model's data and settings."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate report`."""
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print the report's path as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the page, then print where it is."""
    from phonate.cli.output import print_json
    from phonate.workflows.pages.report import write_report

    path = write_report(args.run)
    if args.json:
        print_json({"report": str(path)})
    else:
        print(path)
    return 0
