"""The pairs of a run: read, checked, split, and their recordings as codes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from phonate.audio.decoding import read_audio
from phonate.compute.limits import cores
from phonate.config.errors import DataError, InputError
from phonate.data.codes.store import Codes, CodeStore
from phonate.data.dialogues.dialogue import Audio, split_by_contents
from phonate.data.manifests.rows import Problem
from phonate.data.settings import cache_folder
from phonate.tasks.cloning.pairs.checking import MALFORMED, CheckedPairs, check_pairs
from phonate.tasks.cloning.pairs.samples import CloningSample
from phonate.tasks.cloning.pairs.settings import CloningData
from phonate.text.arabic import normalise_arabic
from phonate.text.arabic_settings import ArabicText

if TYPE_CHECKING:
    from phonate.audio.higgs_codec import HiggsCodec

logger = logging.getLogger("phonate")

_THREADS = 4
"""Reading and encoding at the same time; the codec itself uses all cores, or the GPU."""
NAMED = 5
"""Rows of each kind of problem that the log names."""


class Corpus:
    """The pairs at `data.path`, read and checked when they are first needed."""

    def __init__(self, data: CloningData, codec: Callable[[], HiggsCodec]) -> None:
        """`codec` is called once, when codes are first needed."""
        self.data = data
        self._codec = codec
        self._cache = cache_folder(data.cache_dir) / "codes"

    @cached_property
    def checked(self) -> CheckedPairs:
        """The pairs that can be used. Raises DataError if there are none."""
        path = Path(self.data.path).absolute()
        remembered = self._cache / f"checked-{hashlib.sha256(bytes(path)).hexdigest()[:16]}.jsonl"
        checked = check_pairs(self.data, remembered)
        _log(checked.report.refused, f"{self.data.path}: %d of {checked.report.listed} rows are left out, %s")
        _log(checked.report.warnings, f"{self.data.path}: %d rows have findings, %s")
        checked.report.require_usable()
        return checked

    @cached_property
    def _splits(self) -> tuple[list[CloningSample], list[CloningSample]]:
        facts = self.checked.facts
        samples = [normalised(sample, self.data.arabic) for sample in self.checked.samples]
        contents = [[facts[sample.target].digest] for sample in samples]
        train, validation = split_by_contents(samples, contents, self.data.validation)
        logger.info("%s: %d pairs for training, %d for validation", self.data.path, len(train), len(validation))
        return train, validation

    def samples(self, split: str) -> list[CloningSample]:
        """The pairs of "train" or "validation", with texts as `data.arabic` says.

        The side of a pair depends on the samples of its target alone, so that a target, also a copy of it in another
        file, is on one side only. Raises DataError if no pair can be used.
        """
        return self._splits[split != "train"]

    def seconds(self, audio: Audio) -> float:
        """Length of an audio of a pair."""
        return self.checked.facts[audio].quality.duration

    def codes(self, audio: Audio) -> Codes:
        """The codes (T, K) of an audio of a pair; those of the whole corpus are made when the first are asked for.

        Raises:
            DataError: A recording can't be read any more, the cache is damaged, or it can't be written.
            InputError: The codec can't be loaded.
        """
        return self.store[self.checked.facts[audio].digest]

    def frames(self, audio: Audio) -> int:
        """T of `codes`."""
        return self.store.frames(self.checked.facts[audio].digest)

    @cached_property
    def store(self) -> CodeStore:
        """The codes of all recordings of all pairs, by digest."""
        codec = self._codec()
        store = CodeStore(self._cache / codec.fingerprint, codec.codebooks, codec.codebook_size)
        facts = self.checked.facts
        used = [audio for one in self.checked.samples for audio in (one.reference, one.target)]
        audio_of = {facts[audio].digest: audio for audio in reversed(used)}
        threads = self.data.workers or min(_THREADS, cores())
        store.add(list(audio_of), lambda digest: encode(codec, audio_of[digest]), threads)
        codec.to("cpu")  # its work is done, and a GPU's memory is for the model
        return store


def normalised(sample: CloningSample, arabic: ArabicText) -> CloningSample:
    """The sample with texts as `data.arabic` says."""
    said = sample.reference_text
    return replace(
        sample,
        reference_text=None if said is None else normalise_arabic(said, arabic) or None,
        target_text=normalise_arabic(sample.target_text, arabic),
    )


def encode(codec: HiggsCodec, audio: Audio) -> Codes:
    """The codes (T, K) of an audio. Raises DataError if it can't be read, or is shorter than a frame."""
    duration = None if audio.end is None else audio.end - audio.start
    waveform, rate = read_audio(audio.path, offset=audio.start, duration=duration)
    try:
        return codec.encode(waveform, rate)
    except InputError as error:
        raise DataError(f"{audio.path}: {error}") from error


def _log(problems: list[Problem], message: str) -> None:
    """How many rows have problems, how many of each kind, and the first of each kind. Malformed rows were named when
    they were read."""
    if not problems:
        return
    kinds: dict[str, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(problem.reason, []).append(problem)
    logger.warning(message, len(problems), ", ".join(f"{len(found)} {reason}" for reason, found in kinds.items()))
    for reason, found in kinds.items():
        if reason == MALFORMED:
            continue
        for problem in found[:NAMED]:
            logger.warning("%s: %s: %s", problem.place, reason, problem.detail)
        if len(found) > NAMED:
            logger.warning("... and %d more: %s", len(found) - NAMED, reason)
