import librosa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.audio.decoding import read_audio
from phonate.audio.mel_filters import band_edges, empty_bands, mel_filters
from phonate.audio.processor import AudioProcessor, MelSpectrum, deemphasised, preemphasised
from phonate.audio.settings import AudioConfig
from phonate.config.errors import DataError

CONFIGS = [
    AudioConfig(),
    AudioConfig(sample_rate=16000, n_fft=512, hop_length=160, win_length=400, n_mels=40, fmin=50, fmax=7600),
    AudioConfig(sample_rate=24000, n_fft=2048, hop_length=300, win_length=1200, fmax=12000, preemphasis=0),
    AudioConfig(sample_rate=8000, n_fft=256, hop_length=64, win_length=256, n_mels=24, fmax=4000),
]


def speech_like(samples: int, seed: int = 1) -> np.ndarray:
    """Noise that is louder at low frequencies, in bursts."""
    rng = np.random.default_rng(seed)
    noise = deemphasised(rng.standard_normal(samples).astype(np.float32), 0.95)
    return (noise * (0.01 + np.abs(np.sin(np.arange(samples) / 3000))) * 0.05).astype(np.float32)


def librosa_features(waveform: np.ndarray, config: AudioConfig, power: float = 1.0) -> np.ndarray:
    """The documented formula through librosa in float64, independently of our code."""
    emphasised = np.append(waveform[:1], waveform[1:] - config.preemphasis * waveform[:-1]).astype(np.float64)
    mel = librosa.feature.melspectrogram(
        y=emphasised / np.abs(emphasised).max(),
        sr=config.sample_rate,
        n_fft=config.n_fft,
        hop_length=config.hop_length,
        win_length=config.win_length,
        n_mels=config.n_mels,
        fmin=config.fmin,
        fmax=config.fmax,
        power=power,
    )
    return np.clip((20 * np.log10(np.maximum(1e-5, mel.T)) + 100) / 100, 0, 1)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.sample_rate))
def test_features_equal_librosa(config):
    waveform = speech_like(3 * config.sample_rate + 17)
    ours = AudioProcessor(config).mel(waveform)
    theirs = librosa_features(waveform, config)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape == (1 + len(waveform) // config.hop_length, config.n_mels)
    assert np.abs(ours - theirs).max() < 1e-4
    assert np.abs(ours - librosa_features(waveform, config, power=2.0)).max() > 0.1


def test_features_of_recordings_equal_librosa(recordings):
    processor = AudioProcessor()
    for folder in ("tts_en_kathleen", "spk_en_librispeech"):
        path = sorted((recordings / folder).rglob("*.flac"))[0]
        theirs = librosa_features(librosa.load(path, sr=22050)[0], AudioConfig())
        ours = processor.mel(processor.load(path))
        error = np.abs(ours - theirs)
        assert error[theirs > 0.1].max() < 8.7e-5, "over 0.001 in the natural logarithm"
        assert error.max() < 3e-4, "near the floor, single precision shows"
        assert (ours == 1.0).mean() < 0.001, "loud bands are cut off"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.sample_rate))
def test_filters_equal_librosa(config):
    theirs = librosa.filters.mel(
        sr=config.sample_rate, n_fft=config.n_fft, n_mels=config.n_mels, fmin=config.fmin, fmax=config.fmax
    )
    ours = mel_filters(config.sample_rate, config.n_fft, config.n_mels, config.fmin, config.fmax)
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


def test_more_bands_than_frequencies_are_refused():
    with pytest.raises(ValueError, match=r"n_mels 80 .*lower n_mels or raise n_fft"):
        mel_filters(22050, 256, 80, 0.0, 8000.0)


@given(st.integers(1, 400), st.floats(0, 4000), st.floats(1, 20000))
def test_bands_lie_where_librosa_has_them(bands, fmin, width):
    theirs = librosa.mel_frequencies(bands + 2, fmin=fmin, fmax=fmin + width)
    np.testing.assert_allclose(band_edges(bands, fmin, fmin + width), theirs, rtol=1e-9, atol=1e-9)


@given(st.sampled_from([255, 256, 512, 1024]), st.integers(1, 400), st.floats(0, 2000))
def test_empty_bands_are_counted_without_the_filters(n_fft, bands, fmin):
    empty = empty_bands(22050, n_fft, bands, fmin, 8000.0)
    if empty:
        with pytest.raises(ValueError, match=f"^{empty} of n_mels {bands} "):
            mel_filters(22050, n_fft, bands, fmin, 8000.0)
    else:
        assert mel_filters(22050, n_fft, bands, fmin, 8000.0).any(axis=1).all()


