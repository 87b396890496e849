"""Intelligibility: transcription by a speech recogniser, and error rates against the text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.audio.whisper import SAMPLE_RATE, load_whisper


@dataclass(frozen=True)
class Heard:
    """What a recogniser made of a waveform, with the two measures by which Whisper tells failed transcripts (Radford et
    al. 2022, section 4.5)."""

    text: str
    log_probability: float
    """Mean of the log probabilities of the tokens, of the least certain stretch of up to 30 s."""
    compression: float
    """How many times smaller gzip makes the text, at most; above 2.4 the same words are repeated over and over."""


class Recogniser:
    """Whisper (faster-whisper) with greedy decoding, so that results are reproducible."""

    def __init__(self, model: str = "tiny.en", language: str = "en", threads: int = 0) -> None:
        """`model`: see `phonate.audio.whisper.whisper_model`. `threads`: 0 for all cores."""
        self.name, self.language = model, language
        self._model = load_whisper(model, "transcription", threads)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model knows, such as "de"."""
        return tuple(self._model.supported_languages)

    def transcribe(self, waveform: FloatArray, sample_rate: int) -> str:
        """The words recognised in a waveform (samples,) at `sample_rate` Hz."""
        return self.hear(waveform, sample_rate).text

    def hear(self, waveform: FloatArray, sample_rate: int) -> Heard:
        """The words recognised in a waveform (samples,) at `sample_rate` Hz, and how sure the model is of them."""
        segments, _ = self._model.transcribe(
            _resampled(waveform, sample_rate),
            language=self.language,
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        found = list(segments)
        return Heard(
            " ".join(segment.text.strip() for segment in found),
            min((float(segment.avg_logprob) for segment in found), default=0.0),
            max((float(segment.compression_ratio) for segment in found), default=0.0),
        )

    def detect(self, waveform: FloatArray, sample_rate: int) -> str:
        """The language spoken in a waveform (samples,) at `sample_rate` Hz, such as "ar"; a multilingual model's
        guess."""
        found: str = self._model.detect_language(_resampled(waveform, sample_rate))[0]
        return found


def _resampled(waveform: FloatArray, sample_rate: int) -> FloatArray:
    import soxr

    samples = np.asarray(waveform, dtype=np.float32)
    return samples if sample_rate == SAMPLE_RATE else np.asarray(soxr.resample(samples, sample_rate, SAMPLE_RATE))


def plain(text: str) -> str:
    """Lower-case words and digits without accents and punctuation, separated by single spaces."""
    letters = unicodedata.normalize("NFKD", text.lower().replace("-", " "))
    kept = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(re.sub(r"[^\w\s]|_", "", kept).split())


def character_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Character error rate over all pairs, after `plain`. References must not be empty."""
    edits, length = character_edits(references, hypotheses)
    return edits / length


def word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Word error rate over all pairs, after `plain`. References must not be empty."""
    edits, length = word_edits(references, hypotheses)
    return edits / length


def word_edits(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Word edits (substitutions, insertions, deletions) and reference words of all pairs, after `plain`."""
    return _edits(str.split, references, hypotheses)


def character_edits(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Character edits and reference characters of all pairs, after `plain`."""
    return _edits(list, references, hypotheses)


def _edits(units: Callable[[str], list[str]], references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    normal = [plain(text) for text in references]
    if not normal or not all(normal):
        raise ValueError("an error rate needs reference texts with at least one word each")
    pairs = [(units(text), units(plain(heard))) for text, heard in zip(normal, hypotheses, strict=True)]
    return sum(edit_distance(text, heard) for text, heard in pairs), sum(len(text) for text, _ in pairs)


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """The fewest substitutions, insertions and deletions that make `other` of `one` (Levenshtein)."""
    numbers = {unit: number for number, unit in enumerate({*one, *other})}
    other_N = np.array([numbers[unit] for unit in other], dtype=np.int64)
    place_N = np.arange(len(other) + 1)
    cost_N = place_N  # of making the first N units of `other` of nothing
    for row, unit in enumerate(one, start=1):
        replaced_N = np.minimum(cost_N[:-1] + (other_N != numbers[unit]), cost_N[1:] + 1)
        # An insertion costs one more than the place before: a running minimum, counted from the first place.
        cost_N = np.minimum.accumulate(np.concatenate([[row], replaced_N]) - place_N) + place_N
    return int(cost_N[-1])
