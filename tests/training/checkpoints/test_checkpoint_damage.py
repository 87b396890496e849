"""What is damaged is refused and named, and the newest intact checkpoint is taken instead."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import pytest
import torch
from small_checkpoints import assert_whole, flip_bit, save

from phonate.config.errors import CheckpointError
from phonate.training.checkpoints import CheckpointManager, listing, resolve_checkpoint
from phonate.training.checkpoints.files import problems
from phonate.training.settings import CheckpointConfig

FILES = [
    "weights.safetensors",
    "state.safetensors",
    "state.json",
    "metadata.json",
    "model.json",
    "model.txt",
    "recipe.yaml",
    "manifest.json",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with the checkpoints of steps 400 and 500."""
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        for step in (400, 500):
            save(manager, step, recipe_yaml="task: conversion\n", architecture="Linear(3)", export={"speakers": ["a"]})
    return tmp_path / "checkpoints"


def test_every_file_is_there_and_in_the_manifest(folder: Path) -> None:
    newest = folder / "step-00000500"
    assert sorted(path.name for path in newest.iterdir()) == sorted(FILES)
    listed = json.loads((newest / "manifest.json").read_text())["files"]
    assert sorted(listed) == sorted(set(FILES) - {"manifest.json"})
    for name, entry in listed.items():
        content = (newest / name).read_bytes()
        assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_refused_and_the_older_one_resumed(
    name: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # in the middle of the manifest a hash would be changed, and the file it belongs to be suspected
    flip_bit(folder / "step-00000500" / name, byte=0 if name == "manifest.json" else -1)
    manager = CheckpointManager(folder)
    with pytest.raises(CheckpointError, match=rf"step-00000500 is damaged \(.*{name}"):
        manager.load_checkpoint(500)
    with caplog.at_level(logging.WARNING):
        loaded = manager.load_latest_checkpoint()
    assert loaded is not None
    assert loaded.metadata.global_step == 400
    assert_whole(loaded)
    assert len(loaded.skipped) == 1
    assert loaded.skipped[0].startswith(f"step-00000500 is damaged ({name}")
    assert loaded.skipped[0].endswith("going back to step-00000400")
    assert loaded.skipped[0] in caplog.text
    assert resolve_checkpoint(folder.parent).name == "step-00000400"


def test_any_bit_of_the_manifest(folder: Path) -> None:
    manifest = folder / "step-00000500" / "manifest.json"
    whole = manifest.read_bytes()
    for position in range(len(whole)):
        flip_bit(manifest, byte=position, bit=position % 8)
        assert problems(manifest.parent), f"byte {position} may be wrong unnoticed"
        manifest.write_bytes(whole)
    assert not problems(manifest.parent)


@pytest.mark.parametrize("name", ["weights.safetensors", "state.json", "manifest.json", "metadata.json"])
def test_truncated_and_missing_files(name: str, folder: Path) -> None:
    path = folder / "step-00000500" / name
    path.write_bytes(path.read_bytes()[:-1])
    assert CheckpointManager(folder).load_checkpoint("latest").path.name == "step-00000400"
    path.unlink()
    assert CheckpointManager(folder).load_checkpoint("latest").path.name == "step-00000400"


def test_nothing_intact_is_an_error_that_names_all(folder: Path) -> None:
    for step in (400, 500):
        flip_bit(folder / listing.name_of(step) / "state.json")
    with pytest.raises(CheckpointError, match=r"no intact checkpoint: step-00000500 .*; step-00000400 "):
        CheckpointManager(folder).load_latest_checkpoint()


def test_without_verification_the_flipped_bit_gets_through(folder: Path) -> None:
    """`verify_integrity: false` changes what is loaded; a truncated file is still refused."""
    weights = folder / "step-00000500" / "weights.safetensors"
    flip_bit(weights, byte=weights.stat().st_size - 2)
    manager = CheckpointManager(folder, CheckpointConfig(verify_integrity=False))
    assert manager.load_checkpoint("latest").metadata.global_step == 500
    weights.write_bytes(weights.read_bytes()[:-1])
    assert manager.load_checkpoint("latest").metadata.global_step == 400


def architecture_hash(path: Path) -> str:
    """The faulty variant: a hash of what the model looks like, not of its weights."""
    return hashlib.md5((path / "model.txt").read_bytes()).hexdigest()


def test_a_hash_of_the_architecture_misses_what_ours_finds(folder: Path) -> None:
    newest = folder / "step-00000500"
    before = architecture_hash(newest)
    flip_bit(newest / "weights.safetensors")
    assert architecture_hash(newest) == before
    assert [str(problem) for problem in problems(newest)] == ["weights.safetensors: SHA-256 differs"]


def test_model_hash_follows_the_weights(tmp_path: Path) -> None:
    hashes = []
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 1.0000001)):
        with CheckpointManager(tmp_path / name, CheckpointConfig(compress=name == "b")) as manager:
            manager.save_checkpoint(
                step=1, epoch=0, weights={"w": torch.tensor([value])}, state={}, architecture="same"
            )
            hashes.append(manager.get_checkpoint_info(1).model_hash)
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[0] == hashlib.sha256((tmp_path / "a/step-00000001/weights.safetensors").read_bytes()).hexdigest()


def test_a_damaged_best_falls_back_to_the_best_before_it(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step, loss in ((1, 0.5), (2, 0.4), (3, 0.6)):
            save(manager, step, best_metric=("val_loss", loss))
        flip_bit(tmp_path / "step-00000002" / "weights.safetensors")
        best = manager.load_best_checkpoint()
    assert best.metadata.global_step == 1
    assert "step-00000002" in best.skipped[0]


def test_a_damaged_history_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(tmp_path) as manager:
        save(manager, 1)
    (tmp_path / "checkpoint_history.json").write_text("{")
    with CheckpointManager(tmp_path) as manager:
        save(manager, 2)
    assert [row.global_step for row in listing.read_history(tmp_path).checkpoints] == [1, 2]
    assert [row.version for row in listing.read_history(tmp_path).checkpoints] == [1, 2]
    assert (tmp_path / "checkpoint_history.json.damaged").exists()
    assert "a new history is begun" in caplog.text
