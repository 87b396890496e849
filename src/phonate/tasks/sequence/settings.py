"""Settings of sequence models: translation, continuation and classification of text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from phonate.config.errors import InputError
from phonate.config.metrics import Metric, by_name, losses
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import TaskInfo, Traits
from phonate.evaluation.tables import SHARED
from phonate.nn.settings import SYNONYMS, LayerSettings, TransformerSettings, require_packages
from phonate.training.settings import TrainingSettings


class SequenceData(Settings):
    """Rows of text, and their tokenization."""

    path: str
    """A file, or a folder that is searched for files: .tsv and .csv tables with a source and a target column, .jsonl
    and .json with rows of {"source", "target"}, {"prompt", "response"} or {"text"}, and .txt and .md with single
    sequences. Relative to the current directory."""
    source: str | None = None
    """Column or JSON key of the source. Null: source, src, prompt, text or input, otherwise the first column of a
    table."""
    target: str | None = None
    """Column or JSON key of the target: a text, or a label for encoder-only models. Null: target, tgt, response, label
    or output, otherwise the second column."""
    validation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Fraction of the rows used for validation. The split depends only on the contents of a row, so identical rows are
    always in the same split."""
    vocabulary: Annotated[int, Field(ge=300)] = 8192
    """Maximum vocabulary size of the tokenizer (byte-pair encoding), which is trained on sources and targets."""
    max_length: Annotated[int, Field(ge=8)] = 512
    """Maximum number of tokens of a source or a target. Longer single sequences are divided; longer pairs are rejected.
    """

    def require_files(self) -> None:
        """Refuse a path without texts; see `Plan.require_files`."""
        from phonate.data.dialogues import SUFFIXES, TABLES, text_files

        text_files(self.path, (*SUFFIXES, *TABLES))


class SequenceModelSettings(TransformerSettings):
    """The transformer: an encoder_decoder generates targets from sources, a decoder continues sequences (or answers
    sources with targets), an encoder classifies sources."""

    tie_embeddings: bool = True
    """Share one matrix between the source embedding, the target embedding and the output layer (Press and Wolf 2017).
    """

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a sequence for which there are learnable positions; None: no limit."""
        parts: list[LayerSettings] = [part for part in (self.encoder, self.decoder) if part is not None]
        limits = [part.max_seq_len for part in parts if part.positional_encoding == "learnable"]
        return min(limits, default=None)


class SequenceEvalKnobs(Settings):
    """Decoding and scoring in validation and evaluation; the defaults of inference."""

    refused_keys: ClassVar = {
        "label_type": "it belongs to the task diarization; model.model_type encoder learns the labels of data.target",
        "max_duration": "sequences have no duration; training.max_length limits the tokens of a batch",
    }

    beam_width: PositiveInt = 5
    """Number of hypotheses in beam search; 1 is greedy decoding."""
    sliding_window: Annotated[int, Field(ge=4)] | None = None
    """Score long sequences in windows of this many tokens that overlap by half, so that each token is scored once with
    at least half a window of context. Classifiers average over windows. Null: long sequences are handled as in
    training."""
    batch_size: PositiveInt | None = None
    """Sequences decoded at once. Null: validation.batch_size, otherwise training.batch_size."""


class SequenceTraining(TrainingSettings):
    """Training options, with those of decoding."""

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
METRICS = by_name(
    SHARED["perplexity"],
    Metric("exact_match", "higher", "%", "exact match"),
    Metric("accuracy", "higher", "%", "accuracy"),
    Metric("bleu", "higher", "", "BLEU"),
    Metric("rouge1", "higher", "", "ROUGE-1"),
    Metric("rouge2", "higher", "", "ROUGE-2"),
    Metric("rougeL", "higher", "", "ROUGE-L"),
)
"""What validation and evaluation measure, besides losses."""
LOSS = "cross_entropy"
"""The main loss of recipes that name none."""


def traits(recipe: SequenceRecipe) -> Traits | None:
    """See `TaskInfo.traits`; None where the recipe chooses losses."""
    require_packages("transformers")
    recipe.model.require_agreement(recipe.training.batch_size, recipe.training.device)
    if not recipe.training.loss.is_only(LOSS, smoothed=True):
        return None
    check_lengths(recipe)
    if recipe.model.model_type == "encoder_decoder":
        from phonate.evaluation.words import AnswerScores

        AnswerScores.require()
    terms = frozenset({LOSS, "nll", "accuracy"})
    return Traits(metrics_of(recipe, [LOSS]), terms, random_features=recipe.model.random_features)


def metrics_of(recipe: SequenceRecipe, named: Iterable[str]) -> tuple[Metric, ...]:
    """What validation reports besides `loss` where the losses are those `named`."""
    written = () if recipe.model.decoder is None else ("exact_match", "bleu")
    return (*losses([*named, "nll"]), *(METRICS[name] for name in ("accuracy", "perplexity", *written)))


def check_lengths(recipe: SequenceRecipe) -> None:
    """Raise InputError for sequences longer than the learnable positions."""
    limit = recipe.model.max_tokens
    if limit is not None and recipe.data.max_length > limit:
        raise InputError(
            f"data.max_length: {recipe.data.max_length} exceeds max_seq_len {limit} of the learnable positions; change "
            "one of them"
        )
    window = recipe.training.eval_knobs.sliding_window
    if window is not None and limit is not None and window > limit:
        raise InputError(
            f"training.eval_knobs.sliding_window: {window} exceeds max_seq_len {limit} of the learnable positions"
        )


INFO = TaskInfo(
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.sequence.inference:SequenceGenerator",
    evaluation="phonate.tasks.sequence.evaluation:evaluate",
    traits=traits,
    synonyms=SYNONYMS,
    implied_by=(
        "data.source",
        "data.vocabulary",
        "training.eval_knobs.beam_width",
        "training.eval_knobs.sliding_window",
    ),
)
