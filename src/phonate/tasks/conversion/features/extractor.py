"""What a VoiceTransformer reads of a recording, the same in training and in conversion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import f0
from phonate.audio.processor import AudioProcessor
from phonate.audio.whisper import WhisperEncoder
from phonate.tasks.conversion.features.content import Content
from phonate.tasks.conversion.features.prosody import Prosody, Register, transposed
from phonate.tasks.conversion.features.whisper import at_frames, normalised
from phonate.tasks.conversion.settings import ConversionData

EVERYTHING = slice(None)


@dataclass(frozen=True)
class Recording:
    """Clean features of one recording. Shapes: T frames, M mel bands, S Whisper features, W their width."""

    mel_TM: FloatArray
    f0_T: FloatArray
    whisper_SW: FloatArray | None = None


class FeatureExtractor:
    """Makes `Recording`s of waveforms, and model inputs of `Recording`s, as the recipe's `data` says.

    `causal`: inputs depend on no later frame, as `model.causal` needs it.
    """

    def __init__(self, data: ConversionData, causal: bool = False) -> None:
        self.data = data
        self.causal = causal
        self.processor = AudioProcessor(data.audio)
        self.envelope = Content(data.audio, data.cepstral_coefficients, data.normalise, causal)
        """Content that is computed from the mel."""
        self.harmonics = Prosody(data.audio, causal)
        """Prosody features of a pitch."""
        self._whisper: WhisperEncoder | None = None

    @property
    def whisper(self) -> WhisperEncoder:
        """The Whisper encoder, loaded when it is first needed."""
        if self._whisper is None:
            self._whisper = WhisperEncoder(self.data.whisper_model, "data.content: whisper")
        return self._whisper

    @property
    def teacher(self) -> bool:
        """Whether Whisper features are what a network is taught to predict from the mel, instead of what it reads."""
        return self.causal and self.data.content == "whisper"

    @property
    def reference_dim(self) -> int:
        """Features of a frame that tell the voice: a mel spectrum, where voices are given by recordings."""
        return self.data.audio.n_mels if self.data.voices == "reference" else 0

    @property
    def prosody_dim(self) -> int:
        """Prosody features of a frame."""
        return self.harmonics.width if self.data.prosody else 0

    def recording(self, waveform: FloatArray) -> Recording:
        """Clean features of a waveform (N,) at the configured rate."""
        audio = self.data.audio
        return Recording(
            self.processor.mel(waveform),
            self.pitch(waveform),
            self.whisper(waveform, audio.sample_rate) if self.data.content == "whisper" and not self.teacher else None,
        )

    def pitch(self, waveform: FloatArray) -> FloatArray:
        """F0 (T,) in Hz at the mel's frames; zeros where the model does not read prosody."""
        audio = self.data.audio
        if not self.data.prosody:
            return np.zeros(self.processor.frames(len(waveform)), dtype=np.float32)
        return f0(waveform, audio.sample_rate, audio.hop_length)

    def content(
        self, recording: Recording, rng: np.random.Generator | None = None, cut: slice = EVERYTHING
    ) -> FloatArray:
        """Content features (T, input_dim) of the frames `cut`; with `rng`, of the recording's perturbed form.

        Normalisation sees the whole recording, as it does in conversion.
        """
        if recording.whisper_SW is not None and not self.teacher:
            return self.whisper_content(recording, cut)
        if rng is None or self.data.perturbation is None:
            return self.envelope(recording.mel_TM)[cut]
        return self.envelope.perturbed(recording.mel_TM, self.data.perturbation, rng)[cut]

    def whisper_content(self, recording: Recording, cut: slice = EVERYTHING) -> FloatArray:
        """Whisper features (T, W) of the frames `cut`."""
        if recording.whisper_SW is None:
            raise ValueError("the recording has no Whisper features")
        features_SW = normalised(recording.whisper_SW) if self.data.normalise else recording.whisper_SW
        frames_T = np.arange(len(recording.mel_TM))[cut]
        return at_frames(features_SW, frames_T, self.data.audio.frames_per_second)

    def prosody(self, recording: Recording, register: Register | None = None, cut: slice = EVERYTHING) -> FloatArray:
        """Prosody features (T, prosody_dim) of the frames `cut`, in the recording's own register or another."""
        if not self.data.prosody:
            return np.zeros((len(recording.mel_TM[cut]), 0), dtype=np.float32)
        return self.harmonics(recording.f0_T if register is None else transposed(recording.f0_T, register), cut)
