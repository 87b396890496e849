"""Mel and pitch of a waveform that comes in blocks."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from phonate.audio.pitch import f0, f0_stream
from phonate.audio.processor import AudioProcessor, preemphasised

RATE, HOP = 22050, 256


@pytest.fixture(scope="module")
def sound():
    """Two seconds: silence, a gliding tone, noise, and the tone again; its emphasised form peaks at 1."""
    rng = np.random.default_rng(3)
    seconds = np.arange(2 * RATE) / RATE
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(3 * seconds)) / RATE
    tone = sum(np.sin(number * phase) / number for number in range(1, 12))
    tone[: RATE // 5] = 0.0
    tone[RATE : RATE + 4000] = 0.3 * rng.standard_normal(4000)
    waveform = tone.astype(np.float32)
    return waveform / np.abs(preemphasised(waveform, 0.97)).max()


def blocks(waveform: np.ndarray, seed: int) -> list[np.ndarray]:
    """The waveform in blocks of random sizes, some of them empty."""
    rng, parts, start = np.random.default_rng(seed), [], 0
    while start < len(waveform):
        size = int(rng.choice([0, 1, 17, 200, 256, 512, 3000]))
        parts.append(waveform[start : start + size])
        start += size
    return parts


@pytest.mark.parametrize("seed", [1, 2])
def test_mel_of_blocks_is_the_mel_of_the_whole(sound, seed):
    stream = AudioProcessor().mel_stream()
    made = np.concatenate([*(stream.push(part) for part in blocks(sound, seed)), stream.finish()])
    assert np.abs(made - AudioProcessor().mel(sound)).max() < 1e-5


def test_mel_of_blocks_keeps_their_level(sound):
    stream = AudioProcessor().mel_stream()
    quiet = np.concatenate([stream.push(0.1 * sound), stream.finish()])
    whole = AudioProcessor().mel(sound)
    loud = whole > 0.5
    assert np.allclose(whole[loud] - quiet[loud], 0.2, atol=1e-4)  # 20 of 100 dB


@pytest.fixture(scope="module")
def at_once(sound):
    """The pitch of a stream that gets all samples in one block."""

    @functools.cache
    def pitch(method):
        stream = f0_stream(RATE, HOP, method)
        return np.concatenate([stream.push(sound), stream.finish(1 + len(sound) // HOP)])

    return pitch


@pytest.mark.parametrize("method", ["swift", "yin"])
@pytest.mark.parametrize("seed", [1, 2])
def test_pitch_of_blocks_is_the_pitch_of_the_whole(sound, at_once, seed, method):
    whole = f0(sound, RATE, HOP, method)
    stream = f0_stream(RATE, HOP, method)
    parts = [stream.push(part) for part in blocks(sound, seed)]
    made = np.concatenate([*parts, stream.finish(len(whole))])
    assert np.array_equal(made, at_once(method))
    assert made.shape == whole.shape
    assert (whole > 0).mean() > 0.5
    if method == "yin":
        assert np.allclose(made, whole, atol=0.02)
        return
    both = (made > 0) & (whole > 0)  # a stream knows less of what comes after a frame
    assert both.mean() > 0.45
    assert np.abs(np.log2(made[both] / whole[both])).max() < 0.05
    assert ((made > 0) != (whole > 0)).mean() < 0.1


@pytest.mark.parametrize("method", ["swift", "yin"])
def test_a_pitch_is_known_once_the_stated_samples_are_there(sound, method):
    stream, frames = f0_stream(RATE, HOP, method), 0
    for sample in range(0, 30 * HOP):
        frames += len(stream.push(sound[sample : sample + 1]))
        assert frames == max(0, (sample + 1 - stream.samples_ahead) // HOP + 1)
