"""The recordings that a recogniser is trained on, the symbols of their texts, and training samples.

Shapes: B batch, L letters, T frames, M mel bands.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from phonate.audio.augmentation import DataAugmentation
from phonate.audio.decoding import FloatArray, resample
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import DataError, InputError
from phonate.config.language_codes import is_english
from phonate.data.batches import padded
from phonate.data.cache import SPLITS
from phonate.data.corpora.rows import Problem
from phonate.data.corpora.validation import TOO_SHORT, CheckedRow, warn_left_out
from phonate.data.prepared import PreparedCorpus, WholeRecordings, prepare_to_train, split_speakers
from phonate.tasks.recognition.model import reduced
from phonate.text.characters import CharacterPhonemizer
from phonate.training.task import Batch

if TYPE_CHECKING:
    from phonate.tasks.recognition.settings import RecognitionData

# ------------- Output symbols of a recogniser: a blank, a space, and the letters of its training texts

BLANK = 0
"""Id of the blank symbol (Graves et al. 2006, section 3.1)."""
_SPACE = " "


class Wording:
    """Text as it is read out: lower case, words separated by single spaces."""

    def __init__(self, language: str, *, refuses: bool = True) -> None:
        """`refuses`: English texts with letters that English does not read; otherwise these are left out."""
        self.language = language
        self._letters = CharacterPhonemizer(language, whole=refuses or not is_english(language))

    def __call__(self, text: str) -> str:
        """English numbers, dates and abbreviations are written out; for other languages letters, marks and digits of
        any script are kept.

        Raises InputError if `text` has nothing to speak, and for letters in English that English does not have.
        """
        return _SPACE.join(word.text for word in self._letters(text))


def as_spoken(language: str) -> Callable[[str], str]:
    """What writes a transcript as it is read out, to compare it: "5" as "five" in English."""
    wording = Wording(language, refuses=False)

    def spoken(text: str) -> str:
        try:
            return wording(text)
        except InputError:  # nothing in it can be spoken, as in an empty one
            return ""

    return spoken


@dataclass(frozen=True)
class Symbols:
    """Letters by id: 1 is the space; 0 is the blank, which is not a letter."""

    letters: tuple[str, ...]
    """All symbols except the blank. Accents are separate symbols (NFD)."""
    language: str

    def __post_init__(self) -> None:
        single = all(isinstance(letter, str) and len(letter) == 1 for letter in self.letters)
        if self.letters[:1] != (_SPACE,) or len(set(self.letters)) != len(self.letters) or not single:
            raise InputError("the symbols of a recogniser must be distinct single letters, the first of them a space")

    def __len__(self) -> int:
        return 1 + len(self.letters)

    @classmethod
    def of(cls, wordings: Iterable[str], language: str) -> Symbols:
        """The letters that occur in `wordings`, in the order of their code points."""
        letters = {letter for wording in wordings for letter in letters_of(wording)} - {_SPACE}
        return cls((_SPACE, *sorted(letters)), language)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Symbols:
        """Read the symbols written by `document()`. Raises InputError if malformed."""
        letters, language = document.get("letters"), document.get("language")
        if not isinstance(letters, list) or not isinstance(language, str):
            raise InputError("the symbols of a recogniser must consist of letters (a list) and a language")
        return cls(tuple(letters), language)

    def document(self) -> dict[str, Any]:
        """The symbols as plain JSON, for `read`."""
        return {"letters": list(self.letters), "language": self.language}

    def ids(self, wording: str) -> list[int]:
        """The ids of the letters of a wording. Raises InputError naming an unknown letter."""
        try:
            return [self._numbers[letter] for letter in letters_of(wording)]
        except KeyError as error:
            raise InputError(f"{error.args[0]!r} in {wording[:60]!r} is not a letter of this recogniser") from None

    def text(self, ids: Sequence[int]) -> str:
        """The text of the ids, with single spaces and none at the ends."""
        written = "".join(self.letters[number - 1] for number in ids)
        return unicodedata.normalize("NFC", _SPACE.join(written.split()))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {letter: number for number, letter in enumerate(self.letters, start=1)}


def letters_of(wording: str) -> str:
    """The letters of a wording, accents as letters of their own."""
    return unicodedata.normalize("NFD", wording)


# ---------------------------- The recordings that a recogniser is trained on, and what is said in each


class RecognitionCorpus:
    """The prepared corpus at `data.path`, with what is said in each recording."""

    def __init__(self, data: RecognitionData) -> None:
        self.data = data
        self.prepared: PreparedCorpus = prepare_to_train(data)

    @cached_property
    def processor(self) -> AudioProcessor:
        """What computes mels."""
        return AudioProcessor(self.data.audio)

    @cached_property
    def wordings(self) -> list[str]:
        """The words of each recording; "" where nothing can be said."""
        index = self.prepared.index
        wordings, reasons = wordings_of([index.text[position] for position in range(len(index))], self.data)
        refused = [f"{index.id[position]}: {reason}" for position, reason in reasons.items()]
        if len(refused) == len(wordings):
            raise DataError(f"{self.data.path}: no recording has a text; the first: {refused[0]}")
        warn_left_out("have no text that can be spoken", refused)
        return wordings

    @cached_property
    def symbols(self) -> Symbols:
        """The letters of the corpus."""
        return Symbols.of(self.wordings, self.data.language)

    def positions(self, split: str) -> list[int]:
        """Positions in the index of a split's recordings, without those that are too short for their texts."""
        return self._usable[split]

    too_long: ClassVar[str] = "are too short for their texts"
    """What is said of recordings that do not fit."""

    @cached_property
    def _usable(self) -> dict[str, list[int]]:
        index = self.prepared.index
        train, validation = self.prepared.train, self.prepared.validation
        official = SPLITS.index("validation") in np.asarray(index.official_split)
        if self.data.validation_by == "speaker" and not official:
            untested = np.union1d(train, validation)
            training, held_out = split_speakers(index.speakers[:], index.speaker[untested], self.data.validation)
            train, validation = untested[training], untested[held_out]
        usable: dict[str, list[int]] = {}
        short: list[str] = []
        for split, positions in (("train", train), ("validation", validation)):
            spoken = [int(position) for position in positions if self.wordings[int(position)]]
            fit = [position for position in spoken if self.fits(position)]
            short += [index.id[position] for position in sorted(set(spoken) - set(fit))]
            usable[split] = fit
        warn_left_out(self.too_long, short)
        if not usable["train"]:
            raise DataError(f"{self.data.path}: all of its recordings {self.too_long}")
        return usable

    def fits(self, position: int) -> bool:
        """Whether the recording is long enough for its text."""
        return fits(self.wordings[position], int(self.prepared.index.frames[position]), self.data)


