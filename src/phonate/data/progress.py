"""Who hears how far long work has come: the command line shows a bar, a session writes it down, others hear nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


def _nobody(what: str, done: int, total: int) -> None:
    """Hears nothing."""


_listener: ContextVar[Progress] = ContextVar("progress", default=_nobody)


@contextmanager
def heard_by(progress: Progress) -> Iterator[None]:
    """Within the block `progress` hears of all work that is told to nobody else."""
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(what: str, done: int, total: int) -> None:
    """`done` of `total` are done of `what`."""
    _listener.get()(what, done, total)


def told(what: str, items: Sequence[Item]) -> Iterator[Item]:
    """The items one after the other; each is told as done when the next is asked for."""
    for done, item in enumerate(items):
        yield item
        tell(what, done + 1, len(items))
