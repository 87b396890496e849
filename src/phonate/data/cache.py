"""The cache of a corpus: its index, and waveforms and features, memory-mapped, in folders that are whole or not there.

The index is what training reads instead of manifests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
import psutil
import safetensors.numpy
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.compute.system import map_array, sync_all
from phonate.config.errors import DataError
from phonate.data.features import Features, Frames, NoneFeatures

# ------------------------------------------------------------------------------------------ The index

Arrays = dict[str, NDArray[Any]]


class _StringSequence(Sequence[str], ABC):
    """Strings that are made when they are asked for."""

    @abstractmethod
    def _at(self, index: int) -> str:
        """The string at `index`, from 0 to the length."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._at(index % len(self))


class Strings(_StringSequence):
    """Strings in two arrays: their bytes one after the other, and where each begins."""

    def __init__(self, data: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        self._data = data
        self._starts = starts

    @classmethod
    def of(cls, values: Sequence[str]) -> Strings:
        """The strings of a list."""
        encoded = [value.encode("utf-8", "surrogateescape") for value in values]
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), starts)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _at(self, index: int) -> str:
        return self._data[self._starts[index] : self._starts[index + 1]].tobytes().decode("utf-8", "surrogateescape")

    def arrays(self, name: str) -> Arrays:
        """Both arrays, by their names in a file."""
        return {name: self._data, f"{name}-starts": self._starts}

    @classmethod
    def among(cls, arrays: Arrays, name: str) -> Strings:
        """The strings that `arrays` gave these names."""
        return cls(arrays[name], arrays[f"{name}-starts"])


_ARRAYS = (
    "segment_first",
    "segment_start",
    "segment_end",
    "segment_speaker",
    "recording",
    "official_split",
    "sample_start",
    "frame_start",
)
_STRINGS = ("id", "path", "segment_text", "speakers")
SPLITS = ("", "train", "validation", "test")
"""Names of the numbers in `Index.official_split`."""
_SEVERAL = -1


class _Texts(_StringSequence):
    """The text of each row: those of its segments, with spaces between."""

    def __init__(self, segments: Strings, first: NDArray[np.int64]) -> None:
        self._segments = segments
        self._first = first

    def __len__(self) -> int:
        return len(self._first) - 1

    def _at(self, index: int) -> str:
        return " ".join(filter(None, self._segments[int(self._first[index]) : int(self._first[index + 1])]))


@dataclass(frozen=True)
class IndexedSegment:
    """A segment of an indexed row."""

    start: float
    """Seconds from the beginning of the row."""
    end: float
    speaker: int
    """Its number in `Index.speakers`; -1 where it has none."""
    text: str


