"""The command line: parses, calls a workflow, prints, exits. Nothing else in phonate prints or exits.

Only the module of the invoked command is imported; `phonate --help` imports no more than argparse.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from phonate.cli.parsing import parse_command, top_parser
from phonate.cli.table import COMMANDS

BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad input, 130, 143 and 129 interrupted.

    Errors are one line on standard error; `--traceback` shows the rest.
    """
    args = argparse.Namespace(traceback=False)
    _prepare_streams()
    try:
        code = _run(argv, args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader of our output has gone (phonate explain ... | head): leave without a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - the one place where every error becomes a line
        return _fail(error, args)


def _prepare_streams() -> None:
    """Let no command fail because of what it prints: names that are not UTF-8, or to streams that were closed."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(argv: Sequence[str] | None, args: argparse.Namespace) -> int:
    parser = top_parser()
    parser.parse_args(argv, args)
    if args.command is None:
        parser.print_help()
        return 0
    if args.command not in COMMANDS:
        near = difflib.get_close_matches(args.command, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "phonate --help lists the commands"
        parser.exit(2, f"error: there is no command {args.command!r}; {hint}\n")
    module = parse_command(args.command, args.rest, args)
    with _progress():
        return _call(module, args)


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """Show how far long work has come."""
    from phonate.cli.output import ProgressBar
    from phonate.data.progress import progress_listener

    bar = ProgressBar()
    try:
        with progress_listener(bar):
            yield
    finally:
        bar.close()


def _call(module: Any, args: argparse.Namespace) -> int:
    if args.plugin:
        from phonate.config.registry import load_plugin

        for path in args.plugin:
            load_plugin(Path(path))
    from phonate.training.signals import interruptible

    with interruptible():
        return int(module.run(args))


def _fail(error: Exception, args: argparse.Namespace) -> int:
    """Say what went wrong, keep the traceback in the run's logs if there are any, choose the exit code."""
    import traceback

    from phonate.config.errors import Interrupted, PhonateError

    if args.traceback:
        traceback.print_exception(error)
    if isinstance(error, PhonateError):
        label = "" if isinstance(error, Interrupted) else "error: "
        for line in str(error).splitlines():
            print(f"{label}{line}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, OSError) and error.strerror:
        about = f"{error.filename}: " if error.filename else ""
        print(f"error: {about}{error.strerror}", file=sys.stderr)
    else:
        summary = " ".join(str(error).split())
        print(f"error: {type(error).__name__}: {summary}; --traceback shows where", file=sys.stderr)
    logs: Path | None = getattr(args, "logs", None)
    if logs is not None and logs.is_dir():
        kept = logs / "error.txt"
        kept.write_text("".join(traceback.format_exception(error)), "utf-8", "backslashreplace")
        print(f"       the traceback is in {kept}", file=sys.stderr)
    return 1
