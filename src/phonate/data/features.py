"""Features that are cached beside the waveforms: mel, Kaldi's fbank, mfcc and spectrogram, Whisper's encoder, none.

Other packages add theirs with an entry point in the group `phonate.features`, plug-in files with `FEATURES.register`.

Shapes: N samples, T frames, S frames of a window, W width.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import AudioProcessor
from phonate.audio.whisper import FEATURES_PER_SECOND, WhisperEncoder, weights_fingerprint
from phonate.config.errors import optional_package, require_modules
from phonate.config.registry import Registry, load
from phonate.data.settings import KaldiData, VoiceData

if TYPE_CHECKING:
    from phonate.audio.kaldi import FeatureStream
    from phonate.data.settings import Framing, RecordingData


# --------------------- The interface of features: their width, their frames, and how they are computed

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


# ------------------------------------------------- fbank, mfcc and spectrogram, as computed by Kaldi


class KaldiFrames(Features):
    """The output of `KaldiFeatures`: (T, W) float32, without level normalisation."""

    normalises_level = False

    def __init__(self, settings: KaldiData) -> None:
        from phonate.audio.kaldi import KaldiFeatures  # torch, which other features do without

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
        from phonate.audio.kaldi import FeatureStream

        return FeatureStream(self.kaldi)


# --------------------------------------------------------------------- Normalised log-mel spectrograms


class MelFeatures(Features):
    """The output of `AudioProcessor.mel`: (T, n_mels) float32 from 0 to 1."""

    def __init__(self, settings: VoiceData) -> None:
        super().__init__(settings)
        self._processor = AudioProcessor(settings.audio)

    @property
    def width(self) -> int:
        """Mel bands."""
        return self._processor.config.n_mels

    @property
    def fingerprint(self) -> str:
        """That of the processor."""
        return self._processor.fingerprint

    def compute(self, waveform_N: FloatArray) -> FloatArray:
        """The mel (T, n_mels)."""
        return self._processor.mel(waveform_N)

    def compute_blocks(self, read: Callable[[], Iterable[FloatArray]]) -> Iterator[FloatArray]:
        """The mel in blocks of 2048 frames, bitwise equal to that of the whole."""
        return self._processor.mel_blocks(read)


# -------------------------------------------------------------- No features: only waveforms are cached


class NoneFeatures(Features):
    """Frames of width 0, whose number still follows from the hop length."""

    @property
    def width(self) -> int:
        """0."""
        return 0

    @property
    def fingerprint(self) -> str:
        """Sample rate and hop length."""
        return f"none-{self.audio.sample_rate}-{self.audio.hop_length}"

    def compute(self, waveform_N: FloatArray) -> Frames:
        """(T, 0)."""
        return np.zeros((self.frames(len(waveform_N)), 0), dtype=self.dtype)


class WaveformFeatures(NoneFeatures):
    """As none, with the level of recordings as it is in their files."""

    normalises_level = False

    @property
    def fingerprint(self) -> str:
        """Sample rate and hop length."""
        return f"waveform-{self.audio.sample_rate}-{self.audio.hop_length}"


# ----------------------------------------------- The output of a Whisper encoder (Radford et al. 2022)

WINDOW = 1500
"""Frames per encoder window: 30 s, the maximum."""
_PURPOSE = "feature_type whisper"
_VERSION = 1  # increment when a change alters the features, so that cached ones are recomputed
_VOICES_VERSION = 1  # the same for the embeddings of voices
_FRAMES_PER_VOICE = 10
_PIECE = 25600
"""Samples of which the speaker encoder makes an embedding."""


class WhisperFeatures(KaldiFrames):
    """`audio.feature_type: whisper`: (T, W) float32, 50 frames per second, without level normalisation.

    A recording is encoded in independent windows of 30 s from its beginning. The last window ends with the recording
    and has the same length; it provides the remaining frames. Number and positions of frames are those of `fbank`,
    whose values are appended with `audio.whisper_with_fbank`, after the embeddings of `audio.whisper_with_voices`.
    """

    def __init__(self, settings: KaldiData) -> None:
        """Raises MissingPackageError without faster-whisper."""
        super().__init__(
            settings.model_copy(update={"audio": settings.audio.model_copy(update={"feature_type": "fbank"})})
        )
        self.audio = settings.audio
        self._name, self._with_fbank = settings.audio.whisper_model, settings.audio.whisper_with_fbank
        self._with_voices = settings.audio.whisper_with_voices
        optional_package("faster_whisper", _PURPOSE)
        if self._with_voices:
            require_modules("whisper_with_voices", "resemblyzer")

    @cached_property
    def width(self) -> int:
        """W: the encoder's width, plus those of embeddings and fbank if included."""
        encoded: int = self._encode(np.zeros(self.audio.hop_length, dtype=np.float32)).shape[1]
        return encoded + (self.kaldi.settings.width if self._with_fbank else 0)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights, and of the fbank options if fbank is included."""
        fbank = self.kaldi.fingerprint if self._with_fbank else None
        facts = {"whisper": _VERSION, "weights": weights_fingerprint(self._name), "fbank": fbank}
        if self._with_voices:
            facts["voices"] = _VOICES_VERSION
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
        encoded_SW = _encoder(os.getpid(), self._name)(waveform_N, self.audio.sample_rate)
        if not self._with_voices:
            return encoded_SW
        return np.concatenate([encoded_SW, _voices(waveform_N, self.audio.hop_length, len(encoded_SW))], axis=1)


@cache
def _encoder(process: int, name: str) -> WhisperEncoder:
    """The encoder of a process. A forked process must load its own, since the threads of the inherited model do not
    exist in it. The inherited model stays in the cache, since its destructor would wait for these threads.

    It uses one thread, so that features are bitwise equal in every process.
    """
    return WhisperEncoder(name, _PURPOSE, threads=1)


def _voices(waveform_N: FloatArray, hop: int, frames: int) -> FloatArray:
    """(S, D): for each of S frames the embedding of the voice around it, zeros where all samples are zero. Those of a
    fifth of a second have the one of 1.6 s around its middle."""
    encoder = _speaker_encoder(os.getpid())
    step = _FRAMES_PER_VOICE * hop
    # the first piece is centred on the first frames, the last one on the last
    padded_N = np.pad(waveform_N, ((_PIECE - step) // 2, _PIECE))
    pieces_PD, _ = encoder.embed_continuously(padded_N, FEATURES_PER_SECOND / _FRAMES_PER_VOICE)
    if not len(pieces_PD):
        return np.zeros((frames, pieces_PD.shape[1]), dtype=np.float32)
    voices_SD: FloatArray = pieces_PD[(np.arange(frames) // _FRAMES_PER_VOICE).clip(max=len(pieces_PD) - 1)]
    return voices_SD


@cache
def _speaker_encoder(process: int) -> Any:
    """The speaker encoder of a process, as `_encoder`."""
    return load("phonate.pretrained:SpeakerEncoder")()


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


FEATURES: Registry[type[Features]] = Registry(
    "feature",
    {
        "fbank": "phonate.data.features:KaldiFrames",
        "mel": "phonate.data.features:MelFeatures",
        "mfcc": "phonate.data.features:KaldiFrames",
        "none": "phonate.data.features:NoneFeatures",
        "samples": "phonate.data.features:KaldiFrames",
        "spectrogram": "phonate.data.features:KaldiFrames",
        "waveform": "phonate.data.features:WaveformFeatures",
        "whisper": "phonate.data.features:WhisperFeatures",
    },
    suffix="features",
    group="phonate.features",
)
"""Name -> a class that is called with the settings of the corpus."""
