"""Write a working first version of an extension, and its test.

The file is loaded by --plugin FILE. A model belongs to a task, and so do the metrics of its evaluation: write a task
for them.
"""

from __future__ import annotations

import argparse

KINDS = ("loss", "callback", "corpus", "task")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate new`."""
    parser.add_argument("kind", choices=KINDS, help="what to write")
    parser.add_argument("name", metavar="NAME", help="its name in recipes, such as my_loss")
    parser.add_argument("--into", metavar="DIR", default=".", help="folder to write to (default: the current one)")


def run(args: argparse.Namespace) -> int:
    """Write both files and print the next command."""
    from phonate.workflows.scaffold.scaffold import scaffold

    path, test = scaffold(args.kind, args.name, args.into)
    print(f"wrote {path} and {test}; next: pytest {test}")
    return 0
