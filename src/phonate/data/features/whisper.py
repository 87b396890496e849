"""The output of the encoder of a Whisper model (Radford et al. 2022).

The encoder was trained on speech of all kinds of rooms and levels, so its features show well where speech is.

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
"""Frames of a window, which the encoder reads at once: 30 s, the longest that it can."""
_PURPOSE = "feature_type whisper"
_VERSION = 1  # increment when a change alters the features, so that cached ones are recomputed


class WhisperFeatures(KaldiFrames):
    """`audio.feature_type: whisper`: (T, W) float32, 50 frames a second, at the level of the file.

    A recording is encoded in windows of 30 s from its beginning, each on its own; the last one ends with the recording,
    so that it is as long as the others, and gives the frames that are left. Frames begin and are counted as those of
    `fbank`, whose values follow with `audio.whisper_with_fbank`.
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
        """Values of a frame: those of the encoder, then those of fbank."""
        encoded: int = self._encode(np.zeros(self.audio.hop_length, dtype=np.float32)).shape[1]
        return encoded + (self.kaldi.settings.width if self._with_fbank else 0)

    @cached_property
    def fingerprint(self) -> str:
        """That of the weights, and of the settings of fbank where they matter."""
        fbank = self.kaldi.fingerprint if self._with_fbank else None
        facts = {"whisper": _VERSION, "weights": weights_fingerprint(self._name), "fbank": fbank}
        return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()

    def compute(self, waveform_N: FloatArray) -> FloatArray:
        """The features (T, W)."""
        samples = len(waveform_N)
        return self.part(lambda start, stop: waveform_N[start:stop], samples, 0, self.frames(samples))

    def part(self, read: Callable[[int, int], FloatArray], samples: int, first: int, last: int) -> FloatArray:
        """Some frames, equal to the bits of those of the whole: of every window that they are in."""
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
        """The features in blocks, equal to the bits of those of the whole."""
        if not self._with_fbank:
            yield from self._windows(read())
            return
        fbank = _Frames(self.kaldi.blocks(read()))
        for encoded_SW in self._windows(read()):
            yield np.concatenate([encoded_SW, fbank.take(len(encoded_SW))], axis=1)

    def stream(self) -> FeatureStream | None:
        """None: a frame is made of 30 s, also of those after it."""
        return None

    def _windows(self, blocks: Iterable[FloatArray]) -> Iterator[FloatArray]:
        """The encoder's output (S, W) for one window after the other."""
        hop = self.audio.hop_length
        window = WINDOW * hop
        held_N = np.zeros(0, dtype=np.float32)
        done = 0  # samples of `held_N` that were encoded
        for block in blocks:
            held_N = np.concatenate([held_N, block])
            while self.frames(len(held_N) - done) > WINDOW:
                yield self._encode(held_N[done : done + window])
                held_N, done = held_N[done:], window  # one window is kept, as the last one may begin in it
        left = self.frames(len(held_N) - done)
        if left:
            yield self._encode(held_N[max(0, done + (left - WINDOW) * hop) :])[-left:]

    def _encode(self, waveform_N: FloatArray) -> FloatArray:
        """Up to a window (N,) -> (S, W)."""
        return _encoder(os.getpid(), self._name)(waveform_N, self.audio.sample_rate)


@cache
def _encoder(process: int, name: str) -> WhisperEncoder:
    """The encoder of a process: the threads of a model that a forked process inherits are not there, so that it has to
    load one of its own. The inherited one stays in the cache, as its end would wait for these threads.

    One thread, for features with the same bits in every process.
    """
    return WhisperEncoder(name, _PURPOSE, threads=1)


class _Frames:
    """Frames that come in blocks, in blocks of other sizes."""

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
