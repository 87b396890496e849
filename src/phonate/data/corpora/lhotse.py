"""Lhotse's manifests of recordings and supervisions, as its recipes write them, without cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError
from phonate.data.corpora._lists import first_object, json_lines, speaker_of
from phonate.data.corpora.cutset import NOT_LHOTSE, require_lhotse, row_of_cut
from phonate.data.manifests.rows import Problem, Row, corpus_format, malformed, official_split

_ENDS = (".jsonl", ".jsonl.gz")


def is_lhotse(path: Path) -> bool:
    """A folder with a pair of manifests, or one of the two."""
    if path.is_dir():
        return bool(manifest_pairs(path))
    return path.name.endswith(_ENDS) and bool(first_object(path).keys() & {"sources", "recording_id"})


@corpus_format(is_lhotse, priority=90)
def lhotse_rows(path: Path) -> Iterator[Row | Problem]:
    """A row for each recording, with its supervisions as segments; where these are of single channels of several, a
    row for each channel. `path` is a folder with `*recordings*.jsonl[.gz]` and `*supervisions*.jsonl[.gz]`, or one of
    these files. Where no supervision has a speaker there is one, called after the folder."""
    require_lhotse(path)
    pairs = manifest_pairs(path if path.is_dir() else path.parent)
    if path.is_file():
        pairs = [pair for pair in pairs if path in pair]
    if not pairs:
        raise DataError(f"{path}: no *recordings*.jsonl.gz with its *supervisions*.jsonl.gz beside it")
    for recordings, supervisions in pairs:
        # absolute, as in cutset: Lhotse runs a name that begins with pipe: in a shell, and opens addresses
        yield from _rows(recordings.resolve(), supervisions.resolve())


def manifest_pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Manifests of recordings, each with that of the supervisions, whose name differs in this word alone."""
    files = {file.name: file for file in sorted(folder.iterdir()) if file.name.endswith(_ENDS)}
    pairs = []
    for name, file in files.items():
        for end in (name, name.removesuffix(".gz"), f"{name}.gz"):
            beside = files.get(end.replace("recordings", "supervisions"))
            if "recordings" in name and beside is not None:
                pairs.append((file, beside))
                break
    return pairs


def _rows(recordings: Path, supervisions: Path) -> Iterator[Row | Problem]:
    from lhotse import Recording, SupervisionSegment

    listed: dict[str, list[tuple[str, Any]]] = {}
    for place, segment in _entries(supervisions, SupervisionSegment):
        if isinstance(segment, Problem):
            yield segment
        else:
            listed.setdefault(segment.recording_id, []).append((place, segment))
    named = any(segment.speaker for found in listed.values() for _, segment in found)
    alone = None if named else speaker_of(recordings)
    split = next((part for part in recordings.name.split(".")[0].split("_") if official_split(part)), None)
    for place, recording in _entries(recordings, Recording):
        if isinstance(recording, Problem):
            yield recording
            continue
        segments = [segment for _, segment in listed.pop(recording.id, [])]
        for row in _rows_of(recording, segments, recordings, place):
            if isinstance(row, Row):
                row = replace(row.with_speaker(alone) if alone is not None else row, split=split)
            yield row
    for name, found in listed.items():
        for place, segment in found:
            yield Problem(str(segment.id), place, "missing file", f"its recording {name!r} is not in {recordings.name}")


def _entries(path: Path, kind: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a manifest with their places; a Problem in the place of one that can't be read."""
    for place, entry in json_lines(path):
        try:
            yield place, entry if isinstance(entry, Problem) else _checked(kind.from_dict(entry))
        except NOT_LHOTSE as error:
            reason = " ".join(str(error).split())
            yield place, malformed(place, f"not a {kind.__name__} of Lhotse ({reason}); write the manifest again")


def _checked(entry: Any) -> Any:
    """Raises TypeError for fields of other types than Lhotse's, which it takes without a look."""
    for name, kind in (("id", str), ("recording_id", str), ("start", float), ("duration", float)):
        value = getattr(entry, name, None)
        if value is not None and not isinstance(value, (int, float) if kind is float else kind):
            raise TypeError(f"{name} is {value!r}")
    return entry


def _rows_of(recording: Any, segments: list[Any], path: Path, place: str) -> Iterator[Row | Problem]:
    channels = {one.channel if isinstance(one.channel, int) else tuple(one.channel) for one in segments}
    separate = len(recording.channel_ids) > 1 and channels and all(isinstance(one, int) for one in channels)
    try:
        if not separate:
            cut = recording.to_cut()
            cut.id, cut.supervisions = recording.id, segments
            yield row_of_cut(cut, path, place)
            return
        for channel in sorted(channels):
            cut = recording.to_cut().with_channels(channel)
            cut.id = recording.id if len(channels) == 1 else f"{recording.id}-channel{channel}"
            cut.supervisions = [one for one in segments if one.channel == channel]
            yield row_of_cut(cut, path, place)
    except NOT_LHOTSE as error:
        yield malformed(place, f"not a recording that can be read ({' '.join(str(error).split())})")
