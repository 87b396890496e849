"""`phonate convert --live` as a process: from files and pipes, into files and pipes."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import soundfile

import phonate_process
from phonate.audio.decoding import read_audio
from phonate.cli import main
from phonate.tasks.conversion.inference import CAUSAL_VOCODER
from phonate.workflows.live import _run
from phonate.workflows.load import load
from phonate.workflows.train import train
from phonate_process import Process
from trained import trained

RATE = 22050
SMALL = {
    "training.batch_size": 4,
    "training.scheduler.warmup_steps": 2,
    "training.ema": None,
    "training.validation.previews": False,
    "training.max_steps": 3,
    "data.validation": 0.2,
}
TINY = {"model.d_model": 32, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 64, "data.target": "anna"}


@pytest.fixture(scope="module")
def runs(tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a causal converter, `live`, that was hardly trained, its vocoder, and a recording."""

    def write(folder: Path) -> None:
        data = {"data.path": str(shutil.copytree(tone_corpus, folder / "voices")), **SMALL}
        vocoder = {"model.width": 16, "model.layers": 1, "training.adversarial_start": None, "model.lookahead": 1}
        train("vocoder", {**data, **vocoder}, output=folder / "vocoder")
        train("conversion-live", {**data, **TINY, "data.vocoder": str(folder / "vocoder")}, output=folder / "live")

    folder = shutil.copytree(trained("convert", write), tmp_path_factory.mktemp("convert") / "runs")
    waveform, _ = read_audio(tone_corpus / "cleo" / "05.wav", RATE)
    soundfile.write(folder / "in.wav", waveform, RATE, subtype="PCM_16")
    return folder


