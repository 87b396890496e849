"""Settings of text-to-speech."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from phonate.config.language_codes import is_english
from phonate.config.metrics import Metric, by_name
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.config.tasks import SessionInfo, TaskInfo, shortened
from phonate.data.manifests.rows import Requirements
from phonate.data.settings import SpokenData
from phonate.evaluation.tables import SHARED
from phonate.training.settings import TrainingSettings

if TYPE_CHECKING:
    from phonate.data.manifests.rows import Problem
    from phonate.data.manifests.validation import Checked


class SpeechData(SpokenData):
    """The corpus: recordings with what is said in them."""

    phonemes: Literal["english", "espeak", "characters"] = "english"
    """How text becomes phones: english needs nothing else, espeak knows 100 languages (needs phonate[espeak])."""
    language: str = "en-us"
    """Language of the texts, as espeak calls it."""
    durations: Literal["pocketsphinx", "mfa", "learnt", "espeak"] = "pocketsphinx"
    """Where the durations of phones come from: forced alignment with pocketsphinx (English phones; with others, learnt
    takes its place), TextGrids of the Montreal Forced Aligner (`alignments`), an aligner that is trained on the corpus
    first (any language), or the TextGrids that lie beside speech that espeak made."""
    alignments: str | None = None
    """The folder of TextGrids for `durations: mfa`, one a recording, called after its id; sub-folders are looked
    into."""
    aligner_steps: PositiveInt = 1000
    """Steps for which the aligner of `durations: learnt` is trained, some minutes on a processor."""
    vocoder: str | None = None
    """A run of the task vocoder, by which mels become sound. Null: Griffin-Lim."""
    judged: NonNegativeInt = 0
    """Validation texts that are spoken at each validation and judged by a recogniser and for naturalness (needs
    phonate[eval]); the metric `quality` can then choose the best checkpoint. 0: none."""

    @property
    def requirements(self) -> Requirements:
        """Clips of one named speaker who is in training, with a text."""
        return replace(super().requirements, trained_speaker=True)

    def refusals(self, recordings: Sequence[Checked]) -> list[Problem]:
        """Texts that can't be spoken, or are longer than their recordings."""
        from phonate.tasks.speech.data import refusals  # imports torch

        return refusals(recordings, self)


def phonemes_of(data: SpeechData) -> Literal["english", "espeak", "characters"]:
    """What makes phones of texts in the language of `data`: English ones are known for English alone."""
    return "espeak" if data.phonemes == "english" and not is_english(data.language) else data.phonemes


class SpeechModel(Settings):
    """The acoustic model's numbers. One that only the other kind has is refused."""

    kind: Literal["parallel", "autoregressive"] = "parallel"
    """parallel: durations, pitch and energy are predicted, then all frames at once; it can't skip words.
    autoregressive: a transformer that predicts durations, then one frame after the other."""
    width: PositiveInt = 256
    """Width of the encoder and the decoder."""
    encoder_layers: PositiveInt = 6
    """Blocks over phones."""
    decoder_layers: PositiveInt = 6
    """Blocks over frames."""
    predictor_layers: PositiveInt = 2
    """Blocks of the network that predicts durations, pitch and energy (parallel)."""
    heads: PositiveInt = 8
    """Attention heads; they divide the width (autoregressive)."""
    feed_forward: PositiveInt = 2048
    """Hidden units of the gated feed-forward network of each block (autoregressive)."""
    postnet_channels: NonNegativeInt = 512
    """Channels of the five convolutions that sharpen the mel; 0: none (autoregressive)."""
    checkpoint_segments: PositiveInt | Literal["auto"] | None = None
    """Gradient checkpointing: the encoder's and the decoder's blocks are cut into so many segments, whose activations
    are computed again in the backward pass: less memory, the more segments the less, for another forward pass. auto: by
    the GPU's memory. Null: none (autoregressive)."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of activations that are dropped while training."""
    predictor_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """The same, in what predicts durations, pitch and energy, which learns a small corpus by heart (parallel)."""
    discriminator_channels: PositiveInt = 16
    """Channels of the discriminator's first layer (only used in training; parallel)."""

    @model_validator(mode="after")
    def _of_this_kind(self) -> Self:
        # A value is compared with the default, not looked for, so that a recipe written out in full is read again.
        fields, has = type(self).model_fields, ", ".join(OWN[self.kind])
        other = "autoregressive" if self.kind == "parallel" else "parallel"
        for name in OWN[other]:
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"{name}: a model of kind {self.kind} has no {name}; of its own it has {has}")
        if self.kind == "autoregressive" and self.width % self.heads:
            raise ValueError(f"width {self.width} can't be divided among {self.heads} heads")
        if self.kind == "autoregressive" and self.width % 2:
            raise ValueError(f"width {self.width}: an autoregressive model needs an even one")
        return self