def wordings_of(texts: Iterable[str], data: RecognitionData) -> tuple[list[str], dict[int, str]]:
    """The words of each text, "" where nothing can be said; and why, by position."""
    wording = Wording(data.language)
    wordings: list[str] = []
    reasons: dict[int, str] = {}
    for position, text in enumerate(texts):
        try:
            wordings.append(wording(text))
        except InputError as error:
            reasons[position] = str(error)
            wordings.append("")
    return wordings, reasons


def fits(wording: str, frames: int, data: RecognitionData) -> bool:
    """Whether the model has a frame for each letter, and one more between two that are the same, which a blank has to
    part, even when the recording of so many frames is played at its fastest."""
    letters = letters_of(wording)
    needed = len(letters) + sum(one == two for one, two in itertools.pairwise(letters))
    stretch = data.augmentation.time_stretch if data.augmentation is not None else None
    fastest = max(1.0, data.speed[1] if data.speed else 1.0) * max(1.0, stretch[1] if stretch else 1.0)
    return bool(reduced(int(frames / fastest)) >= needed)


def refusals(recordings: Sequence[CheckedRow], data: RecognitionData) -> list[Problem]:
    """The recordings whose texts can't be spoken, or are longer than they are."""
    wordings, reasons = wordings_of([one.row.text or "" for one in recordings], data)
    processor, rate = AudioProcessor(data.audio), data.audio.sample_rate
    problems: list[Problem] = []
    for position, (one, wording) in enumerate(zip(recordings, wordings, strict=True)):
        if position in reasons:
            problems.append(Problem(one.row.id, one.row.place, "no text", reasons[position]))
        elif not fits(wording, processor.frames(round(one.seconds * rate)), data):
            detail = f"{one.seconds:.1f} s are too short for the {len(wording)} letters of its text"
            problems.append(Problem(one.row.id, one.row.place, TOO_SHORT, detail))
    return problems


