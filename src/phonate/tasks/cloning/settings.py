"""Settings of voice cloning with Higgs Audio v2. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from phonate.config.errors import InputError
from phonate.config.metrics import Metric, by_name
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import Coupling, TaskInfo, Traits
from phonate.nn.settings import Dtype, LoRASettings, Quantization, require_packages
from phonate.text.arabic import ArabicText
from phonate.training.settings import LossSettings, OpenFraction, TrainingSettings

# ------------ Settings of the model that clones voices: its adapters, and the optional Whisper encoder

Mode = Literal["comprehensive", "audio_focused", "attention_only", "custom"]


class CloningLoRA(LoRASettings):
    """Low-rank adapters beside the layers of Higgs Audio v2."""

    refused_keys: ClassVar = {
        "enable_lora_for_audio_head": "model.lora.mode says it: comprehensive and audio_focused adapt the audio head, "
        "attention_only does not; for other choices set mode to custom and list the layers in targets, such as "
        "[self_attn.q_proj, audio_lm_head]",
        "enable_lora_for_audio_projector": "the released model has no projector of audio features; "
        "model.whisper.enabled adds one, which is trained whole and needs no adapter",
    }

    mode: Mode = "comprehensive"
    """Layers that get an adapter. comprehensive: attention, both feed-forward networks and the audio head.
    audio_focused: queries, values, the feed-forward network of audio and the audio head. attention_only: attention.
    custom: `targets`."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Dropout on the inputs of an adapter."""
    targets: tuple[str, ...] | None = None
    """Ends of the names of the layers that get an adapter, for `mode: custom`, such as [self_attn.q_proj,
    audio_lm_head]. Names of the original release (audio_decoder_proj.audio_lm_head) and audio_head.projector.linear
    are understood as well."""

    @model_validator(mode="after")
    def _targets_are_custom(self) -> Self:
        if self.mode == "custom" and not self.targets:
            raise ValueError("mode custom needs targets, the names of the layers that get an adapter")
        if self.mode != "custom" and self.targets is not None:
            raise ValueError(f"targets belong to mode custom; this is mode {self.mode}")
        return self


class WhisperProjector(Settings):
    """Features of a frozen Whisper encoder (Radford et al. 2022, https://arxiv.org/abs/2212.04356) of the reference,
    beside its codes. The released model was trained without them, so that the projector starts from nothing; its output
    is multiplied by a trained gate, which is zero at first."""

    enabled: bool = False
    """Condition on Whisper's features."""
    model: str = "base"
    """The encoder: a size such as base or large-v3, or a folder with a model of faster-whisper."""