OWN = {
    "parallel": ("predictor_layers", "predictor_dropout", "discriminator_channels"),
    "autoregressive": ("heads", "feed_forward", "postnet_channels", "checkpoint_segments"),
}
"""What only one kind of model has."""


class SpeechTraining(TrainingSettings):
    """Training, with its adversarial part."""

    adversarial_start: PositiveInt | None = None
    """The step from which a discriminator takes part, which keeps mels from being over-smooth (parallel models). Null:
    never."""
    adversarial_weight: NonNegativeFloat = 1.0
    """Weight of fooling the discriminator."""
    feature_matching_weight: NonNegativeFloat = 5.0
    """Weight of the distance between what the discriminator sees in natural and in made mels."""


def _parallel(width: int, encoder: int, decoder: int, lr: float) -> dict[str, dict[str, Any]]:
    model = {"width": width, "encoder_layers": encoder, "decoder_layers": decoder}
    return {"model": model, "training": {"optimizer": {"lr": lr}}}


def _autoregressive(width: int, layers: int, heads: int, lr: float) -> dict[str, dict[str, Any]]:
    preset = _parallel(width, layers, layers, lr)
    preset["model"] |= {"heads": heads, "feed_forward": 4 * width}
    return preset


def facts(inference_metadata: Mapping[str, Any]) -> dict[str, str]:
    """Rows of a report's table."""
    return {"Speakers": shortened(inference_metadata.get("speakers", ()))}


def session_defaults(language: str) -> dict[str, Any]:
    """Overrides for a language. Others than English are not judged in training: that takes a larger recogniser."""
    return {} if is_english(language) else {"data.language": language, "data.judged": 0}


SpeechRecipe = Recipe[SpeechData, SpeechModel, SpeechTraining]

DATA = SpeechData
MODEL = SpeechModel
TRAINING = SpeechTraining
SIZES = {
    "tiny": _parallel(128, 3, 4, 2e-3),
    "small": _parallel(192, 4, 6, 1.5e-3),
    "medium": _parallel(256, 6, 8, 1e-3),
    "default": _parallel(384, 6, 8, 8e-4),
    "large": _parallel(512, 8, 12, 5e-4),
}
KINDS = {
    "autoregressive": {
        "tiny": _autoregressive(128, 3, 4, 1e-3),
        "small": _autoregressive(256, 4, 8, 3e-4),
        "medium": _autoregressive(384, 6, 8, 2e-4),
        "default": _autoregressive(512, 6, 8, 1e-4),
        "large": _autoregressive(768, 8, 12, 1e-4),
    }
}
METRICS = by_name(SHARED["wer"], SHARED["mos"], Metric("quality", "higher"))
"""What judges measure in validation, and `quality`, by which they choose checkpoints."""
INFO = TaskInfo(
    metrics=tuple(METRICS.values()),
    inference="phonate.tasks.speech.inference:Synthesiser",
    evaluation="phonate.tasks.speech.evaluation:evaluate",
    export="phonate.tasks.speech.export:export",
    formats=("onnx", "piper", "browser"),
    export_options=("vocoder", "dtype", "runtime"),
    options=("vocoder",),
    start="phonate.tasks.speech.start:start",
    session=SessionInfo("recordings", needs_text=True, default_for="transcribed recordings", defaults=session_defaults),
    facts=facts,
)
