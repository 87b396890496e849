"""Durations from an aligner trained on the corpus itself (`phonate.nn.aligner`).

It needs no pretrained models and works for any language. It is trained once, in a run folder next to the prepared
corpus, where interrupted training is resumed.

Shapes: B batch, T frames, L tokens, M mel bands.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError
from phonate.data.store.prepared import Prepared
from phonate.nn.aligner import (
    AlignerModel,
    audible_frames,
    best_durations,
    beta_binomial,
    binarisation_loss,
    forward_sum_loss,
)
from phonate.tasks.speech.durations.boundaries import Durations
from phonate.tasks.speech.durations.espeak import is_silent_mark
from phonate.text.inventory import Inventory
from phonate.text.phonemes import MARKS, Word
from phonate.training.checkpoints import listing
from phonate.training.checkpoints.loading import load_first_intact
from phonate.training.run import Run
from phonate.training.settings import TrainingSettings
from phonate.training.task import Batch, Count, Task, Terms
from phonate.training.trainer import Trainer

logger = logging.getLogger("phonate")

VERSION = 1
_PRIOR_STRENGTH = 1.0
_BATCH_SECONDS = 64.0
_HARDEN_AFTER = 0.5
"""Share of the steps after which binarisation starts; before that there is no usable path."""


@dataclass(frozen=True)
class Item:
    """One recording."""

    tokens_L: NDArray[np.int64]
    optional_L: NDArray[np.bool_]
    """Tokens that may have no frames (boundaries)."""
    mel_TM: FloatArray
    prior_TL: NDArray[np.float32]
    speaker: int


class Recordings:
    """Data set of the aligner: all recordings whose tokens fit into their frames."""

    cached = True

    def __init__(
        self,
        prepared: Prepared,
        words: Sequence[Sequence[Word]],
        inventory: Inventory,
        frames_per_second: float,
        positions: Iterable[int] | None = None,
    ) -> None:
        self.prepared = prepared
        self.inventory = inventory
        self.frames_per_second = frames_per_second
        self._words = words
        boundaries = {"<word>", "<start>", *MARKS}
        self._optional = np.array([symbol in boundaries for symbol in inventory.symbols])
        espeak = inventory.phonemizer_name == "espeak"
        self._silent = np.array([espeak and is_silent_mark(symbol) for symbol in inventory.symbols])
        everything = range(len(words)) if positions is None else positions
        self.positions = [position for position in everything if words[position] and self.fits(position)]

    def tokens(self, position: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """All tokens (L,) of a recording, and which of them can have frames (stress marks never have)."""
        tokens_L = np.array(self.inventory.ids(self._words[position]), dtype=np.int64)
        return tokens_L, ~self._silent[tokens_L]

    def fits(self, position: int) -> bool:
        """Whether there are enough frames for the tokens."""
        return int(self.tokens(position)[1].sum()) <= int(self.prepared.index.frames[position])

    def item(self, position: int) -> Item:
        """The recording at `position` of the corpus."""
        tokens_L, timed_L = self.tokens(position)
        kept_L = tokens_L[timed_L]
        mel_TM = self.prepared.cache.features(position)
        return Item(
            tokens_L=kept_L,
            optional_L=self._optional[kept_L],
            mel_TM=mel_TM,
            prior_TL=beta_binomial(audible_frames(mel_TM), self._optional[kept_L], _PRIOR_STRENGTH),
            speaker=int(self.prepared.index.speaker[position]),
        )

    @property
    def ids(self) -> Sequence[str]:
        """Ids of recordings."""
        return [self.prepared.index.id[position] for position in self.positions]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Mel frames of each recording (recordings,)."""
        return np.asarray(self.prepared.index.frames[self.positions], dtype=np.int64)

    def get(self, index: int, rng: np.random.Generator) -> Item:
        """The sample at `index`."""
        return self.item(self.positions[index])

    def collate(self, items: list[Any]) -> Batch:
        """`tokens` and `optional` (B, L), `mel` (B, T, M), `prior` (B, T, L), `token_lengths`, `lengths` and
        `speaker` (B,)."""
        tokens, frames = max(len(one.tokens_L) for one in items), max(len(one.mel_TM) for one in items)
        batch = {
            "tokens": torch.zeros(len(items), tokens, dtype=torch.long),
            "optional": torch.zeros(len(items), tokens, dtype=torch.bool),
            "mel": torch.zeros(len(items), frames, items[0].mel_TM.shape[1]),
            "prior": torch.zeros(len(items), frames, tokens),
        }
        for row, one in enumerate(items):
            length, count = len(one.mel_TM), len(one.tokens_L)
            batch["tokens"][row, :count] = torch.from_numpy(one.tokens_L)
            batch["optional"][row, :count] = torch.from_numpy(one.optional_L)
            batch["mel"][row, :length] = torch.from_numpy(np.array(one.mel_TM))
            batch["prior"][row, :length, :count] = torch.from_numpy(one.prior_TL)
        return {
            **batch,
            "token_lengths": torch.tensor([len(one.tokens_L) for one in items]),
            "lengths": torch.tensor([len(one.mel_TM) for one in items]),
            "speaker": torch.tensor([one.speaker for one in items]),
        }


