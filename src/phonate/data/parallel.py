"""Work on many files in several processes, which one bad file doesn't end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TypeVar

from phonate.compute.limits import cores

Item = TypeVar("Item")
Result = TypeVar("Result")

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""

FEW = 32
"""Fewer files are worked on in this process: others take longer to start."""
_BATCH = 16
_BATCHES_AHEAD = 4


def map_files(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    crashed: Callable[[Item], Result],
    what: str,
    progress: Progress | None = None,
    processes: int | None = None,
) -> Iterator[Result]:
    """`function(item)` for each item, in their order, as they are done.

    Args:
        function: of a module, so that other processes find it; returns what went wrong rather than raising it.
        crashed: what stands for an item at which the process died (a decoder that crashed, memory that ran out).
        what: said to `progress`, with how many are done and how many there are.
        processes: how many; by default one for each core this process may use.
    """
    processes = cores() if processes is None else processes
    alone = processes == 1 or len(items) < FEW
    found = map(function, items) if alone else _spread(function, items, crashed, processes)
    for done, result in enumerate(found, 1):
        if progress is not None:
            progress(what, done, len(items))
        yield result


def _spread(
    function: Callable[[Item], Result], items: Sequence[Item], crashed: Callable[[Item], Result], processes: int
) -> Iterator[Result]:
    """joblib's processes: they need no `if __name__ == "__main__"` in a person's script, as Python's own do."""
    from joblib import Parallel, delayed
    from joblib.externals.loky import get_reusable_executor

    run = partial(Parallel, n_jobs=processes, batch_size=_BATCH, pre_dispatch=_BATCHES_AHEAD * _BATCH * processes)
    done = 0
    try:
        while done < len(items):
            try:
                for result in run(return_as="generator")(delayed(function)(item) for item in items[done:]):
                    done += 1
                    yield result
            except BrokenProcessPool:
                # Which file it was, nobody tells: those that were under way are tried again, one at a time.
                for item in items[done : done + 2 * _BATCHES_AHEAD * _BATCH * processes]:
                    done += 1
                    try:
                        yield run()([delayed(function)(item)])[0]
                    except BrokenProcessPool:
                        yield crashed(item)
    finally:
        get_reusable_executor().shutdown(wait=True)  # idle processes would hold their memory while training
