"""`phonate session` as a process: its log while it runs, and after it was killed or stopped."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phonate.training.checkpoints.resolve import has_checkpoint
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


def start(*more: str, before: tuple[str, ...] = ()) -> subprocess.Popen:
    command = [*before, sys.executable, "-m", "phonate", "session", "--device", "cpu", *more]
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_stop_in_training_is_saved_and_the_run_goes_on(place, number, code):
    output = place / "training/output"
    with start() as process:
        wait_for(output, process, "step ")
        process.send_signal(number)
        said, _ = process.communicate()
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert "--resume auto" not in said.splitlines()[-1], "a session has no such option"
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


IN_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "phonate", "session", "--device", "cpu"])
"""


def test_a_terminal_that_is_closed_costs_nothing(place):
    output = place / "training/output"
    screen, terminal = pty.openpty()
    os.set_blocking(screen, False)
    command = [sys.executable, "-c", IN_A_TERMINAL]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        while b"training" not in shown or "step " not in json.dumps(the_log(output)):
            assert process.poll() is None
            with contextlib.suppress(BlockingIOError):
                shown += os.read(screen, 65536)
            time.sleep(0.01)
        os.close(screen)
        process.wait()
    message = read_log(output)["log"][-1]["message"]
    assert message.startswith("Interrupted: stopped at step ")
    assert has_checkpoint(next(output.glob("session_*/model")))


def test_closing_the_terminal_under_nohup_ends_nothing(place):
    output = place / "training/output"
    with start(before=("nohup",)) as process:
        wait_for(output, process, "step ")
        process.send_signal(signal.SIGHUP)
        wait_for(output, process, "step 60/")
        process.terminate()
        process.communicate()
    assert process.returncode == 143


def test_lines_meant_for_a_file_are_not_shown_beside_the_bar_instead(place):
    write_config(place / "training/config.yaml")
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "phonate", "session", "--device", "cpu"]
    with (
        Path("said").open("w") as said,
        subprocess.Popen(command, stdin=terminal, stdout=said, stderr=terminal) as process,
    ):
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # so it ends
            while more := os.read(screen, 65536):
                shown += more
        assert process.wait() == 0
    os.close(screen)
    lines = Path("said").read_text("utf-8").splitlines()
    assert any("trainable parameters" in line for line in lines)
    assert b"trainable parameters" not in shown
    assert b"2/2" in shown, "the bar ends where training does"


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
