"""Checkpoints, folders and repositories that other people made, and other programs' files beside ours."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_checkpoints import assert_whole, save

from phonate.config.documents import parse
from phonate.config.errors import CheckpointError
from phonate.config.resolve import resolve_document
from phonate.training.checkpoints import CheckpointManager
from phonate.training.checkpoints.loading import InferenceMetadata, TrainedModel, load
from phonate.training.settings import CheckpointConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The checkpoints of steps 400 and 500 of a run."""
    with CheckpointManager(tmp_path / "run" / "checkpoints") as manager:
        for step in (400, 500):
            save(manager, step, recipe_yaml="task: conversion\n", export={"speakers": ["a"]})
    return tmp_path / "run" / "checkpoints"


def forge(checkpoint: Path, add: dict[str, bytes], remove: tuple[str, ...] = (), **entries: Any) -> None:
    """Write files into a checkpoint, and a manifest that agrees with them; `entries` are put into it as they are."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name in remove:
        (checkpoint / name).unlink()
        del manifest["files"][name]
    for name, content in add.items():
        (checkpoint / name).write_bytes(content)
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["files"].update(entries)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


@pytest.mark.parametrize("name", ["../.bashrc", "/tmp/x", "..", "a/b", "a\\b", ""])
def test_names_in_a_manifest_are_those_of_files_in_the_checkpoint(name: str, folder: Path, tmp_path: Path) -> None:
    content = b"echo"
    source, target = folder / "step-00000500", tmp_path / "elsewhere" / "exported"
    (folder / ".bashrc").write_bytes(content)
    target.parent.mkdir()
    (target.parent / ".bashrc").write_bytes(b"mine")
    forge(source, {}, **{name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}})
    with CheckpointManager(folder) as store:
        assert "is not a plain file name" in str(store.verify(500)[0])
        with pytest.raises(CheckpointError, match="plain file name"):
            store.export_checkpoint(500, target)
    assert (target.parent / ".bashrc").read_bytes() == b"mine"
    assert [path.name for path in target.parent.iterdir()] == [".bashrc"]


@pytest.mark.parametrize("entry", [3, None, {"size": "9", "sha256": "0" * 64}, {"size": -1, "sha256": "0" * 64}])
def test_entries_of_a_manifest_have_a_size_and_a_hash(entry: Any, folder: Path) -> None:
    forge(folder / "step-00000500", {}, **{"x" * 300_000: entry})
    (problem,) = CheckpointManager(folder).verify(500)
    assert "has no size and SHA-256" in str(problem)
    assert len(str(problem)) < 300


def test_files_that_the_manifest_does_not_list_are_not_loaded(folder: Path) -> None:
    newest = folder / "step-00000500"
    other = (folder / "step-00000400" / "weights.safetensors").read_bytes()
    (newest / "weights.safetensors.zlib").write_bytes(zlib.compress(other))
    assert_whole(load(newest))
    forge(newest, {}, remove=("recipe.yaml",))
    (newest / "recipe.yaml").write_text("task: language\n")
    assert load(newest).recipe_yaml == ""


def test_another_programs_hidden_files_are_left_alone(folder: Path) -> None:
    for name in (".x.tmp", ".notes.removed", ".sync.replaced", ".step-1.tmp"):
        (folder / f"{name}.d").mkdir()
        (folder / f"{name}.d").rename(folder / name)
        (folder / name / "kept").write_text("kept")
    (folder / ".step-00000001.tmp").mkdir()
    with CheckpointManager(folder) as store:
        save(store, 600)
    assert {path.name for path in folder.glob(".*")} == {
        ".lock", ".x.tmp", ".notes.removed", ".sync.replaced", ".step-1.tmp"
    }  # fmt: skip


def test_an_export_leaves_its_neighbours_alone(folder: Path, tmp_path: Path) -> None:
    for name in (".out.tmp", ".out.replaced", ".out.removed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept").write_text("kept")
    (tmp_path / "out").mkdir()
    with CheckpointManager(folder) as store:
        store.export_checkpoint(500, tmp_path / "out")
    assert not load(tmp_path / "out", weights_only=True).skipped
    assert len(list(tmp_path.glob(".out.*/kept"))) == 3


def test_two_runs_with_one_backup_folder_keep_their_own_backups(tmp_path: Path) -> None:
    config = CheckpointConfig(backup_dir=str(tmp_path / "backups"), max_backups=2)
    for run in ("here/run", "there/run"):
        with CheckpointManager(tmp_path / run / "checkpoints", config, run=tmp_path / run) as store:
            for step, loss in ((1, 0.3), (2, 0.2), (3, 0.1)):
                save(store, step, best_metric=("val_loss", loss))
    backups = sorted(path.parent.name for path in (tmp_path / "backups").glob("*/*-step-0000000[23]"))
    assert len(backups) == 4
    assert len(set(backups)) == 2


def test_a_checkpoint_that_is_a_link_can_be_replaced_and_pruned(folder: Path, tmp_path: Path) -> None:
    """The link goes, what it leads to stays."""
    for step in (400, 500):
        elsewhere = tmp_path / f"big-disk-{step}"
        (folder / f"step-00000{step}").rename(elsewhere)
        (folder / f"step-00000{step}").symlink_to(elsewhere)
    with CheckpointManager(folder, CheckpointConfig(save_total_limit=2)) as store:
        save(store, 500)
        save(store, 600)
        store.flush()
        assert [item.step for item in store.list_checkpoints()] == [600, 500]
        save(store, 700)
        assert [item.step for item in store.list_checkpoints()] == [700, 600]
    assert not load(tmp_path / "big-disk-400").skipped
    assert not load(tmp_path / "big-disk-500").skipped
    assert not [path for path in folder.glob(".*") if path.name != ".lock"]


def deep(_: dict[str, Any]) -> bytes:
    return b"[" * 100_000 + b"]" * 100_000


def without_zone(metadata: dict[str, Any]) -> bytes:
    return json.dumps({**metadata, "timestamp": "2026-01-01T00:00:00"}).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [("metadata.json", deep), ("metadata.json", without_zone), ("state.json", deep), ("model.json", deep)],
)
def test_one_damaged_checkpoint_does_not_stop_the_fallback(
    name: str, content: Callable[[dict[str, Any]], bytes], folder: Path
) -> None:
    metadata = json.loads((folder / "step-00000500" / "metadata.json").read_text())
    forge(folder / "step-00000500", {name: content(metadata)})
    with CheckpointManager(folder) as store:
        found = store.load_latest_checkpoint()
        assert found is not None
        assert_whole(found)
        assert found.metadata.global_step == 400
        assert f"step-00000500 is damaged ({name}: " in found.skipped[0]
        save(store, 600)
        assert store.load_checkpoint("latest").metadata.global_step == 600


def test_a_state_between_the_limits_of_json_and_of_ours(folder: Path) -> None:
    """Deep enough for our decoder, not for that of JSON."""
    document = b'{"a":' * 900 + b"1" + b"}" * 900
    forge(folder / "step-00000500", {"state.json": document})
    found = CheckpointManager(folder).load_latest_checkpoint()
    assert found is not None
    assert found.metadata.global_step in (400, 500)


def test_a_pipe_or_a_device_is_not_waited_for(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from phonate.cli import main\n"
        "sys.exit(main(['checkpoints', sys.argv[1], sys.argv[2]]))"
    )
    empty = {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    newest = folder / "step-00000500"
    forge(newest, {}, remove=("model.txt",), **{"model.txt": empty, "zero": empty})
    os.mkfifo(newest / "model.txt")
    (newest / "zero").symlink_to("/dev/zero")
    (folder / "step-00000400" / "metadata.json").unlink()
    os.mkfifo(folder / "step-00000400" / "metadata.json")
    for action, expected in (("verify", "zero: not a regular file"), ("list", "damaged: metadata.json")):
        command = [sys.executable, "-c", code, action, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert expected in done.stdout, done.stderr


@pytest.mark.parametrize("kind", ["link", "other content"])
def test_a_lock_file_that_is_not_ours_is_not_written_to(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    if kind == "link":
        (folder / ".lock").symlink_to(precious)
    else:
        os.link(precious, folder / ".lock")
    with pytest.raises(CheckpointError, match=r"\.lock: "), CheckpointManager(folder) as store:
        save(store, 1)
    assert precious.read_text() == "precious"


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_nothing_that_a_repository_names_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, ran = tmp_path / "repository", tmp_path / "ran"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "work")
    (repository / "file").write_text("one\n")
    (repository / ".gitattributes").write_text("* filter=x diff=x\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "x")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.clean", "diff.external", "diff.x.textconv", "diff.x.command"):
        git(repository, "config", key, str(program))
    monkeypatch.chdir(repository)
    infos = []
    for step, content in ((1, "one\n"), (2, "two\n")):
        (repository / "file").write_text(content)
        with CheckpointManager(tmp_path / "checkpoints") as store:
            save(store, step)
            infos.append(store.get_checkpoint_info(step))
    assert not ran.exists()
    assert [info.git_dirty for info in infos] == [False, True]
    assert {info.git_branch for info in infos} == {"work"}
    head = (repository / ".git" / "refs" / "heads" / "work").read_text().strip()
    assert {info.git_commit for info in infos} == {head}


def header(size: int) -> bytes:
    entry = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(entry).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header(80 << 20) + bytes(80 << 20), "83.9 MB .*metadata.json .* kB"),
        (header(8) + bytes(80 << 20), "more data than its header says"),
        ((1 << 40).to_bytes(8, "little") + bytes(80 << 20), "a header of"),
        (header(16)[:-4], "can't be read"),
        (b"\x02" + bytes(7) + b"[]", "not a safetensors header"),
    ],
)
def test_compressed_weights_unpack_into_no_more_than_their_size(content: bytes, said: str, folder: Path) -> None:
    packed = zlib.compress(content, 1)
    forge(folder / "step-00000500", {"weights.safetensors.zlib": packed}, remove=("weights.safetensors",))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=said):
            load(folder / "step-00000500")
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_weights_that_hold_nan_are_refused(folder: Path) -> None:
    from safetensors.torch import save as save_bytes

    weights = load(folder / "step-00000500").weights
    weights["layer.weight"][3] = torch.nan
    forge(folder / "step-00000500", {"weights.safetensors": save_bytes(weights)})
    with pytest.raises(CheckpointError, match=r"weights.safetensors: layer.weight holds NaN"):
        load(folder / "step-00000500", weights_only=True)


def test_a_stale_best_pointer_is_put_right_when_the_folder_is_opened(tmp_path: Path) -> None:
    """A kill between the rename of a checkpoint and the write of best.json leaves it behind."""
    with CheckpointManager(tmp_path) as store:
        save(store, 1, best_metric=("val_loss", 0.2))
        store.flush()
        stale = (tmp_path / "best.json").read_bytes()
        save(store, 2, best_metric=("val_loss", 0.1))
    (tmp_path / "best.json").write_bytes(stale)
    with CheckpointManager(tmp_path) as store:
        store.open()
    assert json.loads((tmp_path / "best.json").read_text())["name"] == "step-00000002"


def test_a_model_that_does_not_fit_its_recipe_is_one_line(folder: Path) -> None:
    """Weights of other shapes, and a model.json that lacks what inference needs."""
    found = load(folder / "step-00000500", weights_only=True)
    metadata = InferenceMetadata(found.path / "model.json", found.inference)
    trained = TrainedModel(found.path, resolve_document(parse("task: conversion\ndata: {path: x}\n", "x")).recipe,
                           metadata, found.weights)  # fmt: skip
    with pytest.raises(CheckpointError, match=r"model\.json: .*'features'"):
        trained.require_features("0")
    with pytest.raises(CheckpointError, match=r"layer\.bias"):
        trained.load_into(torch.nn.Linear(2, 2))


def test_an_alias_bomb_in_a_recipe_is_refused_at_once(folder: Path) -> None:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{i}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(30)]
    (folder.parent / "recipe.yaml").write_text("\n".join(lines) + "\n")
    code = "import sys; from phonate.cli import main; sys.exit(main(['report', sys.argv[1]]))"
    command = [sys.executable, "-c", code, str(folder.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "more than 20000 values, aliases unfolded" in done.stderr
