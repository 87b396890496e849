"""Predicted MOS: natural speech above noisy speech, and clear refusals."""

from __future__ import annotations

import importlib.util
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from phonate.audio.decoding import FloatArray, read_audio
from phonate.config.errors import DataError, MissingPackageError
from phonate.pretrained import LOWEST_MOS, MosPredictor, judge_of
from phonate.tasks.speech import evaluation
from phonate_process import run_python

RATE = 16000
needs_judge = pytest.mark.skipif(
    find_spec("distillmos") is None or find_spec("xls_r_sqa") is None,
    reason="needs pip install --no-deps distillmos xls-r-sqa",
)


@pytest.fixture(scope="module")
def judge() -> MosPredictor:
    return MosPredictor()


def clips(recordings: Path, corpus: str, number: int) -> list[tuple[FloatArray, int]]:
    return [read_audio(path) for path in sorted((recordings / corpus / "wavs").glob("*.*"))[:number]]


def noisy(waveform: FloatArray, decibels: float) -> FloatArray:
    noise = np.random.default_rng(0).standard_normal(len(waveform))
    noise *= np.sqrt(np.square(waveform).mean() / np.square(noise).mean()) * 10 ** (-decibels / 20)
    return (waveform + noise).astype(np.float32)


@pytest.mark.slow
@needs_judge
def test_natural_speech_is_rated_far_above_noisy_speech(judge: MosPredictor, recordings: Path) -> None:
    speech = clips(recordings, "tts_en_lj", 4)
    natural = np.mean([judge.score(waveform, rate) for waveform, rate in speech])
    with_noise = np.mean([judge.score(noisy(waveform, 10.0), rate) for waveform, rate in speech])
    assert natural == pytest.approx(4.3, abs=0.2)
    assert with_noise == pytest.approx(2.4, abs=0.4)


@pytest.mark.slow
@needs_judge
def test_a_score_depends_on_the_sound_alone(judge: MosPredictor, recordings: Path) -> None:
    ((waveform, rate),) = clips(recordings, "tts_en_kathleen", 1)
    score = judge.score(waveform, rate)
    assert judge.score(waveform, rate) == score
    assert MosPredictor().score(waveform, rate) == score
    assert judge.score(0.1 * waveform, rate) == pytest.approx(score, abs=0.01)
    assert 1.0 <= score <= 5.0


@needs_judge
@pytest.mark.parametrize(
    ("waveform", "why"),
    [
        (np.zeros(RATE, dtype=np.float32), "silent"),
        (np.ones(100, dtype=np.float32), "too short"),
        (np.zeros(0, dtype=np.float32), "too short"),
        (np.full(RATE, np.nan, dtype=np.float32), "non-finite"),
    ],
)
def test_what_is_no_speech_is_refused_by_name(judge: MosPredictor, waveform: FloatArray, why: str) -> None:
    with pytest.raises(DataError, match=f"clip 7.*{why}") as caught:
        judge.score(waveform, RATE, "clip 7")
    assert "\n" not in str(caught.value)


@needs_judge
def test_a_voice_that_says_nothing_gets_the_lowest_score_and_ends_no_training(judge: MosPredictor) -> None:
    for waveform in (np.zeros(RATE, dtype=np.float32), np.ones(100, dtype=np.float32), np.zeros(0, dtype=np.float32)):
        assert judge.score_synthesised(waveform, RATE, "clip 7") == LOWEST_MOS
    with pytest.raises(DataError, match=r"clip 7.*non-finite"):
        judge.score_synthesised(np.full(RATE, np.nan, dtype=np.float32), RATE, "clip 7")


@pytest.mark.slow
@needs_judge
def test_nothing_is_printed_and_nobody_believes_that_torchaudio_is_there() -> None:
    if find_spec("torchaudio") is not None:
        pytest.skip("torchaudio is installed")
    code = (
        "import sys, importlib.util\n"
        "from phonate.pretrained import LOWEST_MOS, MosPredictor\n"
        "MosPredictor()\n"
        "assert 'torchaudio' not in sys.modules\n"
        "assert importlib.util.find_spec('torchaudio') is None"
    )
    ran = run_python("-c", code)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize("absent", ["distillmos", "xls_r_sqa"])
def test_without_its_packages_the_command_is_named(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_of_it(name: str, package: str | None = None) -> object:
        return None if name == absent else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", none_of_it)
    if absent == "distillmos" and find_spec("xls_r_sqa") is None:
        pytest.skip("the other one is missing first")
    with pytest.raises(MissingPackageError, match=f"{absent}.*pip install --no-deps distillmos xls-r-sqa"):
        MosPredictor()
    assert "torchaudio" not in sys.modules or find_spec("torchaudio")


def test_a_judge_that_is_missing_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert judge_of("mos", MosPredictor) is None
    (line,) = caplog.messages
    assert "mos" in line
    assert "pip install --no-deps distillmos xls-r-sqa" in line


def test_judges_of_speech_compute_on_the_device_of_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all are loaded before there is anything to judge, so that what is missing is said then."""
    devices: dict[str, str] = {}
    for name in ("Transcriber", "SpeakerEncoder", "MosPredictor"):

        def load(*_: str, name: str = name, device: str = "cpu") -> str:
            devices[name] = device
            return name

        monkeypatch.setattr(evaluation, name, load)
    judges = evaluation.Judges("de", "cuda:1")
    judges.load(recordings=True)
    assert devices == dict.fromkeys(("Transcriber", "SpeakerEncoder", "MosPredictor"), "cuda:1")
    assert judges.naturalness == "MosPredictor"
