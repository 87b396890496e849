"""`phonate checkpoints` as a person runs it."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_checkpoints import flip_bit, save

from phonate.cli import runs
from phonate.config.errors import CheckpointError, InputError
from phonate.training.checkpoints import CheckpointManager, files, listing
from phonate.training.checkpoints import files as manifest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 1 to 4; 2 is the best."""
    with CheckpointManager(tmp_path / "run" / "checkpoints") as store:
        for step in (1, 2, 3, 4):
            loss = abs(step - 2) / 10
            save(store, step, metrics={"val_loss": loss}, best_metric=("val_loss", loss), export={"speakers": ["a"]})
    return tmp_path / "run"


def call(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    runs.checkpoints_arguments(parser)
    return runs.checkpoints(parser.parse_args([str(argument) for argument in arguments]))


def call_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    call(*arguments, "--json")
    return json.loads(capsys.readouterr().out)


def test_list(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list", run) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [f"step-0000000{step}" for step in (4, 3, 2, 1)]
    assert lines[3].endswith("best val_loss")
    assert len(lines[3]) <= 80
    document = call_json(capsys, "list", run / "checkpoints", "--sort-by", "val_loss")
    assert [row["step"] for row in document["checkpoints"]] == [2, 3, 1, 4]
    assert document["best"]["name"] == "step-00000002"


def test_verify_names_the_damaged_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", run) == 0
    flip_bit(run / "checkpoints" / "step-00000003" / "state.safetensors")
    assert call("verify", run) == 1
    assert "step-00000003  state.safetensors: SHA-256 differs" in capsys.readouterr().out
    assert call("verify", run, "4", "step-00000001") == 0
    assert call("verify", run / "checkpoints" / "step-00000003") == 1
    capsys.readouterr()
    document = call_json(capsys, "verify", run)
    assert not document["intact"]
    assert document["checkpoints"]["step-00000003"] == ["state.safetensors: SHA-256 differs"]


def test_prune(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_json(capsys, "prune", run, "--keep", 1, "--dry-run")["removed"] == []
    assert call_json(capsys, "prune", run, "--keep", 1) == {
        "removed": ["step-00000001", "step-00000003"],
        "would_remove": ["step-00000001", "step-00000003"],
        "kept": ["step-00000002", "step-00000004"],
    }
    history = json.loads((run / "checkpoints" / "checkpoint_history.json").read_text())
    assert [row["removed"] is None for row in history["checkpoints"]] == [False, True, False, True]
    with pytest.raises(InputError, match="at least one"):
        call("prune", run, "--keep", 0)


def test_export_takes_the_best(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_json(capsys, "export", run, tmp_path / "out")["source"].endswith("step-00000002")
    assert json.loads((tmp_path / "out" / "model.json").read_text()) == {"speakers": ["a"]}
    with pytest.raises(InputError, match="exists already"):
        call("export", run, tmp_path / "out")
    with pytest.raises(InputError, match=r"voice.onnx: weights are exported as a folder; .* --format onnx"):
        call("export", run, tmp_path / "voice.onnx")
    assert call("export", run, tmp_path / "newest", "--checkpoint", "latest") == 0
    assert json.loads((tmp_path / "newest" / "metadata.json").read_text())["global_step"] == 4


def test_export_of_one_checkpoint_takes_no_other(run: Path, tmp_path: Path) -> None:
    one = run / "checkpoints" / "step-00000003"
    with pytest.raises(InputError, match=r"--checkpoint best: .*step-00000003 "):
        call("export", one, tmp_path / "out", "--checkpoint", "best")
    assert not (tmp_path / "out").exists()
    assert call("export", one, tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "metadata.json").read_text())["global_step"] == 3


def test_export_without_a_best_takes_the_newest(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "run" / "checkpoints") as store:
        save(store, 1)
        save(store, 2)
    assert call("export", tmp_path / "run", tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "metadata.json").read_text())["global_step"] == 2
    with pytest.raises(CheckpointError, match="as the best"):
        call("export", tmp_path / "run", tmp_path / "asked", "--checkpoint", "best")


def test_compare(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = call_json(capsys, "compare", run, "1", "best")
    assert document["metadata"]["global_step"] == [1, 2]
    assert [change["name"] for change in document["changed"]] == ["layer.bias", "layer.weight"]
    assert document["changed"][1]["largest"] == 1.0
    assert document["changed"][1]["relative"] == pytest.approx(1.0)
    assert call("compare", run, "4", "latest") == 0
    assert "0 changed, 2 equal" in capsys.readouterr().out
    for one, two in (("v1", "step-3"), ("00000001", "step-00000003")):
        assert call_json(capsys, "compare", run, one, two)["metadata"]["global_step"] == [1, 3]
    assert call("compare", run, "1", "2") == 0
    assert any(line.split()[:1] == ["metrics.val_loss"] for line in capsys.readouterr().out.splitlines())


def test_ranked_by_a_metric(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranked = call_json(capsys, "compare", run, "--metric", "loss")["checkpoints"]
    values = [row["value"] for row in ranked]
    assert len(values) > 2
    assert values == sorted(values)
    assert call_json(capsys, "compare", run, "1", "2", "3")["checkpoints"][0] in ranked
    with pytest.raises(InputError, match="higher_is_better=True: val_loss "):
        call("compare", run, "--metric", "val_loss", "--higher-is-better")
    assert call("compare", run, "1", "2", "3") == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:3]] == ["step-00000002", "step-00000001"]
    with pytest.raises(InputError, match=r"vall_loss; did you mean val_loss\?"):
        call("compare", run, "--metric", "vall_loss")
    with pytest.raises(InputError, match="two checkpoints"):
        call("compare", run, "1")


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run"):
        call("list", tmp_path / "nothing")
    with CheckpointManager(tmp_path / "run" / "checkpoints") as store:
        save(store, 1)
    with pytest.raises(InputError, match=r"'step-9' .*available: 1 \(v1\)"):
        call("verify", tmp_path / "run", "step-9")


@pytest.mark.parametrize("action", ["list", "verify"])
def test_a_checkpoint_that_training_deletes_meanwhile_is_not_damaged(
    action: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scan, scans = listing.scan, itertools.count(1)

    def scan_then_prune(folder: Path) -> list[listing.CheckpointInfo]:
        found = scan(folder)
        if folder == run / "checkpoints" and next(scans) == 2:  # the first one only looks for the folder
            shutil.rmtree(folder / "step-00000001")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(listing, "scan", scan_then_prune)
        assert call(action, run) == 0
    printed = capsys.readouterr().out
    assert "damaged" not in printed
    assert "missing" not in printed
    assert "step-00000001" not in printed


def test_a_checkpoint_that_training_replaces_meanwhile_is_not_damaged(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read half before and half after the replacement."""
    other = tmp_path / "other"
    shutil.copytree(run / "checkpoints" / "step-00000001", other)
    flip_bit(run / "checkpoints" / "step-00000001" / "state.json")
    read = files.sha256_of

    def replace_then_read(path: Path) -> str:
        digest = read(path)
        if other.exists() and path.name == "state.json":
            shutil.rmtree(path.parent)
            other.rename(path.parent)
        return digest

    for module in (files, manifest):
        monkeypatch.setattr(module, "sha256_of", replace_then_read)
    assert call("verify", run, "1") == 0


def test_listing_needs_no_torch() -> None:
    code = "import sys, phonate.cli.checkpoints; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
