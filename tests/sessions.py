"""What tests of sessions share: small recordings and texts, a configuration of two steps, and logs read back."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import soundfile

from sounds import SAMPLE_RATE, voiced_tone

VOICES = {"anna": (210.0, (700.0, 1800.0, 2900.0)), "ben": (110.0, (500.0, 1300.0, 2400.0))}

CONFIG = """
size: tiny
training:
  max_steps: 2
  batch_size: 2
  scheduler: {warmup_steps: 0}
  checkpoint: {interval: 1, save_total_limit: 5}
  logging: {tensorboard: false}
  validation: {previews: false}
session:
  vocoder: null
"""


def make_recordings(folder: Path, seconds: float = 2.2, clips: int = 3) -> Path:
    """A folder with a sub-folder of recordings for each of two speakers."""
    for number, (speaker, (pitch, formants)) in enumerate(VOICES.items()):
        (folder / speaker).mkdir(parents=True)
        for clip in range(clips):
            sound = voiced_tone(seconds, pitch, formants, seed=100 * number + clip)
            soundfile.write(folder / speaker / f"{clip:02d}.wav", sound, SAMPLE_RATE, subtype="PCM_16")
    return folder


def make_texts(folder: Path) -> Path:
    """A folder with a page of text."""
    folder.mkdir(parents=True)
    lines = [f"The number {number} is followed by the number {number + 1}.\n" for number in range(60)]
    (folder / "numbers.txt").write_text("".join(lines), "utf-8")
    return folder


def write_config(path: Path, more: str = "") -> Path:
    """The configuration, which sits in a file of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CONFIG + more, "utf-8")
    return path


def words_of(script: Path | str, *given: str) -> list[str]:
    """What a script that starts a session hands to `phonate`."""
    with TemporaryDirectory() as folder:
        command = Path(folder, "phonate")
        command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', "utf-8")
        command.chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        ran = subprocess.run([str(script), *given], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def read_log(output: Path) -> dict:
    """The only log there, whose form is checked."""
    (path,) = (output / "logs").glob("*.json")
    document = json.loads(path.read_text("utf-8"))
    assert list(document) == ["session_id", "mode", "voice_mode", "device", "log"]
    assert path.name == f"session_{document['session_id']}.json"
    datetime.strptime(document["session_id"], "%Y%m%d_%H%M%S")
    for entry in document["log"]:
        assert list(entry) == ["timestamp", "level", "message"]
        assert entry["level"] in {"INFO", "SUCCESS", "WARNING", "ERROR"}
        datetime.strptime(entry["timestamp"], "%Y-%m-%dT%H:%M:%S.%f")
    return document


def messages(document: dict, level: str) -> list[str]:
    """The messages of a level."""
    return [entry["message"] for entry in document["log"] if entry["level"] == level]
