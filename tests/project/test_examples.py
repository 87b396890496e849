"""The recipes in examples/configs: each is trained for a few steps on small data, with a small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

pytest.importorskip("transformers", reason="needs transformers: pip install 'phonate[language]'")
pytest.importorskip("sacrebleu", reason="needs sacrebleu: pip install 'phonate[eval]'")
pytest.importorskip("rouge_score", reason="needs rouge-score: pip install 'phonate[eval]'")

import phonate
from phonate.config.resolve import resolve
from phonate.data.annotations import SpeakerTurn, write_rttm
from phonate.parse_args import unified_parser
from phonate.workflows.train import train

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "examples" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yml"))
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
SMALL = {"d_model": 16, "num_layers": 1, "num_heads": 2}
SHORT: dict[str, Any] = {
    "training.max_steps": 2,
    "training.batch_size": 2,
    "training.validation.interval": 2,
    "training.validation.batch_size": None,
    "training.gradient_accumulation_steps": 1,
    "training.performance.num_workers": 0,
    "training.logging.tensorboard": False,
    "training.logging.interval": 1,
}
RATE = 16_000


def meetings(folder: Path) -> Path:
    """Four recordings of six seconds in which two tones take turns, and their RTTM."""
    folder.mkdir()
    at = np.arange(6 * RATE) / RATE
    found = {}
    for number in range(4):
        turns = [SpeakerTurn(0.5, 3.0, f"s{2 * number}"), SpeakerTurn(2.5, 5.5, f"s{2 * number + 1}")]
        sound = np.random.default_rng(number).normal(0, 1e-3, len(at))
        for turn in turns:
            speaks = (at >= turn.start) & (at < turn.end)
            sound += speaks * 0.1 * np.sin(2 * np.pi * (100 + 40 * int(turn.speaker[1:])) * at)
        soundfile.write(folder / f"m{number}.wav", sound, RATE)
        found[f"m{number}"] = turns
    write_rttm(folder / "all.rttm", found)
    return folder


def rows(folder: Path, labels: bool) -> Path:
    words = ("cat", "dog", "hen", "cow")
    path = folder / "rows.csv"
    target = "label" if labels else "target"
    pairs = [(f"{a} {b} {c}", a if labels else f"{c} {b} {a}") for a in words for b in words for c in words]
    path.write_text(f"source,{target}\n" + "".join(f"{source},{target}\n" for source, target in pairs))
    return path


def changes_of(name: str, folder: Path) -> dict[str, Any]:
    """What makes the recipe `name` a run of seconds."""
    recipe = resolve(CONFIGS / f"{name}.yml", ["data.path=x"] if not has_datasets(name) else []).recipe
    changes = dict(SHORT)
    parts = [part for part in ("encoder", "decoder") if getattr(recipe.model, part) is not None]
    changes |= {f"model.{part}.{option}": value for part in parts for option, value in SMALL.items()}
    if recipe.model.global_config.batch_size is not None:
        changes["model.global_config.batch_size"] = 2
    if recipe.task == "diarization":
        path = str(meetings(folder / "meetings"))
        if has_datasets(name):
            changes["datasets"] = [{"name": "mine", "path": path}]
        else:
            changes["data.path"] = path
        return changes | {"data.chunk_seconds": 4.0, "data.validation": 0.5, "data.cache_dir": str(folder / "cache")}
    return changes | {"data.path": str(rows(folder, recipe.model.model_type == "encoder")), "data.vocabulary": 300}


def has_datasets(name: str) -> bool:
    return "\ndatasets:" in (CONFIGS / f"{name}.yml").read_text(encoding="utf-8")


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
    assert text.count("# ") > 200
