"""The texts of a run: read, and split into training and validation."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.dialogues.dialogue import Dialogue, split_dialogues
from phonate.data.dialogues.reading import read_dialogues, warn_refused
from phonate.data.dialogues.tokenizer import TextTokenizer
from phonate.tasks.language.dataset import LanguageDataset, encode_all
from phonate.tasks.language.settings import LanguageData

logger = logging.getLogger("phonate")


class Corpus:
    """The dialogues at `data.path`, read when they are first needed."""

    def __init__(self, data: LanguageData) -> None:
        self.data = data

    @cached_property
    def dialogues(self) -> tuple[list[Dialogue], list[Dialogue]]:
        """Training and validation dialogues."""
        found = read_dialogues(self.data.path, self.data.documents).dialogues
        train, validation = split_dialogues(found, self.data.validation)
        logger.info("%s: %d documents for training, %d for validation", self.data.path, len(train), len(validation))
        return train, validation

    @property
    def chat(self) -> bool:
        """Whether there are conversations, so that the model learns to answer."""
        return any(not dialogue.is_plain for dialogue in self.dialogues[0])

    def train_tokenizer(self, size: int) -> TextTokenizer:
        """A tokenizer of at most `size` tokens, trained on the training dialogues."""
        return TextTokenizer.train(self.dialogues[0], size)

    def dataset(self, split: str, tokenizer: TextTokenizer) -> LanguageDataset:
        """The sequences of "train" or "validation". Raises DataError if there is nothing to train on."""
        sequences, refused = encode_all(tokenizer, self.dialogues[split != "train"], self.data.max_length)
        warn_refused(Path(self.data.path), refused)
        if split == "train" and not sequences:
            why = f"; {refused[0].place}: {refused[0].reason}" if refused else ""
            raise DataError(f"{self.data.path}: nothing to train on{why}")
        return LanguageDataset(sequences, self.data.max_length, self.data.packing, tokenizer.pad)
