"""Rows of recordings, or a row for each of their segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from phonate.data.manifests.rows import Problem, Row, Segment

_OVERLAP_SECONDS = 0.1


def by_segment(rows: Sequence[Row | Problem], one_speaker: bool) -> Iterator[Row | Problem]:
    """A row for each segment, cut out of its recording. If the task takes one speaker, segments that another speaker
    overlaps become problems. A row whose only segment has no times stays as it is."""
    for row in rows:
        if isinstance(row, Problem):
            yield row
            continue
        if not row.segments:
            yield Problem(row.id, row.place, "no segment", "the recording has no segment to cut out")
        for segment in row.segments:
            alone = len(row.segments) == 1 and segment.end is None
            id = segment.id or (row.id if alone else f"{row.id}-{round(1000 * segment.start):08d}")
            other = _other_speaker(segment, row.segments) if one_speaker else None
            if other is not None:
                yield Problem(id, row.place, "overlapped speech", f"{other} speaks during this segment")
                continue
            yield _cut_out(row, segment, id)


def _cut_out(row: Row, segment: Segment, id: str) -> Row:
    """The part of a row that a segment takes. One that reaches beyond the row keeps its times, so that validation can
    refuse it where its text would be cut."""
    start, end = max(segment.start, row.start), segment.end if segment.end is not None else row.end
    if end is not None and row.end is not None:
        end = min(end, row.end)
    inside = segment.end is None or (start, end) == (segment.start, segment.end)
    return replace(row, id=id, segments=(replace(segment, end=None) if inside else segment,), start=start, end=end)


def _end(segment: Segment) -> float:
    return float("inf") if segment.end is None else segment.end


def _other_speaker(segment: Segment, segments: Sequence[Segment]) -> str | None:
    """A speaker other than that of `segment`, who speaks in it."""
    for one in segments:
        overlap = min(_end(segment), _end(one)) - max(segment.start, one.start)
        if one.speaker != segment.speaker and overlap > _OVERLAP_SECONDS:
            return str(one.speaker)
    return None