# --------------------------------------------------------------------- Training samples of recognition

MASKS = 2
"""Masks of each kind (Park et al. 2019, "SpecAugment", table 1: m_F and m_T of its stronger policies)."""
_FLATTEST = 1e-3


@dataclass(frozen=True)
class RecognitionItem:
    """One sample."""

    mel_TM: FloatArray
    symbols_L: NDArray[np.int64]


class RecognitionDataset(WholeRecordings):
    """One split, whole recordings; their `lengths` are as recorded."""

    def __init__(self, corpus: RecognitionCorpus, split: str) -> None:
        data = corpus.data
        super().__init__(corpus.prepared, corpus.positions(split), data.audio)
        self._corpus = corpus
        training = split == "train"
        self._speed = data.speed if training else None
        self._augmentation = None
        if training and data.augmentation is not None:
            self._augmentation = DataAugmentation(data.augmentation, data.audio.sample_rate)

    @property
    def wordings(self) -> list[str]:
        """What is said in each."""
        return [self._corpus.wordings[position] for position in self.positions]

    @property
    def cached(self) -> bool:
        """True unless waveforms are varied."""
        return self._speed is None and self._augmentation is None

    def get(self, index: int, rng: np.random.Generator) -> Any:
        """Sample number `index`, a RecognitionItem."""
        corpus, position = self._corpus, self.positions[index]
        symbols_L = np.array(corpus.symbols.ids(corpus.wordings[position]), dtype=np.int64)
        mel_TM = standardised(self._mel(position, rng))
        if self._augmentation is not None:
            for _ in range(MASKS):
                mel_TM = self._augmentation.spec(mel_TM, rng)
        return RecognitionItem(mel_TM, symbols_L)

    def _mel(self, position: int, rng: np.random.Generator) -> FloatArray:
        if self.cached:
            return self._corpus.prepared.cache.features(position)
        return self._corpus.processor.mel(self._waveform(position, rng))

    def _waveform(self, position: int, rng: np.random.Generator) -> FloatArray:
        waveform = self._corpus.prepared.cache.waveform(position)
        if self._speed is not None:
            rate = self._corpus.data.audio.sample_rate
            waveform = resample(waveform, rate * rng.uniform(*self._speed), rate)
        if self._augmentation is not None:
            waveform = self._augmentation(waveform, rng)
        return waveform

    def collate(self, items: list[Any]) -> Batch:
        """`mel` (B, T, M) and `symbols` (B, L) with zeros after the ends, `lengths` (B,), `symbol_lengths` (B,)."""
        mels, symbols = [item.mel_TM for item in items], [item.symbols_L for item in items]
        return {
            "mel": padded(mels),
            "symbols": padded(symbols),
            "lengths": torch.tensor([len(mel) for mel in mels]),
            "symbol_lengths": torch.tensor([len(one) for one in symbols]),
        }

    def unit_counts(self, batch: Batch) -> dict[str, float]:
        """Symbols."""
        return {"symbols": float(batch["symbol_lengths"].sum())}


def standardised(mel_TM: FloatArray) -> FloatArray:
    """A mel (T, M) with mean 0 and deviation 1 in each band over the recording, which removes the microphone's response
    and much of the voice; a constant band is 0."""
    deviation_M = np.maximum(mel_TM.std(axis=0), _FLATTEST)
    return np.asarray((mel_TM - mel_TM.mean(axis=0)) / deviation_M, dtype=np.float32)