class CloningModel(Settings):
    """The pretrained model, and what of it or beside it is trained."""

    name: str = "bosonai/higgs-audio-v2-generation-3B-base"
    """A folder with a model of Higgs Audio v2, in transformers' form or as it was released, or its name on the hub."""
    lora: CloningLoRA = CloningLoRA()
    """Adapters."""
    dtype: Dtype = "auto"
    """What the frozen weights are held in; auto: as in their files. Trained weights are always fp32."""
    quantization: Quantization | None = None
    """Hold the frozen linear layers in 4 bits (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314; needs
    phonate[qlora])."""
    text_head: bool = True
    """Whether the model must have a text head, as the loss on text needs. One that the files have is always kept."""
    gradient_checkpointing: Literal["auto"] | bool = "auto"
    """Recompute activations in the backward pass: less memory, more time. auto: where memory would not suffice
    otherwise."""
    whisper: WhisperProjector = WhisperProjector()
    """Features of a Whisper encoder beside the reference's codes."""
    codec: str = "bosonai/higgs-audio-v2-tokenizer"
    """A folder with the codec that the model was trained with, or its name on the hub."""
    strategy: Literal["full", "lora"] = "lora"
    """lora: low-rank adapters. full: every weight."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.strategy == "full":
            if self.dtype not in ("auto", "fp32"):
                raise ValueError(f"dtype {self.dtype}: strategy full trains in fp32; leave it out")
            if self.quantization is not None:
                raise ValueError(f"quantization {self.quantization}: strategy full trains every weight; leave it out")
            if self.whisper.enabled:
                raise ValueError("whisper: its projector is trained beside adapters; set strategy to lora")
        return self


# ------------------------------------------------------------- Settings of the losses of voice cloning

TERMS: Mapping[str, float] = {"text": 1.0, "audio": 1.0, "contrastive": 0.0, "similarity": 0.0, "l2": 0.0}
"""The terms of the loss, and their weights where a recipe has none."""
VOICE_TERMS = ("contrastive", "similarity")
"""Those about the likeness of the voice."""
ACCURACY = "accuracy"
"""The share of codes that are the likeliest."""
CODEBOOKS, CODEBOOK_SIZE = 8, 1024
"""Codebooks of a frame, and how many codes each has."""
_CONSISTENCY = (
    "weights.consistency: no such term, as text tokens and codes can't be compared; leave it out. Likeness of the "
    "voice: weights.contrastive, weights.similarity"
)


class CloningLoss(LossSettings):
    """The loss: text and audio tokens, and, where `weights` ask for it, the likeness of the voice."""

    refused_keys: ClassVar = {
        f"{term}_loss_weight": f"phonate calls it training.loss.weights.{term}" for term in TERMS
    } | {
        "l2_regularization_weight": "phonate calls it training.loss.weights.l2",
        "consistency_loss_weight": _CONSISTENCY.removeprefix("weights.consistency: "),
    }

    audio_label_smoothing: OpenFraction = 0.0
    """Smoothing of codes; `label_smoothing` is that of text tokens."""
    text: Literal["answer", "target"] = "answer"
    """Text tokens that are learnt. answer: what the model itself writes around the speech, which is where speech
    begins, that it has ended, and the end of the turn. target: the text to speak as well, as a language model."""
    codebooks: Literal["uniform", "weighted", "adaptive"] = "uniform"
    """Weights of the codebooks, 1 on average. uniform: all the same. weighted: in proportion to 1 / (i + 1) for
    codebook i, from 0. adaptive: in proportion to the running mean of a codebook's own loss, so that those that are
    learnt worst count most; validation is uniform then."""
    temperature: PositiveFloat = 0.1
    """Temperature of the contrastive term."""
    curriculum_steps: PositiveInt | None = None
    """Optimizer steps over which the weights of the contrastive and the similarity term rise from a tenth to their
    full value, along half a cosine. Null: full from the start."""

    @model_validator(mode="after")
    def _known_terms(self) -> Self:
        if "consistency" in self.weights:
            raise ValueError(_CONSISTENCY)
        return self

    def weight(self, term: str) -> float:
        """The weight of a term, before the curriculum."""
        return self.weights.get(term, TERMS[term])


# ---------------------------------------------------- Settings of the data that voices are cloned from


class CloningData(Settings):
    """Pairs of recordings of one voice with their texts, and how they become sequences of tokens."""

    refused_keys: ClassVar = {
        "validate_on_init": "every row is checked before the first step; leave it out",
        "target_sample_rate": "recordings may have any rate, and are read at the codec's; leave it out",
        "teacher_forcing": "training always reads the target's own codes; leave it out",
        "return_labels": "training always has labels; leave it out",
    }

    path: str
    """A .json or .jsonl file of conversations (ChatML), or a folder of them: see the page on data for voice cloning.
    Recordings are found as they are written: absolute, or relative to the current directory."""
    validation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the pairs that is kept for validation. The side of a pair depends on what its target sounds like, so
    that no target is on both sides."""
    min_seconds: Annotated[float, Field(ge=0.1)] = 0.5
    """Shorter recordings are refused."""
    max_seconds: Annotated[float, Field(le=600.0)] = 30.0
    """Longer recordings are refused."""
    min_characters: PositiveInt = 5
    """Pairs whose text to speak is shorter are refused."""
    max_tokens: PositiveInt = 512
    """Pairs with a text of more tokens are left out."""
    arabic: ArabicText = ArabicText()
    """What is changed in Arabic texts, in training and when speaking."""
    cache_dir: str | None = None
    """Folder for the codes of recordings. Null: ~/.cache/phonate."""
    max_length: Annotated[int, Field(ge=64)] = 2048
    """Tokens of a sequence, at most; pairs must fit."""
    packing: bool = True
    """Fill each row with several pairs, which do not attend to each other, instead of padding it."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Threads that check and encode recordings. 0: one for each core, and up to four for encoding."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_seconds <= self.min_seconds:
            raise ValueError(f"max_seconds {self.max_seconds:g} must be more than min_seconds {self.min_seconds:g}")
        return self

    def require_files(self) -> None:
        """Refuse a path without ChatML; see `Plan.require_files`."""
        from phonate.data.dialogues import JSON_SUFFIXES, text_files

        text_files(self.path, JSON_SUFFIXES)


# ------------------------------------------------------- Settings of voice cloning with Higgs Audio v2


class CloningTraining(TrainingSettings):
    """The recipe's `training` part."""

    loss: CloningLoss = CloningLoss()
    """Loss, and the weights of its terms: text, audio, contrastive, similarity and l2."""


