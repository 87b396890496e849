import librosa
import numpy as np
import pytest

from phonate.audio.decoding import read_audio
from phonate.audio.pitch import f0, median_f0


def harmonics(hertz: np.ndarray, rate: int) -> np.ndarray:
    """A sound whose fundamental follows `hertz` (samples,)."""
    phase = 2 * np.pi * np.cumsum(hertz) / rate
    return sum(np.sin(k * phase) / k for k in range(1, 8)).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 48000])
@pytest.mark.parametrize("hertz", [63.0, 75.0, 110.0, 230.0, 420.0, 480.0])
def test_steady_tones(rate, hertz):
    track = f0(harmonics(np.full(rate, hertz), rate), rate, rate // 100)
    assert len(track) == 1 + rate // (rate // 100)
    inside = track[5:-5]
    np.testing.assert_allclose(inside, hertz, rtol=0.01)


def test_a_glide_is_followed_frame_by_frame():
    rate, hop = 22050, 256
    hertz = np.geomspace(90, 300, 2 * rate)
    track = f0(harmonics(hertz, rate), rate, hop)
    np.testing.assert_allclose(track[8:-8], hertz[::hop][: len(track)][8:-8], rtol=0.02)


def test_noise_and_silence_have_no_pitch():
    noise = np.random.default_rng(0).standard_normal(32000).astype(np.float32)
    assert (f0(noise, 16000, 160) == 0).mean() > 0.98
    assert (f0(np.zeros(16000, np.float32), 16000, 160) == 0).all()
    assert np.isnan(median_f0(np.zeros(16000, np.float32), 16000))
    assert f0(np.zeros(10, np.float32), 16000, 160).shape == (1,)


def test_voices_agree_with_pyin(recordings):
    """Per frame and in the median, against librosa's probabilistic YIN, for women and men."""
    paths = [sorted((recordings / "tts_en_kathleen").rglob("*.flac"))[index] for index in (0, 3)]
    paths += sorted((recordings / "asr_en_an4").rglob("*.flac"))[:30:10]
    for path in paths:
        waveform, rate = read_audio(path, duration=1.4)
        reference, voiced, _ = librosa.pyin(
            waveform, sr=rate, fmin=60, fmax=500, hop_length=rate // 100, frame_length=1024
        )
        track = f0(waveform, rate, rate // 100)
        frames = min(len(track), len(reference))
        both = voiced[:frames] & (track[:frames] > 0)
        assert both.sum() > 25
        error = np.abs(track[:frames][both] / reference[:frames][both] - 1)
        assert (error > 0.2).mean() < 0.05
        assert np.median(track[:frames][both]) == pytest.approx(np.median(reference[:frames][both]), rel=0.04)
