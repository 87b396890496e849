"""One command: parsed, called, and its errors made lines.

Only the module of the invoked command is imported; `phonate --help` imports no more than argparse.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import difflib
import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from phonate.cli.parsing import COMMANDS, parse_command, top_parser, within

BROKEN_PIPE = 141
_SYNONYMS = {
    "resume": "train RUN --resume auto",
    "say": "speak",
    "synthesize": "speak",
    "test": "evaluate",
    "tts": "speak",
}
"""What other programs call a command -> how it is called here."""


def run(argv: Sequence[str] | None = None) -> int:
    """As `phonate.cli.main`, which also tells of a stop before or after it."""
    args = argparse.Namespace(traceback=False)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would look for its own in all that is installed
    atexit.unregister(gc.freeze)  # main may be called several times
    atexit.register(gc.freeze)  # Python's end looks through everything for garbage; where torch is loaded for 0.5 s
    _open_closed_streams()
    # a file's name may not be UTF-8; printing it must not fail
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(argv, args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader of our output has ended (phonate explain ... | head): end without a message
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the one place where every error becomes a line
        return _fail(error, args)
    finally:
        gc.unfreeze()


def _open_closed_streams() -> None:
    """Send streams that the caller closed (`>&-`) to nowhere: else the next file opened would get their number, and
    what is printed would go into it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
        setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _run(argv: Sequence[str] | None, args: argparse.Namespace) -> int:
    parser = top_parser()
    parser.parse_args(argv, args)
    if args.command == "help":  # as git and cargo have it
        args.command, args.rest = (args.rest[0], ["--help"]) if args.rest else (None, [])
    if args.command is None:
        parser.print_help()
        return 0
    if args.command not in COMMANDS:
        name = args.command.lower()
        synonyms = [_SYNONYMS[name]] if name in _SYNONYMS else within(name)
        near = synonyms or difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "phonate --help lists the commands"
        from phonate.cli.output import print_error

        print_error(f"there is no command {args.command!r}; {hint}")
        return 2
    from phonate.compute.importing import lasting

    with lasting():
        command = parse_command(args.command, args.rest, args)
        if args.plugin:
            from phonate.config.registry import load_plugin

            for path in args.plugin:
                load_plugin(Path(path))
        from phonate.config.errors import command_line
        from phonate.training.signals import interruptible

    with _progress(), command_line(sys.argv[1:] if argv is None else argv), interruptible():
        return command(args)


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """Show the progress of long work."""
    from phonate.cli.output import ProgressBar
    from phonate.data.progress import progress_listener

    bar = ProgressBar()
    try:
        with progress_listener(bar):
            yield
    finally:
        bar.close()


def _fail(error: Exception, args: argparse.Namespace) -> int:
    """Print what went wrong, keep the traceback in the run's logs if there are any, choose the exit code."""
    import traceback

    from phonate.cli.output import print_error
    from phonate.config.errors import Interrupted, PhonateError

    if args.traceback:
        print("".join(traceback.format_exception(error)[:-1]), end="", file=sys.stderr)  # the error itself is below
    if isinstance(error, PhonateError):
        for line in str(error).splitlines():
            print_error(line, label=not isinstance(error, Interrupted))
        return error.exit_code
    if isinstance(error, OSError) and error.strerror:
        about = f"{error.filename}: " if error.filename else ""
        print_error(f"{about}{error.strerror}")
    else:
        notes = [note for note in getattr(error, "__notes__", ()) if "\n" not in note]  # tracebacks have several lines
        summary = " ".join([*str(error).split(), *(f"({note})" for note in notes)])
        print_error(f"{type(error).__name__}: {summary}; --traceback shows where")
    _keep_traceback(error, getattr(args, "logs", None))
    return 1


def _keep_traceback(error: Exception, logs: Path | None) -> None:
    import traceback

    if logs is None:
        return
    file = logs / "error.txt"
    try:
        if not logs.is_dir():
            return
        file.write_text("".join(traceback.format_exception(error)), "utf-8", "backslashreplace")
    except OSError as reason:  # the disk is full, say
        print(f"       the traceback can't be written to {file}: {reason.strerror}", file=sys.stderr)
    else:
        print(f"       the traceback is in {file}", file=sys.stderr)
