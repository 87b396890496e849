"""Gradient accumulation: the micro-batches of one optimizer step."""

from __future__ import annotations

from collections.abc import Iterator

from phonate.data.batches.loading import MicroBatch


def accumulation_groups(planned: Iterator[MicroBatch], times: int) -> Iterator[list[MicroBatch]]:
    """The micro-batches `planned` for an epoch, grouped by optimizer step; the last step may have fewer.

    `times`: how many micro-batches of the plan a step has. One that stands for several counts as so many.
    """
    group: list[MicroBatch] = []
    for one in planned:
        group.append(one)
        if sum(member.planned for member in group) >= times:
            yield group
            group = []
    if group:
        yield group
