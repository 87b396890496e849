"""What recognises words: a run of the task recognition, or a model that comes trained."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, overload

from phonate.audio.decoding import Audio, AudioT
from phonate.data.transcripts import Speakers, Transcription
from phonate.training.checkpoints.listing import located
from phonate.training.inference import Device, Inference

PRETRAINED = "whisper"
"""`whisper` is the best model that is installed, whisper/small one by its name in faster-whisper."""
_CHECKPOINTS = ("checkpoints", "manifest.json")
"""One of these is in a run's folder or in a checkpoint's."""


class Recogniser(Inference):
    """Tells what is said in recordings."""

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """The recogniser of a run, of one checkpoint, or of what comes trained: whisper, whisper/NAME, the folder of a
        Whisper model, or its name on the hub. Errors are those of the two classes' `load`."""
        path = located(Path(source))
        trained_here = any((path / name).exists() for name in _CHECKPOINTS)
        module = importlib.import_module(f"phonate.tasks.recognition.{'inference' if trained_here else 'whisper'}")
        chosen: type[Self] = module.Transcriber if trained_here else module.WhisperTranscriber
        return chosen.load(source, device=device)

    @overload
    def transcribe(
        self,
        audio: Audio,
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: None = None,
    ) -> str: ...

    @overload
    def transcribe(
        self,
        audio: Audio,
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: Speakers,
    ) -> Transcription: ...

    @overload
    def transcribe(
        self,
        audio: list[AudioT] | tuple[AudioT, ...],
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: None = None,
    ) -> list[str]: ...

    def transcribe(
        self,
        audio: Audio | list[AudioT] | tuple[AudioT, ...],
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: Speakers | None = None,
    ) -> str | list[str] | Transcription:
        """What is said in a recording, or in each of a list; "" for silence. With `speakers`, as `timed`.

        Arguments and errors are those of `timed`.
        """
        if isinstance(audio, list | tuple):
            return self._texts(audio, beam, sample_rate, language)
        if speakers is None:
            return self._texts([audio], beam, sample_rate, language)[0]
        return self.timed(audio, beam, sample_rate=sample_rate, language=language, speakers=speakers)

    def _texts(
        self, audios: Sequence[Audio], beam: int | None, sample_rate: int | None, language: str | None
    ) -> list[str]:
        return [self.timed(one, beam, sample_rate=sample_rate, language=language).text for one in audios]

    @abstractmethod
    def timed(
        self,
        audio: Audio,
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: Speakers | None = None,
    ) -> Transcription:
        """The words of a recording with their times, confidences and speakers.

        Args:
            audio: The path of a recording of any format, rate and length; or samples (N,).
            beam: Hypotheses that the search keeps; 1 is the fastest. None: the model's own choice.
            sample_rate: Hz of arrays; None: they are at `self.sample_rate`.
            language: Such as "de"; None: the model's.
            speakers: Who speaks when, or a diarizer, which tells it; None: no speakers.

        Raises InputError for a beam under 1 and a language that the model does not know, DataError for audio that can't
        be read.
        """

    @abstractmethod
    def stream(
        self, audio: Audio, beam: int | None = None, *, sample_rate: int | None = None, language: str | None = None
    ) -> Iterator[str]:
        """As `transcribe` for one long recording, part by part; parts end in pauses."""
