"""From a trained run to speech. Shapes: L tokens, T frames, M mel bands, N samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
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
from phonate.text.captions import TimedWord
from phonate.text.inventory import Inventory
from phonate.text.phonemes import Phonemizer, Word
from phonate.text.pronunciations import LexiconPhonemizer, read_lexicon
from phonate.text.sentences import sentences
from phonate.training.checkpoints.trained import open_trained
from phonate.training.inference import Demonstration, Device, Inference
from phonate.training.speech_service import SpeechService

IntArray = NDArray[np.int64]

PEAK = 0.95
_STREAM_PEAK = 0.6
"""Of full scale: a stream can't be scaled by its loudest sample, which is not known yet."""
PAUSE_SECONDS = 0.25
"""Of silence between two sentences."""
LONGEST = 400
"""Characters of a sentence that are spoken in one go."""
_BATCH = 16
"""Sentences that the model reads at once."""
_Mel = tuple[FloatArray, FloatArray | None]


class _Spoken(NamedTuple):
    """A sentence as the model speaks it."""

    mel_TM: FloatArray
    f0_T: FloatArray | None
    frames_L: IntArray | None
    """Of each token."""


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
        self.phonemizer: Phonemizer = inventory.phonemizer()
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
        from phonate.tasks.speech.speaking.service import SynthesiserService  # which imports this module

        return SynthesiserService(self, max_batch)

    def pronounce(self, lexicon: str | Path) -> None:
        """Pronounce words as the file `lexicon` says (see `phonate.text.pronunciations`). Raises InputError."""
        phonemizer = self.inventory.phonemizer()
        self.phonemizer = LexiconPhonemizer(phonemizer, read_lexicon(lexicon, phonemizer))

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
            return self._joined(self._sounds(self.mels(list(self.sentences(text)), speaker, speed, semitones)))
        spoken = [list(self.sentences(one)) for one in text]
        mels = iter(self.mels([words for one in spoken for words in one], speaker, speed, semitones))
        return [self._joined(self._sounds(itertools.islice(mels, len(one)))) for one in spoken]

    def timed(
        self, text: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> tuple[FloatArray, list[TimedWord]]:
        """As `speak` for one text, and when each of its words, as they are spoken, is said.

        Raises InputError for a model that does not keep to durations (of kind autoregressive).
        """
        parallel(self, "tell when words are said")
        written = list(self.sentences(text))
        spoken = self._spoken(written, speaker, speed, semitones)
        sounds: list[FloatArray] = []
        words: list[TimedWord] = []
        begins = 0
        for sentence, one in zip(written, spoken, strict=True):
            assert one.frames_L is not None
            words += self.word_times(sentence, one.frames_L, begins / self.sample_rate)
            sounds.append(self.render(one.mel_TM, one.f0_T))
            begins += len(sounds[-1]) + len(self._pause)
        return self._joined(sounds), words

    def word_times(self, words: Sequence[Word], frames_L: IntArray, begins: float) -> Iterator[TimedWord]:
        """When the words of a sentence that begins at `begins` seconds are said; its tokens take `frames_L`."""
        seconds = self.data.audio.hop_length / self.sample_rate
        ends = begins + seconds * np.cumsum(frames_L)
        token = 0  # the last one before the word: the start, or the boundary of the word before
        for word in words:
            last = token + len(word.phones)
            text = word.text if word.text.endswith(".") else word.text + word.mark
            yield TimedWord(text, round(float(ends[token]), 3), round(float(ends[last]), 3))
            token = last + 1

    @cached_property
    def _pause(self) -> FloatArray:
        """The silence between two sentences."""
        return np.zeros(int(PAUSE_SECONDS * self.sample_rate), dtype=np.float32)

    def _sounds(self, mels: Iterable[_Mel]) -> Iterator[FloatArray]:
        return (self.render(*mel) for mel in mels)

    def _joined(self, sounds: Iterable[FloatArray]) -> FloatArray:
        """The sounds (N,) of sentences, with pauses between them."""
        parts = [part for sound in sounds for part in (sound, self._pause)]
        return PEAK * normalised_peak(np.concatenate(parts[:-1]))

    def stream(
        self, text: str, speaker: str | None = None, speed: float = 1.0, semitones: float = 0.0
    ) -> Iterator[FloatArray]:
        """As `speak` for one text, in pieces (N,) as they are ready, sentence by sentence, at a fixed level."""
        for number, words in enumerate(self.sentences(text)):
            if number:
                yield self._pause
            for piece in self.render.stream(*self.mel(words, speaker, speed, semitones)):
                yield streamed_level(piece)

    def sentences(self, text: str) -> Iterator[list[Word]]:
        """The words of each sentence with something to say. Raises InputError when there is none."""
        spoken = 0
        for sentence in sentences(text, LONGEST):
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

    def mels(
        self,
        sentences: Sequence[Sequence[Word]],
        speaker: str | None = None,
        speed: float = 1.0,
        semitones: float = 0.0,
    ) -> list[tuple[FloatArray, FloatArray | None]]:
        """What `mel` gives for each sentence, (T, M) and (T,) in Hz; sentences of like length are batched."""
        return [(one.mel_TM, one.f0_T) for one in self._spoken(sentences, speaker, speed, semitones)]

    @torch.no_grad()
    def _spoken(
        self, sentences: Sequence[Sequence[Word]], speaker: str | None, speed: float, semitones: float
    ) -> list[_Spoken]:
        if not speed > 0:
            raise InputError(f"speed {speed:g} must be over 0; 1.2 is a fifth faster")
        number = self.speaker(speaker)
        tokens = [torch.tensor(self.inventory.ids(words), device=self.device) for words in sentences]
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        found: dict[int, _Spoken] = {}
        for first in range(0, len(order), _BATCH):
            chosen = order[first : first + _BATCH]
            for i, spoken in zip(
                chosen, self.model.speak([tokens[i] for i in chosen], number, speed, semitones), strict=True
            ):
                found[i] = _Spoken(spoken.mel_TM.cpu().numpy(), _numpy(spoken.f0_T), _numpy(spoken.durations_L))
        return [found[i] for i in range(len(tokens))]


def _numpy(found: torch.Tensor | None) -> Any:
    return None if found is None else found.cpu().numpy()


def streamed_level(piece: FloatArray) -> FloatArray:
    """A rendered piece (n,) at the level of streams."""
    return np.asarray(np.clip(_STREAM_PEAK * piece, -1.0, 1.0))


def parallel(synthesiser: Synthesiser, purpose: str) -> ParallelModel:
    """The model, of kind parallel. Raises InputError, naming the `purpose`, for one of another kind."""
    if not isinstance(synthesiser.model, ParallelModel):
        raise InputError(f"only a model of kind parallel can {purpose}; this one is autoregressive")
    return synthesiser.model
