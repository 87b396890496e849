"""`phonate session` as a process: its log while it runs, and after it was killed or stopped."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phonate.training.checkpoints.listing import has_checkpoint
from phonate_process import Process
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


SECONDS = 240
"""Limit for each process."""


def default_signals() -> None:
    """In a child: signals as in an interactive shell, whatever started the tests (nohup ignores SIGHUP)."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def start(*more: str) -> subprocess.Popen:
    return Process("session", "--device", "cpu", *more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def the_log(output: Path) -> dict | None:
    """The log as it is now; None before there is one. Always a whole document."""
    files = list((output / "logs").glob("session_*.json"))
    return json.loads(files[0].read_text("utf-8")) if files else None


def wait_for(output: Path, process: subprocess.Popen, text: str) -> None:
    """Wait until a message has `text` in it, reading the log all the while."""
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        document = the_log(output)
        if document and any(text in entry["message"] for entry in document["log"]):
            return
        time.sleep(0.005)
    process.kill()
    raise AssertionError(process.communicate(timeout=SECONDS)[0])


@pytest.mark.slow
def test_the_log_is_whole_at_every_moment_and_after_a_kill(place):
    output = place / "training/output"
    with start() as process:
        wait_for(output, process, "step ")
        process.kill()
        process.wait(timeout=SECONDS)
    document = read_log(output)
    assert document["log"][0]["message"].startswith("Session ")
    assert document["device"] == "cpu"


STAGES = ("Device: ", "Found 6", "Validating", "Analysing", "trainable parameters", "step ")


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_in_any_stage_leaves_a_whole_log(place, stage):
    output = place / "o"
    with start("--output-dir", str(output)) as process:
        wait_for(output, process, stage)
        process.kill()
        process.wait(timeout=SECONDS)
    read_log(output)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_stop_in_training_is_saved(place, number, code):
    output = place / "training/output"
    with start() as process:
        wait_for(output, process, "step ")
        process.send_signal(number)
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == code, said
    assert "Traceback" not in said
    last = read_log(output)["log"][-1]
    assert last["level"] == "ERROR"
    assert last["message"].startswith("Interrupted: stopped at step ")
    assert last["message"].endswith("; continue with: phonate session --resume")
    assert said.count("stopping after this step") == 1


IN_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "phonate", "session", "--device", "cpu"])
"""


@pytest.mark.slow
def test_a_terminal_that_is_closed_costs_nothing(place):
    output = place / "training/output"
    screen, terminal = pty.openpty()
    os.set_blocking(screen, False)
    command = [sys.executable, "-c", IN_A_TERMINAL]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=default_signals
    ) as process:
        os.close(terminal)
        shown = b""
        while b"training" not in shown or "step " not in json.dumps(the_log(output)):
            assert process.poll() is None
            with contextlib.suppress(BlockingIOError):
                shown += os.read(screen, 65536)
            time.sleep(0.01)
        os.close(screen)
        process.wait(timeout=SECONDS)
    message = read_log(output)["log"][-1]["message"]
    assert message.startswith("Interrupted: stopped at step ")
    assert has_checkpoint(next(output.glob("session_*/model")))


@pytest.mark.slow
def test_closing_the_terminal_under_nohup_ends_nothing(place):
    output = place / "training/output"
    command = ["nohup", sys.executable, "-m", "phonate", "session", "--device", "cpu"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=default_signals
    ) as process:
        wait_for(output, process, "step ")
        process.send_signal(signal.SIGHUP)
        wait_for(output, process, "step 60/")
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert process.returncode == 143


@pytest.mark.slow
def test_lines_meant_for_a_file_are_not_shown_beside_the_bar_instead(place):
    write_config(place / "training/config.yaml")
    screen, terminal = pty.openpty()
    with (
        Path("said").open("w") as said,
        Process("session", "--device", "cpu", stdin=terminal, stdout=said, stderr=terminal) as process,
    ):
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # so it ends
            while more := os.read(screen, 65536):
                shown += more
        assert process.wait(timeout=SECONDS) == 0
    os.close(screen)
    lines = Path("said").read_text("utf-8").splitlines()
    assert any("trainable parameters" in line for line in lines)
    assert b"trainable parameters" not in shown
    assert b"2/2" in shown, "the bar ends where training does"


@pytest.mark.slow
def test_a_stop_before_training(place):
    for file in list((place / "recordings").rglob("*.wav")):
        for copy in range(60):  # so many that looking at them takes a while
            os.link(file, file.with_name(f"{file.stem}-{copy}.wav"))
    output = place / "training/output"
    with start() as process:
        wait_for(output, process, "Validating voice files")
        process.terminate()
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 143, said
    assert "Traceback" not in said
    document = read_log(output)
    assert messages(document, "ERROR") == [
        "Interrupted; finished stages are kept; continue with: phonate session --resume"
    ]
    assert document["log"][-1]["level"] == "ERROR"


def test_help_lists_every_option(capsys):
    from phonate.cli import main

    with pytest.raises(SystemExit):
        main(["session", "--help"])
    shown = capsys.readouterr().out
    for option in ("mode", "voice-mode", "device", "min-gpu-memory", "voice-data-dir", "config", "output-dir"):
        assert f"--{option}" in shown
