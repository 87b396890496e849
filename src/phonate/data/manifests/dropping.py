"""Recordings excluded by `data.drop` and `data.limit`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phonate.config.errors import DataError
from phonate.config.randomness import derived_seed
from phonate.data.corpora._lists import read_lines
from phonate.data.manifests.rows import Problem, Row

if TYPE_CHECKING:
    from phonate.data.manifests.validation import Report

logger = logging.getLogger("phonate")

_NAMED = 5


def leave_out(rows: Sequence[Row | Problem], drop: str | None, report: Report) -> list[Row | Problem]:
    """The rows whose ids are not listed in the file `drop`. The report counts the others and warns of ids that no
    recording has."""
    if drop is None:
        return list(rows)
    path = Path(drop).expanduser()
    if not path.is_file():
        raise DataError(f"data.drop: {path}: no such file; it is relative to {Path.cwd()}")
    unwanted = {id: number for number, line in enumerate(read_lines(path), start=1) if (id := line.strip())}
    kept = [row for row in rows if row.id not in unwanted]
    report.dropped += len(rows) - len(kept)
    listed = {row.id for row in rows}
    for id, number in unwanted.items():
        if id not in listed:
            report.warnings.append(Problem(id, f"{path}:{number}", "unknown id", f"no recording has the id {id!r}"))
    return kept


def limited(rows: Sequence[Row | Problem], limit: int | None, report: Report) -> list[Row | Problem]:
    """At most `limit` rows: those whose ids hash lowest, a sample that spans speakers and stays nearly the same when
    rows are added or removed. The report counts the others."""
    if limit is None or len(rows) <= limit:
        return list(rows)
    lowest = sorted(range(len(rows)), key=lambda i: derived_seed("limit", rows[i].id))[:limit]
    report.over_limit += len(rows) - limit
    return [rows[i] for i in sorted(lowest)]


def warn_left_out(reason: str, recordings: Sequence[str]) -> None:
    """Log how many recordings are left out for a `reason` ("are too short", say), and the first few of them."""
    if recordings:
        more = f" and {len(recordings) - _NAMED} more" if len(recordings) > _NAMED else ""
        listed = "; ".join(recordings[:_NAMED])
        logger.warning("%d recordings %s, and are left out: %s%s", len(recordings), reason, listed, more)
