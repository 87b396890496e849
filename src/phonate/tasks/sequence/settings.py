"""Settings of models of token sequences: translation, continuation and classification."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PositiveInt

from phonate.config.recipe import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import TaskInfo
from phonate.nn.transformer.settings import TransformerSettings
from phonate.training.settings import TrainingSettings


class SequenceData(Settings):
    """Rows of text, and how they become tokens."""

    path: str
    """A file, or a folder that is searched for files: .tsv and .csv tables with a column of sources and one of targets,
    .jsonl and .json with rows of {"source", "target"}, {"prompt", "response"} or {"text"}, and .txt and .md of single
    sequences. Relative to the current directory."""
    source: str | None = None
    """Column, or key of a JSON row, of what is read. Null: source, src, prompt, text or input, or else the first column
    of a table."""
    target: str | None = None
    """Column, or key, of what is predicted: a text, or a label for an encoder alone. Null: target, tgt, response, label
    or output, or else the second column."""
    validation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the rows that is kept for validation. A row's side depends on its contents alone, so that copies are
    never on both sides."""
    vocabulary: Annotated[int, Field(ge=300)] = 8192
    """Tokens of the tokenizer (byte-pair encoding), at most. It is trained on sources and targets together."""
    max_length: Annotated[int, Field(ge=8)] = 512
    """Tokens of a source or a target, at most. Longer single sequences are cut; longer pairs are refused."""


class SequenceModelSettings(TransformerSettings):
    """The transformer: an encoder_decoder reads sources and writes targets, a decoder continues sequences (or answers
    sources with targets), an encoder tells the label of a source."""

    tie_embeddings: bool = True
    """One matrix embeds the tokens of sources and targets, and predicts the next one (Press and Wolf 2017)."""


class SequenceEvalKnobs(Settings):
    """How sequences are decoded and scored in validation and evaluation, and by default in inference."""

    beam_width: PositiveInt = 5
    """Hypotheses that beam search keeps; 1 is greedy decoding."""
    sliding_window: Annotated[int, Field(ge=4)] | None = None
    """Score long sequences in windows of this many tokens, each half a window into the one before, so that each token
    is scored once with at least half a window before it. A classifier averages over windows. Null: longer sequences
    are treated as in training."""
    batch_size: PositiveInt | None = None
    """Sequences decoded at once. Null: validation.batch_size, or else the training batch."""


class SequenceTraining(TrainingSettings):
    """The recipe's `training` part."""

    eval_knobs: SequenceEvalKnobs = SequenceEvalKnobs()
    """Decoding and scoring."""


def _size(d_model: int, layers: int, heads: int, vocabulary: int, lr: float) -> dict[str, dict[str, Any]]:
    shared = {"d_model": d_model, "num_layers": layers, "num_heads": heads}
    return {
        "data": {"vocabulary": vocabulary},
        "model": {"global_config": shared},
        "training": {"optimizer": {"lr": lr}},
    }


SequenceRecipe = Recipe[SequenceData, SequenceModelSettings, SequenceTraining]

DATA = SequenceData
MODEL = SequenceModelSettings
TRAINING = SequenceTraining
SIZES = {
    "tiny": _size(64, 2, 4, 1024, 2e-3),
    "small": _size(256, 3, 4, 4096, 1e-3),
    "default": _size(512, 6, 8, 8192, 2e-4),
    "large": _size(768, 12, 12, 16384, 2e-4),
}
INFO = TaskInfo(
    inference="phonate.tasks.sequence.inference:SequenceGenerator",
    evaluation="phonate.tasks.sequence.evaluation:evaluate",
    implied_by=("data.source", "data.target", "data.vocabulary"),
)
