"""What is known of a training of the task conversion before it starts, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phonate.config.errors import InputError
from phonate.config.metrics import Metric, losses
from phonate.config.tasks import Start, Traits
from phonate.rendering import check_vocoder, start_of_vocoder
from phonate.tasks.conversion.settings import METRICS, ConversionRecipe

LOSS = "l1"
"""The main loss of recipes that name none."""


def start(recipe: ConversionRecipe) -> Iterator[Start]:
    """What training does about the packaged vocoder where that does not fit the recipe's mels."""
    yield start_of_vocoder(recipe.data.vocoder, recipe.data.audio.facts)


def traits(recipe: ConversionRecipe) -> Traits | None:
    """See `TaskInfo.traits`; None where the recipe chooses losses, or has a teacher, which must be loaded."""
    check(recipe)
    if recipe.data.distil_from is not None or not recipe.training.loss.is_only(LOSS):
        return None
    return Traits(metrics_of(recipe, [LOSS]), frozenset({LOSS, "adversarial", "features"}))


def metrics_of(recipe: ConversionRecipe, named: Iterable[str]) -> tuple[Metric, ...]:
    """What validation reports besides `loss` where the losses are those `named`."""
    more = ["content"] if recipe.model.causal and recipe.data.content == "whisper" else []
    more += ["discriminator"] if recipe.training.adversarial_start is not None else []
    return (*losses([*named, *more]), *METRICS.values())


def check(recipe: ConversionRecipe) -> None:
    """Raise InputError for what a model can't be trained with."""
    model, crop = recipe.model, recipe.data.crop_frames
    if model.positions == "sinusoidal" and crop > model.max_seq_len * model.stride:
        raise InputError(
            f"data.crop_frames: {crop} frames are more than model.max_seq_len {model.max_seq_len} positions"
        )
    if model.causal and not recipe.data.prosody:
        raise InputError("model.causal: live conversion needs the pitch; set data.prosody to true")
    if model.causal and recipe.data.voices == "reference":
        raise InputError("model.causal: live models only have their corpus's voices; set data.voices to corpus")
    check_vocoder(recipe.data.vocoder, recipe.data.audio.facts)
