import numpy as np
import pytest

from phonate.audio.augmentation import DataAugmentation, stretch_and_shift
from phonate.audio.decoding import read_audio, resample
from phonate.audio.pitch import f0, median_f0
from phonate.audio.processor import AudioProcessor
from phonate.audio.settings import AudioConfig, AugmentationSettings, SpecAugmentSettings
from phonate.config.randomness import generator

RATES = [8000, 16000, 22050, 48000]
OFF = {"time_stretch": None, "pitch_shift": None, "noise": None, "spec_augment": None}

ALWAYS = AugmentationSettings(
    time_stretch_probability=1, pitch_shift_probability=1, noise_probability=1, spec_augment_probability=1
)


def only(**values) -> AugmentationSettings:
    """Settings with one effect, always applied."""
    (name,) = values
    return AugmentationSettings.model_validate({**OFF, **values, f"{name}_probability": 1.0})


def voice(rate: int, seconds: float = 1.5, hertz: float = 140.0) -> np.ndarray:
    """A harmonic sound with a falling spectrum and a swell in each half second."""
    time = np.arange(round(seconds * rate)) / rate
    harmonics = sum(np.sin(2 * np.pi * hertz * k * time) / k for k in range(1, int(min(rate / 2, 4000) / hertz)))
    return (0.3 * harmonics * (0.2 + np.sin(2 * np.pi * time) ** 2)).astype(np.float32)


def moved(before: np.ndarray, after: np.ndarray, rate: int) -> float:
    """Semitones between the median F0s."""
    return 12 * np.log2(median_f0(after, rate) / median_f0(before, rate))


def shift_with_a_hard_coded_rate(waveform: np.ndarray, rate: int, semitones: float) -> np.ndarray:
    """The mistake to catch: the sample rate of the resampling step is 22050 whatever the recording's."""
    pitch = 2 ** (semitones / 12)
    return resample(stretch_and_shift(waveform, rate, speed=1 / pitch), 22050 * pitch, rate)[: len(waveform)]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("semitones", [-2.0, 2.0])
def test_pitch_shift_moves_f0_by_the_semitones_asked(rate, semitones):
    before = voice(rate)
    after = DataAugmentation(only(pitch_shift=(semitones, semitones)), rate)(before, generator(1))
    assert len(after) == len(before)
    assert moved(before, after, rate) == pytest.approx(semitones, abs=0.1)
    wrong = moved(before, shift_with_a_hard_coded_rate(before, rate, semitones), rate)
    assert (abs(wrong - semitones) < 0.1) == (rate == 22050)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("speed", [0.8, 1.25])
