"""`phonate speak` to a loudspeaker and to standard output: each sentence while the next one is made."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import phonate
from phonate.audio.live import RawSink, ahead
from phonate.cli import main
from phonate.training.checkpoints.listing import BASE_VOICE

TEXT = "Hello. How are you?"


def test_raw_samples_on_standard_output(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=pipe, flush=lambda: None))
    assert main(["speak", TEXT, "-o", "-"]) == 0
    samples = np.frombuffer(pipe.getvalue(), dtype="<i2") / 32767
    voice = phonate.load(BASE_VOICE, "speech")
    np.testing.assert_allclose(samples, np.concatenate(list(voice.stream(TEXT))), atol=2e-4)
    assert f"-: {len(samples) / 22050:.1f} s at 22050 Hz" in capfd.readouterr().err


def test_a_loudspeaker_plays_all_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    played: list[np.ndarray] = []

    class OutputStream:
        def __init__(self, **options: Any) -> None:
            assert (options["samplerate"], options["channels"], options["dtype"]) == (22050, 1, "float32")

        def __enter__(self) -> OutputStream:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, samples: np.ndarray) -> None:
            played.append(samples[:, 0])

    fake = SimpleNamespace(OutputStream=OutputStream, PortAudioError=OSError)
    monkeypatch.setattr("phonate.audio.live._sounddevice", lambda _: fake)
    assert main(["speak", TEXT, "-o", "loudspeaker"]) == 0
    voice = phonate.load(BASE_VOICE, "speech")
    np.testing.assert_allclose(np.concatenate(played), np.concatenate(list(voice.stream(TEXT))), atol=1e-4)
    assert capsys.readouterr().out.startswith("loudspeaker: ")


@pytest.mark.parametrize(
    ("text", "told"), [("Guten Tag, wie geht es Ihnen?", True), ("Guten Tag.", False), ("How are you today?", False)]
)
def test_a_text_in_another_language_than_the_voice_is_told(
    text: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["speak", text, "-o", str(tmp_path / "said.wav")]) == 0
    assert (capsys.readouterr().err == "the text seems to be German, the voice reads it as English\n") == told


def test_captions_need_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speak", TEXT, "-o", "-", "--captions", "said.srt"]) == 2
    assert "name one by -o OUT.wav" in capsys.readouterr().err


def test_the_next_block_is_made_while_one_is_in_use() -> None:
    made = threading.Event()

    def blocks() -> Iterator[np.ndarray]:
        yield np.zeros(1, np.float32)
        made.set()
        yield np.ones(1, np.float32)

    taken = ahead(blocks())
    assert next(taken) == 0
    assert made.wait(10)
    assert [block.item() for block in taken] == [1]


def test_an_error_of_a_later_block_is_raised() -> None:
    def blocks() -> Iterator[np.ndarray]:
        yield np.zeros(1, np.float32)
        raise ValueError("no more")

    taken = ahead(blocks())
    next(taken)
    with pytest.raises(ValueError, match="no more"):
        next(taken)


def test_raw_samples_beyond_full_scale_are_clipped() -> None:
    pipe = io.BytesIO()
    RawSink(pipe).write(np.array([0.5, 1.5, -1.5], dtype=np.float32))
    assert np.frombuffer(pipe.getvalue(), dtype="<i2").tolist() == [16384, 32767, -32767]
