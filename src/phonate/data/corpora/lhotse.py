"""Lhotse's manifests of recordings and supervisions, as its recipes write them, without cuts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from phonate.config.errors import DataError
from phonate.data.corpora._lists import speaker_of
from phonate.data.corpora.cutset import row_of_cut
from phonate.data.manifests.rows import Problem, Row, malformed

_ENDS = (".jsonl", ".jsonl.gz")
_SLACK_SECONDS = 0.05


def lhotse_rows(path: Path) -> Iterator[Row | Problem]:
    """A row for each recording that has one supervision for the whole of it. `path` is a folder with
    `*recordings*.jsonl[.gz]` and `*supervisions*.jsonl[.gz]`, or one of these files. Where no supervision has a speaker
    there is one, who is called after the folder."""
    pairs = manifest_pairs(path if path.is_dir() else path.parent)
    if path.is_file():
        pairs = [pair for pair in pairs if path in pair]
    if not pairs:
        raise DataError(f"{path}: no *recordings*.jsonl.gz with its *supervisions*.jsonl.gz beside it")
    for recordings, supervisions in pairs:
        # absolute, as in cutset: Lhotse runs a name that begins with pipe: in a shell, and opens addresses
        yield from _rows(recordings.resolve(), supervisions.resolve())


def manifest_pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Manifests of recordings, each with that of the supervisions that differs from it by this word alone."""
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

    said: dict[str, list[tuple[str, Any]]] = {}
    for place, segment in _entries(supervisions, SupervisionSegment):
        if isinstance(segment, Problem):
            yield segment
        else:
            said.setdefault(segment.recording_id, []).append((place, segment))
    alone = None if any(one.speaker for listed in said.values() for _, one in listed) else speaker_of(recordings)
    for place, recording in _entries(recordings, Recording):
        if isinstance(recording, Problem):
            yield recording
            continue
        segments = [segment for _, segment in said.pop(recording.id, [])]
        row = _row(recording, segments, recordings, place)
        yield replace(row, speaker=row.speaker or alone) if isinstance(row, Row) else row
    for name, segments in said.items():
        for place, segment in segments:
            yield Problem(str(segment.id), place, "missing file", f"its recording {name!r} is not in {recordings.name}")


def _entries(path: Path, kind: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a manifest with their places; a Problem in the place of one that can't be read."""
    from lhotse.lazy import LazyJsonlIterator

    try:
        for number, entry in enumerate(LazyJsonlIterator(path), start=1):
            place = f"{path}:{number}"
            try:
                yield place, kind.from_dict(entry)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                reason = " ".join(str(error).split())
                yield place, malformed(place, f"no {kind.__name__} of Lhotse ({reason}); write the manifest anew")
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a manifest of Lhotse ({error})") from error


def _row(recording: Any, segments: list[Any], path: Path, place: str) -> Row | Problem:
    if len(segments) > 1:
        mend = "lhotse cut trim-to-supervisions and save_audios make a recording of each"
        return malformed(place, f"{recording.id!r} has {len(segments)} supervisions; {mend}")
    for segment in segments:
        if segment.start > _SLACK_SECONDS or abs(segment.duration - recording.duration) > _SLACK_SECONDS:
            end = segment.start + segment.duration
            detail = f"the supervision of {recording.id!r} is a part of it (seconds {segment.start:g} to {end:g})"
            return malformed(place, f"{detail}; save it as a recording of its own first")
    try:
        cut = recording.to_cut()
        cut.supervisions = segments
        return row_of_cut(cut, path, place)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        return malformed(place, f"not a recording that can be read ({' '.join(str(error).split())})")
