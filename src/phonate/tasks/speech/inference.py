"""From a trained run to speech. Shapes: L tokens, T frames, M mel bands, N samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import AudioProcessor, normalised_peak
from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.rendering.renderer import Renderer, TrainedVocoder, renderer, saved_beside
from phonate.tasks.speech.acoustic import Acoustic, build_acoustic
from phonate.tasks.speech.parallel import ParallelModel
from phonate.text.inventory import Inventory
from phonate.text.phonemes import Word
from phonate.text.sentences import sentences
from phonate.training.checkpoints.trained import open_trained

_PEAK = 0.95
_STREAM_PEAK = 0.6
"""Of the features' full scale: a stream can't wait for its loudest sample."""
_PAUSE_SECONDS = 0.25
_LONGEST = 400
"""Characters of a sentence that are spoken in one go."""


class Synthesiser:
    """Speaks text in the voices of a run."""

    def __init__(
        self,
        model: Acoustic,
        data: Any,
        inventory: Inventory,
        speakers: Sequence[str],
        inference_metadata: Mapping[str, Any] | None = None,
        vocoder: str | Path | None = None,
    ) -> None:
        """`data` is the recipe's SpeechData; `inference_metadata`: what the task saved with the
        checkpoint; `vocoder`: a run to use instead of `data.vocoder`."""
        self.model = model.eval()
        self.data = data
        self.inventory = inventory
        self.phonemizer = inventory.phonemizer()
        self.speakers = list(speakers)
        self.inference_metadata = dict(inference_metadata or {})
        self.processor = AudioProcessor(data.audio)
        self.sample_rate: int = data.audio.sample_rate
        self.render: Renderer = renderer(vocoder or data.vocoder, self.processor)
        """Makes sound of mels."""

    @classmethod
    def load(cls, source: str | Path, vocoder: str | Path | None = None) -> Synthesiser:
        """The synthesiser of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Raises CheckpointError where there is none, or it is damaged, or of another task.
        """
        trained = open_trained(source, "speech")
        recipe, metadata = trained.recipe, trained.inference_metadata
        trained.require_features(AudioProcessor(recipe.data.audio).fingerprint)
        inventory = Inventory.read(metadata["inventory"])
        model = build_acoustic(recipe.model, len(inventory), len(metadata["speakers"]), recipe.data.audio.n_mels)
        model.load_state_dict(trained.part("acoustic"))
        return cls(model, recipe.data, inventory, metadata["speakers"], metadata, vocoder or saved_beside(trained.path))

    def to(self, device: torch.device) -> Synthesiser:
        """Speak on `device` from now on. Returns itself."""
        self.model.to(device)
        if isinstance(self.render, TrainedVocoder):
            self.render.network.to(device)
        return self

    def speaker(self, name: str | None) -> int:
        """Number of a speaker; the first when none is named. Raises InputError with the nearest name."""
        if name is None:
            return 0
        if name not in self.speakers:
            raise InputError(f"speaker {name!r} is not in this model; {nearest(name, self.speakers)}")
        return self.speakers.index(name)

    def speak(self, text: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0) -> FloatArray:
        """`text`, of any length, as sound (N,) at `sample_rate`, its peak 0.95.

        Args:
            text: What to say; long texts are said sentence by sentence.
            speaker: In whose voice. None: the first.
            speed: 1.2 is a fifth faster.
            semitones: By how much to raise the voice.

        Raises InputError where nothing of the text can be said.
        """
        pause = np.zeros(int(_PAUSE_SECONDS * self.sample_rate), dtype=np.float32)
        parts: list[FloatArray] = []
        for words in self.sentences(text):
            parts += [self.render(*self.mel(words, speaker, speed, semitones)), pause]
        return _PEAK * normalised_peak(np.concatenate(parts[:-1]))

    def stream(
        self, text: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> Iterator[FloatArray]:
        """As `speak`, piece by piece as they are ready."""
        pause = np.zeros(int(_PAUSE_SECONDS * self.sample_rate), dtype=np.float32)
        for number, words in enumerate(self.sentences(text)):
            if number:
                yield pause
            said = self.mel(words, speaker, speed, semitones)
            pieces = self.render.stream(*said) if isinstance(self.render, TrainedVocoder) else [self.render(*said)]
            for piece in pieces:
                yield np.clip(_STREAM_PEAK * piece, -1.0, 1.0)

    def sentences(self, text: str) -> Iterator[list[Word]]:
        """The words of each sentence that says something. Raises InputError when none does."""
        spoken = 0
        for sentence in sentences(text, _LONGEST):
            try:
                words = self.phonemizer(sentence)
            except InputError:
                continue  # a line of asterisks between paragraphs, say
            spoken += 1
            yield words
        if not spoken:
            raise InputError(f"nothing of this text can be said: {text[:80]!r}")

    @torch.no_grad()
    def mel(
        self, words: Sequence[Word], speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> tuple[FloatArray, FloatArray | None]:
        """The mel (T, M), from 0 to 1, of one sentence, and its pitch (T,) in Hz (0: no voice) where the model is one
        that predicts it."""
        if speed <= 0:
            raise InputError(f"speed {speed:g} must be over 0; 1.2 is a fifth faster")
        device = self.model.output.weight.device
        tokens_1L = torch.tensor([self.inventory.ids(words)], device=device)
        speaker_1 = torch.tensor([self.speaker(speaker)], device=device)
        mel_TM, f0_T = self.model.speak(tokens_1L, speaker_1, speed, semitones)
        return mel_TM.cpu().numpy(), None if f0_T is None else f0_T.cpu().numpy()


def parallel(synthesiser: Synthesiser, purpose: str) -> ParallelModel:
    """The model, of kind parallel. Raises InputError, saying what is wanted of it, for one of another kind."""
    if not isinstance(synthesiser.model, ParallelModel):
        raise InputError(f"only a model of kind parallel can {purpose}; this one says one frame after the other")
    return synthesiser.model
