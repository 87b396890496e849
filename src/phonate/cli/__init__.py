"""The command line: parses, calls a workflow, prints, exits. Nothing else in phonate prints or exits."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad input, 130, 143 and 129 interrupted.

    Errors are one line on standard error; `--traceback` shows the rest.
    """
    try:
        from phonate.cli.command import run  # most of the time before a command begins

        return run(argv)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C before anything began", file=sys.stderr)
        return 130
