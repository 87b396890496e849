from __future__ import annotations

import numpy as np
import pytest

from phonate.audio.decoding import read_audio, read_start, resample, write_audio
from phonate.audio.quality import VoiceLevels, exact_levels, voice_features, voice_levels, voice_score
from phonate.config.errors import DataError
from sounds import voiced_tone

RATE = 16_000


def voice(seconds: float = 3.0, pitch: float = 120.0) -> np.ndarray:
    return resample(voiced_tone(seconds, pitch, (600.0, 1500.0, 2500.0), seed=3), 22_050, RATE)


def by_librosa(samples: np.ndarray) -> dict[str, np.ndarray]:
    import librosa

    coefficients = librosa.feature.mfcc(y=samples, sr=RATE, n_mfcc=13)
    centroid = librosa.feature.spectral_centroid(y=samples, sr=RATE)
    loudness = librosa.feature.rms(y=samples)
    return {
        "mfcc_mean": coefficients.mean(axis=1),
        "mfcc_std": coefficients.std(axis=1),
        "spectral_centroid": centroid.mean(),
        "spectral_centroid_std": centroid.std(),
        "spectral_rolloff": librosa.feature.spectral_rolloff(y=samples, sr=RATE).mean(),
        "zero_crossing_rate": librosa.feature.zero_crossing_rate(samples).mean(),
        "rms": loudness.mean(),
        "rms_std": loudness.std(),
    }


def assert_as_librosa(samples: np.ndarray) -> None:
    ours = voice_features(samples, RATE)
    for name, value in by_librosa(samples).items():
        np.testing.assert_allclose(
            getattr(ours, name), value, rtol=2e-4, atol=2e-3 if "mfcc" in name else 0, err_msg=name
        )


@pytest.mark.slow  # librosa is compiled at its first use
@pytest.mark.parametrize("seconds", [0.05, 2.0, 7.77])
def test_features_are_librosas(seconds):
    assert_as_librosa(voice(seconds))


@pytest.mark.slow
def test_features_of_real_speech_are_librosas(recordings):
    import librosa

    for path in sorted(recordings.glob("asr_en_an4/wavs/*.flac"))[:8]:
        samples, _ = read_audio(path, RATE)
        assert_as_librosa(samples)
        ours = voice_features(samples, RATE)
        track, voiced, _ = librosa.pyin(samples, fmin=60, fmax=500, sr=RATE, hop_length=160)
        heard = track[voiced]
        if len(heard) > 50:
            assert ours.pitch_mean == pytest.approx(np.median(heard), rel=0.08), path  # its mean has jumps of octaves


@pytest.mark.parametrize("pitch", [90.0, 140.0, 230.0])
def test_pitch_is_that_of_the_voice(pitch):
    found = voice_features(voice(3.0, pitch), RATE)
    assert found.pitch_mean == pytest.approx(pitch, rel=0.04)
    assert pitch * 0.8 < found.pitch_min < pitch < found.pitch_max < pitch * 1.2  # it glides by 15 %
    assert found.voiced_frames > 200
    assert found.duration == pytest.approx(3.0)


def test_silence_has_no_pitch():
    found = voice_features(np.zeros(2 * RATE, dtype=np.float32), RATE)
    assert (found.pitch_mean, found.pitch_min, found.pitch_max, found.voiced_frames) == (None, None, None, 0)
    assert found.rms == found.spectral_centroid == found.zero_crossing_rate == 0.0
    assert np.isfinite([*found.mfcc_mean, *found.mfcc_std]).all()


@pytest.mark.parametrize(
    ("facts", "score", "why"),
    [
        ((0.1, 0.5, 1500.0, 5.0), 1.0, []),
        ((0.01, 0.99, 1000.0, 3.0), 1.0, []),  # the limits themselves are fine
        ((0.009, 0.5, 1500.0, 5.0), 0.5, ["quiet"]),
        ((0.1, 0.995, 1500.0, 5.0), 0.8, ["clipped"]),
        ((0.1, 0.5, 900.0, 5.0), 0.9, ["muffled"]),
        ((0.1, 0.5, 1500.0, 2.9), 0.9, ["short"]),
        ((0.001, 1.0, 100.0, 2.0), 0.324, ["quiet", "clipped", "muffled", "short"]),
    ],
)
def test_the_score_and_what_lowers_it(facts, score, why):
    found, reasons = voice_score(VoiceLevels(*facts[:3]), facts[3])
    assert found == pytest.approx(score)
    assert [reason.split()[0] for reason in reasons] == why


