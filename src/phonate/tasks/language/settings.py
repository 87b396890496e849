"""Settings of language models."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from phonate.config.settings import Settings

Strategy = Literal["full", "lora", "qlora", "freeze"]


class LanguageData(Settings):
    """Texts, and how they become sequences of tokens."""

    path: str
    """A file or a folder that is searched for them: .jsonl with {"prompt", "response"} or {"text"} a line, .txt, .md.
    Relative to the current directory."""
    documents: Literal["auto", "line", "paragraph", "file"] = "auto"
    """What a document of a .txt or .md file is: a line, a paragraph (blank lines lie between) or the whole file; auto:
    paragraphs where there are blank lines, else lines."""
    validation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the documents that is kept for validation. Which ones depends on their text alone, so that copies of a
    document are never on both sides."""
    max_length: Annotated[int, Field(ge=8)] = 2048
    """Tokens of a sequence, at most. Longer texts are cut into several; a prompt with its response must fit."""
    packing: bool = True
    """Fill each sequence with several documents, which do not see each other, instead of padding it."""


class LoRASettings(Settings):
    """Low-rank adapters (Hu et al. 2021, https://arxiv.org/abs/2106.09685)."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """An adapter's output is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Share of an adapter's inputs that are dropped while training."""
    targets: tuple[str, ...] | None = None
    """Ends of the names of the layers that get one, such as [q_proj, v_proj]. Null: all linear layers but the last."""


class LanguageModel(Settings):
    """Which model, and what of it is trained."""

    name: str | None = None
    """A folder with a causal language model of Hugging Face, in safetensors, or its name on the hub. Null: a new
    model of the sizes below, with a tokenizer that is learnt from the texts."""
    strategy: Strategy | None = None
    """full: every weight. lora: low-rank adapters. qlora: the same on weights of 4 bits (needs phonate[qlora]). freeze:
    the top layers only. Null: lora where there is a `name`, else full."""
    lora: LoRASettings = LoRASettings()
    """Adapters (lora, qlora)."""
    quantization: Literal["nf4", "fp4"] = "nf4"
    """The 4-bit numbers of qlora (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314)."""
    dtype: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    """What weights that adapters leave alone are held in; auto: as in their files. Trained weights are always fp32."""
    trained_layers: Annotated[int, Field(ge=0)] = 2
    """Top layers that `freeze` trains, with the last normalisation and the head (and, in a model whose head is its
    embedding, that). 0: those alone."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    vocabulary: Annotated[int, Field(ge=300)] = 8192
    """Tokens of a new model's tokenizer, at most."""
    width: PositiveInt = 512
    """Width of a new model."""
    layers: PositiveInt = 8
    """Layers of a new model."""
    heads: PositiveInt = 8
    """Attention heads of a new model; they divide the width into even parts."""

    @property
    def trains(self) -> Strategy:
        """What is trained, null resolved."""
        return self.strategy or ("full" if self.name is None else "lora")

    @property
    def adapted(self) -> bool:
        """Whether adapters are trained."""
        return self.trains in ("lora", "qlora")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name is None and self.trains != "full":
            raise ValueError(f"strategy {self.strategy} starts from a trained model; say which by model.name")
        if self.dtype not in ("auto", "fp32") and not self.adapted:
            raise ValueError(f"dtype {self.dtype}: strategy {self.trains} trains in fp32; leave it out")
        if self.name is None and self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} can't be divided into even parts for {self.heads} heads")
        return self


def _size(width: int, layers: int, heads: int, vocabulary: int, lr: float) -> dict[str, dict[str, Any]]:
    model = {"width": width, "layers": layers, "heads": heads, "vocabulary": vocabulary}
    return {"model": model, "training": {"optimizer": {"lr": lr}}}


DATA = LanguageData
MODEL = LanguageModel
SIZES = {
    "tiny": _size(128, 4, 4, 2048, 2e-3),
    "small": _size(256, 6, 8, 4096, 1e-3),
    "default": _size(512, 8, 8, 8192, 6e-4),
    "large": _size(768, 12, 12, 16384, 4e-4),
}
