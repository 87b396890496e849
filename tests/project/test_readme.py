"""The README: short, and every command of it does what it says, in a folder with the data that it names."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from phonate.data.annotations import SpeakerTurn, write_rttm
from phonate_process import Process

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- readme -->\n```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LINES = [shlex.split(line, comments=True) for block in BLOCKS for line in block.splitlines()]
RATE = 16_000
PACE = {"anna": 1.0, "ben": 1.3}
"""Speakers, made of one by playing her slower."""
RECORDINGS = ROOT / "src" / "phonate" / "base" / "recordings"
SHORT = {
    "speech": ("training.max_steps=2",),
    "conversion-whisper": ("size=tiny", "training.max_steps=2", "training.batch_size=2"),
    "diarization-pretrained": ("training.max_steps=2", "data.samples=8"),
}
"""Given to the training of each recipe: how well it learns is not asked here."""


def test_it_has_at_most_700_words() -> None:
    assert len(README.split()) <= 700


def test_it_speaks_trains_converts_transcribes_diarizes_and_serves() -> None:
    assert [words[1] for words in LINES] == [
        "speak",
        *("train", "speak"),
        *("train", "convert"),
        *("transcribe", "train", "diarize"),
        "serve",
    ]


def clip(number: int, speaker: str) -> np.ndarray:
    """Up to 4 s (N,) of a packaged recording at 16 kHz, played at the pace of `speaker`."""
    samples, rate = soundfile.read(RECORDINGS / f"LJ001-{number + 1:04d}.ogg", dtype="float32")
    return soxr.resample(samples, rate, round(RATE * PACE[speaker]))[: 4 * RATE]


def write_meeting(path: Path, first: int) -> list[SpeakerTurn]:
    """Four turns of each speaker, with pauses; returns the turns."""
    pause, sounds, turns = np.zeros(RATE // 2, np.float32), [], []
    for number, speaker in enumerate(4 * list(PACE)):
        begin = sum(map(len, sounds)) / RATE
        sounds += [clip((first + number) % 20, speaker), pause]
        turns.append(SpeakerTurn(begin, begin + len(sounds[-2]) / RATE, speaker))
    soundfile.write(path, np.concatenate(sounds), RATE)
    return turns


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README's commands name."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(RECORDINGS, folder / "my_voice")
    for speaker in ("anna", "ben"):
        (folder / "speakers" / speaker).mkdir(parents=True)
        for number in range(5):
            soundfile.write(folder / "speakers" / speaker / f"{number}.wav", clip(number, speaker), RATE)
    soundfile.write(folder / "somebody.wav", clip(9, "ben"), RATE)
    (folder / "meetings").mkdir()
    turns = {f"m{number}": write_meeting(folder / "meetings" / f"m{number}.wav", 3 * number) for number in range(5)}
    write_rttm(folder / "meetings" / "meetings.rttm", turns)
    write_meeting(folder / "meeting.wav", 16)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_runs(home: Path) -> None:
    for words in LINES:
        if words[1] == "serve":
            _serves(home, words)
            continue
        more = SHORT[words[2]] if words[1] == "train" else ()
        process = Process(*words[1:], *more, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0, (words, printed)
        if "-o" in words:
            written = home / words[words.index("-o") + 1]
            if written.suffix == ".wav":
                assert soundfile.info(written).duration > 0.5
            else:
                mark = {".rttm": "SPEAKER", ".srt": " --> "}[written.suffix]
                assert written.read_text(encoding="utf-8") == "" or mark in written.read_text(encoding="utf-8")


def _serves(home: Path, words: list[str]) -> None:
    with Process(
        *words[1:], "--port", "0", cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        url = next(found[0] for line in server.stdout if (found := re.search(r"http://[\w.]+:\d+", line)))
        body = json.dumps({"model": "mine", "input": "Good morning.", "response_format": "wav"}).encode()
        request = urllib.request.Request(f"{url}/v1/audio/speech", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.read(4) == b"RIFF"
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
