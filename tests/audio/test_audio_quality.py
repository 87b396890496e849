import numpy as np
import pytest

from phonate.audio.decoding import read_audio
from phonate.audio.quality import describe, describe_blocks

RATE = 16000
TONE = (0.5 * np.sin(2 * np.pi * 200 * np.arange(RATE) / RATE)).astype(np.float32)


def test_facts_of_a_tone():
    quality = describe(TONE, RATE)
    assert quality.duration == 1.0
    assert quality.peak == pytest.approx(0.5, rel=1e-3)
    assert quality.rms == pytest.approx(0.5 / np.sqrt(2), rel=1e-3)
    assert quality.dc_offset == pytest.approx(0.0, abs=1e-6)
    assert (quality.clipping_share, quality.silence_share, quality.not_finite) == (0.0, 0.0, 0)


def test_clipping_is_seen_at_any_level():
    for gain in (1.0, 0.4):
        clipped = gain * np.clip(4 * TONE, -1, 1)
        expected = np.mean(np.abs(4 * TONE) >= 1)
        assert describe(clipped, RATE).clipping_share == pytest.approx(expected, abs=0.01)
    quantised = np.round(2 * np.random.default_rng(0).random(RATE)) / 32768
    assert describe(quantised, RATE).clipping_share == 0.0


def test_silence_offset_and_holes_are_seen():
    half = np.concatenate([TONE, np.zeros(RATE, np.float32)])
    assert describe(half, RATE).silence_share == 0.5
    assert describe(TONE + np.float32(0.1), RATE).dc_offset == pytest.approx(0.1, abs=1e-4)
    holes = TONE.copy()
    holes[[5, 6]] = np.nan, np.inf
    assert describe(holes, RATE).not_finite == 2
    assert describe(holes, RATE).peak == pytest.approx(0.5, rel=1e-3)


def test_copies_have_one_checksum_however_they_come_and_others_another():
    noise = np.random.default_rng(0).normal(0.0, 0.1, RATE).astype(np.float32)
    checksum = describe(noise, RATE).checksum
    assert describe(noise.copy(), RATE).checksum == checksum
    assert describe_blocks(np.split(noise, [1000, 5000]), RATE).checksum == checksum
    assert describe(np.roll(noise, RATE // 50), RATE).checksum != checksum, "the same frames in another order"
    another = noise.copy()
    another[777] += np.float32(2.0**-10)
    assert describe(another, RATE).checksum != checksum
    assert describe(-noise, RATE) != describe(noise, RATE), "told by its offset"


@pytest.mark.parametrize("waveform", [np.zeros(RATE), np.zeros(0), np.full(10, np.nan)], ids=["zero", "none", "nan"])
def test_nothing_to_hear_is_all_silence(waveform):
    quality = describe(waveform, RATE)
    assert (quality.silence_share, quality.peak, quality.rms) == (1.0, 0.0, 0.0)


def test_recordings_are_sound(recordings):
    path = sorted((recordings / "tts_en_kathleen").rglob("*.flac"))[0]
    quality = describe(*read_audio(path))
    assert quality.silence_share < 0.5
    assert quality.clipping_share == 0.0
