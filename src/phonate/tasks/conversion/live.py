"""Conversion of a voice while it speaks, a fixed number of samples behind.

Shapes: T frames, M mel bands, P prosody features.

Shapes: N samples, T frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.audio.live import streamed
from phonate.audio.pitch import F0Stream
from phonate.nn.vocoder.generator import Vocoder
from phonate.nn.vocoder.stream import VocoderStream
from phonate.tasks.conversion.data import Voice
from phonate.tasks.conversion.features import FeatureExtractor, RunningTransposition, held
from phonate.tasks.conversion.model import Network
from phonate.tasks.conversion.running import RunningLevel

# --------------------------------------- A causal model's conversion of features that arrive in blocks

_SILENT = 1e-6  # rounding may lift the floor, 0, by so much
_LOUDER = 0.1  # the loudest frames over the mean of speech


class MelConversion:
    """Converts the features of one recording. Blocks of any size give the same frames."""

    def __init__(self, model: Network, extractor: FeatureExtractor, voice: Voice, speaker: int) -> None:
        """`voice`: that of the speaker number `speaker`. Raises ValueError if the model is not causal."""
        self._model, self._extractor, self._voice = model, extractor, voice
        self._state: Any = model.initial_state()  # of the model's own kind
        self._device = model.output.weight.device
        self._speaker = torch.tensor([speaker], device=self._device)
        envelope = extractor.envelope
        self._normalisation = envelope.running() if envelope.normalise else None
        self._transposition = RunningTransposition(voice.register)
        self._pitch: float | None = None  # the last one heard
        self._equaliser = voice.running() if extractor.data.equalise else None
        self._level = RunningLevel(float(voice.mean_M.mean()) + _LOUDER)
        bands = envelope.bands
        self._content_TM = np.zeros((0, bands), dtype=np.float32)
        self._prosody_TP = np.zeros((0, extractor.prosody_dim), dtype=np.float32)
        self._heard_TM = np.zeros((0, bands), dtype=np.float32)  # of frames that are not converted yet
        self._frames = 0
        self._ahead = model.lookahead  # first frames of the content, which no output frame reads as its own

    def push(self, mel_TM: FloatArray, f0_T: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Add the next frames of the mel and of the pitch; one may be ahead of the other.

        Returns:
            The frames (n, M) of the converted mel, from 0 to 1, that can be made now, and the pitch (T,) of the frames
            of `f0_T` in the target's register.
        """
        self._add_content(mel_TM)
        moved_T = self._transposition.push(f0_T)
        self._add_prosody(moved_T)
        ready = min(len(self._content_TM), len(self._prosody_TP))
        content_TM, self._content_TM = self._content_TM[:ready], self._content_TM[ready:]
        prosody_TP, self._prosody_TP = self._prosody_TP[:ready], self._prosody_TP[ready:]
        return self._finished(self._converted(content_TM, prosody_TP)), moved_T

    def finish(self) -> FloatArray:
        """The last frames (n, M). As many frames of the mel and of the pitch must have come."""
        rest = len(self._heard_TM)
        # No content comes from behind the end, nor do frames that are seen as one with the last.
        joined = -self._frames % self._model.stride
        content_TM = _followed(self._content_TM, len(self._prosody_TP) + joined - len(self._content_TM))
        prosody_TP = _followed(self._prosody_TP, joined)
        return self._finished(self._converted(content_TM, prosody_TP)[:rest])

    def _add_prosody(self, f0_T: FloatArray) -> None:
        pitch_T = held(f0_T) if self._pitch is None else held(f0_T, self._pitch)
        if len(pitch_T):
            self._pitch = float(pitch_T[-1])
        self._frames += len(f0_T)
        prosody_TP = self._extractor.harmonics.features(np.log(pitch_T), f0_T > 0.0)
        self._prosody_TP = np.concatenate([self._prosody_TP, prosody_TP])

    def _add_content(self, mel_TM: FloatArray) -> None:
        envelope = self._extractor.envelope
        content_TM = envelope.smoothed(mel_TM)
        if self._normalisation is not None:
            content_TM = self._normalisation.push(mel_TM, content_TM)
        skipped = min(self._ahead, len(content_TM))
        self._ahead -= skipped
        self._content_TM = np.concatenate([self._content_TM, content_TM[skipped:]])
        self._heard_TM = np.concatenate([self._heard_TM, mel_TM])

    @torch.inference_mode()
    def _converted(self, content_TM: FloatArray, prosody_TP: FloatArray) -> FloatArray:
        content_1TM, prosody_1TP = (torch.from_numpy(part)[None].to(self._device) for part in (content_TM, prosody_TP))
        out_1TM = self._model.step(
            content_1TM, self._state, self._speaker, prosody_1TP if self._model.prosody_dim else None
        )
        return np.asarray(out_1TM[0].float().cpu().numpy(), dtype=np.float32)

    def _finished(self, mel_TM: FloatArray) -> FloatArray:
        """Converted frames, equalised, and silent where the source was."""
        heard_TM, self._heard_TM = self._heard_TM[: len(mel_TM)], self._heard_TM[len(mel_TM) :]
        if self._equaliser is not None:
            mean_TM, deviation_TM = self._equaliser.push(mel_TM, self._level.push(mel_TM)[1])
            mel_TM = self._voice.equalised_by(mel_TM, mean_TM, deviation_TM, self._extractor.data.equalise)
        return np.clip(np.where(heard_TM.max(axis=1, initial=0.0, keepdims=True) < _SILENT, 0.0, mel_TM), 0.0, 1.0)


def _followed(values_TF: FloatArray, frames: int) -> FloatArray:
    """`values_TF` and so many frames of zeros."""
    return np.pad(values_TF, [(0, frames), (0, 0)])


# ----- Conversion of a voice while it speaks: samples in, samples out, a fixed number of samples later


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
