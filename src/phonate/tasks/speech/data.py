"""The recordings that a voice is trained on: what is said, how long each token lasts, training samples.

Shapes: B batch, L tokens, T frames, M mel bands.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic_core import from_json

from phonate import text as package
from phonate.audio.decoding import FloatArray
from phonate.audio.processor import AudioProcessor
from phonate.audio.settings import AudioConfig
from phonate.config.errors import DataError, InputError
from phonate.data.batches import padded
from phonate.data.cache import FeatureCache
from phonate.data.cluster import executor_of
from phonate.data.corpora.rows import Problem
from phonate.data.corpora.validation import TOO_SHORT, CheckedRow, warn_left_out
from phonate.data.derived import DerivedFeatures, open_derived, open_pitch
from phonate.data.parallel import Here
from phonate.data.prepared import PreparedCorpus, WholeRecordings, prepare_to_train
from phonate.tasks.speech import durations as textgrids
from phonate.tasks.speech.arrays import MIDDLE_F0, NOISE
from phonate.tasks.speech.durations import Aligner, Durations, PocketsphinxAligner, TextGridFiles, TextGridTimes
from phonate.text.english.normalisation import says_all
from phonate.text.english.phonemizer import EnglishPhonemizer
from phonate.text.phonemes import Inventory, Phonemizer, Word, phonemizer
from phonate.training.task import Batch

if TYPE_CHECKING:
    from phonate.tasks.speech.settings import SpeechData

# ------ The recordings that a voice is trained on: what is said in each, and how long each phone lasts

_VERSION = 3  # raise it when durations are computed otherwise


class SpeechCorpus:
    """The prepared corpus at `data.path`, with phones, durations and pitch of each recording."""

    def __init__(self, data: SpeechData) -> None:
        self.data = data
        self.prepared: PreparedCorpus = prepare_to_train(data)
        self.phonemizer = phonemizer(data.phonemes, data.language)
        self.inventory = Inventory.of(self.phonemizer)
        self.speakers = self.prepared.speakers

    @cached_property
    def processor(self) -> AudioProcessor:
        """Computes mels as the corpus has them."""
        return AudioProcessor(self.data.audio)

    def positions(self, split: str) -> list[int]:
        """Positions in the index of a split's recordings; those that can't be aligned are left out."""
        aligned = [position for position in self.prepared.positions(split) if len(self.durations[position])]
        if split == "train" and not aligned:
            raise DataError(f"{self.data.path}: no recording of it can be aligned with its text")
        return aligned

    @cached_property
    def words(self) -> list[list[Word]]:
        """The words of each recording, pronounced as in its alignment; none where there is no text that can be spoken,
        or a TextGrid that is missing or does not belong to the text. Those are counted and named in a warning.

        Raises DataError where that leaves no recording.
        """
        if self.data.durations not in {"mfa", "espeak"}:
            return self._written
        words: list[list[Word]] = [[] for _ in self._written]
        problems = list(self._textgrid_files.problems)
        for position in self._textgrid_files.paths:
            try:
                written = self._written[position]
                mfa = self.data.durations == "mfa"
                words[position] = self._textgrids.pronunciations(position, written) if mfa else written
            except DataError as error:
                problems.append(str(error))
        if problems and not any(words):
            raise DataError(f"{self.data.path}: no recording can be aligned with its text; the first: {problems[0]}")
        warn_left_out("can't be aligned with their texts", problems)
        return words

    @cached_property
    def _written(self) -> list[list[Word]]:
        texts, ids = self.prepared.index.text, self.prepared.index.id
        all_texts = [texts[position] for position in range(len(texts))]
        words, reasons = kept_words(self.prepared.folder, all_texts, self.phonemizer)
        refused = [f"{ids[position]}: {reason}" for position, reason in reasons.items()]
        if len(refused) == len(words):
            raise DataError(f"{self.data.path}: no recording has a text; the first: {refused[0]}")
        warn_left_out("have no text that can be spoken", refused)
        return words

    @cached_property
    def pitch(self) -> DerivedFeatures:
        """F0 (T, 1) in Hz of each recording."""
        return open_pitch(self.prepared, self.data.audio, self.data.f0_method)

    @cached_property
    def durations(self) -> DerivedFeatures:
        """Frames (L, 1) of each token of each recording; (0, 1) where it can't be aligned."""
        digest = hashlib.blake2b(digest_size=8)
        for words in self.words:
            digest.update(repr([(word.phones, word.mark) for word in words]).encode())
        digest.update(self._alignment_facts().encode())
        name = f"durations-{self.data.durations}-v{_VERSION}-{digest.hexdigest()}"
        folder = self.prepared.folder / name
        if folder.is_dir():
            aligned = open_derived(folder, len(self.words), _never)
            missing = [position for position, words in enumerate(self.words) if words and not len(aligned[position])]
            warn_left_out("could not be aligned with their texts", [self.prepared.index.id[i] for i in missing])
            return aligned
        failed: list[str] = []

        def noted(position: int, aligned: tuple[FloatArray, str]) -> FloatArray:
            if aligned[1]:
                failed.append(f"{self.prepared.index.id[position]}: {aligned[1]}")
            return aligned[0]

        align = partial(_aligned, self._aligner(), self.words, np.asarray(self.prepared.index.frames))
        # TextGrids are read within milliseconds
        computed = self.data.durations in {"pocketsphinx", "learnt"}
        executor = executor_of(self.prepared.executor if computed else "local", Here())
        derived = open_derived(folder, len(self.words), align, np.float32, executor, "aligning texts", noted)
        warn_left_out("can't be aligned with their texts", failed)
        return derived

    def _alignment_facts(self) -> str:
        """What durations depend on beside the recordings and their words."""
        if self.data.durations == "learnt":
            from phonate.tasks.speech.aligner import VERSION

            return f"{VERSION} {self.data.aligner_steps}"
        if self.data.durations in {"mfa", "espeak"}:
            return textgrids.fingerprint(list(self._textgrid_files.paths.values()))
        return ""

    @cached_property
    def _textgrid_files(self) -> TextGridFiles:
        index = self.prepared.index
        spoken = [position for position, words in enumerate(self._written) if words]
        if self.data.durations == "mfa":
            if self.data.alignments is None:
                raise InputError("data.durations: mfa needs the folder of its TextGrids; name it by data.alignments")
            return textgrids.in_folder(
                Path(self.data.alignments), {position: index.id[position] for position in spoken}
            )
        return textgrids.beside({position: Path(index.path[position]) for position in spoken})

    @cached_property
    def _textgrids(self) -> TextGridTimes:
        index, audio = self.prepared.index, self.data.audio
        return TextGridTimes(
            self._textgrid_files.paths, index.id, index.frames, audio.frames_per_second, self.phonemizer.symbols
        )

    def _aligner(self) -> Aligner:
        if self.data.durations == "pocketsphinx":
            return self._pocketsphinx()
        if self.data.durations == "mfa":
            return self._textgrids
        frames_per_second = self.data.audio.frames_per_second
        if self.data.durations == "espeak":
            from phonate.tasks.speech.durations import EspeakTimes

            if self.phonemizer.name != "espeak":
                raise InputError("data.durations: espeak gives times of espeak's phones; set data.phonemes to espeak")
            return EspeakTimes(self._textgrid_files.paths, self.prepared.index.frames, frames_per_second)
        from phonate.tasks.speech.aligner import AlignmentDataset, LearntAligner

        recordings = AlignmentDataset(self.prepared, self.words, self.inventory, frames_per_second)
        learnt = LearntAligner(recordings, self.prepared.folder, self.data.aligner_steps)
        if recordings.positions:
            _ = learnt.model  # trained here, wherever it is used
        return learnt

    def _pocketsphinx(self) -> Aligner:
        if self.phonemizer.name != "english":
            raise InputError(
                "data.durations: pocketsphinx only knows English phones; set data.phonemes to english, or "
                "data.durations to learnt"
            )
        return partial(
            _by_pocketsphinx,
            PocketsphinxAligner(self.words),
            self.prepared.cache,
            np.asarray(self.prepared.index.frames),
            self.data.audio,
        )