class AlignmentTask(Task):
    """Trains an aligner on `recordings` for `steps` steps.

    Terms: `alignment` (likelihood of the tokens over all alignments), and later `binarisation` (distance of the
    soft alignment from the best path).
    """

    def __init__(self, recordings: Recordings, steps: int) -> None:
        self.recordings = recordings
        self.steps = steps

    def model(self, device: torch.device) -> nn.Module:
        """The aligner model for the corpus's symbols and speakers."""
        prepared = self.recordings.prepared
        mels = prepared.cache.features(0).shape[1]
        return AlignerModel(len(self.recordings.inventory), len(prepared.speakers), mels).to(device)

    def dataset(self, split: str) -> Recordings:
        """All recordings; none are kept for validation."""
        if split == "train":
            return self.recordings
        given = self.recordings
        return Recordings(given.prepared, [], given.inventory, given.frames_per_second, [])

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """See the class."""
        log_BTL = scores(model, batch)
        frames = batch["lengths"].sum()
        terms: Terms = {"alignment": (forward_sum_loss(log_BTL, batch["lengths"], batch["token_lengths"]), frames)}
        if self.hardened:
            durations_BL = torch.from_numpy(durations(log_BTL.detach(), batch)).to(log_BTL.device)
            terms["binarisation"] = (binarisation_loss(log_BTL, durations_BL, batch["lengths"]), frames)
        return terms

    @property
    def hardened(self) -> bool:
        """Whether binarisation is active in this step."""
        return self.step >= _HARDEN_AFTER * self.steps

    def counts(self, batch: Batch, phase: str) -> dict[str, Count]:
        """Frames."""
        names = ("alignment", "binarisation") if self.hardened else ("alignment",)
        return {name: float(batch["lengths"].sum()) for name in names}


def scores(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Log probability (B, T, L) of each token at each frame."""
    names = ("tokens", "token_lengths", "mel", "lengths", "speaker", "prior", "optional")
    log_BTL: torch.Tensor = model(*(batch[name] for name in names))
    return log_BTL.float()


def durations(log_BTL: torch.Tensor, batch: Batch) -> Durations:
    """Frames (B, L) of each token on the best path."""
    arrays = (log_BTL, batch["lengths"], batch["token_lengths"], batch["optional"])
    return best_durations(*(value.cpu().numpy() for value in arrays))


class LearntAligner:
    """The aligner of a corpus; trained or loaded when the first recording is aligned."""

    def __init__(self, recordings: Recordings, folder: Path, steps: int) -> None:
        """`folder`: parent of the run folders."""
        self.recordings = recordings
        self.steps = steps
        digest = hashlib.blake2b(digest_size=8)
        for position in recordings.positions:
            digest.update(recordings.tokens(position)[0].tobytes())
            digest.update(recordings.prepared.index.id[position].encode("utf-8", "surrogateescape"))
        digest.update(repr(recordings.inventory.symbols).encode())
        self.run = Run(folder / f"aligner-v{VERSION}-{steps}-{digest.hexdigest()}")

    def __call__(self, position: int, words: Sequence[Word]) -> Durations:
        """Frames of each token. Raises DataError if the recording is shorter than its text."""
        if not self.recordings.fits(position):
            raise DataError("has fewer frames than its text has phones")
        batch = self.recordings.collate([self.recordings.item(position)])
        model = self.model
        with torch.no_grad():
            found_L = durations(scores(model, batch), batch)[0]
        timed_L = self.recordings.tokens(position)[1]
        frames_L = np.zeros(len(timed_L), dtype=np.int64)
        frames_L[timed_L] = found_L
        return frames_L

    @cached_property
    def model(self) -> nn.Module:
        """The trained aligner. Raises Interrupted after saving when a signal stopped its training."""
        if not self.recordings.positions:
            raise DataError("no recording is long enough for its text, so the aligner has no training data")
        with torch.enable_grad(), _one_process(self.run.path.with_suffix(".lock")):
            return self._trained()

    def _trained(self) -> nn.Module:
        settings = _settings(self.steps, self.recordings)
        self.run.create(resuming=True)
        saved = listing.scan(self.run.path / settings.checkpoint.save_dir)
        checkpoint = load_first_intact(listing.newest_first(saved))
        task = AlignmentTask(self.recordings, self.steps)
        logger.info("durations: training the aligner for %d steps in %s", self.steps, self.run.path)
        trainer = Trainer(task, settings, self.run)
        trainer.fit(checkpoint)
        return trainer.model.eval()


def _settings(steps: int, recordings: Recordings) -> TrainingSettings:
    longest = float(recordings.lengths.max()) / recordings.frames_per_second
    values: Mapping[str, Any] = {
        "max_steps": steps,
        "max_duration": max(_BATCH_SECONDS, longest + 1.0),
        "mixed_precision": "fp32",
        "optimizer": {"type": "adam", "lr": 2e-3, "weight_decay": 0.0},
        "scheduler": {"type": "cosine", "warmup_steps": min(50, steps // 10), "min_lr": 1e-4},
        "checkpoint": {"interval": 250, "save_total_limit": 1},
        "logging": {"interval": 50, "tensorboard": False, "system": False},
    }
    return TrainingSettings.model_validate(values)


@contextmanager
def _one_process(path: Path) -> Iterator[None]:
    """Lock: other ranks of the same training wait here, and then find the aligner trained."""
    with path.open("a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
