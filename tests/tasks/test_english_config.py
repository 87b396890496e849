"""The flat configuration of the autoregressive English voice, against the numbers that its documentation gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import phonate
from phonate.config.errors import InputError
from phonate.config.tasks import task_settings
from phonate.tasks.speech.settings import (
    RECIPE,
    EnglishTrainingConfig,
    get_default_config,
    get_large_config,
    get_medium_config,
    get_small_config,
)
from phonate.training.schedules import CosineRestartsSchedule
from phonate_process import run_python

SNIPPET = """
from phonate import EnglishTrainingConfig

config = EnglishTrainingConfig(
    data_dir="LJSpeech-1.1",
    batch_size=32,
    learning_rate=5e-5,
    hidden_dim=768,
    n_encoder_layers=8,
    use_wandb=True,
    enable_profiling=False
)

recipe = config.recipe()
print(recipe.data.path, recipe.training.batch_size, recipe.training.optimizer.lr, recipe.model.width,
      recipe.model.encoder_layers, recipe.training.logging.wandb, recipe.training.profiling)
"""

DOCUMENTED = {
    "data.path": "LJSpeech-1.1",
    "data.validation": 0.05,
    "data.audio.sample_rate": 22050,
    "data.audio.n_mels": 80,
    "data.audio.n_fft": 1024,
    "data.audio.win_length": 1024,
    "data.audio.hop_length": 256,
    "data.audio.fmax": 8000.0,
    "model.kind": "autoregressive",
    "model.width": 512,
    "model.encoder_layers": 6,
    "model.decoder_layers": 6,
    "model.heads": 8,
    "model.feed_forward": 2048,
    "model.dropout": 0.1,
    "model.checkpoint_segments": 2,
    "training.batch_size": 16,
    "training.epochs": 100,
    "training.optimizer.type": "adamw",
    "training.optimizer.lr": 1e-4,
    "training.optimizer.weight_decay": 0.01,
    "training.optimizer.betas": (0.9, 0.999),
    "training.scheduler.type": "cosine_restarts",
    "training.scheduler.cycle_steps": "20 epochs",
    "training.scheduler.cycle_mult": 2,
    "training.scheduler.min_lr": 1e-6,
    "training.scheduler.warmup_steps": 0,
    "training.gradient_clipping": 1.0,
    "training.mixed_precision": "auto",
    "training.loss.weights": {"duration": 0.1, "stop": 1.0},
    "training.validation.interval": "1 epochs",
    "training.checkpoint.interval": "5 epochs",
    "training.performance.num_workers": 2,
    "training.performance.pin_memory": "auto",
    "training.logging.interval": 10,
    "training.logging.wandb": False,
    "training.profiling": False,
}

CHANGED: dict[str, Any] = {
    "data_dir": "voice",
    "validation_split": 0.25,
    "max_seq_length": 1000,
    "sample_rate": 24000,
    "n_mels": 64,
    "n_fft": 2048,
    "win_length": 1200,
    "hop_length": 300,
    "f_min": 20.0,
    "f_max": 9000.0,
    "hidden_dim": 128,
    "n_encoder_layers": 3,
    "n_decoder_layers": 2,
    "n_heads": 4,
    "ff_dim": 96,
    "dropout": 0.2,
    "gradient_checkpointing": False,
    "checkpoint_segments": "auto",
    "batch_size": 4,
    "num_epochs": 7,
    "learning_rate": 2e-4,
    "weight_decay": 0.1,
    "betas": (0.8, 0.9),
    "max_grad_norm": None,
    "T_0": 3,
    "T_mult": 1,
    "eta_min": 1e-5,
    "duration_loss_weight": 0.5,
    "stop_token_loss_weight": 2.0,
    "validate_every": 2,
    "save_every": 1,
    "use_mixed_precision": False,
    "num_workers": 0,
    "pin_memory": True,
    "device": "cpu",
    "use_wandb": True,
    "wandb_project": "mine",
    "wandb_entity": "us",
    "wandb_name": "first",
    "wandb_tags": ("a", "b"),
    "enable_profiling": True,
    "seed": 7,
    "max_batch_seconds": 40.0,
    "amp_init_scale": 1024.0,
    "amp_growth_factor": 4.0,
    "amp_backoff_factor": 0.25,
    "amp_growth_interval": 100,
}


def at(recipe: Any, key: str) -> Any:
    for part in key.split("."):
        recipe = getattr(recipe, part)
    return recipe


def test_the_documented_snippet(tmp_path: Path) -> None:
    """Word for word, but for the import."""
    done = run_python("-c", SNIPPET, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["LJSpeech-1.1", "32", "5e-05", "768", "8", "True", "False"]


def test_the_defaults_are_the_documented_ones() -> None:
    recipe = phonate.EnglishTrainingConfig().recipe()
    assert {key: at(recipe, key) for key in DOCUMENTED} == DOCUMENTED
    assert recipe.data.audio.max_seconds == pytest.approx(2500 * 256 / 22050)
    assert recipe.task == "speech"


@pytest.mark.parametrize("field", sorted(EnglishTrainingConfig.model_fields))
def test_every_field_reaches_the_recipe(field: str) -> None:
    start = {"gradient_checkpointing": True}
    usual, changed = EnglishTrainingConfig(**start), EnglishTrainingConfig(**{**start, field: CHANGED[field]})
    differing = {key for key, value in changed.overrides().items() if value != usual.overrides()[key]}
    assert differing, f"{field} does nothing"
    if field in {"hop_length", "sample_rate"}:
        assert differing == {f"data.audio.{field}", "data.audio.max_seconds"}
    else:
        assert len(differing) == 1


def test_all_changes_together_are_a_recipe() -> None:
    recipe = EnglishTrainingConfig(**CHANGED).recipe()
    assert recipe.model.checkpoint_segments is None
    assert (recipe.model.width, recipe.model.heads, recipe.model.feed_forward) == (128, 4, 96)
    assert recipe.data.audio.max_seconds == pytest.approx(12.5)
    assert recipe.training.mixed_precision == "fp32"
    assert recipe.training.logging.wandb_tags == ("a", "b")


def test_the_rate_restarts_after_20_and_60_epochs() -> None:
    steps = 10
    settings = get_default_config().recipe().training.scheduler
    schedule = CosineRestartsSchedule(settings, 1e-4, 100 * steps, steps)
    for epoch in (0, 20, 60):
        assert schedule.lr(epoch * steps) == pytest.approx(1e-4)
    for epoch in (20, 60):
        assert schedule.lr(epoch * steps - 1) == pytest.approx(1e-6, abs=1e-6)


def test_the_shipped_recipe_has_no_restarts() -> None:
    from phonate.config.resolve import resolve

    shipped = resolve(RECIPE, {"data.path": "x"}).recipe.training.scheduler
    assert (shipped.type, shipped.warmup_steps) == ("cosine", 1000)


def test_the_sizes_are_those_of_the_task() -> None:
    small = get_small_config()
    assert (small.batch_size, small.num_epochs, small.n_encoder_layers, small.n_decoder_layers) == (8, 10, 4, 4)
    made = {
        "small": small,
        "medium": get_medium_config(),
        "default": get_default_config(),
        "large": get_large_config(),
    }
    for size, config in made.items():
        preset = task_settings("speech").sizes_of("autoregressive")[size]["model"]
        model = config.recipe().model
        assert {name: getattr(model, name) for name in preset} == preset


def test_to_plain_values_and_back() -> None:
    config = EnglishTrainingConfig(**CHANGED)
    assert EnglishTrainingConfig.from_dict(config.to_dict()) == config
    assert EnglishTrainingConfig.from_dict({"batch_size": 3}).batch_size == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batchsize": 3}, "EnglishTrainingConfig.batchsize: no such option; did you mean batch_size?"),
        ({"batch_size": 0}, "EnglishTrainingConfig.batch_size: expected a number > 0, got 0"),
        ({"amp_growth_factor": 0.5}, "EnglishTrainingConfig.amp_growth_factor: expected a number > 1.0, got 0.5"),
    ],
)
def test_mistakes_are_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        EnglishTrainingConfig(**values)
    assert str(caught.value) == message


def test_what_does_not_fit_together_is_one_line() -> None:
    with pytest.raises(InputError, match=r"500 .*8 heads"):
        EnglishTrainingConfig(hidden_dim=500).recipe()
