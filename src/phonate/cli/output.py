"""What the commands share: one JSON document, aligned tables, log lines on the console."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

LEVELS = {"quiet": logging.WARNING, "normal": logging.INFO, "debug": logging.DEBUG}


def print_json(value: Any) -> None:
    """Print one JSON document, the only thing that `--json` lets a command write to standard output."""
    print(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def print_table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    """Aligned columns: drawn by rich on a terminal, plain lines for grep and cut in a pipe."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*header, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
        return
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def log_to_console(verbosity: str = "normal") -> None:
    """Show what phonate logs as plain lines on standard error."""
    logger = logging.getLogger("phonate")
    handler = logging.StreamHandler()
    handler.setLevel(LEVELS[verbosity])
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(min(LEVELS[verbosity], logging.INFO))
    logger.propagate = False
