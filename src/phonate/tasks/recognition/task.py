"""Recognition as a task: the letters that are said in a recording, by connectionist temporal classification.

The one term, `ctc`, is the negative log probability of a text over all its alignments (Graves et al. 2006, equation
5), per symbol. Validation adds `wer` and `cer`, words and letters that the likeliest symbols of all frames get wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from phonate.config.registry import load
from phonate.data.batches import evaluation_batches
from phonate.evaluation.words import character_edits, word_edits
from phonate.tasks.recognition.data import BLANK, RecognitionCorpus, RecognitionDataset
from phonate.tasks.recognition.inference import SymbolModel, greedy
from phonate.tasks.recognition.model import CtcModel, build_model
from phonate.tasks.recognition.settings import RecognitionRecipe, traits
from phonate.training.task import Batch, Dataset, Metric, Picture, Preview, Sums, Task, Terms, move


class RecognitionTask(Task):
    """Trains a CtcModel as `recipe` says; where that names a Whisper, the task is the subclass that fine-tunes it."""

    random_features = False
    earlier_keys: ClassVar[Mapping[str, str]] = {"letters": "symbols"}

    def __new__(cls, recipe: RecognitionRecipe) -> RecognitionTask:
        """A task of the kind that the recipe names."""
        if recipe.model.kind == "whisper":
            kind: type[RecognitionTask] = load("phonate.tasks.recognition.finetuning:WhisperTask")
            return super().__new__(kind)
        return super().__new__(cls)

    def __init__(self, recipe: RecognitionRecipe) -> None:
        self._metrics = traits(recipe).metrics
        self.recipe = recipe

    @cached_property
    def corpus(self) -> RecognitionCorpus:
        """The corpus, prepared when it is first needed."""
        return RecognitionCorpus(self.recipe.data)

    def model(self, device: torch.device) -> nn.Module:
        """A model for the corpus's letters."""
        return build_model(self.recipe.model, self.recipe.data.audio.n_mels, len(self.corpus.symbols)).to(device)

    def dataset(self, split: str) -> RecognitionDataset:
        """Whole recordings; varied for training as the recipe says."""
        return RecognitionDataset(self.corpus, split)

    def loss(self, model: nn.Module, batch: Batch, phase: str) -> Terms:
        """See the module."""
        logits_BUS, lengths_B = model(batch["mel"], batch["lengths"])
        # In single precision whatever the model computes in: a text's probability is a product over its frames.
        log_probs_UBS = logits_BUS.float().log_softmax(-1).transpose(0, 1)
        total = F.ctc_loss(
            log_probs_UBS, batch["symbols"], lengths_B, batch["symbol_lengths"], blank=BLANK, reduction="sum"
        )
        return {"ctc": (total, "symbols")}

    @property
    def metrics(self) -> Sequence[Metric] | None:
        """The loss and the error rates."""
        return self._metrics

    @torch.no_grad()
    def evaluate(self, model: nn.Module, dataset: Dataset, positions: Sequence[int]) -> Sums:
        """`wer` and `cer` of greedy decoding: edits and reference words or characters."""
        own = cast(RecognitionDataset, dataset)
        by_position = self._decoded(model, own, positions)
        wordings = own.wordings
        references, hypotheses = [wordings[index] for index in positions], [by_position[index] for index in positions]
        return {"wer": word_edits(references, hypotheses), "cer": character_edits(references, hypotheses)}

    def _decoded(self, model: nn.Module, samples: RecognitionDataset, positions: Sequence[int]) -> dict[int, str]:
        """Greedy transcripts of the samples at `positions`, batched with others of similar length."""
        device = cast(CtcModel, model).output.weight.device
        hypotheses: dict[int, str] = {}
        for places, _, batch in evaluation_batches(samples, positions, self.recipe.training.evaluation_batch_size):
            batch = move(batch, device)
            logits_BUS, lengths_B = model(batch["mel"], batch["lengths"])
            for index, logits_US, length in zip(places, logits_BUS.float().cpu(), lengths_B.tolist(), strict=True):
                hypotheses[index] = self.corpus.symbols.text(greedy(logits_US[:length].numpy()))
        return hypotheses

    @torch.no_grad()
    def previews(self, model: nn.Module) -> dict[str, Preview]:
        """A validation recording: its mel, and how likely each symbol is at each frame."""
        samples = self.dataset("validation")
        if not samples.positions:
            return {}
        mel_TM = samples.get(0, np.random.default_rng(0)).mel_TM
        device = cast(CtcModel, model).output.weight.device
        mel_1TM = torch.from_numpy(mel_TM)[None].to(device)
        logits_1US, _ = model(mel_1TM, torch.tensor([len(mel_TM)], device=device))
        shown = self.corpus.prepared.cache.features(samples.positions[0])
        return {
            "mel": Picture(np.ascontiguousarray(shown.T)),
            "symbols": Picture(np.ascontiguousarray(logits_1US[0].float().softmax(-1).cpu().numpy().T)),
        }

    def identity(self) -> dict[str, Any]:
        """Letters and features."""
        return {"letters": self.corpus.symbols.document(), "features": self.corpus.processor.fingerprint}

    def inference_metadata(self, model: nn.Module) -> Mapping[str, Any]:
        """What transcription needs beside the weights and the recipe."""
        return self._exported

    @cached_property
    def _exported(self) -> dict[str, Any]:
        index, data, symbols = self.corpus.prepared.index, self.recipe.data, self.corpus.symbols
        training = self.corpus.positions("train")
        texts = [self.corpus.wordings[position] for position in training]
        order = self.recipe.model.language_order
        model = SymbolModel.of([symbols.ids(text) for text in texts], order, len(symbols) - 1) if order else None
        words = Counter(word for text in texts for word in text.split())
        seconds = sum(int(index.frames[position]) for position in training) / data.audio.frames_per_second
        return {
            "symbols": symbols.document(),
            "features": self.corpus.processor.fingerprint,
            "language_model": model.document() if model else None,
            "validation": [index.id[position] for position in self.corpus.positions("validation")],
            "recordings": len(training),
            "seconds": round(seconds, 1),
            "most_frequent_word": max(sorted(words), key=words.__getitem__),
            "words_per_second": words.total() / seconds,
        }