def _aligned(
    align: Aligner, words: Sequence[Sequence[Word]], frames: NDArray[np.int64], position: int
) -> tuple[FloatArray, str]:
    """Frames (L, 1) of each token of a recording; (0, 1) where it can't be aligned, and why, where it has words."""
    none = np.zeros((0, 1), dtype=np.float32)
    if not words[position]:
        return none, ""
    try:
        _require_frames(words[position], int(frames[position]))
        return align(position, words[position]).astype(np.float32)[:, None], ""
    except DataError as error:
        return none, str(error)


def _by_pocketsphinx(
    aligner: PocketsphinxAligner,
    cache: FeatureCache,
    frames: NDArray[np.int64],
    audio: AudioConfig,
    position: int,
    words: Sequence[Word],
) -> Durations:
    waveform = cache.waveform(position)
    return aligner(waveform, audio.sample_rate, words, int(frames[position]), audio.frames_per_second)


def refusals(recordings: Sequence[CheckedRow], data: SpeechData) -> list[Problem]:
    """The recordings whose texts can't be spoken, or have more phones than the recording has frames."""
    words, reasons = words_of([one.row.text or "" for one in recordings], phonemizer(data.phones_by, data.language))
    processor, rate = AudioProcessor(data.audio), data.audio.sample_rate
    problems: list[Problem] = []
    for position, one in enumerate(recordings):
        if position in reasons:
            problems.append(Problem(one.row.id, one.row.place, "no text", reasons[position]))
            continue
        try:
            _require_frames(words[position], processor.frames(round(one.seconds * rate)))
        except DataError as error:
            problems.append(Problem(one.row.id, one.row.place, TOO_SHORT, str(error)))
    return problems


