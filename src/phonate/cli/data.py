"""Look at a corpus, and prepare it for training.

check: which recordings can be used, and why the others can't. prepare: build the index and the cache that training
reads. describe: speakers, minutes and lengths. PATH is a folder, a metadata file, or a recipe.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate data`."""
    parser.add_argument("action", choices=("check", "prepare", "describe"))
    parser.add_argument("path", metavar="PATH", help="a folder, a metadata file, or a recipe")
    parser.add_argument("--cache-dir", metavar="D", help="where to prepare (default: ~/.cache/phonate)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Do what `action` says; returns 2 when a check finds nothing that can be used."""
    from phonate.cli.output import print_json
    from phonate.config.errors import InputError
    from phonate.workflows import prepare

    if args.cache_dir is not None and args.action != "prepare":
        raise InputError(f"--cache-dir: data {args.action} keeps nothing; leave it out, or use data prepare")
    actions = {"check": prepare.check, "prepare": prepare.prepare, "describe": prepare.describe}
    settings = prepare.corpus_settings(args.path, args.cache_dir)
    with _progress() as progress:
        outcome = actions[args.action](settings, progress)
    if args.json:
        print_json(outcome)
    elif args.action == "check":
        _print_report(outcome)
    else:
        _print_values(outcome)
    return 2 if args.action == "check" and not outcome["usable"] else 0


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar with the time left, on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield update


def _print_report(outcome: dict[str, Any]) -> None:
    from phonate.cli.output import print_table

    hours = outcome["seconds"] / 3600
    print(
        f"{outcome['path']} ({outcome['format']}): {outcome['usable']} of {outcome['listed']} recordings can be used, "
        f"{hours:.2f} h, {len(outcome['speakers'])} speakers"
    )
    for kind in ("refused", "warnings"):
        problems = outcome[kind]
        if problems:
            print(f"\n{len(problems)} {kind}:")
            print_table([[p["reason"], p["place"], p["detail"]] for p in problems[:SHOWN]], ["why", "where", "detail"])
            if len(problems) > SHOWN:
                print(f"... and {len(problems) - SHOWN} more; --json lists all")


def _print_values(values: dict[str, Any], indent: str = "") -> None:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{name}:")
            _print_values(value, indent + "  ")
        else:
            print(f"{indent}{name}: {'none' if value == {} else value}")