def judged(samples: np.ndarray, rate: int) -> bool:
    """Asserts that the levels lead to the exact judgement; says whether they are the exact ones."""
    found, exact = voice_levels(samples, rate, RATE), exact_levels(samples, rate, RATE)
    assert voice_score(found, 5.0)[0] == voice_score(exact, 5.0)[0], (found, exact)
    assert found.rms == pytest.approx(exact.rms, rel=0.1)
    return found == exact


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_estimates_judge_as_the_exact_levels_do(rate):
    """Sounds of all colours and levels, over all thresholds."""
    rng = np.random.default_rng(rate)
    exactly = 0
    for _ in range(60):
        spectrum = np.fft.rfft(rng.standard_normal(int(rate * rng.uniform(2.0, 4.0))))
        hertz = np.linspace(0.0, rate / 2, len(spectrum))
        noise = np.fft.irfft(spectrum / (1.0 + (hertz / 10 ** rng.uniform(1.8, 4.0)) ** rng.uniform(1.0, 3.0)))
        envelope = np.abs(np.sin(np.pi * rng.uniform(0.2, 4.0) * np.arange(len(noise)) / rate)) ** rng.uniform(0.0, 3.0)
        sound = noise * envelope
        sound *= 10 ** rng.uniform(-2.5, 0.2) / np.abs(sound).max()
        exactly += judged(np.clip(sound, -1.0, 1.0).astype(np.float32), rate)
    assert 0 < exactly < 60  # both ways are taken


def test_estimates_judge_real_speech_as_the_exact_levels_do(recordings):
    for path in sorted(recordings.glob("asr_en_an4/wavs/*.flac"))[:60]:
        samples, rate = read_audio(path)
        for gain in (1.0, 0.05, 0.02, 1.0 / np.abs(samples).max()):
            judged((gain * samples).astype(np.float32), rate)


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_only_the_beginning_is_read(tmp_path, suffix):
    path = tmp_path / f"long{suffix}"
    samples = voiced_tone(6.0, 150.0, (700.0,), 1)
    write_audio(path, samples, 22_050)
    start, info = read_start(path, 2.0, RATE)
    assert len(start) == 2 * RATE
    assert info.duration == pytest.approx(6.0)
    assert info.sample_rate == 22_050
    whole, _ = read_audio(path, duration=2.0)
    np.testing.assert_array_equal(start, resample(whole, 22_050, RATE))
    everything, _ = read_start(path, 30.0, 22_050)
    assert len(everything) == len(samples)


def test_only_the_beginning_of_an_m4a_is_decoded(tmp_path):
    import av

    path = tmp_path / "long.m4a"
    samples = np.tile(voiced_tone(5.0, 150.0, (700.0,), 1), 12)
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=22_050, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate = 22_050
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    start, info = read_start(path, 3.0, RATE)
    assert info.duration == pytest.approx(60.0, abs=0.1)
    assert len(start) == 3 * RATE
    whole, _ = read_audio(path)
    np.testing.assert_allclose(start[:RATE], resample(whole[: 3 * 22_050], 22_050, RATE)[:RATE], atol=1e-6)
    # cut off behind the part that is read: the rest is never looked at
    packets = path.read_bytes()
    assert packets.find(b"mdat") < packets.find(b"moov")


def test_a_rate_that_is_no_recordings_is_refused_before_memory_is_taken(tmp_path):
    path = tmp_path / "rate.wav"
    write_audio(path, voice(1.0), RATE)
    content = bytearray(path.read_bytes())
    content[24:28] = (2_000_000_000).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match="2000000000 samples per second"):
        read_start(path, 30.0, RATE)