def _require_frames(words: Sequence[Word], frames: int) -> None:
    """Raise DataError where a recording has fewer frames than its text has phones: no aligner can fit them in."""
    phones = sum(len(word.phones) for word in words)
    if phones > frames:
        raise DataError(f"its {frames} frames are too short for the {phones} phones of its text")


def _never(position: int) -> FloatArray:
    raise AssertionError("nothing is computed for features that are there")


# ---------- The words of the texts: pronounced once, and kept beside the features of the recordings


def words_of(texts: Iterable[str], phonemizer: Phonemizer) -> tuple[list[list[Word]], dict[int, str]]:
    """The words of each text, none where nothing can be spoken; and why, by position."""
    words: list[list[Word]] = []
    reasons: dict[int, str] = {}
    for position, text in enumerate(texts):
        try:
            words.append(phonemizer(text))
        except InputError as error:
            reasons[position] = str(error)
            words.append([])
    return words, reasons


def kept_words(folder: Path, texts: Sequence[str], phonemizer: Phonemizer) -> tuple[list[list[Word]], dict[int, str]]:
    """As `words_of`, with the words of English texts kept in `folder`, unless that can only be read.

    Another phonemizer's words depend on more than this package, or are there as soon as they are read. A text of which
    nothing or not all can be spoken is not kept: that is told by each run.
    """
    if type(phonemizer) is not EnglishPhonemizer:  # a plug-in's may have other words by the same name
        return words_of(texts, phonemizer)
    facts = json.dumps([_package(), phonemizer.language, list(texts)]).encode()
    words_folder = folder / f"words-{phonemizer.name}-{hashlib.blake2b(facts, digest_size=8).hexdigest()}"
    if not words_folder.is_dir() and not os.access(folder, os.W_OK):  # what others share can be trained on
        return words_of(texts, phonemizer)
    kept = open_derived(words_folder, len(texts), partial(_written, texts, phonemizer), np.uint8, what="pronouncing")
    words = [_read(kept[position].tobytes()) for position in range(len(texts))]
    others = [position for position, found in enumerate(words) if not found]
    anew, reasons = words_of([texts[position] for position in others], phonemizer)
    for position, found in zip(others, anew, strict=True):
        words[position] = found
    return words, {others[number]: reason for number, reason in reasons.items()}


def _written(texts: Sequence[str], phonemizer: Phonemizer, position: int) -> NDArray[np.uint8]:
    """The words of a text as JSON, with a byte as a frame (N, 1); no bytes where they are not kept."""
    words: list[Word] = []
    if says_all(texts[position]):
        with contextlib.suppress(InputError):
            words = phonemizer(texts[position])
    document = json.dumps([[one.text, one.phones, one.mark, one.pause] for one in words]) if words else ""
    return np.frombuffer(document.encode(), np.uint8)[:, None]


def _read(document: bytes) -> list[Word]:
    return [Word(text, tuple(phones), mark, pause) for text, phones, mark, pause in from_json(document or b"[]")]


@cache
def _package() -> str:
    """A digest of all that words depend on beside the text. Which characters are letters depends on Python."""
    digest = hashlib.blake2b(platform.python_version().encode(), digest_size=8)
    root = Path(package.__path__[0])
    for file in sorted(root.rglob("*")):
        if file.suffix in {".py", ".txt", ".gz"}:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


