"""Rows of recordings, or a row for each of their segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from phonate.data.manifests.rows import Problem, Row, Segment

_OVERLAP_SECONDS = 0.1


def by_segment(rows: Sequence[Row | Problem], one_speaker: bool) -> Iterator[Row | Problem]:
    """A row for each segment, cut out of its recording. If the task takes one speaker, segments that another speaker
    overlaps become problems. Rows whose only segment has no times are kept as they are."""
    for row in rows:
        if isinstance(row, Problem) or (len(row.segments) == 1 and row.segments[0].end is None):
            yield row
            continue
        if not row.segments:
            yield Problem(row.id, row.place, "no segment", "the recording has no segment to cut out")
        for segment in row.segments:
            id = segment.id or f"{row.id}-{round(1000 * segment.start):08d}"
            other = _other_speaker(segment, row.segments) if one_speaker else None
            if other is not None:
                yield Problem(id, row.place, "overlapped speech", f"{other} speaks during this segment")
                continue
            yield replace(row, id=id, segments=(replace(segment, end=None),), start=segment.start, end=segment.end)


def _other_speaker(segment: Segment, segments: Sequence[Segment]) -> str | None:
    """A speaker other than that of `segment`, who speaks in it."""
    if segment.end is None:
        return None
    for one in segments:
        overlap = min(segment.end, one.end if one.end is not None else segment.end) - max(segment.start, one.start)
        if one.speaker != segment.speaker and overlap > _OVERLAP_SECONDS:
            return str(one.speaker)
    return None
