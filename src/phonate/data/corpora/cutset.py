"""Lhotse manifests: a CutSet as JSON lines, whose cuts are whole recordings."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError
from phonate.data.manifests.rows import Problem, Row, malformed, spelled_row


def cutset_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of a manifest of whole recordings. Audio that comes from a command or an address is refused: a manifest
    is data, and may neither run a shell nor reach into a network."""
    # Lhotse runs a "path" that begins with pipe: in a shell, and opens addresses; an absolute path is neither.
    path = path.resolve()
    if not path.is_file():
        raise DataError(f"{path}: no such file; a CutSet manifest (.jsonl or .jsonl.gz) is wanted")
    try:
        for number, entry in enumerate(_entries(path), start=1):
            yield _read(entry, path, f"{path}:{number}")
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a CutSet manifest of Lhotse ({error})") from error


def _entries(path: Path) -> Iterable[Any]:
    """The cuts of a manifest; those of JSON lines as they are written, so that one bad line spoils no other."""
    from lhotse import CutSet
    from lhotse.lazy import LazyJsonlIterator

    entries: Iterable[Any] = LazyJsonlIterator(path) if ".jsonl" in path.name else CutSet.from_file(path)
    return entries


def _read(entry: Any, path: Path, place: str) -> Row | Problem:
    from lhotse.serialization import deserialize_item

    try:
        return row_of_cut(deserialize_item(entry) if isinstance(entry, dict) else entry, path, place)
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return malformed(place, f"not a cut of Lhotse ({' '.join(str(error).split())}); write the manifest anew")


def row_of_cut(cut: Any, path: Path, place: str) -> Row | Problem:
    """The row of a cut that is a whole recording in a file. `path` is the manifest, to which files may be relative."""
    recording = getattr(cut, "recording", None)
    if recording is None or len(recording.sources) != 1:
        return malformed(place, "a cut of one recording from one file is wanted")
    source = recording.sources[0]
    if source.type != "file":
        raise DataError(f"{place}: its audio is a {source.type}, not a file; save the recording to a file first")
    if abs(cut.duration - recording.duration) > 1e-3:
        return malformed(place, "the cut is a part of its recording; save it as a recording of its own first")
    # Files are read whole and as they are: all channels, mixed, without what Lhotse would do to them on the way.
    channels = {cut.channel} if isinstance(cut.channel, int) else set(cut.channel)
    if channels != set(recording.channel_ids):
        return malformed(place, "the cut lacks channels of its recording; save the channels as files of their own")
    if recording.transforms:
        return malformed(place, "its recording is transformed when it is read; save the cut as a file of its own first")
    said = cut.supervisions[0] if cut.supervisions else None
    file = Path(source.source)
    found = file if file.is_absolute() or file.is_file() else path.parent / file
    return spelled_row(cut.id, found, said and said.speaker, said and said.text, place)