def phonate(folder: Path, *arguments: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return phonate_process.run("convert", "live", *arguments, cwd=folder, input=given, text=False)


Refused = Callable[[tuple[str, ...], bytes], str]
"""Arguments and standard input -> what the command says of them."""


@pytest.fixture
def refused(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """What `phonate convert live` says of arguments that it refuses; no process has to start for it."""

    def run(arguments: tuple[str, ...], given: bytes) -> str:
        monkeypatch.chdir(runs)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        assert main(["convert", "live", *arguments]) == 2
        return capsys.readouterr().err

    return run


def samples(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, "<i2").astype(np.float32) / 32767.0


@pytest.mark.slow
def test_a_file_and_a_pipe_give_the_same_sound(runs: Path) -> None:
    done = phonate(runs, "in.wav", "--live", "-o", "out.wav")
    assert done.returncode == 0, done.stderr.decode()
    assert b"104.5 ms behind the input (2304 samples at 22050 Hz, of which a block is 512)" in done.stderr
    assert done.stdout.startswith(b"out.wav: ")
    assert b"as anna, 104 ms behind the input" in done.stdout
    converted, rate = soundfile.read(runs / "out.wav", dtype="float32")
    source, _ = soundfile.read(runs / "in.wav", dtype="int16")
    assert rate == RATE
    assert len(converted) == len(source) // 256 * 256
    piped = phonate(runs, "-", "--live", "-o", "-", given=source.astype("<i2").tobytes())
    assert piped.returncode == 0, piped.stderr.decode()
    assert np.abs(samples(piped.stdout) - converted).max() < 3 / 32768
    assert np.abs(converted).max() > 0.01


@pytest.mark.slow
def test_a_server_gives_the_same_sound(runs: Path) -> None:
    """A file that is uploaded, and samples over a WebSocket."""
    pytest.importorskip("fastapi", reason="needs pip install 'phonate[serve]'")
    from fastapi.testclient import TestClient

    from phonate.serving.server import create_app, hosted
    from phonate.serving.settings import ServingSettings

    source, _ = soundfile.read(runs / "in.wav", dtype="int16")
    expected = np.concatenate(list(load(runs / "live", "conversion").stream(runs / "in.wav", "ben")))
    with TestClient(create_app(hosted([f"other={runs / 'live'}"]), ServingSettings())) as client:
        with (runs / "in.wav").open("rb") as file:
            fields = {"voice": "ben", "response_format": "wav", "model": "other"}
            answer = client.post("/v1/audio/conversions", files={"file": file}, data=fields)
        uploaded, rate = soundfile.read(io.BytesIO(answer.content), dtype="float32")
        with client.websocket_connect("/v1/audio/conversions/stream") as socket:
            socket.send_json({"type": "session.update", "session": {"voice": "ben"}})
            session = socket.receive_json()["session"]
            for start in range(0, len(source), 700):
                socket.send_bytes(source[start : start + 700].astype("<i2").tobytes())
            socket.send_json({"type": "input_audio.end"})
            live = b""
            while "bytes" in (message := socket.receive()):
                live += message["bytes"]
    assert (rate, session["latency_ms"]) == (RATE, 104.5)
    for sound in (uploaded, samples(live)):
        assert len(sound) == len(expected)
        assert np.abs(sound - expected).max() < 3 / 32768


@pytest.mark.slow
def test_sound_comes_out_before_the_input_has_ended(runs: Path) -> None:
    """As from a microphone: a second goes in, its conversion comes out but for the latency; the pipe stays open."""
    command = ["convert", "live", "-", "--live", "-o", "-"]
    with Process(*command, cwd=runs, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        source, _ = soundfile.read(runs / "in.wav", dtype="int16")
        blocks = 40
        process.stdin.write(source[: blocks * 512].astype("<i2").tobytes())
        process.stdin.flush()
        expected = blocks * 512 - (2304 - 512)
        assert len(process.stdout.read(2 * expected)) == 2 * expected
        assert process.poll() is None
        process.stdin.close()
        rest = process.stdout.read()
    assert process.returncode == 0
    assert len(rest) // 2 + expected == blocks * 512


@pytest.mark.slow
def test_another_rate_is_resampled(runs: Path) -> None:
    source, _ = read_audio(runs / "in.wav", 16000)
    raw = (source * 32767).astype("<i2").tobytes()
    done = phonate(runs, "-", "--live", "--rate", "16000", "-o", "resampled.wav", given=raw)
    assert done.returncode == 0, done.stderr.decode()
    info = soundfile.info(runs / "resampled.wav")
    assert info.samplerate == RATE
    assert abs(info.duration - len(source) / 16000) < 0.02


@pytest.mark.slow
def test_an_interrupted_conversion_leaves_no_file(runs: Path) -> None:
    command = ["convert", "live", "-", "--live", "-o", "partial.wav"]
    with Process(*command, cwd=runs, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(bytes(40000))
        process.stdin.flush()
        for line in process.stderr:
            if b"behind the input" in line:
                break
        time.sleep(0.3)
        process.terminate()
        process.wait(timeout=30)
    assert process.returncode == 143
    assert not list(runs.glob("*partial*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("in.wav", "--live", "--rate", "16000", "-o", "x.wav"), "--rate: only for raw samples"),
        (("-", "--live", "--rate", "5", "-o", "x.wav"), "from 8000 to 192000 Hz"),
        (("in.wav", "--rate", "16000", "-o", "x.wav"), "needs --live"),
        (("-", "-o", "x.wav"), "(standard input or output) needs --live"),
        (("in.wav", "--live", "-o", "x.ogg"), "only .wav, .flac and .mp3 can be written"),
        (("in.wav", "--live", "--vocoder", "griffin_lim", "-o", "x.wav"), "needs a causal vocoder, not Griffin-Lim"),
        (("in.wav", "--live", "--speaker", "anja", "-o", "x.wav"), "did you mean anna"),
        (("missing.wav", "--live", "-o", "x.wav"), "missing.wav"),
        (("in.wav", "--live", "-o", "./in.wav"), "in.wav: is a recording that is read; choose another -o"),
        (("in.wav", "--live", "-o", "-", "--format", "flac"), "--format flac: only for files in a folder"),
        (("in.wav", "-o", "in.wav"), "in.wav: is a recording that is read; choose another -o"),
    ],
)
def test_a_mistake_is_one_line(runs: Path, refused: Refused, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(arguments, b"")
    assert not (runs / "x.wav").exists()


def test_training_tells_of_the_vocoder_that_live_conversion_needs(
    tone_corpus: Path, tmp_path: Path, caplog: Any
) -> None:
    data = {"data.path": str(tone_corpus), **SMALL, **TINY, "training.max_steps": 1}
    train("conversion-live", data, output=tmp_path / "live")
    assert f"--live will need a causal vocoder; train one with {CAUSAL_VOCODER}" in caplog.text
    for place in ("src/phonate/recipes/conversion-live.yaml", "docs/do/convert-live.md"):
        lines = (Path(__file__).parents[2] / place).read_text(encoding="utf-8").splitlines()
        assert CAUSAL_VOCODER in " ".join(line.lstrip("# ").removesuffix("\\").strip() for line in lines), place


def test_half_a_sample_at_the_end_loses_nothing_else(runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.chdir(runs)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bytes(2 * 1700 + 1))))
    assert main(["convert", "live", "-", "--live", "-o", "half.wav"]) == 0
    assert "ended within a sample" in caplog.text
    assert soundfile.info(runs / "half.wav").frames == 1700 // 256 * 256


@pytest.mark.parametrize("given", [b"", bytes(2 * 255), bytes(1)])
def test_no_sound_is_an_error(runs: Path, refused: Refused, given: bytes) -> None:
    assert "-: no sound came in" in refused(("-", "--live", "-o", "x.wav"), given)
    assert not (runs / "x.wav").exists()


def test_a_wav_file_in_a_pipe_is_an_error(runs: Path, refused: Refused) -> None:
    """Its header would be heard, and its rate would be taken for the run's."""
    assert "is a WAV file" in refused(("-", "--live", "-o", "x.wav"), (runs / "in.wav").read_bytes())


SOUND = [
    (("microphone", "--live", "-o", "x.wav"), "a microphone"),
    (("in.wav", "--live", "-o", "loudspeaker"), "a loudspeaker"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "what"), SOUND)
def test_without_a_sound_library_the_command_that_installs_it_is_named(
    refused: Refused,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    what: str,
) -> None:
    """Where sounddevice is missing, and where it is there but finds no PortAudio."""
    found = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    with monkeypatch.context() as without:
        without.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == "sounddevice" else found(name, *rest)
        )
        said = refused(arguments, b"")
    assert what in said
    assert "pip install 'phonate[live]'" in said
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    said = refused(arguments, b"")
    assert what in said
    assert "apt-get install libportaudio2" in said


FAKE_SOUNDDEVICE = """
import time
import numpy as np
import soundfile

class PortAudioError(Exception):
    pass

class InputStream:
    def __init__(self, samplerate, blocksize, channels, dtype, latency):
        assert (samplerate, channels, dtype) == (22050, 1, "float32")
        self.sound, self.place = soundfile.read("in.wav", dtype="float32")[0], 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self, size):
        time.sleep(size / 22050)
        self.place += size
        lost = size < self.place < 4 * size
        return np.take(self.sound, range(self.place - size, self.place), mode="wrap")[:, None], lost

class OutputStream:
    def __init__(self, **_):
        raise PortAudioError("Error querying device -1")
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_recording_from_a_pipe_and_keeps_it(runs: Path) -> None:
    command = ["convert", "live", "-", "--live", "-o", "piped.wav"]
    source, _ = soundfile.read(runs / "in.wav", dtype="int16")
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with Process(*command, cwd=runs, **streams) as process:
        for line in process.stderr:
            if b"behind the input" in line:
                break
        process.stdin.write(source[:20480].astype("<i2").tobytes())
        process.stdin.flush()
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(source[20480:].astype("<i2").tobytes(), timeout=60)
    assert process.returncode == 0, complained.decode()
    assert said.startswith(b"piped.wav: ")
    assert 0.5 < soundfile.info(runs / "piped.wav").duration <= len(source) / RATE


@pytest.mark.slow
def test_ctrl_c_ends_a_recording_from_a_microphone_and_keeps_it(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "sounddevice.py").write_text(FAKE_SOUNDDEVICE)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = ["convert", "live", "microphone", "--live", "-o", "said.wav"]
    environment = {**os.environ, "PYTHONPATH": path}
    with Process(*command, cwd=runs, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if b"behind the input" in line:
                break
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=60)
    assert process.returncode == 0, complained.decode()
    assert said.startswith(b"said.wav: ")
    assert complained.count(b"some of its sound is lost") == 1
    assert soundfile.info(runs / "said.wav").duration > 0.3
    arguments = ("in.wav", "--live", "-o", "loudspeaker")
    done = phonate_process.run("convert", "live", *arguments, cwd=runs, env=environment)
    assert done.returncode == 2
    assert "no loudspeaker can be opened at 22050 Hz (Error querying device -1)" in done.stderr


def test_late_blocks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three blocks of a tenth of a second, the second takes longer."""
    times = iter([0.0, 0.05, 1.0, 1.2, 2.0, 2.05])
    monkeypatch.setattr("phonate.workflows.live.time.perf_counter", lambda: next(times))
    live = SimpleNamespace(sample_rate=1000, latency=20, push=lambda block: block, finish=lambda: np.zeros(0))
    written: list[np.ndarray] = []
    sink = SimpleNamespace(write=written.append)
    made = _run("-", cast(Any, live), iter([np.zeros(100, dtype=np.float32)] * 3), cast(Any, sink))
    assert (made.seconds, made.latency, made.late) == (0.3, 0.02, pytest.approx(1 / 3))
    assert made.busy == pytest.approx(1.0)
    assert sum(map(len, written)) == 300
