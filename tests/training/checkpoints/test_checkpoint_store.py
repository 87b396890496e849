"""The store from outside: background saves, best pointer, retention, history, backups, export, settings."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small_checkpoints import assert_whole, save
from torch import Tensor

from phonate.config.errors import CheckpointError, InputError
from phonate.training.checkpoints import (
    CheckpointManager,
    create_checkpoint_manager,
    get_default_checkpoint_config,
    listing,
    manager,
    resolve_checkpoint,
)
from phonate.training.checkpoints.snapshot import Snapshot
from phonate.training.settings import CheckpointConfig


class GatedSnapshot(Snapshot):
    """Writing waits until the gate is open."""

    gate = threading.Event()

    def content(self) -> Iterator[memoryview]:
        self.gate.wait(10)
        return super().content()


class LazySnapshot(GatedSnapshot):
    """The faulty variant: keeps references and reads the tensors when they are written."""

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        super().take(tensors)
        self.tensors = dict(tensors)

    def content(self) -> Iterator[memoryview]:
        self.gate.wait(10)
        super().take(self.tensors)
        return Snapshot.content(self)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(GatedSnapshot, "gate", threading.Event())
    monkeypatch.setattr(manager, "Snapshot", GatedSnapshot)
    yield GatedSnapshot.gate
    GatedSnapshot.gate.set()


@pytest.mark.parametrize(("kind", "torn"), [(GatedSnapshot, False), (LazySnapshot, True)])
def test_what_changes_after_the_save_returned_is_not_in_it(
    kind: type, torn: bool, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "Snapshot", kind)
    weights, moments = torch.zeros(1000), torch.zeros(1000)
    with CheckpointManager(tmp_path) as store:
        store.save_checkpoint(step=1, epoch=0, weights={"w": weights}, state={"m": moments, "list": [1]})
        weights.add_(1)
        moments.add_(1)
        gate.set()
        loaded = store.load_checkpoint(1)
    assert bool(loaded.weights["w"].any()) == torn
    assert bool(loaded.state["m"].any()) == torn


def test_a_save_returns_before_it_is_written_and_the_next_one_waits(gate: threading.Event, tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as store:
        path = save(store, 1)
        assert not path.exists()
        assert store.poll()
        second = threading.Thread(target=save, args=(store, 2))
        second.start()
        assert not path.exists(), "the second save went on before the first was safe"
        gate.set()
        second.join()
        assert path.exists()
        store.flush()
        assert not store.poll()


def test_buffers_are_allocated_once(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as store:
        addresses = set()
        for step in (1, 2, 3):
            save(store, step)
            store.flush()
            addresses.add((store._weights._buffer.data_ptr(), store._state._buffer.data_ptr()))
        save(store, 4, numel=2000)
        assert_whole(store.load_checkpoint(4))
    assert len(addresses) == 1


def test_a_worse_model_never_becomes_the_best_after_a_resume(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as store:
        save(store, 1, best_metric=("val_loss", 0.2))
    with CheckpointManager(tmp_path) as resumed:
        save(resumed, 2, best_metric=("val_loss", 0.3))
        assert resumed.load_best_checkpoint().metadata.global_step == 1
        save(resumed, 3, best_metric=("val_loss", float("nan")))
        assert resumed.load_best_checkpoint().metadata.global_step == 1
        save(resumed, 4, best_metric=("val_loss", 0.3), is_best=True)  # a caller that forgot
        assert resumed.load_best_checkpoint().metadata.global_step == 1
        save(resumed, 5, best_metric=("val_loss", 0.1))
        assert resumed.load_best_checkpoint().metadata.global_step == 5
    best = json.loads((tmp_path / "best.json").read_text())
    assert best == {"name": "step-00000005", "metric": "val_loss", "value": 0.1, "mode": "min"}


def test_higher_may_be_better(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as store:
        for step, value in ((1, 0.5), (2, 0.9), (3, 0.7)):
            save(store, step, best_metric=("similarity", value), greater_is_better=True)
        assert store.load_best_checkpoint().metadata.global_step == 2


@pytest.mark.parametrize("hashed", [True, False])
def test_saving_the_resumed_step_again_keeps_the_best(hashed: bool, tmp_path: Path) -> None:
    """A run resumed from its best checkpoint, and stopped before a step, saves the same step without a validation."""
    with CheckpointManager(tmp_path, CheckpointConfig(track_model_hash=hashed)) as store:
        save(store, 5, best_metric=("val_loss", 0.1), is_best=True)
        save(store, 5, best_metric=("val_loss", 0.1), is_best=False)
        assert store.load_best_checkpoint().metadata.global_step == 5


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, CheckpointConfig(save_total_limit=2)) as store:
        for step in range(1, 8):
            save(store, step, best_metric=("val_loss", abs(step - 3)))
        assert [item.step for item in store.list_checkpoints()] == [7, 6, 3]
        assert store.prune(1) == ["step-00000006"]
        with pytest.raises(InputError, match="at least one"):
            store.prune(0)
        assert [item.step for item in store.list_checkpoints()] == [7, 3]


def test_after_going_back_the_new_checkpoints_count_as_newest(tmp_path: Path) -> None:
    """A run restarted from step 10 saves 15: it is newer than the old 20, and pruning takes the old ones."""
    with CheckpointManager(tmp_path, CheckpointConfig(save_total_limit=2)) as store:
        for step in (10, 20, 15):
            save(store, step)
        assert store.load_checkpoint("latest").metadata.global_step == 15
        assert [item.step for item in store.list_checkpoints()] == [15, 20]


def test_the_history_keeps_every_save(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, CheckpointConfig(save_total_limit=1)) as store:
        for step in (1, 2, 2, 3):
            save(store, step, metrics={"val_loss": float(step), "other": float("nan")})
        info = store.get_checkpoint_info(3)
    rows = listing.read_history(tmp_path).checkpoints
    assert [(row.version, row.global_step, row.removed is None) for row in rows] == [
        (1, 1, False),
        (2, 2, False),
        (3, 2, False),
        (4, 3, True),
    ]
    assert info.version == 4
    with CheckpointManager(tmp_path) as store:
        save(store, 4)
        assert store.get_checkpoint_info("latest").version == 5


def test_metadata_has_every_field(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as store:
        save(
            store,
            20,
            metrics={"train_loss": 0.5, "val_loss": 0.4, "snr": float("inf")},
            learning_rate=1e-4,
            model_name="VoiceTransformer",
            experiment_name="first",
            best_metric=("val_loss", 0.4),
            notes="a note",
            tags=("one", "two"),
        )
        info = store.get_checkpoint_info(20)
    assert (info.epoch, info.global_step, info.train_loss, info.val_loss, info.best_metric) == (2, 20, 0.5, 0.4, 0.4)
    assert (info.model_name, info.experiment_name, info.notes, info.tags) == (
        "VoiceTransformer",
        "first",
        "a note",
        ("one", "two"),
    )
    assert info.metrics["snr"] == float("inf")
    assert info.num_parameters == 1003
    assert info.model_size_mb == pytest.approx((4000 + 24) / 1e6)
    assert info.learning_rate == 1e-4
    assert info.optimizer_state_available
    assert not info.scheduler_state_available
    assert info.pytorch_version == torch.__version__
    assert info.hostname
    assert info.timestamp.tzinfo is not None


def test_what_is_tracked_can_be_switched_off(tmp_path: Path) -> None:
    config = CheckpointConfig(
        track_git_info=False,
        track_system_info=False,
        track_model_hash=False,
        versioning=False,
        save_model_architecture=False,
    )
    with CheckpointManager(tmp_path, config) as store:
        save(store, 1, architecture="Linear()")
        info = store.get_checkpoint_info(1)
        assert store.load_checkpoint(1).architecture == ""
    assert (info.git_commit, info.hostname, info.model_hash, info.version) == (None, None, None, None)
    assert not (tmp_path / "checkpoint_history.json").exists()
    assert not (tmp_path / "step-00000001" / "model.txt").exists()


def test_compression(tmp_path: Path) -> None:
    sizes = {}
    for compress in (False, True):
        folder = tmp_path / str(compress)
        with CheckpointManager(folder, CheckpointConfig(compress=compress)) as store:
            save(store, 1, numel=100_000)
            assert_whole(store.load_checkpoint(1))
            assert not store.verify(1)
        sizes[compress] = sum(path.stat().st_size for path in (folder / "step-00000001").iterdir())
    assert sizes[True] < sizes[False] / 10


def test_backups_of_each_new_best_are_verified_copies_and_pruned(tmp_path: Path) -> None:
    config = CheckpointConfig(backup_dir="backups", max_backups=2)
    with CheckpointManager(tmp_path / "checkpoints", config, run=tmp_path) as store:
        for step, loss in ((1, 0.4), (2, 0.3), (3, 0.5), (4, 0.2)):
            save(store, step, best_metric=("val_loss", loss))
        store.flush()
        backups = sorted((tmp_path / "backups").iterdir())
        assert [path.name[-13:] for path in backups] == ["step-00000002", "step-00000004"]
        assert_whole(store.load_checkpoint(backups[-1]))
        made = store.create_checkpoint_backup(3)
        assert_whole(store.load_checkpoint(made))
        assert len(list((tmp_path / "backups").iterdir())) == 2


def test_export_has_what_inference_needs_and_no_more(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "checkpoints") as store:
        save(store, 1, recipe_yaml="task: conversion\n", export={"speakers": ["a", "b"]})
        target = store.export_checkpoint(1, tmp_path / "exported")
        assert not any("state" in path.name for path in target.iterdir())
        assert not store.verify(target)
        with pytest.raises(InputError, match="exists already"):
            store.export_checkpoint(1, target)
        with pytest.raises(CheckpointError, match="weights only"):
            store.load_checkpoint(target)
    from phonate.training.checkpoints.loading import load

    loaded = load(target, weights_only=True)
    assert loaded.weights["layer.weight"].eq(1).all()
    assert loaded.inference == {"speakers": ["a", "b"]}
    assert loaded.recipe_yaml == "task: conversion\n"
    with pytest.raises(CheckpointError, match="plain JSON"), CheckpointManager(tmp_path / "x") as store:
        save(store, 1, export={"model": object()})


def test_load_into_a_model(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with CheckpointManager(tmp_path) as store:
        store.save_checkpoint(step=1, epoch=0, weights=model.state_dict(), state={})
        other = torch.nn.Linear(2, 2)
        store.load_checkpoint(1, model=other)
        assert torch.equal(other.weight, model.weight)
        without_bias = torch.nn.Linear(2, 2, bias=False)
        with pytest.raises(CheckpointError, match="does not fit"):
            store.load_checkpoint(1, model=without_bias)
        store.load_checkpoint(1, strict=False, model=without_bias)
        assert torch.equal(without_bias.weight, model.weight)


def test_names_of_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    with CheckpointManager(folder) as store:
        assert store.load_latest_checkpoint() is None
        with pytest.raises(CheckpointError, match="no checkpoint"):
            store.load_best_checkpoint()
        for step, loss in ((1, 0.1), (2, 0.2)):
            save(store, step, best_metric=("val_loss", loss), metrics={"val_loss": loss})
        assert [i.step for i in store.list_checkpoints("val_loss")] == [1, 2]
        assert [i.step for i in store.list_checkpoints("epoch")] == [2, 1]
        save(store, 3, best_metric=("val_loss", 0.05))
        store.remove_checkpoint(3)
        assert store.load_best_checkpoint().metadata.global_step == 1, "the best of those that are left"
        store.remove_checkpoint(1)
    newest = folder / "step-00000002"
    for text in ("auto", "latest", "best", "2", "step-00000002", newest):
        assert resolve_checkpoint(text, run=tmp_path / "run") == newest
    for place in (newest, folder, tmp_path / "run"):
        assert resolve_checkpoint(place) == newest
    with pytest.raises(InputError, match="no such run"):
        resolve_checkpoint(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"'7' .*available: 2 "):
        resolve_checkpoint("7", run=tmp_path / "run")


def test_a_removed_best_is_replaced_by_the_best_of_those_left(tmp_path: Path) -> None:
    """Also by one that was never the best: its own value counts."""
    with CheckpointManager(tmp_path) as store:
        for step, loss in ((1, 0.1), (2, 0.3), (3, 0.2)):
            save(store, step, best_metric=("val_loss", min(0.1, loss)), metrics={"val_loss": loss}, is_best=step == 1)
        store.remove_checkpoint("best")
        assert store.load_best_checkpoint().metadata.global_step == 3
        best = json.loads((tmp_path / "best.json").read_text())
        assert (best["name"], best["value"]) == ("step-00000003", 0.2)
        for step in (2, 3):
            store.remove_checkpoint(step)
        with pytest.raises(CheckpointError, match="no checkpoint"):
            store.load_best_checkpoint()
        assert not (tmp_path / "best.json").exists()


def test_an_unknown_order_is_refused(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as store:
        save(store, 1)
        with pytest.raises(InputError, match="'nope'; choose from 'epoch', 'timestamp', 'val_loss'"):
            store.list_checkpoints("nope")  # type: ignore[arg-type]


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "c", is_main=False) as store:
        save(store, 1)
    assert not (tmp_path / "c").exists()


def test_the_conveniences(tmp_path: Path) -> None:
    assert get_default_checkpoint_config() == CheckpointConfig()
    options: dict[str, Any] = {"save_dir": "kept", "save_total_limit": 1}
    with create_checkpoint_manager(tmp_path, **options) as store:
        save(store, 1)
        save(store, 2)
    assert [path.name for path in sorted((tmp_path / "kept").glob("step-*"))] == ["step-00000002"]


def test_a_manager_can_be_used_again_after_close(tmp_path: Path) -> None:
    store = CheckpointManager(tmp_path)
    for step in (1, 2):
        save(store, step)
        store.close()
    assert store.latest().name == "step-00000002"
