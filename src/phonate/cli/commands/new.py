"""Write the first version of an extension, and a test of it that passes.

Outside the package the file is used by --plugin FILE; inside it (--into src/phonate/nn/losses) it is found by
its name.
"""

from __future__ import annotations

import argparse

KINDS = ("loss", "callback", "task")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate new`."""
    parser.add_argument("kind", choices=KINDS, help="what to write")
    parser.add_argument("name", metavar="NAME", help="its name in recipes, such as my_loss")
    parser.add_argument("--into", metavar="DIR", default=".", help="where (default: here)")


def run(args: argparse.Namespace) -> int:
    """Write both files and say what to do with them."""
    from phonate.workflows.scaffold.scaffold import scaffold

    path, test = scaffold(args.kind, args.name, args.into)
    print(f"wrote {path} and {test}; next: pytest {test}")
    return 0
