"""Durations from an aligner trained on the corpus itself (`phonate.nn.aligner`).

It needs no pretrained models and works for any language. It is trained once, in a run folder next to the prepared
corpus, where interrupted training is resumed.

A phone is a sequence of states, as in a hidden Markov model: the closure and the burst of a stop, or the two ends of a
diphthong, sound different. Boundaries have a single one.

Shapes: B batch, T frames, L tokens, S states of all tokens, M mel bands.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from phonate.audio.decoding import FloatArray
from phonate.compute.system import lock
from phonate.config.errors import DataError, Interrupted, same_command
from phonate.data.prepared import PreparedCorpus
from phonate.nn.aligner import (
    AlignerModel,
    audible_frames,
    best_durations,
    beta_binomial,
    binarisation_loss,
    forward_sum_loss,
)
from phonate.tasks.speech.durations import Durations, is_silent_mark
from phonate.text.phonemes import MARKS, Inventory, Word
from phonate.training.checkpoints import listing
from phonate.training.checkpoints.loading import load_first_intact
from phonate.training.run import Run
from phonate.training.settings import TrainingSettings
from phonate.training.task import Batch, Task, Terms
from phonate.training.trainer import Trainer

logger = logging.getLogger("phonate")

VERSION = 2
_PRIOR_STRENGTH = 1.0
_BATCH_SECONDS = 64.0
_HARDEN_AFTER = 0.5
"""Share of the steps after which binarisation starts; before that there is no usable path."""
_STATES = 3
"""Of a phone at most, each of at least one frame."""
_SHORTEST_PHONE = 0.03
"""Seconds, about; with long frames, phones have fewer states."""


@dataclass(frozen=True)
class AlignmentItem:
    """One recording."""

    states_S: NDArray[np.int64]
    optional_S: NDArray[np.bool_]
    """States that may have no frames (boundaries)."""
    mel_TM: FloatArray
    prior_TS: NDArray[np.float32]
    speaker: int


class AlignmentDataset:
    """Data set of the aligner: all recordings whose tokens fit into their frames."""

    cached = True

    def __init__(
        self,
        prepared: PreparedCorpus,
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
        self.states = min(_STATES, max(1, round(_SHORTEST_PHONE * frames_per_second)))
        """Of a phone."""
        espeak = inventory.phonemizer_name == "espeak"
        marks = np.array([espeak and is_silent_mark(symbol) for symbol in inventory.symbols])
        self._counts = np.where(marks, 0, np.where(self._optional, 1, self.states))
        everything = range(len(words)) if positions is None else positions
        self.positions = [position for position in everything if words[position] and self.fits(position)]

    def tokens(self, position: int) -> NDArray[np.int64]:
        """All tokens (L,) of a recording."""
        return np.array(self.inventory.ids(self._words[position]), dtype=np.int64)

    def counts(self, position: int) -> NDArray[np.int64]:
        """States of each token (L,); none of marks such as stress, which modify their neighbour."""
        return np.asarray(self._counts[self.tokens(position)], dtype=np.int64)

    def fits(self, position: int) -> bool:
        """Whether there are enough frames for the states."""
        return int(self.counts(position).sum()) <= int(self.prepared.index.frames[position])

    def item(self, position: int) -> AlignmentItem:
        """The recording at `position` of the corpus."""
        counts_L = self.counts(position)
        tokens_S = np.repeat(self.tokens(position), counts_L)
        within_S = np.arange(len(tokens_S)) - np.repeat(np.cumsum(counts_L) - counts_L, counts_L)
        optional_S = self._optional[tokens_S]
        mel_TM = self.prepared.cache.features(position)
        return AlignmentItem(
            states_S=tokens_S * self.states + within_S,
            optional_S=optional_S,
            mel_TM=mel_TM,
            prior_TS=beta_binomial(audible_frames(mel_TM), optional_S, _PRIOR_STRENGTH),
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

    def get(self, index: int, rng: np.random.Generator) -> AlignmentItem:
        """The sample at `index`."""
        return self.item(self.positions[index])

    def collate(self, items: list[Any]) -> Batch:
        """`states` and `optional` (B, S), `mel` (B, T, M), `prior` (B, T, S), `state_lengths`, `lengths` and
        `speaker` (B,)."""
        states, frames = max(len(one.states_S) for one in items), max(len(one.mel_TM) for one in items)
        batch = {
            "states": torch.zeros(len(items), states, dtype=torch.long),
            "optional": torch.zeros(len(items), states, dtype=torch.bool),
            "mel": torch.zeros(len(items), frames, items[0].mel_TM.shape[1]),
            "prior": torch.zeros(len(items), frames, states),
        }
        for row, one in enumerate(items):
            length, count = len(one.mel_TM), len(one.states_S)
            batch["states"][row, :count] = torch.from_numpy(one.states_S)
            batch["optional"][row, :count] = torch.from_numpy(one.optional_S)
            batch["mel"][row, :length] = torch.from_numpy(np.array(one.mel_TM))
            batch["prior"][row, :length, :count] = torch.from_numpy(one.prior_TS)
        return {
            **batch,
            "state_lengths": torch.tensor([len(one.states_S) for one in items]),
            "lengths": torch.tensor([len(one.mel_TM) for one in items]),
            "speaker": torch.tensor([one.speaker for one in items]),
        }

    def unit_counts(self, batch: Batch) -> dict[str, float]:
        """Frames."""
        return {"frames": int(batch["lengths"].sum())}


class AlignmentTask(Task):
    """Trains an aligner on `recordings` for `steps` steps.

    Terms: `alignment` (likelihood of the states over all alignments), and later `binarisation` (distance of the
    soft alignment from the best path).
    """

    def __init__(self, recordings: AlignmentDataset, steps: int) -> None:
        self.recordings = recordings
        self.steps = steps

    def model(self, device: torch.device) -> nn.Module:
        """The aligner model for the states of the corpus's symbols, and its speakers."""
        prepared = self.recordings.prepared
        mels = prepared.cache.features(0).shape[1]
        states = self.recordings.states * len(self.recordings.inventory)
        return AlignerModel(states, len(prepared.speakers), mels).to(device)

    def dataset(self, split: str) -> AlignmentDataset:
        """All recordings; none are kept for validation."""
        if split == "train":
            return self.recordings
        given = self.recordings
        return AlignmentDataset(given.prepared, [], given.inventory, given.frames_per_second, [])

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """See the class."""
        log_BTS = scores(model, batch)
        alignment = forward_sum_loss(log_BTS, batch["lengths"], batch["state_lengths"])
        if self.step < _HARDEN_AFTER * self.steps:
            return {"alignment": (alignment, "frames")}
        durations_BS = torch.from_numpy(durations(log_BTS.detach(), batch)).to(log_BTS.device)
        binarisation = binarisation_loss(log_BTS, durations_BS, batch["lengths"])
        return {"alignment": (alignment, "frames"), "binarisation": (binarisation, "frames")}


