"""`phonate session` as a process: its log while it runs, and after it was killed or stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sessions import make_recordings, messages, read_log, write_config

LONG = """
size: tiny
training:
  max_steps: 100000
  batch_size: 2
  checkpoint: {interval: 1000000}
  validation: {interval: 1000000}
  logging: {tensorboard: false, interval: 1}
session:
  vocoder: null
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with recordings, and a configuration that trains without end."""
    make_recordings(tmp_path / "recordings")
    write_config(tmp_path / "training/config.yaml").write_text(LONG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def start(*more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "phonate", "session", "--device", "cpu", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def the_log(output: Path) -> dict | None:
    """The log as it is now; None before there is one. Always a whole document."""
    files = list((output / "logs").glob("session_*.json"))
    return json.loads(files[0].read_text("utf-8")) if files else None


def wait_for(output: Path, process: subprocess.Popen, text: str) -> None:
    """Wait until a message has `text` in it, reading the log all the while."""
    while process.poll() is None:
        document = the_log(output)
        if document and any(text in entry["message"] for entry in document["log"]):
            return
        time.sleep(0.002)
    raise AssertionError(process.communicate()[0])


def test_the_log_is_whole_at_every_moment_and_after_a_kill(place):
    output = place / "training/output"
    with start() as process:
        wait_for(output, process, "step ")
        process.kill()
        process.wait()
    document = read_log(output)
    assert document["log"][0]["message"].startswith("Session ")
    assert document["device"] == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_a_kill_at_any_moment_leaves_a_whole_log(place, number):
    output = place / f"o{number}"
    with start("--output-dir", str(output)) as process:
        while the_log(output) is None:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(random.Random(number).uniform(0.0, 6.0))
        process.kill()
        process.wait()
    read_log(output)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_in_training_is_saved_and_the_run_goes_on(place, number, code):
    output = place / "training/output"
    with start() as process:
        wait_for(output, process, "step ")
        process.send_signal(number)
        said, _ = process.communicate()
    assert process.returncode == code, said
    assert "Traceback" not in said
    document = read_log(output)
    assert document["log"][-1]["level"] == "ERROR"
    message = document["log"][-1]["message"]
    assert message.startswith("Interrupted: stopped at step ")
    command = message.rpartition("go on with: phonate ")[2].split()
    step = int(message.split("step ")[1].split(";")[0])
    resumed = subprocess.run(
        [sys.executable, "-m", "phonate", *command, f"training.max_steps={step + 2}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert f"step {step + 2}" in resumed.stdout


def test_a_stop_before_training(place):
    for file in list((place / "recordings").rglob("*.wav")):
        for copy in range(60):  # so many that looking at them takes a while
            os.link(file, file.with_name(f"{file.stem}-{copy}.wav"))
    output = place / "training/output"
    with start() as process:
        wait_for(output, process, "Validating voice files")
        process.terminate()
        said, _ = process.communicate()
    assert process.returncode == 143, said
    assert "Traceback" not in said
    document = read_log(output)
    assert messages(document, "ERROR") == ["Interrupted: stopped before training began"]
    assert document["log"][-1]["level"] == "ERROR"


def test_help_lists_every_option(capsys):
    from phonate.cli import main

    with pytest.raises(SystemExit):
        main(["session", "--help"])
    shown = capsys.readouterr().out
    for option in ("mode", "voice-mode", "device", "min-gpu-memory", "voice-data-dir", "config", "output-dir"):
        assert f"--{option}" in shown