@dataclass(frozen=True)
class Places:
    """Where N recordings are in shards: `shard` (N,) is a number in `shards`, `offset` and `size` (N,) are in bytes
    of it. A row is seconds `start` to `end` (NaN: the end) of its recording, and its `channel` (-1: all), (N,).

    Recordings of a shard that lie together, up to RUN_BYTES, are a run, and are read together: `run` (N,) numbers them.
    """

    shards: Strings
    stamps: Strings
    """The state of each shard."""
    names: Strings
    shard: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    channel: NDArray[np.int64]

    def arrays(self) -> Arrays:
        """By their names in a file."""
        arrays: Arrays = {}
        for name in _PLACES:
            value = getattr(self, name)
            arrays |= value.arrays(f"place-{name}") if isinstance(value, Strings) else {f"place-{name}": value}
        return arrays

    @classmethod
    def among(cls, arrays: Arrays) -> Places | None:
        """What `arrays` gave; None where there are none."""
        if "place-shard" not in arrays:
            return None
        parts: dict[str, Any] = {name: Strings.among(arrays, f"place-{name}") for name in _PLACES[:3]}
        return cls(**parts | {name: arrays[f"place-{name}"] for name in _PLACES[3:]})

    @cached_property
    def run(self) -> NDArray[np.int64]:
        """(N,) the run of each recording; runs are numbered in the order of shards and offsets."""
        order = np.lexsort((self.offset, self.shard))
        block = np.stack([self.shard[order], self.offset[order] // RUN_BYTES])
        begins = np.any(block[:, 1:] != block[:, :-1], axis=0)
        run = np.empty(len(order), dtype=np.int64)
        run[order] = np.concatenate([[0], np.cumsum(begins)])
        return run

    @cached_property
    def runs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Of each run the shard, the first byte and the one after the last, (R,) each."""
        count = int(self.run.max(initial=-1)) + 1
        shard, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
        first = np.full(count, np.iinfo(np.int64).max)
        shard[self.run] = self.shard
        np.minimum.at(first, self.run, self.offset)
        np.maximum.at(end, self.run, self.offset + self.size)
        return shard, first, end


_PLACES = ("shards", "stamps", "names", "shard", "offset", "size", "start", "end", "channel")
RUN_BYTES = 1 << 20


class Index:
    """N rows with K segments in all.

    `id` and `path` of each row. Row i has the segments `segment_first[i]` (N + 1,) to `segment_first[i + 1]`, with
    `segment_start`, `segment_end` (K,) in seconds from the row's beginning, `segment_speaker` (K,) and `segment_text`.
    `speakers` are the names, sorted; a speaker's number is the place there, -1 for none. `recording` (N,) is equal for
    rows of one file; `official_split` (N,) is a number in SPLITS. `sample_start` and `frame_start` (N + 1,) are where
    each row begins in the cache's files.
    """

    def __init__(
        self,
        *,
        id: Strings,
        path: Strings,
        speakers: Strings,
        segment_first: NDArray[np.int64],
        segment_start: NDArray[np.float64],
        segment_end: NDArray[np.float64],
        segment_speaker: NDArray[np.int64],
        segment_text: Strings,
        recording: NDArray[np.int64],
        official_split: NDArray[np.int64],
        sample_start: NDArray[np.int64],
        frame_start: NDArray[np.int64],
        places: Places | None = None,
    ) -> None:
        self.places = places
        """Where the recordings are in shards; None where the cache has them."""
        self.id = id
        self.path = path
        self.speakers = speakers
        self.segment_first = segment_first
        self.segment_start = segment_start
        self.segment_end = segment_end
        self.segment_speaker = segment_speaker
        self.segment_text = segment_text
        self.recording = recording
        self.official_split = official_split
        self.sample_start = sample_start
        self.frame_start = frame_start
        self.text: Sequence[str] = _Texts(segment_text, segment_first)
        """The text of each row; "" for none."""

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def speaker(self) -> NDArray[np.int64]:
        """(N,) the speaker of each row; -1 for rows of several speakers, or of none."""
        row_K = np.repeat(np.arange(len(self)), np.diff(self.segment_first))
        lowest_N = np.full(len(self), len(self.speakers), dtype=np.int64)
        highest_N = np.full(len(self), _SEVERAL, dtype=np.int64)
        np.minimum.at(lowest_N, row_K, self.segment_speaker)
        np.maximum.at(highest_N, row_K, self.segment_speaker)
        return np.where(lowest_N == highest_N, lowest_N, _SEVERAL)

    def segments(self, position: int) -> list[IndexedSegment]:
        """The segments of a row, in the order of their starts."""
        numbers = range(int(self.segment_first[position]), int(self.segment_first[position + 1]))
        return [
            IndexedSegment(
                float(self.segment_start[k]),
                float(self.segment_end[k]),
                int(self.segment_speaker[k]),
                self.segment_text[k],
            )
            for k in numbers
        ]

    @property
    def frames(self) -> NDArray[np.int64]:
        """(N,) frames of each row."""
        return np.diff(self.frame_start)

    def save(self, folder: Path) -> None:
        """Write the index into `folder`."""
        arrays: Arrays = {name: getattr(self, name) for name in _ARRAYS}
        for name in _STRINGS:
            arrays |= getattr(self, name).arrays(name)
        if self.places is not None:
            arrays |= self.places.arrays()
        (folder / INDEX).write_bytes(safetensors.numpy.save(arrays))

    @classmethod
    def load(cls, folder: Path) -> Index:
        """Map what `save` wrote, or what earlier versions did, each array into a file of its own. Raises OSError and
        ValueError."""
        try:
            if (folder / INDEX).is_file():
                arrays = _mapped(folder / INDEX)
            else:
                arrays = {file.stem: np.load(file, mmap_mode="r") for file in folder.glob("*.npy")}
            parts: dict[str, Any] = {name: Strings.among(arrays, name) for name in _STRINGS}
            return cls(**parts | {name: arrays[name] for name in _ARRAYS}, places=Places.among(arrays))
        except KeyError as error:
            raise ValueError(f"{error} is not there") from error


INDEX = "index.safetensors"
_TYPES = {"I64": "<i8", "F64": "<f8", "U8": "|u1"}


def _mapped(file: Path) -> Arrays:
    """The arrays of a file of safetensors, which would read them all. Raises OSError, ValueError and KeyError."""
    content = map_array(file, np.uint8)
    begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
    arrays: Arrays = {}
    for name, facts in json.loads(content[8:begin].tobytes()).items():
        first, end = facts["data_offsets"]
        arrays[name] = content[begin + first : begin + end].view(_TYPES[facts["dtype"]]).reshape(facts["shape"])
    return arrays


# --------------------------------------------------------------------------------------- Cache folders

DIGESTS = "digests.json"
VERIFIED = "verified.json"
_VERIFIED_SECONDS = 7 * 24 * 3600.0
"""All bytes are compared again after this time, to find silent disk errors."""
_COMPARED_BYTES = 16 << 20
"""Files of up to this size are compared at each start."""
_ABANDONED_SECONDS = 24 * 3600.0
_READ_BYTES = 1 << 20
_FINGERPRINT = re.compile("[0-9a-f]{24}")
"""The name of a prepared corpus."""

_hash: Callable[[], hashlib.blake2b] = partial(hashlib.blake2b, digest_size=16)


@contextmanager
def new_folder(folder: Path, known: Mapping[str, str] | None = None) -> Iterator[Path]:
    """A temporary folder to fill, which is synced, given digests of its files and renamed to `folder` on exit.

    If another process created `folder` meanwhile, that one is kept. Temporary folders of killed processes are removed.
    `known`: the digests of files that who fills it made while they were written, at the end.
    """
    known = {} if known is None else known
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    host = socket.gethostname().replace(".", "-")
    beside = folder.with_name(f".{folder.name}.{host}.{os.getpid()}")
    beside.mkdir(exist_ok=True)
    try:
        yield beside
        digests = {file.name: known.get(file.name) or _digest(file) for file in sorted(beside.iterdir())}
        _note_verified(beside, {name: _stamp(beside / name) for name in digests})
        (beside / DIGESTS).write_text(json.dumps(digests, indent=1), encoding="utf-8")
        sync_all(beside)
        try:
            beside.rename(folder)
        except OSError:
            if not (folder / DIGESTS).is_file():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def verify(folder: Path) -> None:
    """Raise DataError where a file differs from what was written.

    The bytes of large files are compared when a size or time is not that of the last comparison, and once a week;
    otherwise only these are looked at. (`FeatureCache` compares each recording when it is first read.)
    """
    try:
        digests: dict[str, str] = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
        stamps = {name: _stamp(folder / name) for name in digests}
        known = _verified_before(folder, stamps)
        for name, digest in digests.items():
            large = stamps[name][0] > _COMPARED_BYTES
            if not (known and large) and _digest(folder / name, digest) != digest:
                raise ValueError(f"{name} differs from what was written")
    except (OSError, ValueError, AttributeError) as error:
        raise damaged_cache(folder, error) from error
    if known:
        return
    with suppress(OSError):  # a cache that is read only is compared each time
        _note_verified(folder, stamps)


def _note_verified(folder: Path, stamps: dict[str, list[int]]) -> None:
    beside = folder / f".{VERIFIED}.{os.getpid()}"
    beside.write_text(json.dumps({"time": time.time(), "files": stamps}), encoding="utf-8")
    beside.replace(folder / VERIFIED)


def damaged_cache(folder: Path, error: Exception) -> DataError:
    """What to raise for a folder of a cache that can't be read."""
    return DataError(f"{folder}: damaged ({error}); delete this folder to prepare it again")


class Checksum:
    """CRC-32 as hashlib has digests, in a fifth of the time of BLAKE2."""

    def __init__(self) -> None:
        self._sum = 0

    def update(self, data: bytes | memoryview, /) -> None:
        """Take the next bytes."""
        self._sum = zlib.crc32(data, self._sum)

    def hexdigest(self) -> str:
        """Of the bytes so far."""
        return f"{self._sum:08x}"


def _digest(file: Path, known: str = "") -> str:
    """Of a file's bytes; `known`: what it is compared with, which earlier versions made by BLAKE2."""
    digest = _hash() if len(known) == 32 else Checksum()
    with file.open("rb", buffering=0) as opened:
        while content := opened.read(_READ_BYTES):
            digest.update(content)
    return digest.hexdigest()


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns]


def _verified_before(folder: Path, stamps: dict[str, list[int]]) -> bool:
    try:
        known = json.loads((folder / VERIFIED).read_text(encoding="utf-8"))
        return bool(known["files"] == stamps and 0.0 <= time.time() - known["time"] < _VERIFIED_SECONDS)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_abandoned(parent: Path) -> None:
    """Remove unfinished folders whose processes are gone: those of this machine, and those of an unknown one (as
    earlier versions named them) after a day. Only in a cache are the latter ours for certain: predicted mels are
    written where the user says, beside folders of others."""
    host = socket.gethostname().replace(".", "-")
    in_cache = (parent / DIGESTS).is_file()
    with suppress(OSError):
        for entry in list(os.scandir(parent)):
            name, _, pid = entry.name.rpartition(".")
            if not entry.name.startswith(".") or not pid.isdecimal() or not entry.is_dir(follow_symlinks=False):
                continue
            ours = name.endswith(f".{host}")
            former = "." not in name[1:] and (in_cache or _FINGERPRINT.fullmatch(name[1:]) is not None)
            old = former and time.time() - entry.stat().st_mtime > _ABANDONED_SECONDS
            if (ours or old) and not psutil.pid_exists(int(pid)):
                shutil.rmtree(entry.path, ignore_errors=True)


# ------------------ Clean waveforms and their features, one after the other in two memory-mapped files

AUDIO = "audio.int16"
FEATURES = "features.bin"
LAYOUT = "features.json"
SUMS = "sums.npy"
"""(N, 2) CRC-32 of the bytes of each recording's waveform and features."""
_HIGHEST = 32767.0
NORMALISED_SCALE = 32767.0
"""Full scale of recordings whose peak was brought to 1."""
FILE_SCALE = 32768.0
"""Full scale of recordings at the level of their files: those of 16 bits are kept as they are."""


class CacheWriter:
    """Appends recordings. Use as a context."""

    def __init__(
        self,
        folder: Path,
        width: int,
        dtype: np.dtype[Any],
        full_scale: float = NORMALISED_SCALE,
        keeps_audio: bool = True,
    ) -> None:
        """`keeps_audio`: whether waveforms are written; otherwise only their lengths and digests are known."""
        self.digests: list[bytes] = []
        self._sums: list[tuple[int, int]] = []
        self._sum = [0, 0]
        self._folder = folder
        self._keeps_audio = keeps_audio
        self._hash = _hash()
        self.sample_start = [0]
        self.frame_start = [0]
        self._width = width
        self._dtype = np.dtype(dtype)
        self._samples = self._frames = 0
        self._full_scale = full_scale
        layout = {"width": width, "dtype": self._dtype.str, "full_scale": full_scale}
        (folder / LAYOUT).write_text(json.dumps(layout), encoding="utf-8")
        self._taken = 0
        self._audio: BinaryIO = (folder / AUDIO).open("wb")
        self._features: BinaryIO = (folder / FEATURES).open("wb")

    def __enter__(self) -> CacheWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for file in (self._audio, self._features):
            file.close()  # `new_folder` waits until the disk has it
        if kind is None:
            np.save(self._folder / SUMS, np.array(self._sums, dtype=np.uint32).reshape(-1, 2))

    def add(self, waveform: FloatArray, features: NDArray[Any]) -> None:
        """One recording: (samples,) in [-1, 1], and (frames, width)."""
        self.add_samples(waveform)
        self.add_features(features)
        self.end_recording()

    def add_samples(self, block: FloatArray) -> None:
        """The next samples of a recording; those over full scale are clipped."""
        samples = quantised(block, self._full_scale)
        if self._keeps_audio:
            self._audio.write(samples.data)
            self._sum[0] = zlib.crc32(samples.data, self._sum[0])
        else:
            self._hash.update(samples.data)
        self._samples += len(block)

    def add_features(self, block: NDArray[Any]) -> None:
        """The next frames of a recording, (frames, width). Raises ValueError for another width."""
        if block.shape[1:] != (self._width,):
            raise ValueError(f"features of shape {block.shape}; (frames, {self._width}) were promised")
        values = np.ascontiguousarray(block, dtype=self._dtype).reshape(-1).view(np.uint8).data
        self._features.write(values)
        self._sum[1] = zlib.crc32(values, self._sum[1])
        self._frames += len(block)

    def take_written(self) -> int:
        """Bytes written since the last call."""
        samples = 2 * self._samples if self._keeps_audio else 0
        written = samples + self._frames * self._width * self._dtype.itemsize
        taken, self._taken = written - self._taken, written
        return taken

    @property
    def file_digests(self) -> dict[str, str]:
        """Of the two files, as `Checksum` gives them."""
        sums_N2 = np.array(self._sums, dtype=np.uint32).reshape(-1, 2)
        samples_N, frames_N = np.diff(self.sample_start), np.diff(self.frame_start)
        audio = joined_checksum(sums_N2[:, 0], 2 * samples_N)
        return {AUDIO: audio, FEATURES: joined_checksum(sums_N2[:, 1], frames_N * self._width * self._dtype.itemsize)}

    def end_recording(self) -> None:
        """The recording is complete."""
        self.sample_start.append(self._samples)
        self.frame_start.append(self._frames)
        self._sums.append((self._sum[0], self._sum[1]))
        self._sum = [0, 0]
        if not self._keeps_audio:
            self.digests.append(self._hash.digest())
            self._hash = _hash()


def joined_checksum(sums_N: NDArray[np.uint32], sizes_N: NDArray[np.int64]) -> str:
    """The CRC-32, in hex digits, of N pieces one after the other, by that of each and their bytes, which are not read
    again. It is linear in the bits of the sums: the exclusive or of all, each moved by the bytes behind it."""
    behind_N, whole = np.cumsum(sizes_N[::-1])[::-1] - sizes_N, np.uint32(0)
    for start in range(0, len(sums_N), _SUMS_AT_ONCE):
        behind_B, sums_B = behind_N[start : start + _SUMS_AT_ONCE], sums_N[start : start + _SUMS_AT_ONCE]
        for bit in range(int(behind_B.max()).bit_length()):
            sums_B = np.where(behind_B >> bit & 1, _moved(sums_B, _mover(bit)), sums_B)
        whole ^= np.bitwise_xor.reduce(sums_B)
    return f"{whole:08x}"


_SUMS_AT_ONCE = 4096
_BITS = np.arange(32, dtype=np.uint32)


@cache
def _mover(bit: int) -> NDArray[np.uint32]:
    """(32,) what each bit of a CRC-32 becomes behind 2^`bit` bytes."""
    if bit == 0:
        return np.array([zlib.crc32(b"\0", 1 << one) ^ zlib.crc32(b"\0") for one in range(32)], dtype=np.uint32)
    return _moved(_mover(bit - 1), _mover(bit - 1))


def _moved(sums_N: NDArray[np.uint32], mover: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return np.asarray(np.bitwise_xor.reduce((sums_N[:, None] >> _BITS & 1) * mover, axis=1))


def quantised(waveform: FloatArray, full_scale: float) -> NDArray[np.int16]:
    """A waveform (samples,) as it is kept, in 16 bits; what is over full scale is clipped."""
    steps = np.multiply(waveform, np.float32(full_scale))
    steps.clip(-full_scale, _HIGHEST, out=steps)
    return np.rint(steps, out=np.empty(steps.shape, dtype="<i2"), casting="unsafe")


class FeatureCache:
    """Reads what a `CacheWriter` wrote, by the recording's position in the index."""

    computes: bool = False
    """Whether reading features takes computation, so that loader workers help."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder = folder
        layout = json.loads((folder / LAYOUT).read_text(encoding="utf-8"))
        self.width = int(layout["width"])
        """Values of a frame."""
        self.dtype: np.dtype[Any] = np.dtype(layout["dtype"])
        """Of the features."""
        self._full_scale = np.float32(layout.get("full_scale", NORMALISED_SCALE))  # earlier versions wrote none
        # Plain lists: a lookup in a mapped array costs more than the copy it is for.
        self._sample_start = index.sample_start.tolist()
        self._frame_start = index.frame_start.tolist()
        self._sums: NDArray[np.uint32] | None = None  # earlier versions wrote none
        if (folder / SUMS).is_file():
            self._sums = np.load(folder / SUMS)
        self._compared = bytearray(2 * len(index))  # one byte each: there may be millions
        self._map()
        self._require_whole()

    def _require_whole(self) -> None:
        for name, count, expected in (
            (AUDIO, len(self._audio), self._sample_start[-1]),
            (FEATURES, len(self._features), self._frame_start[-1]),
        ):
            if count != expected:
                raise DataError(f"{name} is cut short: {count} of {expected} are there")

    def expect(self, positions: Iterable[int]) -> None:
        """Told which recordings will be read next."""

    def _map(self) -> None:
        self._audio: NDArray[np.int16] = map_array(self._folder / AUDIO, "<i2")
        self._features = self._map_features()

    def _map_features(self) -> NDArray[Any]:
        if not self.width:
            return np.zeros((self._frame_start[-1], 0), dtype=self.dtype)
        flat = map_array(self._folder / FEATURES, self.dtype)
        return flat.reshape(-1, self.width)

    def __getstate__(self) -> dict[str, object]:
        """Workers map the files themselves; a pickled memmap would copy the whole file."""
        return {name: value for name, value in vars(self).items() if name not in {"_audio", "_features"}}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._map()

    def _compare(self, name: str, position: int, values: NDArray[Any]) -> None:
        """Raise DataError where what is kept of a recording is not what was written, when it is first read."""
        column = int(name == FEATURES)
        if self._sums is None or self._compared[2 * position + column]:
            return
        content: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if zlib.crc32(content) != self._sums[position, column]:
            error = ValueError(f"recording {position} of {name} differs from what was written")
            raise damaged_cache(self._folder, error)
        self._compared[2 * position + column] = True

    def waveform(self, position: int, start: int = 0, stop: int | None = None) -> FloatArray:
        """(samples,) the clean waveform, or its samples from `start` to `stop`; a copy."""
        first, end = self._sample_start[position], self._sample_start[position + 1]
        self._compare(AUDIO, position, self._audio[first:end])
        stop = end if stop is None else min(end, first + stop)
        part = self._audio[min(end, first + start) : stop]
        return np.asarray(np.divide(part, self._full_scale, dtype=np.float32))

    def digest(self, position: int) -> bytes:
        """A digest of the clean waveform."""
        first, end = self._sample_start[position], self._sample_start[position + 1]
        return hashlib.blake2b(self._audio[first:end].data, digest_size=16).digest()

    def features(self, position: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """(frames, width) the clean features, or a part of them; a view that must not be written to."""
        first, end = self._frame_start[position], self._frame_start[position + 1]
        self._compare(FEATURES, position, self._features[first:end])
        stop = end if stop is None else min(end, first + stop)
        return self._features[first + start : stop]


# ------------------- Features that no file keeps: computed from the cached waveform when they are read


class UnstoredFeatures(NoneFeatures):
    """What is written in the place of `features` that are computed when they are read: frames of no values."""

    def __init__(self, features: Features) -> None:
        self.audio = features.audio
        self.normalises_level = features.normalises_level
        self._features = features

    @property
    def fingerprint(self) -> str:
        """Waveforms and frames; the features themselves may change."""
        return self._features.framing

    def frames(self, samples: int) -> int:
        """As many as the features have."""
        return self._features.frames(samples)

    def compute_blocks(self, read: Callable[[], Iterable[FloatArray]]) -> Iterator[Frames]:
        """(T, 0)."""
        yield np.zeros((self.frames(sum(len(block) for block in read())), 0), dtype=self.dtype)


class ComputedFeatures(FeatureCache):
    """A cache of waveforms whose features are computed when they are read, and equal those of a cache with features."""

    def __init__(self, folder: Path, index: Index, features: Features, hold: bool) -> None:
        """`hold`: whether the features of a recording that was read are held in memory."""
        super().__init__(folder, index)
        self.width, self.dtype = features.width, features.dtype
        self.computes = not hold
        self._features_of = features
        self._ids = index.id
        self._hold = hold
        self._held: dict[int, NDArray[Any]] = {}

    def __getstate__(self) -> dict[str, object]:
        """Without what is held."""
        return {**super().__getstate__(), "_held": {}}

    def _map_features(self) -> NDArray[Any]:
        return np.zeros((self._frame_start[-1], 0), dtype=self.dtype)

    def features(self, position: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """(frames, width) the clean features, or a part of them; must not be written to."""
        count = self._frame_start[position + 1] - self._frame_start[position]
        last = count if stop is None else min(stop, count)
        if not self._hold:
            return self._computed(position, start, last)
        if position not in self._held:
            self._held[position] = self._computed(position, 0, count)
        return self._held[position][start:last]

    def _computed(self, position: int, first: int, last: int) -> NDArray[Any]:
        samples = self._sample_start[position + 1] - self._sample_start[position]
        mine = self._features_of.of_recording(self._ids[position])
        return mine.part(partial(self.waveform, position), samples, first, last)
