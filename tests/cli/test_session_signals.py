"""`phonate session` stopped in each of its phases, and resumed to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import phonate_process
from phonate.cli import main
from phonate.training.checkpoints.listing import has_checkpoint
from phonate_process import Process, run_python
from sessions import make_recordings, make_texts, messages, write_config

WITH_VOCODER = """
size: tiny
training:
  max_steps: {steps}
  batch_size: 2
  checkpoint: {{interval: 1000000}}
  validation: {{interval: 1000000}}
  logging: {{tensorboard: false, interval: 1}}
session:
  vocoder: {vocoder}
"""
SECONDS = 240
"""Limit for each process."""
STEPPED = "/100000  epoch"
"""In a line of metrics of a run without end."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with recordings and a configuration that trains without end."""
    make_recordings(tmp_path / "recordings", clips=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def configure(steps: int, vocoder: str = "null") -> None:
    Path("training").mkdir(exist_ok=True)
    Path("training/config.yaml").write_text(WITH_VOCODER.format(steps=steps, vocoder=vocoder))


def start(*more: str) -> subprocess.Popen:
    return Process("session", "--device", "cpu", *more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def the_log() -> dict:
    files = list(Path("training/output/logs").glob("session_*.json"))
    return json.loads(files[0].read_text("utf-8")) if files else {"log": []}


def wait_for(process: subprocess.Popen, *texts: str) -> None:
    """Wait until the log has a message with each of `texts`, in this order."""
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        messages = iter([entry["message"] for entry in the_log()["log"]])
        if all(any(text in message for message in messages) for text in texts):
            return
        time.sleep(0.02)
    process.kill()
    raise AssertionError(process.communicate()[0])


def stop(process: subprocess.Popen, number: int = signal.SIGINT) -> str:
    process.send_signal(number)
    try:
        return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def resume(*more: str) -> None:
    assert main(["session", "--resume", *more]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "number", "code"), [("vocoder", signal.SIGINT, 130), ("model", signal.SIGTERM, 143)])
def test_a_session_is_resumed_in_training(place, phase, number, code):
    configure(100000, "vocoder" if phase == "vocoder" else "null")
    with start() as process:
        wait_for(process, STEPPED)
        said = stop(process, number)
    assert process.returncode == code, said
    (folder,) = Path("training/output").glob("session_*")
    assert has_checkpoint(folder / phase)
    last = the_log()["log"][-1]
    assert last["level"] == "ERROR"
    assert last["message"].startswith("Interrupted: stopped at step ")
    assert last["message"].endswith("; continue with: phonate session --resume")
    assert "stopping after this step" in said
    assert ("press Ctrl-C again to quit now" in said) == (number == signal.SIGINT)
    assert said.count("Interrupted: stopped at step ") == 1
    configure(6, "vocoder" if phase == "vocoder" else "null")
    resume()
    assert [one.name for one in Path("training/output").glob("session_*")] == [folder.name], "the same session"
    document = the_log()
    saved = Path("training/output/voice_model")
    assert (saved / "vocoder/weights.safetensors").is_file() == (phase == "vocoder")
    assert "Voice model saved to: training/output/voice_model" in messages(document, "SUCCESS")
    assert sum(one.startswith("Found 4 voice files") for one in messages(document, "SUCCESS")) == 1, "scanned once"
    assert any(one.startswith("resumed from ") for one in messages(document, "INFO")), "not trained anew"
    assert main(["convert", str(saved), "recordings/anna/00.wav", "-o", "out.wav", "--speaker", "ben"]) == 0


@pytest.mark.slow
def test_a_session_is_resumed_while_it_saves(place, monkeypatch):
    write_config(place / "training/config.yaml")

    def interrupted(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setattr("phonate.workflows.session.flows.sample", interrupted)
    assert main(["session", "--device", "cpu"]) == 143
    assert the_log()["log"][-1]["message"] == (
        "Interrupted; finished stages are kept; continue with: phonate session --resume"
    )
    monkeypatch.undo()
    monkeypatch.chdir(place)
    resume()
    assert Path("training/output/voice_model/sample.flac").is_file()
    assert sum("steps of conversion" in one for one in messages(the_log(), "SUCCESS")) == 1
    assert main(["session", "--resume"]) == 2, "there is nothing more to resume"


@pytest.mark.slow
def test_a_session_is_resumed_while_it_validates(place, monkeypatch):
    write_config(place / "training/config.yaml")

    def interrupted(*_, **__):
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(10)

    monkeypatch.setattr("phonate.workflows.session.flows.validate_voice_files", interrupted)
    signal_before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert main(["session", "--device", "cpu", "--voice-mode", "voice"]) == 129
    signal.signal(signal.SIGHUP, signal_before)
    monkeypatch.undo()
    monkeypatch.chdir(place)
    assert main(["session", "--resume", "--voice-data-dir", "training"]) == 2, "its data are fixed"
    resume()
    assert Path("training/output/voice_model/sample.flac").is_file()


@pytest.mark.slow
def test_a_session_of_texts_is_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_texts(Path("datasets/samples"))
    configure(100000)
    with start() as process:
        wait_for(process, STEPPED)
        said = stop(process)
    assert process.returncode == 130, said
    configure(6)
    resume()
    assert Path("training/output/text_model/weights.safetensors").is_file()


@pytest.mark.slow
def test_a_running_session_is_not_resumed(place):
    configure(100000)
    with start() as process:
        wait_for(process, STEPPED)
        refused = phonate_process.run("session", "--resume", timeout=SECONDS)
        stop(process)
    assert refused.returncode == 2
    assert "the session is still running (process " in refused.stderr


@pytest.mark.slow
def test_a_second_ctrl_c_quits_and_says_what_is_kept(place):
    configure(100000)
    config = Path("training/config.yaml")
    config.write_text(config.read_text().replace("interval: 1000000}}", "interval: 2}}", 1))
    with start() as process:
        wait_for(process, STEPPED)
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, said
    assert "stopping after this step; press Ctrl-C again to quit now" in said


@pytest.mark.slow
def test_quitting_is_logged_with_the_last_checkpoint(place):
    """The handler alone, so that nothing depends on how fast a save is."""
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from phonate.training.signals import Signals\n"
        "from phonate.workflows.session.session import TrainingSession\n"
        "from phonate.workflows.session.log import SessionLog\n"
        "from phonate.training.signals import on_quit\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "Path('run/step-00000002').mkdir(parents=True); Path('run/step-00000004').mkdir()\n"
        "session = TrainingSession(); log = SessionLog(Path('training/output'), {'mode': 'cpu', 'device': None})\n"
        "from phonate.compute.distributed import Ranks\n"
        "from phonate.training.tracking import log_file\n"
        "with (on_quit(lambda message: session._quit(log, message)), log_file(Path('training.log'), Ranks()),\n"
        "      Signals(checkpoints=Path('run'))):\n"
        "    os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still there', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('not reached', flush=True)\n"
    )
    finished = run_python("-c", code, timeout=SECONDS)
    assert finished.returncode == 130
    assert finished.stdout == "still there\n"
    assert finished.stderr.splitlines() == [
        "stopping after this step; press Ctrl-C again to quit now",
        "quit without saving; the last checkpoint is run/step-00000004",
    ]
    assert (
        Path("training.log")
        .read_text()
        .endswith(" ERROR quit without saving; the last checkpoint is run/step-00000004\n")
    )
    assert the_log()["log"][-1]["level"] == "ERROR"
    assert the_log()["log"][-1]["message"] == (
        "Interrupted: quit without saving; the last checkpoint is run/step-00000004; "
        "continue with: phonate session --resume"
    )


def catches(pid: int, number: int) -> bool:
    """Whether a process has installed a handler of a signal."""
    mask = next(row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("SigCgt"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc of Linux")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_the_first_step_of_phonate_train(place, number, code):
    command = ["train", "conversion", "size=tiny", "data.path=recordings"]
    with Process(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not catches(process.pid, signal.SIGTERM):
            assert process.poll() is None
            time.sleep(0.01)
        said = stop(process, number)
    assert process.returncode == code, said
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    # depending on how far it has got meanwhile
    assert said.splitlines()[-1].startswith((f"stopped by {name}", "stopped at step 0; saved to ")), said
    assert "Traceback" not in said
