"""Conversion of a voice while it speaks: samples in, samples out, a fixed number of samples later.

Shapes: N samples, T frames.
"""

from __future__ import annotations

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.audio.limiter import streamed
from phonate.audio.pitch import F0Stream
from phonate.nn.vocoder.generator import Vocoder
from phonate.nn.vocoder.stream import VocoderStream
from phonate.tasks.conversion.features.extractor import FeatureExtractor
from phonate.tasks.conversion.live.mel import MelConversion
from phonate.tasks.conversion.networks import Network
from phonate.tasks.conversion.voices import Voice


class LiveConversion:
    """Converts one recording, block by block: features, a causal model and a causal vocoder, each with its state.

    All that was returned, joined, has a sample for each one that was pushed (up to the last whole frame), and is the
    same bit for bit whatever was pushed at once, for the networks always compute with blocks of `block` samples.
    Sample number n is returned by the `push` that brings sample n + `latency`, if not before.
    """

    def __init__(
        self, model: Network, extractor: FeatureExtractor, vocoder: Vocoder, voice: Voice, speaker: int
    ) -> None:
        """`voice`: that of the speaker number `speaker`. Raises ValueError for a network that is not causal."""
        audio = extractor.data.audio
        self._mel = extractor.processor.mel_stream()
        self._f0 = F0Stream(audio.sample_rate, audio.hop_length)
        self._conversion = MelConversion(model, extractor, voice, speaker)
        self._vocoder = VocoderStream(vocoder)
        self._device = vocoder.level_K.device
        self._frames = 0
        self.sample_rate = audio.sample_rate
        """Hz, of input and output."""
        self.block = audio.hop_length * model.stride
        """Samples that are best pushed at once: smaller blocks give no sound any sooner."""
        self._held = np.zeros(0, dtype=np.float32)  # of a block that is not full yet
        content = audio.n_fft // 2 + audio.hop_length * (model.lookahead + model.stride - 1 + (vocoder.lookahead or 0))
        source = self._f0.samples_ahead + audio.hop_length * vocoder.source_lookahead
        self.latency = max(content, source) + vocoder.fourier.n_fft // 2
        """Samples after a sample that are needed to convert it, those of its block included."""

    def push(self, samples: FloatArray) -> FloatArray:
        """Add samples (N,), float32 from -1 to 1. Returns the converted samples (n,) that are ready, n may be 0."""
        held = np.concatenate([self._held, np.asarray(samples, dtype=np.float32)])
        full = len(held) // self.block * self.block
        self._held = held[full:]
        parts = [self._convert(held[start : start + self.block]) for start in range(0, full, self.block)]
        return np.concatenate([np.zeros(0, dtype=np.float32), *parts])

    def _convert(self, samples: FloatArray) -> FloatArray:
        mel_TM = self._mel.push(samples)
        self._frames += len(mel_TM)
        converted_TM, f0_T = self._conversion.push(mel_TM, self._f0.push(samples))
        return self._sound(converted_TM, f0_T)

    def finish(self) -> FloatArray:
        """The last samples (n,). The stream must not be used again."""
        begun = self._convert(self._held)
        mel_TM = self._mel.finish()
        converted_TM, f0_T = self._conversion.push(mel_TM, self._f0.finish(self._frames + len(mel_TM)))
        parts = [begun, self._sound(np.concatenate([converted_TM, self._conversion.finish()]), f0_T)]
        parts.append(self._levelled(self._vocoder.finish()))
        return np.concatenate(parts)

    def _sound(self, mel_TM: FloatArray, f0_T: FloatArray) -> FloatArray:
        mel_1TM, f0_1T = (torch.from_numpy(part)[None].to(self._device) for part in (mel_TM, f0_T))
        return self._levelled(self._vocoder.push(mel_1TM, f0_1T))

    def _levelled(self, samples_1N: torch.Tensor) -> FloatArray:
        return streamed(samples_1N[0].float().cpu().numpy())
