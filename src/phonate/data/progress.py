"""What long work reports of its progress, and who listens: the command line draws a bar, a session logs lines; without
a listener nothing is reported. Its own module, as every command listens, and few of them start processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


class Stage(StrEnum):
    """Stages of the work on recordings, by the words that progress bars show."""

    READING = "reading recordings"
    CHECKING = "checking recordings"
    PREPARING = "preparing recordings"
    FORMATS = "checking formats"
    EXTRACTING = "extracting features"
    TRANSCRIBING = "transcribing, seconds"
    DIARIZING = "diarizing, seconds"
    ALIGNING = "aligning, seconds"
    CONVERTING = "converting, seconds"


Progress = Callable[[str, int, int], None]
"""Called with (what, done, total), where `what` is a `Stage` or another short description of the work."""


def ignore_progress(what: str, done: int, total: int) -> None:
    """Drops the report, as happens without a listener."""


_listener: ContextVar[Progress] = ContextVar("progress", default=ignore_progress)


@contextmanager
def progress_listener(progress: Progress) -> Iterator[None]:
    """Within the block `progress` receives the reports of all work that has no listener of its own."""
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)


def report_progress(what: str, done: int, total: int) -> None:
    """Report that `done` of `total` items of `what` are done."""
    _listener.get()(what, done, total)


def progress_in(what: str, audio: object) -> Callable[[float], None]:
    """Reports how many seconds of a recording are done; nothing of samples, or where nobody listens."""
    if _listener.get() is ignore_progress or not isinstance(audio, str | Path):
        return lambda done: None
    from phonate.audio.decoding import probe

    total = math.ceil(probe(audio).duration)
    report_progress(what, 0, total)
    return lambda done: report_progress(what, min(total, math.ceil(done)), total)


def progress_of_each(what: Stage, paths: Sequence[str | Path]) -> Iterator[AbstractContextManager[None]]:
    """For each of several recordings, in order, the block in which it is worked on: of what is reported there, that of
    `what` becomes the progress of all recordings together. Of a single one all is reported as it is."""
    whole = _listener.get()
    if len(paths) == 1 or whole is ignore_progress:
        yield from (nullcontext() for _ in paths)
        return
    seconds = [_seconds(path) for path in paths]
    done, total = 0, sum(seconds)
    for own in seconds:
        whole(what, done, total)
        yield progress_listener(partial(_report_part, whole, what, done, total))
        done += own


def _report_part(whole: Progress, stage: Stage, before: int, total: int, what: str, done: int, _: int) -> None:
    if what == stage:
        whole(what, before + done, total)


def _seconds(path: str | Path) -> int:
    """The length of a recording; 0 of one that can't be read."""
    from phonate.audio.decoding import probe
    from phonate.config.errors import DataError

    try:
        return math.ceil(probe(path).duration)
    except DataError:  # whoever works on it tells it
        return 0


def track(what: str, items: Sequence[Item]) -> Iterator[Item]:
    """The items one after the other; each is reported as done when the next is asked for."""
    for done, item in enumerate(items):
        yield item
        report_progress(what, done + 1, len(items))
