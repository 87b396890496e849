"""The interface of features: their width, their frames, and how they are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray

if TYPE_CHECKING:
    from phonate.audio.kaldi import FeatureStream
    from phonate.data.settings import Framing, RecordingData

Frames = NDArray[Any]
"""(frames, width) of the feature's dtype."""


class Features(ABC):
    """A kind of features, for the settings of a corpus. Shapes: N samples, T frames, W width."""

    normalises_level: bool = True
    """Whether the peak of a recording is normalised to 1 first; False keeps the level of the file."""
    dtype: np.dtype[Any] = np.dtype("<f4")
    """Type of the stored and returned values."""

    def __init__(self, settings: RecordingData) -> None:
        self.audio: Framing = settings.audio
        """Sample rate, hop, and the other feature options."""

    @property
    @abstractmethod
    def width(self) -> int:
        """W, values per frame."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of everything that affects the values; caches with another fingerprint are not used."""

    def frames(self, samples: int) -> int:
        """T, the number of frames of `samples` samples."""
        return 1 + samples // self.audio.hop_length

    def of_recording(self, id: str) -> Features:
        """These features for the recording with this id, which seeds random numbers."""
        return self

    @abstractmethod
    def compute(self, waveform_N: FloatArray) -> Frames:
        """The features (T, W) of a waveform at `audio.sample_rate`, T = frames(N)."""

    @property
    def framing(self) -> str:
        """A hash of everything that affects the number of frames, or the waveform they are computed from."""
        return self.fingerprint

    def part(self, read: Callable[[int, int], FloatArray], samples: int, first: int, last: int) -> Frames:
        """Frames `first` to `last` (exclusive) of a recording of `samples` samples, equal to those of the whole.
        `read(start, stop)` returns its samples (N,). The default computes the whole."""
        return self.compute(read(0, samples))[first:last]

    def compute_blocks(self, read: Callable[[], Iterable[FloatArray]]) -> Iterator[Frames]:
        """Features of a long recording in blocks (T, W). Each call of `read()` iterates over its waveform from the
        start, in blocks (N,). The default holds the whole waveform in memory."""
        yield self.compute(np.concatenate(list(read())))

    def stream(self) -> FeatureStream | None:
        """A stream that computes each frame as soon as its samples are available. None, the default, if features depend
        on later samples."""
        return None
