import librosa
import numpy as np
import pytest
import soxr
from scipy.signal import butter, fftconvolve, firwin, lfilter, sosfiltfilt

from phonate.audio.decoding import read_audio
from phonate.audio.pitch import f0, f0_stream, median_f0

FOLDERS = ("tts_en_kathleen", "tts_de_kerstin", "spk_en_librispeech", "asr_en_an4", "voice_ar_commands")


def harmonics(hertz: np.ndarray, rate: int) -> np.ndarray:
    """A sound whose fundamental follows `hertz` (samples,)."""
    phase = 2 * np.pi * np.cumsum(hertz) / rate
    return sum(np.sin(k * phase) / k for k in range(1, 8)).astype(np.float32)


METHODS = ["swift", "yin"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rate", [8000, 16000, 22050, 48000])
@pytest.mark.parametrize("hertz", [63.0, 75.0, 110.0, 230.0, 420.0, 480.0])
def test_steady_tones(rate, hertz, method):
    track = f0(harmonics(np.full(rate, hertz), rate), rate, rate // 100, method)
    assert len(track) == 1 + rate // (rate // 100)
    inside = track[8:-8]
    np.testing.assert_allclose(inside, hertz, rtol=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_a_glide_is_followed_frame_by_frame(method):
    rate, hop = 22050, 256
    hertz = np.geomspace(90, 300, 2 * rate)
    track = f0(harmonics(hertz, rate), rate, hop, method)
    np.testing.assert_allclose(track[8:-8], hertz[::hop][: len(track)][8:-8], rtol=0.02)


def vowel(hertz: np.ndarray, rate: int, formants=((730, 90), (1090, 110), (2440, 160))) -> np.ndarray:
    """A sung vowel: harmonics of `hertz` (samples,) through strong formants (frequency and bandwidth in Hz)."""
    phase = 2 * np.pi * np.cumsum(hertz) / rate
    sound = sum(np.cos(k * phase) * (k * hertz < rate / 2) for k in range(1, int(rate / 2 / hertz.min()) + 1))
    for frequency, width in formants:
        pole = np.exp((-np.pi * width + 2j * np.pi * frequency) / rate)
        sound = lfilter([1.0], [1.0, -2 * pole.real, abs(pole) ** 2], sound)
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)


def telephone(sound: np.ndarray, rate: int, sharp: bool = False) -> np.ndarray:
    """As it comes out of a telephone: 8 kHz mu-law, 300 to 3,400 Hz; `sharp`: nothing is left under 300 Hz."""
    narrow = soxr.resample(sound, rate, 8000)
    if sharp:
        narrow = fftconvolve(narrow, firwin(401, [300, 3400], pass_zero=False, fs=8000), "same")
    else:
        narrow = sosfiltfilt(butter(2, [300, 3400], "bandpass", fs=8000, output="sos"), narrow)
    narrow *= 0.5 / np.abs(narrow).max()
    codes = np.round(127 * np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256)) / 127
    return (np.sign(codes) * (256 ** np.abs(codes) - 1) / 255).astype(np.float32)


def f0_of(sound: np.ndarray, rate: int) -> np.ndarray:
    """The pitch of a whole recording, frames of 10 ms."""
    return f0(sound, rate, rate // 100)


def streamed(sound: np.ndarray, rate: int) -> np.ndarray:
    """The pitch of a stream, frames of 10 ms."""
    stream = f0_stream(rate, rate // 100)
    return np.concatenate([stream.push(sound), stream.finish(1 + len(sound) // (rate // 100))])


@pytest.mark.parametrize("hertz", [(220, 1000), (1000, 220), (262, 262), (523, 523), (784, 784), (1000, 1000)])
@pytest.mark.parametrize("sung", [lambda sound, rate: sound, telephone], ids=["clean", "telephone"])
def test_a_sung_vowel_up_to_1000_hz(hertz, sung):
    rate = 16000
    glide = np.geomspace(*hertz, rate)
    sound = sung(vowel(glide, rate), rate)
    now = rate if sung is not telephone else 8000
    for track in (f0(sound, now, now // 100), streamed(sound, now)):
        inside, truth = track[10:90], glide[:: rate // 100][10:90]
        assert (inside > 0).mean() > 0.9
        wrong = np.abs(inside / truth - 1) > 0.2
        assert (wrong & (inside > 0)).mean() <= 0.03


def test_a_quiet_recording_has_the_pitch_of_a_loud_one():
    sound = vowel(np.geomspace(120, 240, 16000), 16000)
    loud, quiet = f0(sound, 16000, 160), f0(0.01 * sound, 16000, 160)
    np.testing.assert_allclose(loud, quiet, rtol=1e-3)


@pytest.mark.slow
def test_telephone_speech(recordings):
    """Against the median of the two methods on the recording itself, where they agree."""
    paths = [sorted((recordings / folder).rglob("*.flac"))[20] for folder in FOLDERS]
    for path in paths:
        sound, rate = read_audio(path)
        clean, yin = (f0(sound, rate, rate // 100, method) for method in METHODS)
        known = (clean > 0) & (np.abs(yin / np.maximum(clean, 1) - 1) < 0.05)
        narrow = telephone(sound, rate)
        for track in (f0(narrow, 8000, 80), streamed(narrow, 8000)):
            frames = min(len(track), len(clean))
            both = known[:frames] & (track[:frames] > 0)
            assert both.sum() > 0.6 * known.sum()
            wrong = np.abs(track[:frames][both] / clean[:frames][both] - 1) > 0.2
            assert wrong.mean() <= 0.03, path.name


HARD = ["cen2-msrb-b", "481-123719-0000", "kathleen_a0170"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pitch"),
    [(name, pitch) for name in HARD for pitch in (f0_of, streamed)]
    + [("103-1240-0000", f0_of), ("1069-133699-0000", streamed)],
)
def test_speech_of_which_nothing_is_left_under_300_hz(recordings, name, pitch):
    """The network alone reads up to 24 % of these an octave too high."""
    sound, rate = read_audio(next(recordings.rglob(f"{name}.flac")))
    sound = sound[: 4 * rate]
    clean, yin = (f0(sound, rate, rate // 100, method) for method in METHODS)
    known = (clean > 0) & (np.abs(yin / np.maximum(clean, 1) - 1) < 0.05)
    track = pitch(telephone(sound, rate, sharp=True), 8000)
    frames = min(len(track), len(clean))
    both = known[:frames] & (track[:frames] > 0)
    assert both.sum() > 0.25 * known.sum()
    assert (np.abs(track[:frames][both] / clean[:frames][both] - 1) > 0.2).mean() <= 0.03


def test_noise_and_silence_have_no_pitch():
    noise = np.random.default_rng(0).standard_normal(32000).astype(np.float32)
    assert (f0(noise, 16000, 160) == 0).mean() > 0.98
    assert (f0(np.zeros(16000, np.float32), 16000, 160) == 0).all()
    assert np.isnan(median_f0(np.zeros(16000, np.float32), 16000))
    assert f0(np.zeros(10, np.float32), 16000, 160).shape == (1,)


@pytest.mark.slow
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


@pytest.mark.parametrize("seed", range(3))
def test_noise_has_no_pitch(seed: int) -> None:
    """Of the first one, the network calls two frames of 10 ms voiced."""
    noise = 0.1 * np.random.default_rng(seed).standard_normal(4 * 16000)
    assert not f0(noise.astype(np.float32), 16000, 160).any()
