"""Training from shards: recordings are read from them in the order of the plan, and nothing is copied to the cache.

Runs of a shard at an address are read once and kept in a folder of limited size, which all processes of a machine
share; shards on a disk are read where they are.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray, joined
from phonate.audio.processor import full_scale
from phonate.compute.remote import is_remote, read_range
from phonate.compute.system import write_whole
from phonate.data.cache import NORMALISED_SCALE, ComputedFeatures, FeatureCache, Index, Places, quantised
from phonate.data.corpora.rows import LONG_SECONDS, Member, Row, part_blocks, read_part
from phonate.data.features import Features, NoneFeatures
from phonate.data.settings import Framing, Storage

RUNS = "runs"
"""The folder of runs, beside prepared corpora."""
SPOOL_BYTES = 2 << 30
"""What the folder of runs may hold."""
_HELD = 4
_AHEAD = 4


class Runs:
    """Bytes of shards, run by run."""

    def __init__(self, places: Places, folder: Path) -> None:
        """`folder`: where runs from addresses are kept."""
        self._places = places
        self._folder = folder
        self._readers: tuple[int, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_readers": None}

    def read(self, position: int) -> bytes:
        """The recording at `position` as a file has it. Raises DataError where it is not there."""
        places = self._places
        shard, offset, size = int(places.shard[position]), int(places.offset[position]), int(places.size[position])
        member = Member(places.shards[shard], places.names[position], offset, size, places.stamps[shard])
        if not is_remote(member.shard):
            return member.read()
        run = int(places.run[position])
        first = int(places.runs[1][run])
        while True:
            with suppress(FileNotFoundError), self._fetched(run).open("rb") as file:  # another process may remove it
                file.seek(offset - first)
                return file.read(size)

    def expect(self, positions: Iterable[int]) -> None:
        """Fetch the runs of `positions` meanwhile."""
        if self._readers is None or self._readers[0] != os.getpid():  # threads do not survive a fork
            self._readers = os.getpid(), ThreadPoolExecutor(_AHEAD, thread_name_prefix="shards")
        places = self._places
        for run in dict.fromkeys(places.run[np.asarray(list(positions), dtype=np.int64)].tolist()):
            if is_remote(places.shards[int(places.runs[0][run])]) and not self._file(run).is_file():
                self._readers[1].submit(self._quietly, run)

    def _quietly(self, run: int) -> None:
        with suppress(Exception):  # whoever reads it gets the error
            self._fetched(run)

    def _file(self, run: int) -> Path:
        shard, first, end = (int(one[run]) for one in self._places.runs)
        facts = repr((self._places.shards[shard], self._places.stamps[shard], first, end))
        return self._folder / hashlib.sha256(facts.encode()).hexdigest()[:32]

    def _fetched(self, run: int) -> Path:
        file = self._file(run)
        if file.is_file():
            return file
        shard, first, end = (int(one[run]) for one in self._places.runs)
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = file.with_name(f"{file.name}.lock")
        from filelock import FileLock

        with FileLock(lock):
            if not file.is_file():
                data = read_range(self._places.shards[shard], first, end)
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, data)
                self._make_room()
        return file

    def _make_room(self) -> None:
        files = sorted(_files_of(self._folder))
        held = sum(size for _, size, _ in files)
        for _, size, path in files:
            if held <= SPOOL_BYTES:
                return
            for one in (path, f"{path}.lock"):
                with suppress(FileNotFoundError, PermissionError):  # Windows keeps what another process has open
                    os.unlink(one)
            held -= size


def _files_of(folder: Path) -> Iterator[tuple[int, int, str]]:
    """Time, size and path of each run."""
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            if not entry.name.startswith(".") and not entry.name.endswith(".lock"):
                status = entry.stat()
                yield status.st_mtime_ns, status.st_size, entry.path


class ShardCache(ComputedFeatures):
    """Waveforms and features of recordings in shards, equal to those of a cache, computed when they are read."""

    def __init__(self, folder: Path, index: Index, features: Features, storage: Storage) -> None:
        """`storage`: as the cache would keep features, whose values they have."""
        assert index.places is not None
        self._places = index.places
        self._runs = Runs(index.places, folder.parent / RUNS)
        self._decoded: OrderedDict[int, FloatArray] = OrderedDict()
        super().__init__(folder, index, features, hold=storage == "memory")
        self._of_samples = storage == "disk"  # features on the disk are of the samples before they are rounded
        self.computes = True
        self._levelled = float(self._full_scale) == NORMALISED_SCALE or features.audio.loudness is not None

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_decoded": OrderedDict()}

    def _map(self) -> None:
        self._features = self._map_features()

    def _require_whole(self) -> None:
        """Whether shards are whole is seen when they are read."""

    def expect(self, positions: Iterable[int]) -> None:
        """Fetch what these recordings need meanwhile."""
        self._runs.expect(positions)

    def waveform(self, position: int, start: int = 0, stop: int | None = None) -> FloatArray:
        """(samples,) the clean waveform, or its samples from `start` to `stop`; a copy."""
        samples = quantised(self._samples(position)[start:stop], float(self._full_scale))
        return np.asarray(np.divide(samples, self._full_scale, dtype=np.float32))

    def digest(self, position: int) -> bytes:
        """A digest of the clean waveform."""
        samples = quantised(self._samples(position), float(self._full_scale))
        return hashlib.blake2b(samples.data, digest_size=16).digest()

    def _computed(self, position: int, first: int, last: int) -> NDArray[Any]:
        if not self._of_samples:
            return super()._computed(position, first, last)
        samples = self._samples(position)
        mine = self._features_of.of_recording(self._ids[position])
        return mine.part(lambda start, stop: samples[start:stop], len(samples), first, last)

    def _samples(self, position: int) -> FloatArray:
        if position not in self._decoded:
            self._decoded[position] = self._read(position)
            if len(self._decoded) > _HELD:
                self._decoded.popitem(last=False)
        return self._decoded[position]

    def _read(self, position: int) -> FloatArray:
        row, rate = self._row(position), self._features_of.audio.sample_rate
        data = self._runs.read(position)
        length = int(self._sample_start[position + 1]) - int(self._sample_start[position])
        if length > LONG_SECONDS * rate:
            waveform = joined(part_blocks(row, rate, data))
        else:
            waveform = read_part(row, rate, data)[0]
        loudness = self._features_of.audio.loudness
        return waveform / full_scale(lambda: [waveform], rate, loudness)[0] if self._levelled else waveform

    def _row(self, position: int) -> Row:
        places = self._places
        shard, end, channel = int(places.shard[position]), float(places.end[position]), int(places.channel[position])
        name: Any = places.names[position]
        member = Member(places.shards[shard], name, int(places.offset[position]), int(places.size[position]), "")
        return Row(
            id=self._ids[position],
            path=Path(f"{member.shard}/{name}"),
            segments=(),
            place=member.shard,
            channel=None if channel < 0 else channel,
            start=float(places.start[position]),
            end=None if np.isnan(end) else end,
            member=member,
        )


def open_waveforms(folder: Path, audio: Framing) -> FeatureCache:
    """The waveforms of a prepared corpus, wherever they are; `audio`: the settings that it was prepared with."""
    index = Index.load(folder)
    if index.places is None:
        return FeatureCache(folder, index)
    return ShardCache(folder, index, NoneFeatures(cast(Any, SimpleNamespace(audio=audio))), "disk")