def test_stretch_changes_the_length_by_the_rate_and_keeps_the_pitch(rate, speed):
    before = voice(rate)
    after = DataAugmentation(only(time_stretch=(speed, speed)), rate)(before, generator(1))
    assert len(after) == round(len(before) / speed)
    assert moved(before, after, rate) == pytest.approx(0.0, abs=0.1)
    parts = np.abs(after[: len(after) // 3 * 3]).reshape(3, -1).mean(axis=1)
    expected = np.abs(before[: len(before) // 3 * 3]).reshape(3, -1).mean(axis=1)
    np.testing.assert_allclose(parts, expected, rtol=0.15)


def smeared_before_onset(rate: int, told: int) -> float:
    """Share of the energy that stretching spills more than 10 ms ahead of a sudden tone."""
    tone = 0.3 * np.sin(2 * np.pi * 700 * np.arange(rate // 2) / rate)
    sound = np.concatenate([np.zeros(rate // 2), tone]).astype(np.float32)
    stretched = stretch_and_shift(sound, told, speed=0.8)
    onset = int((0.5 / 0.8 - 0.01) * rate)
    return float(np.square(stretched[:onset]).sum() / np.square(stretched).sum())


def test_the_window_follows_the_sample_rate():
    """With 22050 assumed, a recording of 8 kHz is blurred by a window of 128 ms."""
    assert smeared_before_onset(8000, told=8000) < 1e-6
    assert smeared_before_onset(8000, told=22050) > 1e-5


@pytest.mark.slow
def test_recordings_move_as_asked(recordings):
    for folder in ("tts_en_kathleen", "spk_en_librispeech", "asr_en_an4"):
        before, rate = read_audio(sorted((recordings / folder).rglob("*.flac"))[0])
        track = f0(before, rate, rate // 100)
        for semitones in (-2.0, 2.0):
            shifted = f0(stretch_and_shift(before, rate, semitones=semitones), rate, rate // 100)
            both = (track > 0) & (shifted > 0)
            steps = 12 * np.log2(shifted[both] / track[both])
            assert np.median(steps) == pytest.approx(semitones, abs=0.15)
            assert (np.abs(steps - semitones) < 1).mean() > 0.8


def test_noise_is_relative_to_the_peak():
    before = voice(16000)
    for loudness in (1.0, 0.01):
        quiet = (loudness * before).astype(np.float32)
        noise = DataAugmentation(only(noise=0.02), 16000)(quiet, generator(2)) - quiet
        assert noise.std() == pytest.approx(0.02 * np.abs(quiet).max(), rel=0.05)


def test_everything_off_changes_nothing_and_input_is_never_changed():
    before = voice(22050)
    kept = before.copy()
    off = DataAugmentation(AugmentationSettings.model_validate(OFF), 22050)
    same = off(before, generator(3))
    np.testing.assert_array_equal(same, before)
    assert not np.shares_memory(same, before)
    mel = AudioProcessor().mel(before)
    kept_mel = mel.copy()
    np.testing.assert_array_equal(off.spec(mel, generator(3)), mel)
    for seed in range(5):
        augmentation = DataAugmentation(ALWAYS, 22050)
        assert len(augmentation(before, generator(seed))) != len(before)
        augmentation.spec(mel, generator(seed))
    np.testing.assert_array_equal(before, kept)
    np.testing.assert_array_equal(mel, kept_mel)


def test_the_generator_alone_decides():
    """Same key, same sample; another epoch, another sample; global random state plays no part."""
    before = voice(16000)
    np.random.seed(0)
    first = DataAugmentation(ALWAYS, 16000)(before, generator(7, 0, "clip"))
    np.random.seed(1)
    again = DataAugmentation(ALWAYS, 16000)(before, generator(7, 0, "clip"))
    np.testing.assert_array_equal(first, again)
    later = DataAugmentation(ALWAYS, 16000)(before, generator(7, 1, "clip"))
    assert len(later) != len(first)


def test_features_follow_the_augmented_waveform():
    processor, before = AudioProcessor(), voice(22050)
    after = DataAugmentation(only(time_stretch=(0.8, 0.8)), 22050)(before, generator(5))
    assert len(processor.mel(after)) == processor.frames(round(len(before) / 0.8))


def test_probability_is_the_share_of_samples():
    settings = AugmentationSettings.model_validate({**OFF, "noise": 0.02, "noise_probability": 0.3})
    augmentation, before = DataAugmentation(settings, 16000), voice(16000, 0.1)
    changed = [not np.array_equal(augmentation(before, generator(seed)), before) for seed in range(400)]
    assert np.mean(changed) == pytest.approx(0.3, abs=0.07)


def test_spec_augment_masks_with_the_mean():
    mel = np.random.default_rng(0).random((60, 80), dtype=np.float32)
    augmentation = DataAugmentation(only(spec_augment=SpecAugmentSettings(freq=8, time=10)), 22050)
    widths = []
    for seed in range(300):
        masked = augmentation.spec(mel, generator(seed))
        hidden = masked != mel
        assert np.allclose(masked[hidden], mel.mean())
        bands, frames = hidden.all(axis=0), hidden.all(axis=1)
        np.testing.assert_array_equal(hidden, bands[None] | frames[:, None])
        for mask in (bands, frames):
            assert np.count_nonzero(np.diff(np.flatnonzero(mask)) != 1) == 0, "a mask is one stretch"
        widths.append((bands.sum(), frames.sum()))
    assert set(np.array(widths)[:, 0]) == set(range(9))
    assert set(np.array(widths)[:, 1]) == set(range(11))


@pytest.mark.parametrize("samples", [1, 100, 1000])
def test_very_short_waveforms_survive(samples):
    after = DataAugmentation(ALWAYS, 22050)(voice(22050)[:samples], generator(1))
    assert np.isfinite(after).all()
    mel = AudioProcessor(AudioConfig()).mel(after)
    assert np.isfinite(DataAugmentation(ALWAYS, 22050).spec(mel, generator(1))).all()
