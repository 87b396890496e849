"""What a kind of features is: its width, its frames, and how it is computed."""

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
    """Whether a recording's peak is brought to 1 first; False keeps the level of the file (as codecs need it)."""
    dtype: np.dtype[Any] = np.dtype("<f4")
    """How values are stored and returned."""

    def __init__(self, settings: RecordingData) -> None:
        self.audio: Framing = settings.audio
        """Sample rate, hop, and what else features are made with."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Values of a frame."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes with everything that changes the values; caches of another fingerprint are not used."""

    def frames(self, samples: int) -> int:
        """How many frames so many samples have."""
        return 1 + samples // self.audio.hop_length

    def of_recording(self, id: str) -> Features:
        """These features for the recording called `id`: those that draw random numbers draw them from it."""
        return self

    @abstractmethod
    def compute(self, waveform_N: FloatArray) -> Frames:
        """The features (T, W) of a waveform at `audio.sample_rate`, T = frames(N)."""

    @property
    def framing(self) -> str:
        """Changes with everything that changes the number of frames, or the waveform that they are computed from."""
        return self.fingerprint

    def part(self, read: Callable[[int, int], FloatArray], samples: int, first: int, last: int) -> Frames:
        """Frames `first` to `last` (excluded) of a recording of so many samples, as they are in the whole.
        `read(start, stop)` gives its samples. The default computes the whole."""
        return self.compute(read(0, samples))[first:last]

    def compute_blocks(self, read: Callable[[], Iterable[FloatArray]]) -> Iterator[Frames]:
        """The same for a long recording: `read()` iterates over its waveform in blocks, as often as it is called;
        yields features in blocks. The default holds the whole waveform in memory."""
        yield self.compute(np.concatenate(list(read())))

    def stream(self) -> FeatureStream | None:
        """These features of a waveform that comes in blocks, as soon as the samples of a frame are there. None, the
        default, where later samples are needed too."""
        return None
