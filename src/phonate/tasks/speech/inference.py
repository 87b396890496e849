"""From a trained run to speech. Shapes: L tokens, T frames, M mel bands, N samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch
from torch import nn

from phonate.audio.decoding import FloatArray
from phonate.audio.processor import AudioProcessor, normalised_peak
from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.data.manifests.rows import one_line
from phonate.rendering.renderer import Renderer, renderer, saved_beside
from phonate.tasks.speech.model import Acoustic, build_acoustic
from phonate.tasks.speech.models.parallel import ParallelModel
from phonate.tasks.speech.settings import SpeechData, SpeechRecipe
from phonate.text.inventory import Inventory
from phonate.text.phonemes import Word
from phonate.text.sentences import sentences
from phonate.training.checkpoints.trained import open_trained
from phonate.training.inference import Demonstration, Device, Inference
from phonate.training.speech_service import SpeechService

_PEAK = 0.95
_STREAM_PEAK = 0.6
"""Of full scale: a stream can't be scaled by its loudest sample, which is not known yet."""
PAUSE_SECONDS = 0.25
"""Of silence between two sentences."""
_LONGEST = 400
"""Characters of a sentence that are spoken in one go."""
_BATCH = 16
"""Sentences that the model reads at once."""
_Mel = tuple[FloatArray, FloatArray | None]


