"""What the commands print: JSON documents, aligned tables, errors, log lines and progress bars."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

WARNINGS = "quiet"
"""The verbosity of commands whose result is what they print."""
LEVELS = {WARNINGS: logging.WARNING, "normal": logging.INFO, "debug": logging.DEBUG}

METRICS = "phonate.metrics"
"""The logger of metric lines, which the console shows in its own way."""


LONGEST = 2000
"""Characters of an error's line: it may quote a value of any length."""


def print_error(message: str, label: bool = True) -> None:
    """Print one line on standard error, with `error:` before it, in red on a terminal."""
    if len(message) > LONGEST:
        half = LONGEST // 2
        message = f"{message[:half]} [... {len(message) - LONGEST} characters ...] {message[-half:]}"
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    shown = "\x1b[1;31merror:\x1b[0m " if coloured else "error: "
    print(f"{shown if label else ''}{message}", file=sys.stderr)


_WIDEST = 60
"""Widest column to align, in characters: one long cell must not pad all the others."""
_GAP = 2
"""Characters between columns."""
_NUMBER = 8
"""Characters of the longest number in a table."""
_TALLEST = 6
"""Lines of a cell; one that needs more is read more easily across the whole terminal."""


def print_json(value: Any) -> None:
    """Print one JSON document, the only thing that `--json` lets a command write to standard output."""
    print(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def print_table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    """Aligned columns, with nothing cut: wrapped to a terminal's width, or where that is too narrow with rows for
    columns, or one row below the other; in a pipe, a row is a line for grep and cut."""
    if sys.stdout.isatty():
        first, *others = zip(header, *rows, strict=True)
        if not (_print_wrapped(rows, header) or _print_wrapped(others, first, whole_words=True)):
            _print_records(rows, header)
        return
    widths = [min(_WIDEST, max(len(row[column]) for row in [header, *rows])) for column in range(len(header))]
    for row in [header, *rows]:
        print((_GAP * " ").join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_wrapped(rows: Sequence[Sequence[str]], header: Sequence[str], whole_words: bool = False) -> bool:
    """Print a table as wide as the terminal, if all of it can be read there."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    columns = [
        [(cell_len(cell), max(map(cell_len, cell.split()), default=0)) for cell in cells]
        for cells in zip(header, *rows, strict=True)
    ]
    whole, words = ([max(cell[what] for cell in cells) for cells in columns] for what in (0, 1))
    widths = _fitted(whole, words, console.width - _GAP * (len(header) - 1), whole_words)
    if widths is None or any(
        cell > _TALLEST * width for cells, width in zip(columns, widths, strict=True) for cell, _ in cells
    ):
        return False
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for title, width in zip(header, widths, strict=True):
        table.add_column(Text(title), width=width, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    return True


def _print_records(rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
    """Print each row by itself: its first cell, and below it each other one, at words' ends on several lines."""
    titles = [header[0], *(f"{_GAP * ' '}{title}" for title in header[1:])]
    width = max(map(len, titles)) + _GAP
    room = max(shutil.get_terminal_size().columns - width, _NUMBER)
    for row in rows:
        for title, cell in zip(titles, row, strict=True):
            lines = textwrap.wrap(cell, room, break_long_words=False, break_on_hyphens=False) or [""]
            print(f"\n{width * ' '}".join([title.ljust(width) + lines[0], *lines[1:]]))


def _fitted(whole: Sequence[int], words: Sequence[int], room: int, whole_words: bool) -> list[int] | None:
    """Widths of columns whose cells are as wide as `whole`, and their longest words as `words`: the widest are made
    narrower, until all fit in `room`. Words are broken where they must be, in the column of the longest first; those of
    the first column, which are names, last; and numbers never, as all with `whole_words`. None where that is not
    enough."""
    least = list(words)
    unbroken = [] if whole_words else [0, *sorted(range(1, len(words)), key=words.__getitem__)]
    while True:
        for widest in range(max(whole), -1, -1):
            widths = [min(one, max(word, widest)) for one, word in zip(whole, least, strict=True)]
            if sum(widths) <= room:
                return widths
        if not unbroken:
            return None
        broken = unbroken.pop()
        least[broken] = min(words[broken], _NUMBER)


class ProgressBar:
    """Progress bars, one after the other, called with (what, done, total): with the time left, on standard error where
    that is a terminal. A bar appears with the first call and disappears at the end, before training shows its own."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._what: str | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        if not sys.stderr.isatty():
            return
        if what != self._what:
            self.close()
            self._bar, self._what = _new_bar(), what
            self._bar.add_task(what, total=total)
            self._bar.start()
        assert self._bar is not None
        self._bar.update(self._bar.task_ids[0], completed=done)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._what = None


def _new_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(
        *columns,
        console=Console(stderr=True, soft_wrap=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # else it goes to a file or another program
    )


class _Console(logging.Handler):
    """Lines on standard error, which is looked up each time: a progress bar may have replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)
        except OSError:  # a terminal that was closed
            self.handleError(record)


_OF_ALL_RANKS = re.compile(
    r"phonate\.(data\.(corpora|prepared|dialogues|label_\w+)|tasks\.\w+\.(data|task)|training\.(phases|state|checkpoints)"
    r"|compute\.distributed)(\.|$)"
)
"""Loggers of what is the same for all ranks, such as the corpus that each of them reads."""


def log_to_console(verbosity: str = "normal") -> None:
    """Print what phonate logs as plain lines on standard error; in ranks other than 0, only warnings of their own."""
    is_main = int(os.environ.get("RANK", "0")) == 0
    level = LEVELS[verbosity] if is_main else logging.WARNING
    logger = logging.getLogger("phonate")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Console)]:
        logger.removeHandler(handler)
    handler = _Console(level)
    handler.addFilter(lambda record: record.name != METRICS and (is_main or not _OF_ALL_RANKS.match(record.name)))
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(min(level, logging.INFO))
    root = logging.getLogger()
    if not root.handlers:  # else a library's first logging.info() adds one, which would print our lines a second time
        others = _Console(logging.WARNING)
        others.addFilter(lambda record: not _prints_itself(record.name.partition(".")[0]))
        root.addHandler(others)


def _prints_itself(library: str) -> bool:
    """Whether the logger of a library has handlers of its own, as phonate's and Hugging Face's have."""
    return library != "root" and bool(logging.getLogger(library).handlers)
