"""The output of a Whisper encoder (Radford et al. 2022).

The encoder was trained on speech in many acoustic conditions, so its features are robust to noise and level.

Shapes: N samples, T frames, S frames of a window, W width.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.kaldi import FeatureStream
from phonate.audio.whisper import WhisperEncoder, weights_fingerprint
from phonate.config.packages import optional_package
from phonate.data.features._kaldi import KaldiFrames
from phonate.data.settings import KaldiData

WINDOW = 1500
"""Frames per encoder window: 30 s, the maximum."""
_PURPOSE = "feature_type whisper"
_VERSION = 1  # increment when a change alters the features, so that cached ones are recomputed


class WhisperFeatures(KaldiFrames):
    """`audio.feature_type: whisper`: (T, W) float32, 50 frames per second, without level normalisation.

    A recording is encoded in independent windows of 30 s from its beginning. The last window ends with the recording
    and has the same length; it provides the remaining frames. Number and positions of frames are those of `fbank`,
    whose values are appended with `audio.whisper_with_fbank`.
    """

    def __init__(self, settings: KaldiData) -> None:
        """Raises MissingPackageError without faster-whisper."""
        super().__init__(
            settings.model_copy(update={"audio": settings.audio.model_copy(update={"feature_type": "fbank"})})
        )
        self.audio = settings.audio
        self._name, self._with_fbank = settings.audio.whisper_model, settings.audio.whisper_with_fbank
        optional_package("faster_whisper", _PURPOSE)

    @cached_property
    def width(self) -> int:
        """W: the encoder's width, plus that of fbank if included."""
        encoded: int = self._encode(np.zeros(self.audio.hop_length, dtype=np.float32)).shape[1]
        return encoded + (self.kaldi.settings.width if self._with_fbank else 0)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights, and of the fbank options if fbank is included."""
        fbank = self.kaldi.fingerprint if self._with_fbank else None
        facts = {"whisper": _VERSION, "weights": weights_fingerprint(self._name), "fbank": fbank}
        return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()

    def compute(self, waveform_N: FloatArray) -> FloatArray:
        """Waveform (N,) -> features (T, W)."""
        samples = len(waveform_N)
        return self.part(lambda start, stop: waveform_N[start:stop], samples, 0, self.frames(samples))

    def part(self, read: Callable[[int, int], FloatArray], samples: int, first: int, last: int) -> FloatArray:
        """Frames `first` to `last` (exclusive), bitwise equal to those of the whole: their windows are encoded."""
        hop, total = self.audio.hop_length, self.frames(samples)
        last = min(last, total)
        if first >= last:
            return np.zeros((0, self.width), dtype=np.float32)
        parts = []
        for cell in range(first // WINDOW * WINDOW, last, WINDOW):
            cell_end = min(cell + WINDOW, total)
            start = max(0, cell_end - WINDOW)
            encoded_SW = self._encode(read(start * hop, samples if cell_end == total else cell_end * hop))
            parts.append(encoded_SW[max(first, cell) - start : min(last, cell_end) - start])
        encoded_TW = np.concatenate(parts)
        if not self._with_fbank:
            return encoded_TW
        return np.concatenate([encoded_TW, self.kaldi.part(read, samples, first, last)], axis=1)

    def compute_blocks(self, read: Callable[[], Iterable[FloatArray]]) -> Iterator[FloatArray]:
        """The features in blocks, bitwise equal to those of the whole."""
        if not self._with_fbank:
            yield from self._windows(read())
            return
        fbank = _Frames(self.kaldi.blocks(read()))
        for encoded_SW in self._windows(read()):
            yield np.concatenate([encoded_SW, fbank.take(len(encoded_SW))], axis=1)

    def stream(self) -> FeatureStream | None:
        """None: a frame depends on a window of 30 s, including later samples."""
        return None

    def _windows(self, blocks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """The encoder's output (S, W) for each window in turn."""
        hop = self.audio.hop_length
        window = WINDOW * hop
        held_N = np.zeros(0, dtype=np.float32)
        done = 0  # samples of `held_N` that have been encoded
        for block in blocks:
            held_N = np.concatenate([held_N, block])
            while self.frames(len(held_N) - done) > WINDOW:
                yield self._encode(held_N[done : done + window])
                held_N, done = held_N[done:], window  # one window is kept, as the last one may start in it
        left = self.frames(len(held_N) - done)
        if left:
            yield self._encode(held_N[max(0, done + (left - WINDOW) * hop) :])[-left:]

    def _encode(self, waveform_N: FloatArray) -> FloatArray:
        """Samples of at most one window (N,) -> (S, W)."""
        return _encoder(os.getpid(), self._name)(waveform_N, self.audio.sample_rate)


@cache
def _encoder(process: int, name: str) -> WhisperEncoder:
    """The encoder of a process. A forked process must load its own, since the threads of the inherited model do not
    exist in it. The inherited model stays in the cache, since its destructor would wait for these threads.

    It uses one thread, so that features are bitwise equal in every process.
    """
    return WhisperEncoder(name, _PURPOSE, threads=1)


class _Frames:
    """Rearranges blocks of frames into blocks of other sizes."""

    def __init__(self, blocks: Iterator[FloatArray]) -> None:
        self._blocks = blocks
        self._held: list[FloatArray] = []

    def take(self, count: int) -> FloatArray:
        """The next `count` frames."""
        while sum(map(len, self._held)) < count:
            self._held.append(next(self._blocks))
        joined_TW = np.concatenate(self._held)
        self._held = [joined_TW[count:]]
        return joined_TW[:count]
