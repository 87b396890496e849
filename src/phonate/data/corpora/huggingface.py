"""Data sets of Hugging Face as files: what `save_to_disk` writes (Arrow), or shards of Parquet. Needs pyarrow."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phonate.audio.containers.kinds import AUDIO_SUFFIXES
from phonate.compute.system import why_unwritten
from phonate.config.errors import DataError, MissingPackageError
from phonate.config.registry import listed
from phonate.data.corpora.lists import PART, clip_of, column_names, report_texts, report_unread
from phonate.data.corpora.rows import (
    MAGIC,
    Problem,
    Row,
    as_text,
    corpus_format,
    listed_file,
    malformed,
    printable,
    split_among,
)

_MARKS = ("dataset_dict.json", "state.json")
_BATCH = 64
_LARGEST = 2**28
_MOST_EXPANSION = 50
"""Row groups over _LARGEST bytes may be so much larger than their file."""


def is_huggingface(path: Path) -> bool:
    """Arrow or Parquet, or a folder of these."""
    if path.is_dir():
        return bool(shards(path))
    return path.name.lower().endswith((".parquet", ".arrow"))


@corpus_format(is_huggingface, priority=30)
def huggingface_rows(path: Path, cache: Path) -> Iterator[Row | Problem]:
    """Rows of every shard under `path`, of all splits. Recordings that are inside the shards are written to `cache` as
    files, once. Without a column of speakers there is one, who is called after the folder."""
    files = shards(path)
    if not files:
        raise DataError(f"{path}: no .parquet and no .arrow file in it; give what save_to_disk wrote, or the shards")
    root = path if path.is_dir() else path.parent
    ids: set[str] = set()
    for shard in files:
        try:
            with _opened(shard) as (schema, batches):
                yield from _Shard(shard, root, cache, schema, ids).rows(batches)
        except DataError as error:
            if len(files) == 1:
                raise
            yield Problem("", printable(str(shard)), "unreadable", printable(str(error)))


def shards(path: Path) -> list[Path]:
    """The files of a data set, in a fixed order: those of save_to_disk, or else Parquet, up to two folders down."""
    if path.is_file():
        return [path]
    if any((path / name).is_file() for name in _MARKS):
        # datasets keeps results of map() and filter() beside the data, as cache-*.arrow
        arrow_files = (file for depth in ("*.arrow", "*/*.arrow") for file in path.glob(depth))
        return sorted(file for file in arrow_files if not file.name.startswith(("cache-", "indices-")))
    return sorted(file for depth in ("*", "*/*", "*/*/*") for file in path.glob(f"{depth}.parquet"))


@contextmanager
def _opened(shard: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The schema, and the record batches. Raises DataError for what can't be read."""
    arrow = _pyarrow("pyarrow")
    try:
        if shard.suffix == ".parquet":
            with _pyarrow("pyarrow.parquet").ParquetFile(shard) as file:
                yield file.schema_arrow, _validated(file.iter_batches(batch_size=_rows_at_once(shard, file.metadata)))
            return
        with arrow.memory_map(str(shard)) as source:
            try:
                reader = arrow.ipc.open_stream(source)
            except arrow.ArrowInvalid:
                file = arrow.ipc.open_file(source)
                yield file.schema, _validated(file.get_batch(i) for i in range(file.num_record_batches))
            else:
                yield reader.schema, _validated(reader)
    except (arrow.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{shard}: not readable ({reason}); save or download the data set again") from error


def _validated(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, checked: offsets in a damaged one may point anywhere, and reading there crashes the process (Arrow's
    format documentation asks for this where files are not trusted)."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _rows_at_once(shard: Path, metadata: Any) -> int:
    """Rows to read together, so that they stay under 1 GiB even if each is as large as its row group (a dictionary may
    hold one large value for all). Raises DataError for groups that expand to far more than recordings do: audio hardly
    compresses."""
    largest, rows = max(_LARGEST, _MOST_EXPANSION * shard.stat().st_size), _BATCH
    for group in range(metadata.num_row_groups):
        size = sum(
            metadata.row_group(group).column(column).total_uncompressed_size for column in range(metadata.num_columns)
        )
        if size > largest:
            raise DataError(
                f"{shard}: row group {group} expands to {size / 2**20:.0f} MiB from a file of "
                f"{shard.stat().st_size / 2**20:.1f}; save the data set again"
            )
        rows = min(rows, max(1, 2**30 // max(1, size)))
    return rows


def _pyarrow(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "data sets of Hugging Face need the package pyarrow, which is not installed; pip install 'phonate[hf]'"
        ) from error


class _Shard:
    """One file of a data set."""

    def __init__(self, shard: Path, root: Path, cache: Path, schema: Any, ids: set[str]) -> None:
        self._shard, self._root, self._ids = shard, root, ids
        self._columns = dict(column_names(schema.names))
        twice = sorted({name for name in self._columns.values() if schema.names.count(name) > 1})
        if twice:
            raise DataError(f"{shard}: several columns {twice[0]!r}; keep one of them")
        # Embedded audio takes precedence over a path on the author's disk.
        embedded = [name for name in schema.names if "bytes: " in str(schema.field(name).type)]
        if embedded:
            self._columns["audio_path"] = "audio" if "audio" in embedded else embedded[0]
        for key in self._columns.keys() & {*PART}:
            # Embedded recordings are already cut: times are those of what they were cut from, or lists of words'.
            if embedded or "list" in str(schema.field(self._columns[key]).type):
                del self._columns[key]
        if "audio_path" not in self._columns:
            raise DataError(f"{shard}: no column `audio` in it (there is: {listed(schema.names)})")
        report_texts(root, tuple(schema.names))
        self._alone = None if "speaker_id" in self._columns else printable(root.resolve().name)
        if self._alone is not None:
            unread = tuple(name for name in schema.names if name not in self._columns.values())
            report_unread(root, unread, self._alone, texts=True)
        # train-00000-of-00002.parquet, or train/data-00000-of-00001.arrow
        parts = (*shard.relative_to(root).parts[:-1], shard.stem)
        self._split = split_among(reversed(parts))
        status = shard.stat()
        stamp = repr((str(shard.resolve()), status.st_size, status.st_mtime_ns))
        self._files = cache / hashlib.sha256(stamp.encode("utf-8", "surrogateescape")).hexdigest()[:24]

    def rows(self, batches: Iterator[Any]) -> Iterator[Row | Problem]:
        """A row, or what is wrong with it, for each row of the shard."""
        number = 0
        for batch in batches:
            columns = batch.select(list(dict.fromkeys(self._columns.values())))
            for start in range(0, columns.num_rows, _BATCH):  # batches of Arrow hold a thousand recordings
                for sample in columns.slice(start, _BATCH).to_pylist():
                    yield self._row(sample, number)
                    number += 1

    def _row(self, sample: Mapping[str, Any], number: int) -> Row | Problem:
        place = f"{self._shard}: row {number}"
        value = {meaning: sample[name] for meaning, name in self._columns.items()}
        for meaning in value.keys() - {"audio_path"}:
            if isinstance(value[meaning], bytes):  # as some writers store strings
                value[meaning] = value[meaning].decode("utf-8", "surrogateescape")
            elif isinstance(value[meaning], (dict, list)):
                return malformed(place, f"its {meaning} is a {type(value[meaning]).__name__}, not a text")
        audio = value["audio_path"]
        sound = {"path": audio} if isinstance(audio, str) else audio
        if not isinstance(sound, dict) or not (sound.get("bytes") or sound.get("path")):
            return malformed(
                place, "its audio has neither bytes nor a path; cast the column to Audio and save it again"
            )
        if sound.get("bytes"):
            file = self._extracted(sound["bytes"], str(sound.get("path") or ""), number)
        else:
            file = listed_file(self._root, str(sound["path"]))
        speaker = self._alone if self._alone is not None else value["speaker_id"]
        id = self._id(value.get("id"), sound.get("path"), number)
        split = as_text(value.get("split")) or self._split
        return clip_of({**value, "id": id, "split": split}, id, file, as_text(speaker), place)

    def _id(self, listed: object, path: object, number: int) -> str:
        """The id or else the name of the recording; with shard and row where another has the same."""
        id = str(listed) if listed not in (None, "") else Path(str(path)).stem if path else ""
        if not id or id in self._ids:
            id = f"{id or 'row'}-{self._shard.relative_to(self._root).with_suffix('').as_posix()}-{number:06d}"
        self._ids.add(id)
        return id

    def _extracted(self, content: bytes, name: str, number: int) -> Path:
        """The file with what the shard holds, written unless it is there from before."""
        suffix = next((end for magic, end in MAGIC.items() if content.startswith(magic)), Path(name).suffix.lower())
        if content[4:8] == b"ftyp":
            suffix = ".m4a"
        file = self._files / f"{number:06d}{suffix if suffix in AUDIO_SUFFIXES else '.mp3'}"
        try:
            if file.is_file() and file.stat().st_size == len(content):
                return file
            file.parent.mkdir(parents=True, exist_ok=True)
            beside = file.with_name(f".{file.name}.{os.getpid()}")  # ranks of one run extract at the same time
            beside.write_bytes(content)
            beside.replace(file)
        except OSError as error:
            mend = "free space there, or name another folder by data.cache_dir"
            raise DataError(f"{file}: can't be written ({why_unwritten(file, error, len(content))}); {mend}") from error
        return file
