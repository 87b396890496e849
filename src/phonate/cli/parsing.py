"""Parsers for the commands of the static table, each filled in only when its command is called."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from phonate.cli.table import COMMANDS


class Parser(argparse.ArgumentParser):
    """Options are never abbreviated, and a mistake is one line and exit code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, with the recipe option that a flag stands for elsewhere, and exit."""
        takes_overrides = any(action.dest == "overrides" for action in self._actions)
        meant = _option_of(message) if takes_overrides else None
        hint = f"write {meant}; " if meant else ""
        self.exit(2, f"error: {message}; {hint}see {self.prog} --help\n")


def _option_of(message: str) -> str | None:
    """The override that the flag in argparse's message means, such as training.epochs=5 for --epochs 5."""
    from phonate.config.names import ELSEWHERE
    from phonate.config.options import options
    from phonate.training.settings import TrainingSettings

    found = re.match(r"unrecognized arguments: --([a-z][\w-]*)(?:[ =]([^\s=-][^\s=]*)(?: |$))?", message)
    if found is None:
        return None
    name, value = found[1].replace("-", "_"), found[2] or "..."
    named = [option.key for option in options(TrainingSettings, ("training",)) if option.path[-1] == name]
    option = ELSEWHERE.get(name) or min(named, key=len, default=None)
    return option and f"{option}={value}"


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from phonate import __version__

        print(f"phonate {__version__}")
        parser.exit()


class _Completion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any) -> None:
        import shtab

        print(shtab.complete(_complete_parser(), values))
        parser.exit()


def top_parser() -> Parser:
    """The parser of everything before the command's own arguments."""
    width = max(map(len, COMMANDS)) + 2
    listed = "\n".join(f"  {name:<{width}}{text}" for name, (_, text) in COMMANDS.items())
    parser = Parser(
        prog="phonate",
        usage="phonate [options] COMMAND ...",
        description="Train voice models: one trainer, one command line, one recipe file.",
        epilog=f"commands:\n{listed}\n\nRun 'phonate COMMAND --help' for the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(traceback=False, plugin=[])
    _add_globals(parser)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=("bash", "zsh", "tcsh"),
        metavar="SHELL",
        help="print the completion script for bash, zsh or tcsh (there is none for fish)",
    )
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_globals(parser: argparse.ArgumentParser) -> None:
    """Options that stand before or behind the command."""
    parser.add_argument(
        "--traceback",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show Python's traceback of an error",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="run a Python file that registers losses, callbacks, tasks, ... (repeatable)",
    )


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """RECIPE and its overrides, for commands that take them."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file, a shipped name, or a run's folder")
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", default=[], help="options that override the recipe's"
    )


def fill(parser: argparse.ArgumentParser, command: str) -> Any:
    """Import the module of `command`, give its arguments to `parser`, and return the module."""
    module = importlib.import_module(COMMANDS[command][0])
    parser.description = module.__doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    _add_globals(parser)
    return module


def parse_command(command: str, rest: Sequence[str], namespace: argparse.Namespace) -> Any:
    """Parse the command's own arguments into `namespace`; returns the command's module."""
    parser = Parser(prog=f"phonate {command}")
    module = fill(parser, command)
    if parser._subparsers is None:  # argparse can't mix options and positionals around sub-commands
        parser.parse_intermixed_args(rest, namespace)
    else:
        parser.parse_args(rest, namespace)
    return module


def _complete_parser() -> Parser:
    """Every command with all of its arguments, for the completion script."""
    parser = Parser(prog="phonate")
    _add_globals(parser)
    commands = parser.add_subparsers(parser_class=Parser)
    for name, (_, text) in COMMANDS.items():
        fill(commands.add_parser(name, help=text), name)
    return parser
