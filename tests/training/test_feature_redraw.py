"""Random features of linear attention in training: redrawn by optimizer steps, alike on all ranks, saved, and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from linear_task import LinearTask, features_of
from processes import HERE, finish
from test_trainer import same, train, weights

from phonate.config.errors import CheckpointError
from phonate.config.resolve import Recipe
from phonate.config.settings import Settings
from phonate.training.callbacks import Callback
from phonate.training.checkpoints.loading import TrainedModel


class Watch(Callback):
    """After which steps which features were others than before."""

    def __init__(self) -> None:
        self.redraws: dict[str, list[int]] = {}

    def on_train_begin(self, trainer: Any) -> None:
        self.before = {name: tensor.clone() for name, tensor in features_of(trainer.model).items()}

    def on_optimizer_step(self, trainer: Any) -> None:
        for name, tensor in features_of(trainer.model).items():
            if not torch.equal(tensor, self.before[name]):
                self.redraws.setdefault(name.split(".")[0], []).append(trainer.step)
                self.before[name] = tensor.clone()


def redraws(run: Path, task: LinearTask | None = None, **changes: Any) -> dict[str, list[int]]:
    """The steps after which features of the encoder, and of the decoder, were redrawn."""
    watch = Watch()
    train(run, task or LinearTask(), callbacks=[watch], **{"max_steps": 9, **changes})
    return {part: sorted(set(steps)) for part, steps in watch.redraws.items()}


def task(**parts: dict[str, object]) -> LinearTask:
    made = LinearTask()
    made.encoder, made.decoder = parts.get("encoder", {}), parts.get("decoder", {})
    return made


def test_a_redraw_counts_optimizer_steps(tmp_path: Path) -> None:
    found = redraws(tmp_path, feature_redraw_interval=4, gradient_accumulation_steps=2)
    assert found == {"encoder": [4, 8], "decoder": [4, 8]}


def test_a_components_interval_comes_before_the_trainings(tmp_path: Path) -> None:
    fast = task(encoder={"feature_redraw_interval": 3})
    assert redraws(tmp_path / "both", fast, feature_redraw_interval=4) == {"encoder": [3, 6, 9], "decoder": [4, 8]}
    assert redraws(tmp_path / "own", fast) == {"encoder": [3, 6, 9]}  # the decoder's 1000 steps are far away


def test_features_are_redrawn_by_themselves_unless_auto_check_redraw_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phonate.training.callbacks.DEFAULT_INTERVAL", 5)
    off = task(encoder={"auto_check_redraw": False})
    assert redraws(tmp_path / "half", off) == {"decoder": [5]}
    assert redraws(tmp_path / "told", off, feature_redraw_interval=4) == {"encoder": [4, 8], "decoder": [4, 8]}
    neither = task(encoder={"auto_check_redraw": False}, decoder={"auto_check_redraw": False})
    assert redraws(tmp_path / "neither", neither) == {}


def test_redrawing_stops_when_asked(tmp_path: Path) -> None:
    own = task(encoder={"feature_redraw_interval": 2}, decoder={"feature_redraw_interval": 2})
    assert redraws(tmp_path / "run", own, max_steps=4) == {"encoder": [2, 4], "decoder": [2, 4]}
    kept = redraws(tmp_path / "run", own, max_steps=9, fixed_projection=True, resume="latest")
    assert kept == {}


def test_a_resume_repeats_the_features_bit_for_bit(tmp_path: Path) -> None:
    changes = {"feature_redraw_interval": 3, "max_steps": 8}
    straight = train(tmp_path / "run", LinearTask(), **changes)
    resumed = train(tmp_path / "run", LinearTask(), resume=tmp_path / "run/checkpoints/step-00000004", **changes)
    assert same(weights(straight), weights(resumed))
    saved = straight.checkpoints.load_checkpoint("latest").weights
    wanted = features_of(straight.model)
    assert len(wanted) == 6
    assert all(torch.equal(saved[name], tensor) for name, tensor in wanted.items())


def test_a_checkpoint_without_features_can_be_resumed_and_says_why_it_is_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = train(tmp_path / "run", LinearTask(), checkpoint={"snapshot_features": False})
    assert caplog.text.count("training.checkpoint.snapshot_features=false") == 1
    assert "can only be resumed, not used" in caplog.text
    saved = trainer.checkpoints.load_checkpoint("latest").weights
    assert not any(name.endswith("projection_ME") for name in saved)
    train(tmp_path / "run", LinearTask(), checkpoint={"snapshot_features": False}, resume="latest", max_steps=9)
    trained: TrainedModel[Recipe[Settings, Settings, Settings]]
    trained = TrainedModel(tmp_path / "checkpoint", None, {}, dict(saved))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"projection_ME is missing.*snapshot_features"):
        trained.load_into(LinearTask().model(torch.device("cpu")))


@pytest.mark.slow
def test_two_ranks_redraw_the_same_features_at_the_same_steps(tmp_path: Path) -> None:
    """Each process notes its features before DistributedDataParallel could copy those of the first one."""
    notes = tmp_path / "notes"
    notes.mkdir()
    options = ("training.feature_redraw_interval=3", "training.callbacks=[{type: notes}]")
    finish(
        tmp_path / "run",
        "training.max_steps=8",
        *options,
        ranks=2,
        env={"NOTES": str(notes)},
        plugin=HERE / "linear_plugin.py",
    )
    first, second = ((notes / f"rank{rank}.txt").read_text().splitlines() for rank in (0, 1))
    assert first == second
    by_step: dict[int, set[str]] = {}
    for line in first:
        step, digest = line.split()
        by_step.setdefault(int(step), set()).add(digest)
    assert all(len(digests) == 1 for digests in by_step.values())
    digests = [by_step[step].copy().pop() for step in range(8)]
    assert len(set(digests)) == 3
    assert [digests[step] != digests[step - 1] for step in range(1, 8)] == [step % 3 == 0 for step in range(1, 8)]
