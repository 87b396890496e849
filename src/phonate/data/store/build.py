"""Writing a prepared corpus: waveforms, features, index, manifest and report."""

from __future__ import annotations

import errno
import gzip
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import normalised_peak
from phonate.config.errors import DataError
from phonate.data.features import Features
from phonate.data.manifests.manifest import cut_document
from phonate.data.manifests.recording import LONG_SECONDS, part_blocks, read_part
from phonate.data.manifests.rows import Checked, official_split
from phonate.data.manifests.validation import Progress, Report
from phonate.data.progress import report_progress
from phonate.data.store.cache import FILE_SCALE, NORMALISED_SCALE, CacheWriter
from phonate.data.store.folders import new_folder
from phonate.data.store.index import SPLITS, Index, Strings

THREADS = 2
REPORT = "report.json"
_SCRATCH = "scratch.float32"
_BLOCK_SAMPLES = 1 << 20


def build(
    folder: Path,
    checked: Sequence[Checked],
    report: Report,
    features: Features,
    progress: Progress | None,
    threads: int | None = None,
) -> None:
    """Write everything beside its final name, then rename. Raises DataError where the disk is full or read-only."""
    try:
        with new_folder(folder) as beside:
            full_scale = NORMALISED_SCALE if features.normalises_level else FILE_SCALE
            with CacheWriter(beside, features.width, features.dtype, full_scale) as writer:
                written = _write(writer, checked, features, beside / _SCRATCH, threads or THREADS)
                for done, _ in enumerate(written, start=1):
                    (progress or report_progress)("computing features", done, len(checked))
            index_of(checked, writer).save(beside)
            with gzip.open(beside / "cuts.jsonl.gz", "wt", encoding="ascii") as manifest:
                manifest.writelines(json.dumps(cut_document(one)) + "\n" for one in checked)
            (beside / REPORT).write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
    except OSError as error:
        raise DataError(_explained(error, folder.parent)) from error


def _write(
    writer: CacheWriter, checked: Sequence[Checked], features: Features, scratch: Path, threads: int
) -> Iterator[None]:
    """Append each recording; yields when one is written."""
    for is_long, group in groupby(checked, key=lambda one: one.seconds > LONG_SECONDS):
        if is_long:
            for item in group:
                _write_long(writer, item, features, scratch)
                yield
        else:
            for waveform, values in _computed(group, features, threads):
                writer.add(waveform, values)
                yield


def _computed(
    checked: Iterator[Checked], features: Features, threads: int
) -> Iterator[tuple[FloatArray, NDArray[Any]]]:
    def one(item: Checked) -> tuple[FloatArray, NDArray[Any]]:
        waveform, _ = read_part(item.row, features.audio.sample_rate)
        if features.normalises_level:
            waveform = normalised_peak(waveform)
        return waveform, features.of_recording(item.row.id).compute(waveform)

    with ThreadPoolExecutor(threads) as pool:
        while chunk := list(islice(checked, 64)):
            yield from pool.map(one, chunk)


def _write_long(writer: CacheWriter, item: Checked, features: Features, scratch: Path) -> None:
    """Decode and resample to a scratch file, then read that several times: the peak is known only at the end, and
    decoding again would cost more than reading."""
    peak = np.float32(0.0)
    with scratch.open("wb") as file:
        for block in part_blocks(item.row, features.audio.sample_rate):
            peak = max(peak, np.abs(block).max(initial=np.float32(0.0)))
            file.write(block.tobytes())

    def read() -> Iterator[FloatArray]:
        with scratch.open("rb") as opened:
            while len(block := np.fromfile(opened, dtype=np.float32, count=_BLOCK_SAMPLES)):
                yield block / peak if features.normalises_level and peak > 0.0 else block

    for block in read():
        writer.add_samples(block)
    for values in features.of_recording(item.row.id).compute_blocks(read):
        writer.add_features(values)
    writer.end_recording()
    scratch.unlink()


def index_of(checked: Sequence[Checked], writer: CacheWriter) -> Index:
    """The index of what was written."""
    segments = [one.segments for one in checked]
    every = list(chain.from_iterable(segments))
    names = sorted({one.speaker for one in every if one.speaker is not None})
    number = {name: i for i, name in enumerate(names)} | {None: -1}
    files: dict[Path, int] = {}
    paths = [one.row.path.resolve() for one in checked]
    splits = [SPLITS.index(official_split(one.row.split) or "") for one in checked]
    return Index(
        id=Strings.of([one.row.id for one in checked]),
        path=Strings.of([str(path) for path in paths]),
        speakers=Strings.of(names),
        segment_first=np.cumsum([0, *map(len, segments)], dtype=np.int64),
        segment_start=np.array([one.start for one in every], dtype=np.float64),
        segment_end=np.array([one.end for one in every], dtype=np.float64),
        segment_speaker=np.array([number[one.speaker] for one in every], dtype=np.int64),
        segment_text=Strings.of([one.text or "" for one in every]),
        recording=np.array([files.setdefault(path, len(files)) for path in paths], dtype=np.int64),
        official_split=np.array(splits, dtype=np.int64),
        sample_start=np.array(writer.sample_start, dtype=np.int64),
        frame_start=np.array(writer.frame_start, dtype=np.int64),
    )


def _explained(error: OSError, folder: Path) -> str:
    if error.errno == errno.ENOSPC:
        return f"{folder}: the disk is full; free space there, or name another folder by data.cache_dir"
    return f"{folder}: can't write the cache ({error.strerror}); name another folder by data.cache_dir"