@settings(max_examples=30, deadline=None)
@given(
    n_fft=st.sampled_from([256, 400, 1024, 2048]),
    bands=st.integers(1, 128),
    highest=st.floats(500, 8000),
    power=st.sampled_from([1, 2]),
    frames=st.integers(1, 300),
)
def test_parts_of_the_filters_sum_what_all_of_them_do(n_fft, bands, highest, power, frames):
    filters = mel_filters(16000, n_fft, bands, 0.0, highest, allow_empty=True)
    waveform = speech_like(frames * 100)
    framed = np.lib.stride_tricks.sliding_window_view(np.pad(waveform, n_fft // 2).astype(np.float64), n_fft)[::100]
    spectrum = np.abs(np.fft.rfft(framed * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)))) ** power
    expected = spectrum @ filters.astype(np.float64).T
    ours = MelSpectrum(filters, n_fft, 100, n_fft, power)(waveform)
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() <= 1e-5 * expected.max()
    assert not ours[:, ~filters.any(axis=1)].any()


@settings(max_examples=30)
@given(samples=st.integers(1, 70_000))
def test_any_length_has_the_promised_frames(samples):
    processor = AudioProcessor()
    mel = processor.mel(speech_like(samples))
    assert mel.shape == (processor.frames(samples), 80)
    assert np.isfinite(mel).all()


def test_features_are_bounded_and_blind_to_loudness():
    processor, waveform = AudioProcessor(), speech_like(22050)
    mel = processor.mel(waveform)
    assert 0.0 <= mel.min() < mel.max() <= 1.0
    np.testing.assert_allclose(processor.mel(waveform * np.float32(0.01)), mel, atol=1e-4)
    assert (processor.mel(np.zeros(5000)) == 0).all()
    assert (processor.mel(np.append(0.3 * waveform, np.zeros(5000)))[-10:] == 0).all(), "also of a quiet recording"


@pytest.mark.parametrize(("name", "value"), [("ref_level_db", 26.0), ("min_level_db", -80.0)])
def test_levels_move_the_scale(name, value):
    waveform = speech_like(22050)
    plain = AudioProcessor().mel(waveform)
    moved = AudioProcessor(AudioConfig.model_validate({name: value})).mel(waveform)
    expected = plain - 0.06 if name == "ref_level_db" else (plain * 100 - 20) / 80
    np.testing.assert_allclose(moved, np.clip(expected, 0, 1), atol=1e-4)


@pytest.mark.parametrize("shape", [(0,), (2, 100)])
def test_what_is_no_waveform_is_refused(shape):
    with pytest.raises(ValueError, match="one-dimensional"):
        AudioProcessor().mel(np.zeros(shape))


def test_normalise_and_denormalise_invert():
    processor = AudioProcessor(AudioConfig(ref_level_db=26, min_level_db=-90))
    mel = np.linspace(0.001, 1.0, 400, dtype=np.float32).reshape(5, 80)
    np.testing.assert_allclose(processor.normalise(processor.denormalise(mel)), mel, atol=1e-5)
    assert (processor.denormalise(np.zeros((2, 80))) == 0).all()


def test_emphasis_inverts():
    waveform = speech_like(4000)
    np.testing.assert_allclose(deemphasised(preemphasised(waveform, 0.97), 0.97), waveform, atol=1e-5)


def test_load_brings_the_peak_to_one(recordings):
    path = sorted((recordings / "tts_en_kathleen").rglob("*.flac"))[0]
    processor = AudioProcessor(AudioConfig(sample_rate=16000))
    loaded = processor.load(path, offset=0.5, duration=1.0)
    assert len(loaded) == 16000
    assert np.abs(loaded).max() == pytest.approx(1.0)
    raw, _ = read_audio(path, 16000, 0.5, 1.0)
    assert np.corrcoef(raw, loaded)[0, 1] > 0.9999
    with pytest.raises(DataError, match=r"\.wav: no such file"):
        processor.load(path.with_suffix(".wav"))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_samples_that_are_no_numbers_are_refused(bad):
    waveform = speech_like(4000)
    waveform[100] = bad
    with pytest.raises(ValueError, match="NaN"):
        AudioProcessor().mel(waveform)
