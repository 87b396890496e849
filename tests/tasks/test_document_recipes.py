"""The YAML of the document "Universal Training Pipeline", letter by letter, trains on a corpus laid out as AMI."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import phonate_process
from documents import DATA, MINIMAL, MODEL, TRAINING
from phonate.config.errors import RecipeError
from phonate.config.resolve import resolve
from recipe_corpora import ami


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `data/ami`, and the document's recipes."""
    ami(tmp_path / "data" / "ami")
    (tmp_path / "typical.yaml").write_text(MODEL + DATA + TRAINING)
    (tmp_path / "minimal.yaml").write_text(MINIMAL)
    return tmp_path


def run(folder: Path, recipe: str, *overrides: str) -> dict[str, Any]:
    """`phonate train` in `folder`; the last line of the run's metrics for validation."""
    environment = {**os.environ, "WANDB_MODE": "offline", "XDG_CACHE_HOME": str(folder / "cache")}
    done = phonate_process.run("train", recipe, *overrides, "--mode", "cpu", cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = (folder / "runs" / recipe.removesuffix(".yaml") / "metrics.jsonl").read_text().splitlines()
    found: dict[str, Any] = [one for one in map(json.loads, metrics) if one["split"] == "validation"][-1]
    return found


def test_the_documents_numbers_are_what_is_trained(folder: Path) -> None:
    """Numbers in YAML 1.2, and every key at its place."""
    recipe: Any = resolve(folder / "typical.yaml").recipe
    assert recipe.task == "diarization"
    assert (recipe.training.optimizer.lr, recipe.training.scheduler.min_lr) == (2e-4, 1e-6)
    assert (recipe.model.encoder.attention_type, recipe.model.decoder.attention_type) == ("linear", "causal_linear")
    assert [recipe.model.encoder.d_ff, recipe.model.encoder.dropout, recipe.model.decoder.num_layers] == [4, 0.1, 6]
    assert (recipe.data.audio.num_mel_bins, recipe.data.audio.window_type) == (80, "povey")
    assert [one.name for one in recipe.data.datasets] == ["ami"]
    assert (recipe.training.loss.main, recipe.training.loss.label_smoothing) == ("cross_entropy", 0.1)


def test_batch_size_and_device_of_the_model_are_those_of_the_training(folder: Path) -> None:
    (folder / "model.yaml").write_text(
        "task: diarization\ndatasets: [{name: ami}]\nmodel:\n  global_config: {batch_size: 12, device: cpu}\n"
    )
    training: Any = resolve(folder / "model.yaml").recipe.training
    assert (training.batch_size, training.device) == (12, "cpu")
    agreeing: Any = resolve(folder / "typical.yaml").recipe
    assert agreeing.model.global_config.batch_size == agreeing.training.batch_size == 32


@pytest.mark.parametrize(
    ("task", "knob", "said"),
    [
        ("diarization", "beam_width=5", "model.decoding"),
        ("diarization", "sliding_window=512", "model.decoding.window_seconds"),
        ("sequence", "max_duration=30", "training.max_length"),
        ("sequence", "label_type=binary", "task diarization"),
    ],
)
def test_knobs_of_another_task_are_refused_with_the_reason(task: str, knob: str, said: str) -> None:
    with pytest.raises(RecipeError, match=f"training.eval_knobs.{knob.partition('=')[0]}: .*{said}") as caught:
        resolve(task, ["data.path=x", f"training.eval_knobs.{knob}"])
    assert "no such option" not in str(caught.value)


@pytest.mark.slow
def test_the_documents_recipe_trains(folder: Path) -> None:
    """80 mel bands into an encoder-decoder of width 512, cross entropy with label smoothing, a penalty on weights, and
    Weights & Biases offline; its epochs cut short."""
    pytest.importorskip("wandb")
    found = run(folder, "typical.yaml", "training.max_steps=2", "training.eval_knobs.max_duration=30.0")
    assert {"loss", "cross_entropy", "norm_reg", "accuracy", "der"} <= found.keys()
    assert 0 < found["cross_entropy"] < 2
    assert list((folder / "runs" / "typical" / "wandb").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("label_type", ["speaker_id", "multilabel", "attractors"])
def test_it_trains_with_other_labels(folder: Path, label_type: str) -> None:
    """A smaller model, so that the test is short."""
    small = [f"model.{part}.{key}" for part in ("encoder", "decoder") for key in ("d_model=64", "num_layers=1")]
    loss = [] if label_type == "speaker_id" else ["training.loss.main=bce_with_logits"]
    options = ["training.logging.wandb=false", f"training.eval_knobs.label_type={label_type}", "training.max_steps=1"]
    found = run(folder, "typical.yaml", *small, *loss, *options)
    assert {"loss", "norm_reg", "accuracy", "der"} <= found.keys()


def test_the_documents_sections_imply_the_task(folder: Path) -> None:
    """Its minimal training section needs a corpus, with or without its sections of the model and the features."""
    (folder / "whole.yaml").write_text(MODEL + DATA + MINIMAL)
    assert resolve(folder / "whole.yaml").recipe.task == "diarization"
    assert resolve(folder / "minimal.yaml", ["datasets=[{name: ami}]"]).recipe.task == "diarization"
    with pytest.raises(RecipeError, match="write task:"):
        resolve(folder / "minimal.yaml")
    (folder / "search.yaml").write_text("data: {path: pairs.tsv}\ntraining: {eval_knobs: {beam_width: 8}}\n")
    assert resolve(folder / "search.yaml").recipe.task == "sequence"


@pytest.mark.slow
def test_the_minimal_recipe_is_told_its_data(folder: Path) -> None:
    """It has none, so the corpus stands on the command line; what is left out has sensible values."""
    found = run(folder, "minimal.yaml", "datasets=[{name: ami}]", "training.max_steps=1")
    assert {"loss", "bce_with_logits", "accuracy", "der"} <= found.keys()
