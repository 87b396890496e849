"""Clean waveforms and their features, one after the other in two memory-mapped files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from phonate.compute.mapping import map_array
from phonate.config.errors import DataError
from phonate.data.store.index import Index

FloatArray = NDArray[np.float32]

AUDIO = "audio.int16"
FEATURES = "features.bin"
LAYOUT = "features.json"
_HIGHEST = np.float32(32767.0)
NORMALISED_SCALE = 32767.0
"""Full scale of recordings whose peak was brought to 1."""
FILE_SCALE = 32768.0
"""Full scale of recordings at the level of their files: those of 16 bits are kept as they are."""


class CacheWriter:
    """Appends recordings. Use as a context."""

    def __init__(self, folder: Path, width: int, dtype: np.dtype[Any], full_scale: float = NORMALISED_SCALE) -> None:
        self.sample_start = [0]
        self.frame_start = [0]
        self._width = width
        self._dtype = np.dtype(dtype)
        self._samples = self._frames = 0
        self._full_scale = full_scale
        layout = {"width": width, "dtype": self._dtype.str, "full_scale": full_scale}
        (folder / LAYOUT).write_text(json.dumps(layout), encoding="utf-8")
        self._audio: BinaryIO = (folder / AUDIO).open("wb")
        self._features: BinaryIO = (folder / FEATURES).open("wb")

    def __enter__(self) -> CacheWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for file in (self._audio, self._features):
            with file:
                if kind is None:  # on the disk before the folder gets its name
                    file.flush()
                    os.fsync(file.fileno())

    def add(self, waveform: FloatArray, features: NDArray[Any]) -> None:
        """One recording: (samples,) in [-1, 1], and (frames, width)."""
        self.add_samples(waveform)
        self.add_features(features)
        self.end_recording()

    def add_samples(self, block: FloatArray) -> None:
        """The next samples of a recording; those over full scale are clipped."""
        steps = np.rint(np.clip(block, -1.0, 1.0) * self._full_scale)
        self._audio.write(np.minimum(steps, _HIGHEST).astype("<i2").tobytes())
        self._samples += len(block)

    def add_features(self, block: NDArray[Any]) -> None:
        """The next frames of a recording, (frames, width). Raises ValueError for another width."""
        if block.shape[1:] != (self._width,):
            raise ValueError(f"features of shape {block.shape}; (frames, {self._width}) were promised")
        self._features.write(np.ascontiguousarray(block, dtype=self._dtype).tobytes())
        self._frames += len(block)

    def end_recording(self) -> None:
        """The recording is complete."""
        self.sample_start.append(self._samples)
        self.frame_start.append(self._frames)


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
        self._map()
        for name, found, wanted in (
            (AUDIO, len(self._audio), self._sample_start[-1]),
            (FEATURES, len(self._features), self._frame_start[-1]),
        ):
            if found != wanted:
                raise DataError(f"{name} is cut short: {found} of {wanted} are there")

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

    def waveform(self, position: int, start: int = 0, stop: int | None = None) -> FloatArray:
        """(samples,) the clean waveform, or its samples from `start` to `stop`; a copy."""
        first, end = self._sample_start[position], self._sample_start[position + 1]
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
        stop = end if stop is None else min(end, first + stop)
        return self._features[first + start : stop]
