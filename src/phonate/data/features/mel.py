"""Normalised log-mel spectrograms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import AudioProcessor
from phonate.data.features._base import Features
from phonate.data.settings import VoiceData


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
