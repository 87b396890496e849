"""Options that would change nothing are refused by name, before any data is read."""

from __future__ import annotations

from typing import Any

import pytest

from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.config.tasks import task_class

BY_LOSS = {
    "data.judged": 0,
    "training.validation.metric_for_best_model": "val_loss",
    "training.validation.greater_is_better": False,
}


@pytest.mark.parametrize(
    ("recipe", "option", "value"),
    [
        ("speech", "data.augmentation.noise", 0.1),
        ("speech-autoregressive", "data.augmentation.noise", 0.1),
        ("speech", "training.loss.main", "mse"),
        ("speech-autoregressive", "training.loss.label_smoothing", 0.1),
        ("vocoder", "training.loss.auxiliary", {"norm_reg": 0.1}),
        ("vocoder", "training.loss.main", "l1"),
        ("recognition", "training.loss.reduction", "sum"),
        ("recognition", "training.loss.focal_gamma", 1.0),
    ],
)
def test_an_option_without_effect_is_refused(recipe: str, option: str, value: Any) -> None:
    changes = {"data.path": "nowhere", **(BY_LOSS if recipe.startswith("speech") else {}), option: value}
    resolved = resolve(recipe, changes).recipe
    name = "data.augmentation" if "augmentation" in option else option
    with pytest.raises(InputError, match=f"^{name}: has no effect"):
        task_class(resolved.task)(resolved)


@pytest.mark.parametrize(
    ("recipe", "changes", "option"),
    [
        ("speech", {"data.alignments": "textgrids"}, "data.alignments"),
        ("speech", {"data.aligner_steps": 500}, "data.aligner_steps"),
        ("vocoder", {"data.predicted": "mels", "data.augmentation.noise": 0.1}, "data.augmentation"),
    ],
)
def test_an_option_of_another_choice_is_refused(recipe: str, changes: dict[str, Any], option: str) -> None:
    judged = BY_LOSS if recipe == "speech" else {}
    resolved = resolve(recipe, {"data.path": "nowhere", **judged, **changes}).recipe
    with pytest.raises(InputError, match=f"^{option}: has no effect"):
        task_class(resolved.task)(resolved)


@pytest.mark.parametrize("recipe", ["speech", "vocoder"])
def test_weights_of_terms_have_an_effect(recipe: str) -> None:
    changes = {"data.path": "nowhere", **(BY_LOSS if recipe == "speech" else {}), "training.loss.weights.mel": 2.0}
    resolved = resolve(recipe, changes).recipe
    task_class(resolved.task)(resolved)