class Synthesiser(Inference):
    """Speaks text in the voices of a run."""

    sample_rate: int

    def __init__(
        self,
        model: Acoustic,
        data: SpeechData,
        inventory: Inventory,
        speakers: Sequence[str],
        inference_metadata: Mapping[str, Any] | None = None,
        vocoder: str | Path | None = None,
    ) -> None:
        """`inference_metadata`: what the task saved with the checkpoint; `vocoder`: a run to use instead of
        `data.vocoder`."""
        self.model = model.eval()
        self.data = data
        self.inventory = inventory
        self.phonemizer = inventory.phonemizer()
        self.speakers = list(speakers)
        """Names of the voices."""
        self.inference_metadata = dict(inference_metadata or {})
        self.processor = AudioProcessor(data.audio)
        self.sample_rate = data.audio.sample_rate
        self.render: Renderer = renderer(vocoder or data.vocoder, self.processor)
        """Mel spectrograms to waveforms."""

    @classmethod
    def load(cls, source: str | Path, vocoder: str | Path | None = None, *, device: Device | None = None) -> Self:
        """The synthesiser of a run (its best checkpoint, or else its newest) or of one checkpoint.

        Args:
            source: A run's folder or a checkpoint's.
            vocoder: A run of the task vocoder, or griffin_lim; None: the one saved beside the model, or the recipe's.
            device: Such as "cuda:0"; None: cpu.

        Raises CheckpointError where there is no checkpoint, or it is damaged, or of another task.
        """
        trained = open_trained(source, "speech", SpeechRecipe)
        recipe, metadata = trained.recipe, trained.inference_metadata
        trained.require_features(AudioProcessor(recipe.data.audio).fingerprint)
        inventory = Inventory.read(metadata["inventory"])
        model = build_acoustic(recipe.model, len(inventory), len(metadata["speakers"]), recipe.data.audio.n_mels)
        trained.load_into(model, "acoustic")
        vocoder = vocoder or saved_beside(trained.path)
        return cls(model, recipe.data, inventory, metadata["speakers"], metadata, vocoder).to(device)

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The acoustic model, then the vocoder's network."""
        return (self.model, *self.render.networks)

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """`text`, spoken."""
        if not text:
            return None
        summary, command = f'It says "{one_line(text)}"', 'phonate speak {run} "..." -o out.wav'
        return Demonstration(summary, command, self.speak(text))

    def speech_service(self, max_batch: int = 8) -> SpeechService:
        """See `Inference.speech_service`."""
        from phonate.tasks.speech.service import SynthesiserService  # which imports this module

        return SynthesiserService(self, max_batch)

    def speaker(self, name: str | None) -> int:
        """Number of a speaker; the first when none is named. Raises InputError with the nearest name."""
        if name is None:
            return 0
        if name not in self.speakers:
            raise InputError(f"speaker {name!r} is not in this model; {nearest(name, self.speakers)}")
        return self.speakers.index(name)

    @overload
    def speak(
        self, text: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> FloatArray: ...

    @overload
    def speak(
        self,
        text: list[str] | tuple[str, ...],
        speaker: str | None = None,
        speed: float = 1.0,
        semitones: float = 0.0,
    ) -> list[FloatArray]: ...

    def speak(
        self,
        text: str | list[str] | tuple[str, ...],
        speaker: str | None = None,
        speed: float = 1.0,
        semitones: float = 0.0,
    ) -> FloatArray | list[FloatArray]:
        """`text`, of any length, as sound (N,) at `sample_rate`, its peak 0.95.

        Args:
            text: A text, or a list of texts, which are synthesised in batches.
            speaker: Name of the voice. None: the first.
            speed: 1.2 is a fifth faster.
            semitones: Added to the pitch.

        Raises InputError where a text has nothing that can be spoken.
        """
        if isinstance(text, str):
            return self._joined(self.mels(list(self.sentences(text)), speaker, speed, semitones))
        spoken = [list(self.sentences(one)) for one in text]
        mels = iter(self.mels([words for one in spoken for words in one], speaker, speed, semitones))
        return [self._joined(list(itertools.islice(mels, len(one)))) for one in spoken]

    def _joined(self, mels: Sequence[_Mel]) -> FloatArray:
        """The sound (N,) of sentences with pauses between them."""
        pause = np.zeros(int(PAUSE_SECONDS * self.sample_rate), dtype=np.float32)
        parts = [part for mel in mels for part in (self.render(*mel), pause)]
        return _PEAK * normalised_peak(np.concatenate(parts[:-1]))

    def stream(
        self, text: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> Iterator[FloatArray]:
        """As `speak` for one text, in pieces (N,) as they are ready, sentence by sentence, at a fixed level."""
        pause = np.zeros(int(PAUSE_SECONDS * self.sample_rate), dtype=np.float32)
        for number, words in enumerate(self.sentences(text)):
            if number:
                yield pause
            for piece in self.render.stream(*self.mel(words, speaker, speed, semitones)):
                yield streamed_level(piece)

    def sentences(self, text: str) -> Iterator[list[Word]]:
        """The words of each sentence with something to say. Raises InputError when there is none."""
        spoken = 0
        for sentence in sentences(text, _LONGEST):
            try:
                words = self.phonemizer(sentence)
            except InputError:
                continue  # a line of asterisks between paragraphs, say
            spoken += 1
            yield words
        if not spoken:
            raise InputError(f"nothing of this text can be spoken: {text[:80]!r}")

    def mel(
        self, words: Sequence[Word], speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> tuple[FloatArray, FloatArray | None]:
        """The mel (T, M), from 0 to 1, of one sentence, and its pitch (T,) in Hz (0: unvoiced) where the model
        predicts it."""
        return self.mels([words], speaker, speed, semitones)[0]

    @torch.no_grad()
    def mels(
        self,
        sentences: Sequence[Sequence[Word]],
        speaker: str | None = None,
        speed: float = 1.0,
        semitones: float = 0.0,
    ) -> list[tuple[FloatArray, FloatArray | None]]:
        """What `mel` gives for each sentence, (T, M) and (T,) in Hz; sentences of like length are batched."""
        if not speed > 0:
            raise InputError(f"speed {speed:g} must be over 0; 1.2 is a fifth faster")
        number = self.speaker(speaker)
        tokens = [torch.tensor(self.inventory.ids(words), device=self.device) for words in sentences]
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        found: dict[int, _Mel] = {}
        for first in range(0, len(order), _BATCH):
            chosen = order[first : first + _BATCH]
            for i, (mel_TM, f0_T) in zip(
                chosen, self.model.speak([tokens[i] for i in chosen], number, speed, semitones), strict=True
            ):
                found[i] = mel_TM.cpu().numpy(), None if f0_T is None else f0_T.cpu().numpy()
        return [found[i] for i in range(len(tokens))]


def streamed_level(piece: FloatArray) -> FloatArray:
    """A rendered piece (n,) at the level of streams."""
    return np.asarray(np.clip(_STREAM_PEAK * piece, -1.0, 1.0))


def parallel(synthesiser: Synthesiser, purpose: str) -> ParallelModel:
    """The model, of kind parallel. Raises InputError, naming the `purpose`, for one of another kind."""
    if not isinstance(synthesiser.model, ParallelModel):
        raise InputError(f"only a model of kind parallel can {purpose}; this one is autoregressive")
    return synthesiser.model
