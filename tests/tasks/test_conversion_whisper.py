"""The recipes that are recommended for one's own recordings, from training to sound, with a real Whisper encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phonate.audio.decoding import read_audio
from phonate.audio.live import streamed
from phonate.audio.pitch import f0_stream
from phonate.tasks.conversion.inference import Converter, MelConversion
from phonate.workflows.train import train

TINY = {
    "model.d_model": 32,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "model.d_ff": 64,
    "training.batch_size": 4,
    "training.max_steps": 3,
    "training.scheduler.warmup_steps": 2,
    "training.ema": None,
    "data.validation": 0.2,
    "data.target": "anna",
}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("whisper")]


@pytest.fixture(scope="module")
def runs(two_voices: Path) -> Path:
    """Runs of both recipes: `offline`, and `live`, which learns from it and renders by the causal `vocoder`."""
    data: dict[str, Any] = {"data.path": str(two_voices / "voices"), "data.cache_dir": str(two_voices / "cache")}
    small = {"model.width": 16, "model.layers": 1, "model.lookahead": 1, "training.adversarial_start": None}
    only = {name: value for name, value in TINY.items() if name.startswith("training.")}
    train("vocoder", {**data, **only, **small}, output=two_voices / "vocoder")
    train("conversion-whisper", {**data, **TINY}, output=two_voices / "offline")
    taught = {"data.vocoder": str(two_voices / "vocoder"), "data.distil_from": str(two_voices / "offline")}
    train("conversion-live-whisper", {**data, **TINY, **taught}, output=two_voices / "live")
    return two_voices


@pytest.fixture(scope="module")
def sound(tone_corpus: Path) -> np.ndarray:
    return read_audio(tone_corpus / "cleo" / "05.wav", 22050)[0]


def test_whole_recordings_are_converted_through_whisper(runs: Path, sound: np.ndarray) -> None:
    converted = Converter.load(runs / "offline").convert(sound)
    assert len(converted) == pytest.approx(len(sound), abs=256)
    assert np.abs(converted).max() == pytest.approx(0.95, abs=1e-3)


def test_live_blocks_are_what_the_networks_make_of_the_whole(
    runs: Path, sound: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Whisper, which is in training only."""
    monkeypatch.setattr("phonate.audio.whisper.WhisperEncoder.__init__", None)
    converter = Converter.load(runs / "live")
    extractor, voice, vocoder = converter.extractor, converter.voices["anna"], converter.networks[1]
    mel_stream, pitch = extractor.processor.mel_stream(), f0_stream(22050, 256, extractor.data.f0_method)
    mel_TM = np.concatenate([mel_stream.push(sound), mel_stream.finish()])
    f0_T = np.concatenate([pitch.push(sound), pitch.finish(len(mel_TM))])
    conversion = MelConversion(converter.model, extractor, voice, converter.speaker("anna"))
    converted_TM, moved_T = conversion.push(mel_TM, f0_T)
    converted_TM = np.concatenate([converted_TM, conversion.finish()])
    with torch.no_grad():
        whole = vocoder(torch.from_numpy(converted_TM)[None], torch.from_numpy(moved_T)[None])[0].numpy()
    live = converter.live()
    parts = [live.push(sound[start : start + 700]) for start in range(0, len(sound), 700)]
    made = np.concatenate([*parts, live.finish()])
    assert np.abs(made).max() > 0.001
    assert np.abs(made - streamed(whole)).max() < 1e-5
