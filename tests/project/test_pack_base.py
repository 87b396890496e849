"""`scripts/pack_base.py`, by which `make base` puts trained weights into the package."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import phonate
from phonate.training.checkpoints import files
from phonate.training.checkpoints.files import problems, write_manifest
from phonate.training.checkpoints.listing import resolve_checkpoint
from phonate_process import run_python

ROOT = Path(__file__).parents[2]
VOICES = "acoustic.voices.weight"


@pytest.fixture
def voice() -> Path:
    return resolve_checkpoint("base/voice")


def pack(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_python(ROOT / "scripts" / "pack_base.py", *arguments)


def changed(source: Path, target: Path, weights: dict[str, Tensor], held_out: list[str] | None = None) -> Path:
    """The checkpoint `source` with some other weights, and other recordings that were held out."""
    shutil.copytree(source, target)
    save_file(load_file(source / files.WEIGHTS) | weights, target / files.WEIGHTS)
    if held_out is not None:
        facts = json.loads((source / files.INFERENCE).read_text()) | {"validation": held_out}
        (target / files.INFERENCE).write_text(json.dumps(facts))
    names = (files.WEIGHTS, files.RECIPE, files.INFERENCE, files.METADATA)
    write_manifest(target, {name: files.write_durably(target / name, (target / name).read_bytes()) for name in names})
    return target


def test_a_packed_checkpoint_speaks_and_tells_nothing_of_the_machine(voice: Path, tmp_path: Path) -> None:
    target = tmp_path / "voice"
    target.mkdir()
    (target / "MODEL_CARD.md").write_text("kept")
    (target / "weights.safetensors").write_text("replaced")
    done = pack(voice, target, "data.path=recordings")
    assert done.returncode == 0, done.stderr
    assert not problems(target)
    assert (target / "MODEL_CARD.md").read_text() == "kept"
    metadata = json.loads((target / files.METADATA).read_text())
    assert metadata["hostname"] is None
    assert metadata["git_commit"] is None
    assert "path: recordings" in (target / files.RECIPE).read_text()
    one, other = load_file(voice / files.WEIGHTS), load_file(target / files.WEIGHTS)
    assert all(one[name].equal(other[name]) for name in one)
    assert len(phonate.load(target, "speech").speak("Hello.")) > 8000


def test_weights_are_averaged_with_those_of_a_run_of_one_speaker(voice: Path, tmp_path: Path) -> None:
    """Such a run may have a table of speakers with one row: once, packing failed on it after hours of training."""
    own = load_file(voice / files.WEIGHTS)
    name = next(name for name in own if name.startswith("acoustic.") and name != VOICES and own[name].dim() > 1)
    single = {name: torch.zeros_like(own[name]), VOICES: torch.ones_like(own[VOICES][:1])}
    held_out = json.loads((voice / files.INFERENCE).read_text())["validation"]
    earlier = changed(voice, tmp_path / "earlier", single, held_out[1:])
    done = pack(voice, tmp_path / "voice", "data.path=recordings", "--average", earlier, "0.25")
    assert done.returncode == 0, done.stderr
    made = load_file(tmp_path / "voice" / files.WEIGHTS)
    for averaged in (name, VOICES):
        torch.testing.assert_close(made[averaged].float(), 0.75 * own[averaged].float(), rtol=2e-3, atol=1e-4)
    assert json.loads((tmp_path / "voice" / files.INFERENCE).read_text())["validation"] == held_out[1:]
    assert json.loads((tmp_path / "voice" / files.METADATA).read_text())["metrics"] == {}


def test_nothing_but_an_older_checkpoint_is_replaced(voice: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in voice.iterdir()}
    for folder, named in ((target, "notes.txt"), (voice, "the checkpoint itself")):
        done = pack(voice, folder, "data.path=recordings")
        assert done.returncode == 1
        assert f"{named} is in the way" in done.stderr
    assert [file.name for file in target.iterdir()] == ["notes.txt"]
    assert {file.name: file.read_bytes() for file in voice.iterdir()} == before


def test_weights_of_other_sizes_are_refused(voice: Path, tmp_path: Path) -> None:
    own = load_file(voice / files.WEIGHTS)
    name = next(name for name in own if name.startswith("acoustic.") and name != VOICES and own[name].dim() > 1)
    earlier = changed(voice, tmp_path / "earlier", {name: own[name][:1].clone()})
    done = pack(voice, tmp_path / "voice", "data.path=recordings", "--average", earlier, "0.25")
    assert done.returncode == 1
    assert f"{name}: " in done.stderr
    assert "can't be averaged" in done.stderr
