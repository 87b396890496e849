"""From a trained run to converted speech. Shapes: T frames, M mel bands, N samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phonate.audio.chunks import overlap_add
from phonate.audio.decoding import FloatArray, read_audio
from phonate.audio.processor import normalised_peak
from phonate.config.errors import CheckpointError, DataError, InputError
from phonate.config.registry import nearest
from phonate.rendering.renderer import Renderer, renderer, saved_beside
from phonate.tasks.conversion.features import FeatureExtractor, Recording
from phonate.tasks.conversion.model import VoiceTransformer, build_model
from phonate.tasks.conversion.voices import Voice
from phonate.training.checkpoints.trained import open_trained

_WINDOW_SECONDS = 10.0
_OVERLAP_SECONDS = 1.0
_PEAK = 0.95
_SILENT = 1e-6  # rounding may lift the floor, 0, by so much


class Converter:
    """Speaks recordings again in another voice."""

    def __init__(
        self,
        model: VoiceTransformer,
        data: Any,
        voices: dict[str, Voice],
        target: str,
        inference_metadata: Mapping[str, Any] | None = None,
        vocoder: str | Path | None = None,
    ) -> None:
        """`data` is the recipe's ConversionData; `voices`: the speakers of the embedding, in its order;
        `inference_metadata`: what the task saved with the checkpoint; `vocoder`: a run in place of `data.vocoder`."""
        self.model = model.eval()
        self.voices = voices
        self.speakers = list(voices)
        self.target = target
        """The speaker that is converted to when none is asked for."""
        self.inference_metadata = dict(inference_metadata or {})
        self.extractor = FeatureExtractor(data)
        self.sample_rate: int = data.audio.sample_rate
        self.render: Renderer = renderer(vocoder or data.vocoder, self.extractor.processor)
        """Makes sound of mels."""

    @classmethod
    def load(cls, source: str | Path, vocoder: str | Path | None = None) -> Converter:
        """The converter of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Raises CheckpointError where there is none, or it is damaged, or of another task.
        """
        trained = open_trained(source, "conversion")
        recipe, metadata = trained.recipe, trained.inference_metadata
        extractor = FeatureExtractor(recipe.data)
        trained.require_features(extractor.processor.fingerprint)
        if recipe.data.content == "whisper" and metadata["content"] != extractor.whisper.fingerprint:
            raise CheckpointError(
                f"{trained.path}: was trained on another Whisper model than the {recipe.data.whisper_model} here"
            )
        model = build_model(
            recipe.model,
            n_speakers=len(metadata["voices"]),
            input_dim=metadata["content_dim"],
            output_dim=recipe.data.audio.n_mels,
            prosody_dim=extractor.prosody_dim,
        )
        model.load_state_dict(trained.weights)
        voices = {name: Voice.read(document) for name, document in metadata["voices"].items()}
        return cls(model, recipe.data, voices, metadata["target"], metadata, vocoder or saved_beside(trained.path))

    def _window(self) -> tuple[int, int]:
        """Frames that the model sees at once, and how many neighbouring windows share.

        Absolute positions mean something only as far as crops had them in training.
        """
        data = self.extractor.data
        if self.model.positions is not None:
            return data.crop_frames, data.crop_frames // 4
        rate = data.audio.frames_per_second
        return round(_WINDOW_SECONDS * rate), round(_OVERLAP_SECONDS * rate)

    def speaker(self, name: str | None) -> int:
        """Number of a speaker. Raises InputError with the nearest name."""
        name = self.target if name is None else name
        if name not in self.speakers:
            raise InputError(f"speaker {name!r} is not in this model; {nearest(name, self.speakers)}")
        return self.speakers.index(name)

    def convert_file(self, path: str | Path, speaker: str | None = None) -> FloatArray:
        """The recording at `path`, in any format and at any rate, in the voice of `speaker`: (N,) at `sample_rate`.

        Raises DataError where it can't be read, or is shorter than a frame.
        """
        waveform = read_audio(path, self.sample_rate)[0]
        hop = self.extractor.data.audio.hop_length
        if len(waveform) < hop:
            raise DataError(
                f"{path}: {1000 * len(waveform) / self.sample_rate:.1f} ms long, under the {hop} samples of one frame "
                f"(at {self.sample_rate} Hz); give a longer recording"
            )
        return self.convert(waveform, speaker)

    def convert(self, waveform: FloatArray, speaker: str | None = None) -> FloatArray:
        """Samples (N,) at `sample_rate` in the voice of `speaker` (None: the target); about N samples, peak 0.95.

        Long recordings are converted in overlapping windows and rendered piece by piece.
        """
        mel_TM = self.convert_mel(self.extractor.recording(waveform), speaker)
        return _PEAK * normalised_peak(self.render(mel_TM))

    @torch.no_grad()
    def convert_mel(self, recording: Recording, speaker: str | None = None) -> FloatArray:
        """The mel (T, M), from 0 to 1, of a recording in the voice of `speaker`."""
        device = next(self.model.parameters()).device
        speaker_id = torch.tensor([self.speaker(speaker)], device=device)
        voice = self.voices[self.speakers[int(speaker_id)]]
        content_TF = torch.from_numpy(np.ascontiguousarray(self.extractor.content(recording))).to(device)
        prosody_TP = torch.from_numpy(self.extractor.prosody(recording, voice.register)).to(device)

        def predict(start: int, end: int) -> FloatArray:
            prosody = prosody_TP[None, start:end] if self.model.prosody_dim else None
            out_BTM = self.model(content_TF[None, start:end], speaker_id=speaker_id, prosody=prosody)
            mel: FloatArray = out_BTM[0].float().cpu().numpy()
            return mel

        mel_TM = overlap_add(len(content_TF), *self._window(), predict)
        if self.extractor.data.equalise:
            mel_TM = voice.equalised(mel_TM)
        # The model was never shown digital silence, and normalisation makes a voice of nothing.
        mel_TM[recording.mel_TM.max(axis=1) < _SILENT] = 0.0
        return np.clip(mel_TM, 0.0, 1.0)
