"""UEM: the regions of recordings to score ("un-partitioned evaluation map", NIST)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.annotations._lines import fields_of, require_field, seconds, write_lines, written_seconds

Region = tuple[float, float]
"""Start and end in seconds."""


def uem_region(fields: Sequence[str]) -> Region:
    """The region of a line. Raises ValueError with the expected fields."""
    try:
        start, end = seconds(fields[2]), seconds(fields[3])
    except (IndexError, ValueError):
        raise ValueError("expected recording, channel, start and end") from None
    if start >= end:
        raise ValueError(f"the region from {start:g} to {end:g} s is empty")
    return start, end


def read_uem(path: str | Path) -> dict[str, list[Region]]:
    """Recording -> its regions (start, end) in seconds, sorted by start. Channels are ignored.

    Raises DataError with file and line for invalid lines.
    """
    found: dict[str, list[Region]] = {}
    for place, fields in fields_of(path):
        try:
            found.setdefault(fields[0], []).append(uem_region(fields))
        except ValueError as error:
            raise DataError(f"{place}: {error}; correct it") from None
    return {recording: sorted(regions) for recording, regions in found.items()}


def write_uem(path: str | Path, recordings: Mapping[str, Iterable[Region]]) -> None:
    """Write the regions of recordings to a UEM file, with channel 1 and times to the microsecond.

    Raises InputError for a name with spaces, or if the file can't be written.
    """
    write_lines(
        path,
        (
            f"{require_field(name, 'recording')} 1 {written_seconds(start)} {written_seconds(end)}"
            for name, regions in recordings.items()
            for start, end in sorted(regions)
        ),
    )
