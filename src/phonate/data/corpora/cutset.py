"""Lhotse manifests: a CutSet as JSON lines. A cut is a row: a recording, or a part or channel of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError, optional_package
from phonate.data.corpora._lists import first_object, json_lines
from phonate.data.datasets.settings import LHOTSE
from phonate.data.manifests.rows import Problem, Row, Segment, as_text, checked_row, corpus_format, malformed

NOT_LHOTSE = (
    ValueError, LookupError, TypeError, AttributeError, AssertionError, ArithmeticError, RuntimeError, ImportError
)  # fmt: skip
"""What Lhotse raises for objects that are not its own."""
_SLACK_SECONDS = 0.05


def is_cutset(path: Path) -> bool:
    """JSON lines of cuts; compressed ones are nothing else."""
    name = path.name.lower()
    return path.is_file() and (name.endswith(".jsonl.gz") or (name.endswith(".jsonl") and _is_cut(path)))


def _is_cut(path: Path) -> bool:
    return "recording" in first_object(path)


@corpus_format(is_cutset, priority=80)
def cutset_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of a manifest of cuts, each with its supervisions as segments. Audio that comes from a command or an
    address is refused: a manifest is data, and may neither run a shell nor use the network."""
    require_lhotse(path)
    # Lhotse runs a "path" that begins with pipe: in a shell, and opens addresses; an absolute path is neither.
    path = path.resolve()
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a CutSet manifest (.jsonl or .jsonl.gz)")
    for place, entry in _entries(path):
        yield entry if isinstance(entry, Problem) else _read(entry, path, place)


def require_lhotse(path: Path) -> None:
    """Raise MissingPackageError unless Lhotse is installed, which reads its own manifests."""
    optional_package("lhotse", f"{path}: a manifest of Lhotse", LHOTSE)


def _entries(path: Path) -> Iterable[tuple[str, Any]]:
    """The cuts of a manifest with their places; those of JSON lines as they are written, so that one bad line spoils
    no other."""
    if ".jsonl" in path.name:
        yield from json_lines(path)
        return
    from lhotse import CutSet

    try:
        for number, cut in enumerate(CutSet.from_file(path), start=1):
            yield f"{path}:{number}", cut
    except (*NOT_LHOTSE, OSError, EOFError) as error:
        raise DataError(f"{path}: not a CutSet manifest of Lhotse ({error})") from error


def _read(entry: Any, path: Path, place: str) -> Row | Problem:
    from lhotse.serialization import deserialize_item

    try:
        return row_of_cut(deserialize_item(entry) if isinstance(entry, dict) else entry, path, place)
    except NOT_LHOTSE as error:
        return malformed(place, f"not a cut of Lhotse ({' '.join(str(error).split())}); write the manifest again")


def row_of_cut(cut: Any, path: Path, place: str) -> Row | Problem:
    """The row of a cut. `path` is the manifest, to which files may be relative."""
    recording = getattr(cut, "recording", None)
    if recording is None or not recording.sources:
        return malformed(place, "not a cut of one recording; save mixed and padded cuts as files first")
    if recording.transforms:
        return malformed(place, "its recording is transformed when it is read; save the cut as a file of its own first")
    found = _source(cut, recording)
    if found is None:
        return malformed(place, "its channels are some of several, or in several files; make a cut of each channel")
    source, channel = found
    if source.type != "file":
        return Problem(
            str(cut.id), place, "not a file", f"its audio is a {source.type}, not a file; save the recording to a file"
        )
    file = Path(source.source)
    file = file if file.is_absolute() or file.is_file() else path.parent / file
    start, whole = float(cut.start), abs(cut.duration - recording.duration) <= 1e-3
    end = None if whole else start + float(cut.duration)
    segments = tuple(sorted((_segment(one, cut, start) for one in cut.supervisions), key=lambda one: one.start))
    return checked_row(Row(str(cut.id), file, segments, place, channel, 0.0 if whole else start, end))


def _source(cut: Any, recording: Any) -> tuple[Any, int | None] | None:
    """The file of a cut, and the channel in it (None: all of them); None where these are not one file."""
    channels = {cut.channel} if isinstance(cut.channel, int) else set(cut.channel)
    if len(recording.sources) == 1 and channels == set(recording.channel_ids):
        return recording.sources[0], None
    if len(channels) != 1:
        return None
    (channel,) = channels
    for source in recording.sources:
        if channel in source.channels:
            return source, source.channels.index(channel) if len(source.channels) > 1 else None
    return None


def _segment(supervision: Any, cut: Any, start: float) -> Segment:
    """A supervision, whose times count from the cut, with times in the file."""
    begin, end = float(supervision.start), float(supervision.start + supervision.duration)
    speaker, text = as_text(supervision.speaker), as_text(supervision.text)
    if abs(begin) <= _SLACK_SECONDS and abs(end - float(cut.duration)) <= _SLACK_SECONDS:
        return Segment(start, None, speaker, text, str(supervision.id))
    return Segment(start + begin, start + end, speaker, text, str(supervision.id))
