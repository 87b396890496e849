"""The level of streams: never at full scale, quiet sound unchanged, the same in pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phonate.audio.live import streamed
from phonate.tasks.speech.inference import Synthesiser


@given(st.lists(st.floats(-3.25, 3.25, width=32), max_size=50), st.integers(0, 50))
def test_samples_stay_below_full_scale_in_order_and_by_themselves(values: list[float], cut: int) -> None:
    samples = np.array(values, dtype=np.float32)
    made = streamed(samples)
    assert made.dtype == np.float32
    assert np.all(np.abs(made) < 1.0)
    order = np.argsort(samples, kind="stable")
    assert np.all(np.diff(made[order]) >= 0.0)
    assert np.array_equal(made, np.concatenate([streamed(samples[:cut]), streamed(samples[cut:])]))


def test_quiet_sound_is_only_scaled() -> None:
    samples = np.linspace(-1.7, 1.7, 1001, dtype=np.float32)
    assert np.allclose(streamed(samples), np.float32(0.4) * samples, atol=1e-7)


@pytest.mark.parametrize("gain", ["+0dB", "+6dB"])
def test_speech_is_streamed_without_clipping(gain: str) -> None:
    """The loudest samples were cut off at full scale."""
    voice = Synthesiser.load("base/voice")
    text = (
        f'<speak><prosody volume="{gain}">She sells seashells. Wow, that is a huge, loud explosion!</prosody></speak>'
    )
    assert 0.4 < np.abs(np.concatenate(list(voice.stream(text)))).max() < 1.0
