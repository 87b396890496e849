"""Shards: recordings in tar files, as WebDataset and Lhotse's Shar write them, on a disk or at an address.

Nothing is unpacked: a row says where its recording is, which is read from the shard.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from phonate.audio.containers.kinds import AUDIO_SUFFIXES
from phonate.compute.remote import base_name, files_below, is_remote, open_at
from phonate.config.errors import DataError, json_mistake
from phonate.data.corpora.lists import audio_name, column_names
from phonate.data.corpora.rows import (
    Member,
    Problem,
    Row,
    Segment,
    as_text,
    checked_row,
    corpus_format,
    malformed,
    split_among,
)

SHARDS = frozenset({"shar", "webdataset"})
"""The formats whose recordings are read from shards."""
_SLACK_SECONDS = 0.05
_TEXTS = ("txt", "text", "transcript", "lab")
_SPEAKERS = ("spk", "speaker", "cls")
_LARGEST_LABEL = 1 << 24
_LARGEST_LIST = 1 << 30


def shard_format(address: str) -> str | None:
    """shar or webdataset, where an address is that of shards; None for other corpora."""
    return _kind([base_name(one) for one in files_below(address)])


def _kind(names: list[str]) -> str | None:
    tars = [name for name in names if name.endswith(".tar")]
    if any(_is_cuts(name) for name in names) and any(name.startswith("recording.") for name in tars):
        return "shar"
    return "webdataset" if tars and not any(Path(name).suffix.lower() in AUDIO_SUFFIXES for name in names) else None


def _is_cuts(name: str) -> bool:
    return name.startswith("cuts.") and ".jsonl" in name


def _files(source: Path | str) -> dict[str, str]:
    """Files of a folder of shards, or one shard, with their stamps; by path or address, sorted."""
    if isinstance(source, str) and is_remote(source):
        return files_below(source)
    path = Path(source).resolve()
    files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    return {str(one): f"{(status := one.stat()).st_size} {status.st_mtime_ns}" for one in files}


def _is_local(path: Path, kind: str) -> bool:
    if not path.is_dir():
        return kind == "webdataset" and path.suffix.lower() == ".tar" and path.is_file()
    try:
        return _kind([entry.name for entry in path.iterdir()]) == kind
    except OSError:
        return False


def is_webdataset(path: Path) -> bool:
    """A tar file, or a folder of them without recordings beside them."""
    return _is_local(path, "webdataset")


def is_shar(path: Path) -> bool:
    """A folder of shards: cuts with their recordings in tar files."""
    return _is_local(path, "shar")


@corpus_format(is_webdataset, priority=60)
def webdataset_rows(path: Path | str) -> Iterator[Row | Problem]:
    """A row for each sample of WebDataset shards that has a recording. Its text, speaker, segments, split and id are in
    the sample's .json; text may be in .txt, a speaker's name in .spk or .cls. `path` is a tar file, a folder of them,
    or the address of one of the two."""
    files = _files(path)
    listed = _listed_beside([file for file in files if file.endswith((".json", ".jsonl"))])
    for shard, stamp in files.items():
        if shard.endswith(".tar"):
            try:
                for key, parts, labels in _samples(shard, stamp):
                    yield _row_of_sample(shard, key, parts, labels, listed)
            except (OSError, EOFError, tarfile.TarError) as error:
                yield _damaged(shard, error)


def _listed_beside(files: list[str]) -> dict[str, dict[str, Any]]:
    """What lists beside shards say of their samples (as NeMo's manifests of tarred recordings do), by the name of the
    recording in its shard."""
    said: dict[str, dict[str, Any]] = {}
    for file in files:
        with open_at(file) as opened:
            lines = opened.read(_LARGEST_LIST).decode("utf-8-sig", "surrogateescape").split("\n")
        for line in lines:
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):  # of another kind of file
                break
            if isinstance(entry, dict) and (name := audio_name(entry)):
                said[base_name(name)] = entry
    return said


def _damaged(shard: str, error: Exception) -> Problem:
    reason = " ".join(str(error).split())
    return Problem("", shard, "damaged file", f"can't be read from here on ({reason}); copy it again")


def _members(shard: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The plain files in a shard, in their order. Raises DataError where one is stored without its zeros."""
    with open_at(shard) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # otherwise it holds all
            if info.issparse():  # its bytes are not one after the other
                raise DataError(f"{shard}: {info.name} is stored sparsely; write the shard again without tar --sparse")
            if info.isfile():
                yield tar, info


def _samples(shard: str, stamp: str) -> Iterator[tuple[str, dict[str, Member], dict[str, bytes]]]:
    """Of each sample its key, its recordings and its labels, by extension in small letters."""
    key, parts, labels = "", dict[str, Member](), dict[str, bytes]()
    for tar, info in _members(shard):
        folder, _, name = info.name.rpartition("/")
        stem, _, extension = name.partition(".")
        current = f"{folder}/{stem}" if folder else stem
        if current != key:
            if parts or labels:
                yield key, parts, labels
            key, parts, labels = current, {}, {}
        extension = extension.lower()
        if f".{extension.rpartition('.')[2]}" in AUDIO_SUFFIXES:
            parts[extension] = Member(shard, info.name, info.offset_data, info.size, stamp)
        elif info.size <= _LARGEST_LABEL and (kind := extension.rpartition(".")[2]) in {"json", *_TEXTS, *_SPEAKERS}:
            labels[kind] = _content(tar, info)
    if parts or labels:
        yield key, parts, labels


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(info)
    assert file is not None
    return file.read()


def _row_of_sample(
    shard: str,
    key: str,
    parts: Mapping[str, Member],
    labels: Mapping[str, bytes],
    listed_beside: Mapping[str, dict[str, Any]],
) -> Row | Problem:
    place = f"{shard}: {key}"
    if len(parts) != 1:
        names = ", ".join(sorted(parts)) or "none"
        return malformed(place, f"a sample has one recording; this one has {names}; write the shard again")
    (member,) = parts.values()
    facts: Any = listed_beside.get(base_name(member.name), {})
    if "json" in labels:
        try:
            facts = json.loads(labels["json"].decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            return malformed(place, f"its .json is not readable as JSON ({json_mistake(error)}); write the shard again")
    try:
        called = column_names(facts)
        text = as_text(facts.get(called.get("text"))) or _label(labels, _TEXTS)
        speaker = as_text(facts.get(called.get("speaker_id"))) or _label(labels, _SPEAKERS)
        listed = facts.get("segments")
        segments = (
            (Segment(speaker=speaker, text=text),)
            if listed is None
            else tuple(
                Segment(
                    float(one.get("start") or 0.0),
                    None if one.get("end") is None else float(one["end"]),
                    as_text(one.get("speaker")),
                    as_text(one.get("text")),
                    as_text(one.get("id")),
                )
                for one in listed
            )
        )
    except (AttributeError, TypeError, ValueError) as error:
        return malformed(place, f"its labels can't be read ({error}); write the shard again")
    if segments == (Segment(),):
        segments = ()
    split = as_text(facts.get("split")) or split_among([base_name(shard), *reversed(Path(shard).parts[:-1])][:2])
    id = str(facts.get("id") or key)
    return checked_row(Row(id, Path(f"{shard}/{member.name}"), segments, place, split=split, member=member))


def _label(labels: Mapping[str, bytes], names: tuple[str, ...]) -> str | None:
    return next((labels[one].decode("utf-8-sig", "surrogateescape").strip() for one in names if one in labels), None)


@corpus_format(is_shar, priority=95)
def shar_rows(path: Path | str) -> Iterator[Row | Problem]:
    """Rows of the cuts in Lhotse's Shar format, whose recordings are read from the shards. `path` is their folder, or
    its address."""
    files = _files(path)
    cuts = [one for one in files if _is_cuts(base_name(one))]
    shards = [one for one in files if base_name(one).startswith("recording.") and one.endswith(".tar")]
    if len(cuts) != len(shards):
        counts = f"{len(cuts)} shards of cuts and {len(shards)} of recordings"
        raise DataError(f"{path}: {counts}; copy the folder again")
    for listed, shard in zip(cuts, shards, strict=True):
        try:
            yield from _rows_of_shard(listed, shard, files[shard])
        except (OSError, EOFError, tarfile.TarError) as error:
            yield _damaged(shard, error)


def _rows_of_shard(listed: str, shard: str, stamp: str) -> Iterator[Row | Problem]:
    recordings = (
        info
        for _, info in _members(shard)
        if not info.name.endswith((".json", ".nometa"))  # .nodata stands for a cut without a recording
    )
    with open_at(listed) as raw:
        file = gzip.GzipFile(fileobj=raw) if listed.endswith(".gz") else raw
        for number, line in enumerate(io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape"), start=1):
            place = f"{listed}:{number}"
            info = next(recordings, None)
            if info is None:
                raise EOFError(f"the recordings end before cut {number}")
            try:
                yield _row_of_cut(json.loads(line), info, shard, stamp, place)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                reason = " ".join(str(error).split())
                yield malformed(place, f"not a cut of Lhotse ({reason}); write the shards again")


def _row_of_cut(cut: Any, info: tarfile.TarInfo, shard: str, stamp: str, place: str) -> Row | Problem:
    id = str(cut["id"])
    if info.name.rpartition(".")[0] != id:
        return malformed(place, f"cut {id} has the recording {info.name}: the shards do not belong together")
    if info.name.endswith(".nodata"):
        return Problem(id, place, "missing file", "the cut has no recording; save it with its audio")
    member = Member(shard, info.name, info.offset_data, info.size, stamp)
    segments = tuple(sorted((_segment(one, float(cut["duration"])) for one in cut["supervisions"]), key=_start))
    return checked_row(Row(id, Path(f"{shard}/{info.name}"), segments, place, member=member))


def _start(segment: Segment) -> float:
    return segment.start


def _segment(supervision: Mapping[str, Any], duration: float) -> Segment:
    """A supervision; one that takes the whole cut has no times."""
    begin = float(supervision["start"])
    end = begin + float(supervision["duration"])
    whole = abs(begin) <= _SLACK_SECONDS and abs(end - duration) <= _SLACK_SECONDS
    labels = (as_text(supervision.get("speaker")), as_text(supervision.get("text")), as_text(supervision.get("id")))
    return Segment(0.0, None, *labels) if whole else Segment(begin, end, *labels)