def scores(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Log probability (B, T, S) of each state at each frame."""
    names = ("states", "state_lengths", "mel", "lengths", "speaker", "prior", "optional")
    log_BTS: torch.Tensor = model(*(batch[name] for name in names))
    return log_BTS.float()


def durations(log_BTS: torch.Tensor, batch: Batch) -> Durations:
    """Frames (B, S) of each state on the best path."""
    arrays = (log_BTS, batch["lengths"], batch["state_lengths"], batch["optional"])
    return best_durations(*(value.cpu().numpy() for value in arrays))


class LearntAligner:
    """The aligner of a corpus; trained or loaded when the first recording is aligned."""

    def __init__(self, recordings: AlignmentDataset, folder: Path, steps: int) -> None:
        """`folder`: parent of the run folders."""
        self.recordings = recordings
        self.steps = steps
        digest = hashlib.blake2b(digest_size=8)
        for position in recordings.positions:
            digest.update(recordings.tokens(position).tobytes())
            digest.update(recordings.prepared.index.id[position].encode("utf-8", "surrogateescape"))
        digest.update(repr(recordings.inventory.symbols).encode())
        again = same_command("train", "resume", "auto") or "the same again"
        self.run = Run(folder / f"aligner-v{VERSION}-{steps}-{digest.hexdigest()}", resumed_by=again)

    def __call__(self, position: int, words: Sequence[Word]) -> Durations:
        """Frames of each token. Raises DataError if the recording is shorter than its text."""
        if not self.recordings.fits(position):
            raise DataError("is too short for the phones of its text")
        batch = self.recordings.collate([self.recordings.item(position)])
        model = self.model
        with torch.no_grad():
            frames_S = durations(scores(model, batch), batch)[0]
        edges_L1 = np.concatenate([[0], np.cumsum(self.recordings.counts(position))])
        frames_L: Durations = np.diff(np.concatenate([[0], np.cumsum(frames_S)])[edges_L1])
        return frames_L

    @cached_property
    def model(self) -> nn.Module:
        """The trained aligner. Raises Interrupted after saving when a signal stopped its training."""
        if not self.recordings.positions:
            raise DataError("no recording is long enough for its text, so the aligner has no training data")
        with torch.enable_grad(), lock(self.run.path.with_suffix(".lock")):  # other ranks wait, and find it trained
            return self._trained()

    def _trained(self) -> nn.Module:
        settings = _settings(self.steps, self.recordings)
        self.run.create(resuming=True)
        saved = listing.scan(self.run.path / settings.checkpoint.save_dir)
        checkpoint = load_first_intact(listing.newest_first(saved))
        task = AlignmentTask(self.recordings, self.steps)
        who = "an aligner" if checkpoint is None else "the aligner, which is resumed,"
        told = "first %s learns in %d steps how long each phone lasts (in %s); then the voice is trained"
        logger.info(told, who, self.steps, self.run.path)
        trainer = Trainer(task, settings, self.run)
        try:
            trainer.fit(checkpoint)
        except Interrupted as error:
            what = f"the aligner, a preparation of the voice, whose training has not begun: {error}"
            raise Interrupted(what, error.signal_number, step=error.step, checkpoint=error.checkpoint) from None
        return trainer.model.eval()


def _settings(steps: int, recordings: AlignmentDataset) -> TrainingSettings:
    longest = float(recordings.lengths.max()) / recordings.frames_per_second
    values: Mapping[str, Any] = {
        "max_steps": steps,
        "max_duration": max(_BATCH_SECONDS, longest + 1.0),
        "mixed_precision": "fp32",
        "optimizer": {"type": "adam", "lr": 1e-2, "weight_decay": 0.0},
        "scheduler": {"type": "cosine", "warmup_steps": min(50, steps // 10), "min_lr": 1e-4},
        "checkpoint": {"interval": 250, "save_total_limit": 1},
        "logging": {"interval": 50, "tensorboard": False, "system": False},
    }
    return TrainingSettings.model_validate(values)
