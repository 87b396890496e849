"""Transcription by Whisper models (Radford et al. 2022), which come trained: the ones in packages, on the hub, or in a
folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from phonate.audio.decoding import Audio, FloatArray, as_waveform, read_blocks, regrouped
from phonate.audio.whisper import SAMPLE_RATE, is_included, load_whisper
from phonate.config.errors import InputError, optional_package
from phonate.config.language_codes import primary
from phonate.data.transcripts import Speakers, Transcription
from phonate.tasks.recognition.inference import PRETRAINED, Recogniser
from phonate.text.captions import TimedWord
from phonate.training.inference import Device, inference_device

_PART_SECONDS = 600.0
"""Length of the parts of a recording that are held in memory, up to ..."""
_CUT_SECONDS = 30.0
"""... so much less: they end at the quietest place there."""
_QUIET_SECONDS = 0.3
_LEVEL = 0.1
"""The root mean square that a part is raised to: Silero's detector overhears quiet speech."""
_MOST_GAIN = 100.0
_SPEECH = 0.2
"""Probability of speech from which Silero lets a stretch pass: overlooked speech is worse than a pause read in vain."""
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""A window whose words repeat or are improbable is read again with the next one (Radford et al. 2022, section 4.5)."""


class WhisperTranscriber(Recogniser):
    """Transcribes recordings in the languages of a Whisper model."""

    sample_rate: int = SAMPLE_RATE
    inference_metadata: Mapping[str, Any] = {}

    def __init__(self, model: str, device: str | torch.device = "cpu") -> None:
        """`model`: see `phonate.audio.whisper.whisper_model`. Raises the errors of `load_whisper`."""
        self.name = model
        self._device = torch.device(device)
        self._model = load_whisper(model, "transcription", torch.get_num_threads(), str(device))
        self._seed = optional_package("ctranslate2", "transcription").set_random_seed
        self.languages = tuple(self._model.supported_languages)

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None) -> Self:
        """`source`: whisper, whisper/NAME, a folder with a model of faster-whisper, or its name on the hub."""
        name = str(source)
        if name == PRETRAINED:
            name = next((one for one in ("base", "tiny.en") if is_included(one)), "base")
        return cls(name.removeprefix(f"{PRETRAINED}/"), inference_device(device))

    @property
    def networks(self) -> Sequence[nn.Module]:
        """None: CTranslate2 computes, not torch."""
        return ()

    @property
    def device(self) -> torch.device:
        """Where the model was loaded."""
        return self._device

    def to(self, device: Device | None) -> Self:
        """Raises InputError for another device than that of `load`."""
        if device is not None and inference_device(device) != self._device:
            raise InputError(f"Whisper stays on {self._device}: load it with device={str(device)!r}")
        return self

    def timed(
        self,
        audio: Audio,
        beam: int | None = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        speakers: Speakers | None = None,
    ) -> Transcription:
        """As `Recogniser.timed`. `beam` None: 5; `language` None: what the model detects. Files are read in parts of 10
        minutes."""
        words: list[TimedWord] = []
        seconds, code = 0.0, self._language(language)
        for part, start in _parts(self._blocks(audio, sample_rate)):
            said, code = self._words(part, 5 if beam is None else beam, code)
            words += [
                TimedWord(text, first + start, last + start, confidence) for text, first, last, confidence in said
            ]
            seconds = start + len(part) / SAMPLE_RATE
        transcription = Transcription(words, seconds, code)
        return (
            transcription if speakers is None else transcription.spoken_by(speakers, audio, sample_rate or SAMPLE_RATE)
        )

    def stream(
        self, audio: Audio, beam: int | None = None, *, sample_rate: int | None = None, language: str | None = None
    ) -> Iterator[str]:
        """As `Recogniser.stream`, in parts of ten minutes or less."""
        code = self._language(language)
        for part, _ in _parts(self._blocks(audio, sample_rate)):
            said, code = self._words(part, 5 if beam is None else beam, code)
            if said:
                yield " ".join(text for text, *_ in said)

    def _language(self, language: str | None) -> str | None:
        if language is None:
            return "en" if self.languages == ("en",) else None
        if (code := primary(language)) not in self.languages:
            raise InputError(
                f"Whisper {self.name} does not know the language {language!r}, only "
                + ("English; use whisper/base" if self.languages == ("en",) else f"{len(self.languages)} others")
            )
        return code

    def _blocks(self, audio: Audio, sample_rate: int | None) -> Iterator[FloatArray]:
        if isinstance(audio, str | Path) and sample_rate is None:
            return read_blocks(audio, SAMPLE_RATE)
        return iter([as_waveform(audio, SAMPLE_RATE, sample_rate)])

    def _words(
        self, part: FloatArray, beam: int, language: str | None
    ) -> tuple[list[tuple[str, float, float, float]], str | None]:
        """The words of a part with start, end and confidence, and the language."""
        if beam < 1:
            raise InputError(f"beam {beam}: must be 1 or more; 1 is the fastest, 5 a good value")
        if not part.any():
            return [], language
        level = float(np.sqrt(np.mean(np.square(part, dtype=np.float64))))
        louder = np.clip(part * min(max(1.0, _LEVEL / level), _MOST_GAIN), -1.0, 1.0)
        self._seed(0)  # of the draws at temperatures above 0, so that a recording has one transcript
        segments, info = self._model.transcribe(
            louder,
            language=language,
            beam_size=beam,
            temperature=_TEMPERATURES,
            condition_on_previous_text=False,
            word_timestamps=True,
            vad_filter=True,
            vad_parameters={"threshold": _SPEECH},
        )
        words = [
            (word.word.strip(), float(word.start), float(word.end), round(float(word.probability), 4))
            for segment in segments
            for word in segment.words or ()
            if word.word.strip()
        ]
        # a part without speech tells no language
        return words, (language or info.language) if words else language


def _parts(blocks: Iterator[FloatArray]) -> Iterator[tuple[FloatArray, float]]:
    """The recording in parts of up to ten minutes, cut where it is quietest, and the second at which each begins."""
    most, margin = round(_PART_SECONDS * SAMPLE_RATE), round(_CUT_SECONDS * SAMPLE_RATE)
    rest, start = np.zeros(0, dtype=np.float32), 0
    for block in regrouped(blocks, margin):
        rest = np.concatenate([rest, block])
        if len(rest) >= most:
            cut = most - margin + _quietest(rest[most - margin : most])
            yield rest[:cut], start / SAMPLE_RATE
            rest, start = rest[cut:], start + cut
    if len(rest):
        yield rest, start / SAMPLE_RATE


def _quietest(samples: FloatArray) -> int:
    """The middle of the quietest stretch of samples (N,)."""
    size = round(_QUIET_SECONDS * SAMPLE_RATE)
    energy = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    return int((energy[size:] - energy[:-size]).argmin()) + size // 2