CloningRecipe = Recipe[CloningData, CloningModel, CloningTraining]

DATA = CloningData
MODEL = CloningModel
TRAINING = CloningTraining
METRICS = by_name(
    Metric("accuracy", "higher", "%"),
    Metric("similarity", "higher", "", "cosine to reference"),
    Metric("likeness", "higher", "", "likeness, calibrated"),
    Metric("accepted", "higher", "%", "taken for the speaker"),
)
"""What validation and evaluation measure, besides losses."""


def traits(recipe: CloningRecipe) -> Traits:
    """See `TaskInfo.traits`."""
    require_packages("transformers", *(["peft"] if recipe.model.strategy == "lora" else []), extra="cloning")
    loss = recipe.training.loss
    for name in ("main", "reduction", "auxiliary"):
        if getattr(loss, name) != type(loss).model_fields[name].get_default(call_default_factory=True):
            raise InputError(
                f"training.loss.{name}: has no effect, because the task cloning has a fixed loss; remove it, or weight "
                "its terms with training.loss.weights"
            )
    if not recipe.model.text_head and (loss.text == "target" or loss.weights.get("text", 0.0) > 0.0):
        raise InputError("training.loss.weights.text: the loss of text needs model.text_head; set that to true")
    if loss.weight("contrastive") > 0.0 and not recipe.data.packing and recipe.training.batch_size == 1:
        raise InputError(
            "training.loss.weights.contrastive: compares the voices of a batch, and one sample has no other; set "
            "data.packing to true or raise training.batch_size"
        )
    reported = {f"codebook/{k}" for k in range(CODEBOOKS)}
    terms = {name for name in TERMS if loss.weight(name) > 0.0} | {"audio"} | reported
    if not recipe.model.text_head:
        terms -= {"text"}
    coupling = Coupling.MICRO_BATCH if loss.weight("contrastive") > 0.0 else Coupling.NONE
    metrics = (*map(Metric, sorted(terms)), METRICS[ACCURACY])
    return Traits(metrics, frozenset({*TERMS, ACCURACY, *reported}), coupling, divides=True)


INFO = TaskInfo(
    use="phonate clone {run} --reference RECORDING --text {text} -o said.wav",
    recipe="voice-cloning",
    hub_task="text-to-speech",
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.cloning.inference:VoiceCloner",
    options=("dtype", "codec", "base", "voices", "compile_model"),
    traits=traits,
    model_types=("higgs_audio_v2", "higgs_audio"),
    evaluation="phonate.tasks.cloning.evaluation:evaluate",
    export="phonate.tasks.cloning.export:export",
    formats=("transformers", "peft"),
    export_options=("base",),
    merge="phonate.tasks.cloning.export:merge",
)
