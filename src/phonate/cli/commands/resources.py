"""Show what there is to train on: GPUs with their free memory, cores, and memory.

Limits of containers and CUDA_VISIBLE_DEVICES are respected. Listing the GPUs takes none of their memory.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate resources`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the devices."""
    from phonate.cli.output import log_to_console, print_json
    from phonate.compute.resources import ResourceDetector

    log_to_console()
    detector = ResourceDetector()
    if args.json:
        print_json({"devices": detector.get_available_devices()})
    else:
        print(detector.text())
    return 0
