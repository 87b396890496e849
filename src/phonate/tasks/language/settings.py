"""Settings of language models."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from phonate.config.metrics import by_name, losses
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import SessionInfo, TaskInfo, Traits
from phonate.evaluation.tables import SHARED
from phonate.nn.settings import Dtype, LoRASettings, Quantization, require_packages
from phonate.training.settings import TrainingSettings

Strategy = Literal["full", "lora", "qlora", "freeze"]


class LanguageData(Settings):
    """Texts, and how they become sequences of tokens."""

    path: str
    """A file, or a folder that is searched for files: .jsonl or .json with rows of {"prompt", "response"}, {"text"} or
    {"messages"}, and .txt and .md. Relative to the current directory."""
    documents: Literal["auto", "line", "paragraph", "file"] = "auto"
    """What a document of a .txt or .md file is: a line, a paragraph (separated by blank lines) or the whole file. auto:
    paragraphs if the file has blank lines, else lines."""
    validation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the documents that is kept for validation. A document's side depends on its text alone, so that copies
    are never on both sides."""
    max_length: Annotated[int, Field(ge=8)] = 2048
    """Tokens of a sequence, at most. Longer texts are cut; conversations must fit."""
    packing: bool = True
    """Fill each row with several documents, which do not attend to each other, instead of padding it."""

    def require_files(self) -> None:
        """Refuse a path without texts; see `Plan.require_files`."""
        from phonate.data.dialogues import text_files

        text_files(self.path)


class LanguageModel(Settings):
    """Which model, and what of it is trained."""

    name: str | None = None
    """A folder with a causal language model of Hugging Face, in safetensors, or its name on the hub. Null: a new
    model of the sizes below, with a tokenizer trained on the texts."""
    strategy: Strategy | None = None
    """full: every weight. lora: low-rank adapters. qlora: the same on 4-bit weights (needs phonate[qlora]). freeze: the
    top layers only. Null: lora if there is a `name`, else full."""
    lora: LoRASettings = LoRASettings()
    """Adapters (lora, qlora)."""
    quantization: Quantization = "nf4"
    """The 4-bit type of qlora (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314)."""
    dtype: Dtype = "auto"
    """What the frozen weights beside adapters are held in; auto: as in their files. Trained weights are always fp32."""
    trained_layers: Annotated[int, Field(ge=0)] = 2
    """Top layers that `freeze` trains, with the last normalisation and the head (and the embedding, if the head is tied
    to it). 0: only those."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    vocabulary: Annotated[int, Field(ge=300)] = 8192
    """Tokens of a new model's tokenizer, at most."""
    width: PositiveInt = 512
    """Width of a new model."""
    layers: PositiveInt = 8
    """Layers of a new model."""
    heads: PositiveInt = 8
    """Attention heads of a new model; width / heads is an even number."""

    @property
    def trains(self) -> Strategy:
        """`strategy`, with null resolved."""
        return self.strategy or ("full" if self.name is None else "lora")

    @property
    def adapted(self) -> bool:
        """Whether adapters are trained."""
        return self.trains in ("lora", "qlora")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name is None and self.trains != "full":
            raise ValueError(f"strategy {self.strategy} starts from a pretrained model; name it in model.name")
        if self.dtype not in ("auto", "fp32") and not self.adapted:
            raise ValueError(f"dtype {self.dtype}: strategy {self.trains} trains in fp32; leave it out")
        if self.name is None and self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} can't be split into an even width per head for {self.heads} heads")
        return self


def _size(width: int, layers: int, heads: int, vocabulary: int, lr: float) -> dict[str, dict[str, Any]]:
    model = {"width": width, "layers": layers, "heads": heads, "vocabulary": vocabulary}
    return {"model": model, "training": {"optimizer": {"lr": lr}}}


LanguageRecipe = Recipe[LanguageData, LanguageModel, TrainingSettings]

DATA = LanguageData
MODEL = LanguageModel
SIZES = {
    "tiny": _size(128, 4, 4, 2048, 2e-3),
    "small": _size(256, 6, 8, 4096, 1e-3),
    "default": _size(512, 8, 8, 8192, 6e-4),
    "large": _size(768, 12, 12, 16384, 4e-4),
}
METRICS = by_name(SHARED["bits_per_character"])
"""What validation measures, besides the loss."""


def traits(recipe: LanguageRecipe) -> Traits:
    """See `TaskInfo.traits`."""
    require_packages("transformers", *(["peft"] if recipe.model.adapted else []))
    return Traits((*losses(["nll"]), *METRICS.values()), frozenset(METRICS), divides=True)


INFO = TaskInfo(
    use="phonate generate {run} 'Once upon a time'",
    hub_task="text-generation",
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.language.inference:Generator",
    options=("base",),
    traits=traits,
    evaluation="phonate.tasks.language.evaluation:evaluate",
    export="phonate.tasks.language.export:export",
    formats=("transformers", "peft"),
    export_options=("base",),
    merge="phonate.tasks.language.export:merge",
    session=SessionInfo("texts", default_for="texts", pretrained_recipe="language-lora"),
)
