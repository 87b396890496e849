"""The base class of fbank, mfcc and spectrogram."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator

from phonate.audio.decoding import FloatArray
from phonate.audio.kaldi import FeatureStream, KaldiFeatures
from phonate.data.features._base import Features
from phonate.data.settings import KaldiData


class KaldiFrames(Features):
    """The output of `KaldiFeatures`: (T, W) float32, without level normalisation."""

    normalises_level = False

    def __init__(self, settings: KaldiData) -> None:
        super().__init__(settings)
        self.kaldi = KaldiFeatures(settings.audio)

    @property
    def width(self) -> int:
        """W, values per frame."""
        return self.kaldi.settings.width

    @property
    def fingerprint(self) -> str:
        """That of the settings."""
        return self.kaldi.fingerprint

    def frames(self, samples: int) -> int:
        """T, the number of frames of `samples` samples."""
        return self.kaldi.frames(samples)

    def of_recording(self, id: str) -> KaldiFrames:
        """With the dither of this recording."""
        mine = copy.copy(self)
        mine.kaldi = self.kaldi.of_recording(id)
        return mine

    @property
    def framing(self) -> str:
        """Sample rate and frames."""
        audio = self.kaldi.settings
        edges = "snipped" if audio.snip_edges else "mirrored"
        return f"kaldi-{audio.sample_rate}-{audio.window_length}-{audio.hop_length}-{edges}"

    def part(self, read: Callable[[int, int], FloatArray], samples: int, first: int, last: int) -> FloatArray:
        """Frames `first` to `last` (exclusive), bitwise equal to those of the whole."""
        return self.kaldi.part(read, samples, first, last)

    def compute(self, waveform_N: FloatArray) -> FloatArray:
        """Waveform (N,) -> features (T, W)."""
        return self.kaldi(waveform_N)

    def compute_blocks(self, read: Callable[[], Iterable[FloatArray]]) -> Iterator[FloatArray]:
        """The features in blocks, bitwise equal to those of the whole."""
        return self.kaldi.blocks(read())

    def stream(self) -> FeatureStream | None:
        """Computes frames as soon as their samples are available."""
        return FeatureStream(self.kaldi)
