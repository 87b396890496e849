"""All eighteen ways to start a session: each takes two steps, and leaves a model that loads and does what it is for."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load_file

import fake_gpus
from phonate import TrainingSession
from phonate.cli import main
from sessions import make_recordings, make_texts, messages, read_log, words_of, write_config

SCRIPTS = Path(__file__).parents[2] / "scripts"
CHOSEN = {"gpu_only": "cuda:1", "cpu_only": "cpu", "mixed": "cuda:1"}
"""Of the fake GPUs the first has too little free memory."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, as a person would have it: recordings, texts, and a configuration where it is looked for."""
    make_recordings(tmp_path / "recordings")
    make_texts(tmp_path / "datasets/samples")
    write_config(tmp_path / "training/config.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def phonate_with_gpus(tmp_path, monkeypatch):
    """A command `phonate` that finds fake GPUs."""
    command = tmp_path / "bin/phonate"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake_gpus.__file__}" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")


def check_trained(output: Path, kind: str, device: str, capsys=None) -> None:
    """Two steps that changed the weights; a log that ends well; a model that loads and makes something."""
    document = read_log(output)
    assert document["device"] == device
    assert document["log"][-1]["level"] == "SUCCESS"
    assert not messages(document, "ERROR")
    run = output / f"session_{document['session_id']}" / "model"
    first, second = (load_file(run / f"checkpoints/step-0000000{step}/weights.safetensors") for step in (1, 2))
    assert first.keys() == second.keys()
    assert any(not np.array_equal(first[name], second[name]) for name in first)
    if kind == "voice":
        saved = output / "voice_model"
        assert {"voice_profile.json", "voice_profile.html", "sample.flac"} <= {file.name for file in saved.iterdir()}
        assert main(["convert", str(saved), "recordings/anna/00.wav", "--speaker", "ben", "-o", "out.wav"]) == 0
        sound, _ = soundfile.read("out.wav")
        assert np.isfinite(sound).all()
        assert np.abs(sound).max() > 0.1
    else:
        assert main(["generate", str(output / "text_model"), "The number", "--max-tokens", "5"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("script", CHOSEN)
def test_scripts(place, phonate_with_gpus, script):
    finished = subprocess.run([SCRIPTS / f"train_{script}.sh"], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    check_trained(place / "training/output", "voice", CHOSEN[script])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["voice", "text"])
@pytest.mark.parametrize("script", CHOSEN)
def test_scripts_with_a_word(place, monkeypatch, script, what):
    fake_gpus.pretend(monkeypatch.setattr)
    assert main(words_of(SCRIPTS / f"train_{script}.sh", what)) == 0
    check_trained(place / "training/output", what, CHOSEN[script])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["voice", "text", "auto"])
@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cpu"])
def test_devices(place, monkeypatch, device, what):
    fake_gpus.pretend(monkeypatch.setattr)
    assert TrainingSession(voice_mode=what, device=device, say=lambda line: None).run()
    check_trained(place / "training/output", "text" if what == "text" else "voice", device)


def test_scripts_can_be_run():
    for script in CHOSEN:
        assert (SCRIPTS / f"train_{script}.sh").stat().st_mode & stat.S_IXUSR


def test_scripts_hand_their_first_word_over_once(tmp_path):
    for more, expected in (
        ([], "session --mode gpu --voice-mode auto"),
        (["voice"], "session --mode gpu --voice-mode voice"),
        (["text", "--min-gpu-memory", "6"], "session --mode gpu --voice-mode text --min-gpu-memory 6"),
        (["--output-dir", "o"], "session --mode gpu --voice-mode auto --output-dir o"),
    ):
        assert words_of(SCRIPTS / "train_gpu_only.sh", *more) == expected.split()
    faulty = tmp_path / "faulty.sh"  # what made such scripts fail: the first word is handed over a second time
    faulty.write_text('#!/bin/bash\nexec phonate session --mode gpu --voice-mode "${1:-auto}" "$@"\n')
    faulty.chmod(0o755)
    assert words_of(faulty, "voice") != words_of(SCRIPTS / "train_gpu_only.sh", "voice")


@pytest.mark.gpu
@pytest.mark.parametrize("what", ["voice", "text"])
def test_a_real_gpu(place, what):
    assert TrainingSession("gpu", what, min_gpu_memory=1.0).run()
    check_trained(place / "training/output", what, "cuda:0")
