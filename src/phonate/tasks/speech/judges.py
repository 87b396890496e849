"""Judges of synthesised speech: a recogniser, a MOS predictor and a speaker encoder."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError, MissingPackageError
from phonate.config.language_codes import is_english, primary
from phonate.config.metrics import plain
from phonate.config.packages import optional_package
from phonate.evaluation.distances import Distances, distances
from phonate.evaluation.held_out import Sentence
from phonate.evaluation.naturalness import NaturalnessJudge
from phonate.evaluation.packages import judge_of
from phonate.evaluation.speaker_similarity import SpeakerJudge
from phonate.evaluation.transcription import Recogniser, character_error_rate, word_edits, word_error_rate
from phonate.evaluation.words import WordErrors, count
from phonate.tasks.speech.settings import SpeechRecipe

INSTALL_JUDGES = "pip install 'phonate[eval]' && pip install --no-deps distillmos xls-r-sqa"
_WORD_PACKAGES = ("jiwer", "rapidfuzz", "whisper_normalizer")
WORD_WEIGHT = 5.0
"""MOS points subtracted in `quality` per unit of WER: 20 % of wrong words cost one point."""


class Judges:
    """The judges, None where they are not installed."""

    def __init__(self, language: str) -> None:
        self.english = is_english(language)
        self.recogniser = judge_of("wer, cer", self._recogniser(language))

    def _recogniser(self, language: str) -> Callable[[], Recogniser]:
        def make() -> Recogniser:
            for package in _WORD_PACKAGES if self.english else ():
                optional_package(package, "word errors")
            return Recogniser("tiny.en", "en") if self.english else Recogniser("base", primary(language))

        return make

    @cached_property
    def naturalness(self) -> NaturalnessJudge | None:
        """Predicts listeners' scores."""
        return judge_of("mos", NaturalnessJudge)

    @cached_property
    def speakers(self) -> SpeakerJudge | None:
        """Compares voices."""
        return judge_of("speaker", SpeakerJudge)

    @cached_property
    def distances(self) -> Callable[..., Distances] | None:
        """Compares recordings of one text frame by frame."""
        needed = judge_of("mcd, f0, voicing", lambda: optional_package("librosa", "aligning two recordings"))
        return None if needed is None else distances

    def word_edits(self, texts: Sequence[str], heard: Sequence[str]) -> tuple[int, int]:
        """Word edits, and words of the texts."""
        if self.english:
            errors = count(texts, heard)
            return errors.substituted + errors.inserted + errors.deleted, errors.words
        return word_edits(texts, heard)

    def word_errors(self, texts: Sequence[str], heard: Sequence[str]) -> dict[str, float]:
        """wer and cer; for English also skipped and repeated words."""
        rates = {"wer": word_error_rate(texts, heard), "cer": character_error_rate(texts, heard)}
        if self.english:
            errors: WordErrors = count(texts, heard)
            rates |= {"wer": errors.rate, "skipped": float(errors.skipped), "repeated": float(errors.repeated)}
        return rates


def missing_judges() -> list[str]:
    """Packages that judging English needs and that are not installed."""
    packages = ("faster_whisper", *_WORD_PACKAGES, "distillmos", "xls_r_sqa")
    return [name for name in packages if importlib.util.find_spec(name) is None]


def check_judges(recipe: SpeechRecipe) -> None:
    """Check the judges of a recipe before training: raise MissingPackageError if a package is missing, and InputError
    if the best checkpoint depends on judged texts and there are none."""
    without = "data.judged=0 training.validation.metric_for_best_model=step"
    best = plain(recipe.training.best_metric)
    if recipe.data.judged:
        if missing := missing_judges():
            raise MissingPackageError(
                f"data.judged={recipe.data.judged}: judging needs {', '.join(missing)}, not installed; "
                f"{INSTALL_JUDGES}, or take the newest checkpoint: {without}"
            )
    elif best in ("wer", "mos", "quality"):
        raise InputError(
            f"training.validation.metric_for_best_model: {best} is measured on data.judged texts, and that "
            f"is 0; raise it, or take the newest: {without}"
        )


def judged(
    judges: Judges, clips: Sequence[Sentence], waveforms: Sequence[FloatArray], rate: int
) -> dict[str, tuple[float, float]]:
    """Sum and count of `wer` (word errors, words) and `mos` (predicted scores, clips) of synthesised texts.

    Args:
        clips: The texts.
        waveforms: One array (samples,) for each of them.
        rate: Samples per second.
    """
    recogniser, naturalness = judges.recogniser, judges.naturalness
    assert recogniser is not None, "check_judges"
    assert naturalness is not None, "check_judges"
    heard = [recogniser.transcribe(waveform, rate) for waveform in waveforms]
    scores = [naturalness.score_made(waveform, rate, clip.id) for clip, waveform in zip(clips, waveforms, strict=True)]
    return {
        "wer": judges.word_edits([clip.text for clip in clips], heard),
        "mos": (float(np.sum(scores)), len(scores)),
    }


def quality(mos: float, wer: float) -> float:
    """Predicted score minus 5 times the word error rate."""
    return mos - WORD_WEIGHT * wer