# ------------------------------------------------------------------ Training samples of text-to-speech


@dataclass(frozen=True)
class SpeechItem:
    """One sample."""

    tokens_L: NDArray[np.int64]
    durations_L: NDArray[np.int64]
    pitch_T2: FloatArray
    """Log F0 over 200 Hz of each frame, going on where there is no voice, and 1 where there is one."""
    energy_L: FloatArray
    mel_TM: FloatArray
    speaker: int
    noise_TN: FloatArray
    """Random numbers for what the text does not say."""
    crop: float
    """Where the discriminator looks, from 0 to 1."""


class SpeechDataset(WholeRecordings):
    """One split, whole recordings."""

    def __init__(self, corpus: SpeechCorpus, split: str) -> None:
        super().__init__(corpus.prepared, corpus.positions(split), corpus.data.audio)
        self._corpus = corpus

    def get(self, index: int, rng: np.random.Generator) -> SpeechItem:
        """Sample number `index`."""
        corpus, position = self._corpus, self.positions[index]
        durations_L = corpus.durations[position][:, 0].astype(np.int64)
        mel_TM = corpus.prepared.cache.features(position)
        return SpeechItem(
            tokens_L=np.array(corpus.inventory.ids(corpus.words[position]), dtype=np.int64),
            durations_L=durations_L,
            pitch_T2=melody(corpus.pitch[position][:, 0]),
            energy_L=token_means(mel_TM.mean(axis=1), durations_L),
            mel_TM=mel_TM,
            speaker=int(corpus.prepared.index.speaker[position]),
            noise_TN=rng.standard_normal((len(mel_TM), NOISE), dtype=np.float32),
            crop=float(rng.random()),
        )

    def collate(self, items: list[Any]) -> Batch:
        """`tokens` (B, L) with 0 after the ends, `durations` (B, L), `pitch` (B, T, 2), `energy` (B, L), `target`
        (B, T, M), `speaker_id` (B,), `token_lengths` (B,), `lengths` (B,), `noise` (B, T, 16), `crop` (B,)."""
        return {
            "tokens": padded([item.tokens_L for item in items]),
            "durations": padded([item.durations_L for item in items]),
            "pitch": padded([item.pitch_T2 for item in items]),
            "energy": padded([item.energy_L for item in items]),
            "target": padded([item.mel_TM for item in items]),
            "speaker_id": torch.tensor([item.speaker for item in items]),
            "token_lengths": torch.tensor([len(item.tokens_L) for item in items]),
            "lengths": torch.tensor([len(item.mel_TM) for item in items]),
            "noise": padded([item.noise_TN for item in items]),
            "crop": torch.tensor([item.crop for item in items], dtype=torch.float32),
        }

    def unit_counts(self, batch: Batch) -> dict[str, float]:
        """Items, tokens, frames, voiced ones too, and elements of the mel."""
        frames = int(batch["lengths"].sum())
        return {
            "items": len(batch["tokens"]),
            "tokens": int(batch["token_lengths"].sum()),
            "frames": frames,
            "voiced frames": float(batch["pitch"][..., 1].sum()),
            "elements": frames * batch["target"].shape[-1],
        }


def token_means(values_T: FloatArray, durations_L: NDArray[np.int64]) -> FloatArray:
    """Mean of the frames of each token (L,); 0 for tokens without frames."""
    sums = np.concatenate([[0.0], np.cumsum(values_T, dtype=np.float64)])
    edges = np.concatenate([[0], np.cumsum(durations_L)])
    return np.asarray((sums[edges[1:]] - sums[edges[:-1]]) / np.maximum(durations_L, 1), dtype=np.float32)


def melody(f0_T: FloatArray) -> FloatArray:
    """(T, 2): log F0 over 200 Hz, in a straight line where there is no voice (0 where there is none at all), and 1
    where there is one."""
    voiced_T = f0_T > 0
    contour_T = np.zeros(len(f0_T), dtype=np.float32)
    if voiced_T.any():
        frames = np.flatnonzero(voiced_T)
        contour_T = np.interp(np.arange(len(f0_T)), frames, np.log(f0_T[frames] / MIDDLE_F0)).astype(np.float32)
    return np.stack([contour_T, voiced_T.astype(np.float32)], axis=1)
