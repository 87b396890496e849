"""What a recipe may ask of a training, with the tasks on sequences and conversations: seen in weights and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from installed import missing

if missing("transformers", "sacrebleu", "rouge_score"):
    pytest.skip(
        "needs transformers, sacrebleu, rouge_score: pip install 'phonate[language,eval]'", allow_module_level=True
    )

import torch
from safetensors.torch import load_file

from examples import CONFIGS, changes_of
from phonate.config.errors import InputError
from phonate.workflows.train import train

RECIPES = ("encoder_decoder_model", "training_simple")
"""A sequence and a diarization."""

pytestmark = pytest.mark.parametrize("name", RECIPES)


def run(name: str, folder: Path, **changes: Any) -> Path:
    given = {"training.max_steps": 6, "training.checkpoint.interval": 1, "training.checkpoint.save_total_limit": 9}
    given |= {
        "training.scheduler.warmup_steps": 0,
        "training.optimizer.lr": 1e-2,
        "training.validation.interval": 6,
    } | changes
    train(CONFIGS / f"{name}.yml", {**changes_of(name, folder), **given}, output=folder / "run", mode="cpu")
    return folder / "run"


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoints/step-{step:08d}/weights.safetensors")


def lines(run: Path, split: str = "train") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


def callback(kind: str, **options: Any) -> dict[str, Any]:
    return {"training.callbacks": [{"type": kind, "options": options}]}


def test_pruned_weights_are_zero_and_stay_so(name: str, tmp_path: Path) -> None:
    folder = run(name, tmp_path, **callback("pruning", amount=0.5, start=3))
    before, after = weights(folder, 2), weights(folder, 6)
    matrices = [one for one in after if after[one].dim() > 1 and "projection" not in one]
    assert len(matrices) > 5
    for one in matrices:
        assert float((before[one] == 0).float().mean()) < 0.1
        assert float((after[one] == 0).float().mean()) == pytest.approx(0.5, abs=0.1)
    assert any("sparsity" in line for line in lines(folder))


def test_frozen_layers_stay_as_they_are_until_they_are_freed(name: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    folder = run(name, tmp_path, **callback("freeze_layers", patterns=["*encoder"], until_step=4))
    first, frozen, freed = (weights(folder, step) for step in (1, 4, 6))
    inside = [one for one in first if "encoder." in one and "projection" not in one]
    outside = [one for one in first if "encoder." not in one]
    assert inside
    assert all(torch.equal(first[one], frozen[one]) for one in inside)
    assert any(not torch.equal(first[one], frozen[one]) for one in outside)
    assert any(not torch.equal(frozen[one], freed[one]) for one in inside)
    with pytest.raises(InputError, match="freeze_layers: 'encodr'"):
        run(name, tmp_path / "other", **callback("freeze_layers", patterns=["encodr"]))


def test_the_rate_falls_when_a_metric_stops_improving(name: str, tmp_path: Path) -> None:
    """A loss that can't fall, as nothing is learnt at a rate so low."""
    folder = run(
        name,
        tmp_path,
        **callback("dynamic_lr", metric="val_loss", patience=1, factor=0.5),
        **{"training.optimizer.lr": 1e-30, "training.scheduler.type": "constant", "training.scheduler.min_lr": 0.0},
        **{"training.validation.interval": 1, "training.validation.metric_for_best_model": "val_loss"},
        **{"training.validation.greater_is_better": False},
    )
    rates = [line["learning_rate"] for line in lines(folder) if "learning_rate" in line]
    assert rates[0] == pytest.approx(1e-30)
    assert rates[-1] <= 0.26e-30


def test_trackers_show_only_the_metrics_that_are_asked_for(name: str, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    changes = {"training.logging.tensorboard": True, "training.logging.log_metrics": ["loss", "learning_rate"]}
    folder = run(name, tmp_path, **changes)
    events = EventAccumulator(str(next((folder / "events").rglob("events.*")).parent))
    events.Reload()
    shown = {tag.rpartition("/")[2] for tag in events.Tags()["scalars"]}
    assert shown == {"loss", "learning_rate"}
    assert len(lines(folder, "validation")[-1].keys() - {"step", "split", "time", "loss"}) >= 1


def test_gradient_norms_of_each_part_are_reported(name: str, tmp_path: Path) -> None:
    folder = run(name, tmp_path, **{"training.logging.log_gradients": True})
    first, last = weights(folder, 1), weights(folder, 6)
    parts = {one.partition(".")[0] for one in last if not torch.equal(first[one], last[one])}
    assert len(parts) >= 2
    found = {key for line in lines(folder) for key in line if "grad" in key}
    for part in parts:
        assert any(part in key for key in found), (part, found)


def test_a_profile_is_written(name: str, tmp_path: Path) -> None:
    folder = run(name, tmp_path, **{"training.profiling": True, "training.performance.profile_batches": 4})
    written = {path.name: path.stat().st_size for path in (folder / "profile").rglob("*") if path.is_file()}
    assert any("trace" in file and size > 1000 for file, size in written.items()), written
    assert len(written) >= 2


def test_what_a_run_is_stands_in_its_folder(name: str, tmp_path: Path) -> None:
    folder = run(name, tmp_path, **{"training.gradient_accumulation_steps": 2})
    kept = json.loads((folder / "hyperparameters.json").read_text())
    assert kept["training"]["gradient_accumulation_steps"] == 2
    assert kept["model"]["encoder"]["d_model"] == 16
    summary = (folder / "model_summary.txt").read_text()
    assert "trainable" in summary
    assert "encoder" in summary
    assert {"python", "torch", "platform", "cpu_count"} <= json.loads((folder / "system.json").read_text()).keys()
    assert "each step learns from 4 samples (2 times 2, accumulated)" in (folder / "logs/training.log").read_text()
    rates = [line for line in lines(folder) if "memory_gb" in line or any("memory" in key for key in line)]
    assert rates
