"""The recipes in examples/configs: each is trained for a few steps on small data, with a small model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'phonate[language]'")
pytest.importorskip("sacrebleu", reason="needs sacrebleu: pip install 'phonate[eval]'")
pytest.importorskip("rouge_score", reason="needs rouge-score: pip install 'phonate[eval]'")

import phonate
from examples import CONFIGS, NAMES, changes_of
from phonate.config.options import options
from phonate.config.resolve import recipe_class, resolve
from phonate.parse_args import unified_parser
from phonate.workflows.train import train

PROMISED = {
    "comprehensive_all_options",
    "training_simple",
    "training_example",
    "training_minimal",
    "encoder_model",
    "decoder_model",
    "encoder_decoder_model",
    "full_experiment",
}


def test_all_that_are_promised_are_there() -> None:
    assert set(NAMES) == PROMISED


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_trained(name: str, tmp_path: Path) -> None:
    changes = changes_of(name, tmp_path)
    trained = train(CONFIGS / f"{name}.yml", changes, output=tmp_path / "run", mode="cpu")
    assert trained.step == 2
    assert np.isfinite(trained.metrics["val_loss"])
    for file in ("hyperparameters.json", "model_summary.txt", "system.json", "recipe.yaml", "metrics.jsonl"):
        assert (tmp_path / "run" / file).stat().st_size > 0
    assert "effective batch 2 = 2 x 1 accumulation" in (tmp_path / "run/logs/training.log").read_text()
    kept = json.loads((tmp_path / "run/hyperparameters.json").read_text())
    assert kept["training"]["max_steps"] == 2
    assert phonate.load(tmp_path / "run", device="cpu").networks


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", ["model", "data", "training"])
def test_the_parts_of_an_example(name: str, part: str) -> None:
    _, model, data, training = unified_parser(
        ["--config", str(CONFIGS / f"{name}.yml"), f"--{part}-only", "--lr", "3e-4"]
    )
    assert [found is not None for found in (model, data, training)] == [
        part == one for one in ("model", "data", "training")
    ]
    if training is not None:
        assert training.optimizer.lr == 3e-4
    if data is not None:
        assert len(data) == (2 if name == "full_experiment" else 1)


def test_the_search_of_the_full_experiment(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs optuna: pip install 'phonate[tuning]'")
    changes = changes_of("full_experiment", tmp_path)
    changes |= {"training.tuning.library": "optuna", "training.tuning.n_trials": 2}
    trained = train(CONFIGS / "full_experiment.yml", changes, output=tmp_path / "run", mode="cpu")
    best = resolve(tmp_path / "run/best.yaml").recipe
    assert best.model.encoder.num_layers in (2, 4, 6)
    assert trained.run.path.parent == tmp_path / "run/trials"


def test_the_comprehensive_example_explains_every_option() -> None:
    text = (CONFIGS / "comprehensive_all_options.yml").read_text(encoding="utf-8")
    resolved = resolve(CONFIGS / "comprehensive_all_options.yml")
    missing = [".".join(path) for path in resolved.origins if f"{path[-1]}:" not in text]
    assert not missing
    wrapped = " ".join(line.strip().lstrip("# ") for line in text.splitlines())
    known = list(options(recipe_class("diarization")))  # also the options of sections that are null
    keys = {option.key for option in known}
    for option in [*known, *(one for one in options(recipe_class("sequence")) if one.key not in keys)]:
        assert re.search(rf"\b{option.path[-1]}:", text), option.key
        assert option.description in wrapped, option.key
