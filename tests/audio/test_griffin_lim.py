import numpy as np
import pytest

from phonate.audio.pitch import median_f0
from phonate.audio.processor import AudioProcessor
from phonate.audio.settings import AudioConfig


def decibels_between(mel: np.ndarray, copy: np.ndarray) -> float:
    """Mean absolute difference in dB but for loudness, since each mel was normalised to its own peak."""
    frames = min(len(mel), len(copy))
    difference = (mel[:frames] - copy[:frames]) * 100
    return float(np.abs(difference - np.median(difference)).mean())


@pytest.fixture(scope="module")
def clips(recordings):
    processor = AudioProcessor()
    paths = [sorted((recordings / folder).rglob("*.flac"))[0] for folder in ("tts_en_kathleen", "spk_en_librispeech")]
    return [processor.load(path, duration=3.0) for path in paths]


def test_copy_of_speech_keeps_the_mel_and_the_pitch(clips):
    processor = AudioProcessor()
    for clip in clips:
        mel = processor.mel(clip)
        copy = processor.waveform(mel)
        assert copy.shape == ((len(mel) - 1) * 256,)
        assert np.abs(copy).max() == pytest.approx(0.95)
        assert decibels_between(mel, processor.mel(copy)) < 1.5
        assert median_f0(copy, 22050) == pytest.approx(median_f0(clip, 22050), rel=0.06)


def test_iterations_matter_and_the_copy_is_repeatable(clips):
    processor, mel = AudioProcessor(), AudioProcessor().mel(clips[0])
    few, more = processor.waveform(mel, iterations=1), processor.waveform(mel, iterations=32)
    assert decibels_between(mel, processor.mel(more)) < 0.7 * decibels_between(mel, processor.mel(few))
    np.testing.assert_array_equal(AudioProcessor().waveform(mel, iterations=1), few)


def test_other_settings_have_a_copy_too():
    config = AudioConfig(sample_rate=16000, n_fft=512, hop_length=128, win_length=400, n_mels=64, preemphasis=0)
    processor, time = AudioProcessor(config), np.arange(32000) / 16000
    voice = sum(np.sin(2 * np.pi * 130 * k * time) / k for k in range(1, 30)) * np.hanning(32000)
    mel = processor.mel(voice)
    copy = processor.waveform(mel)
    assert decibels_between(mel, processor.mel(copy)) < 3.0
    assert median_f0(copy, 16000) == pytest.approx(130, rel=0.03)


def test_silence_stays_silence_and_shapes_are_checked():
    processor = AudioProcessor()
    assert (processor.waveform(np.zeros((20, 80))) == 0).all()
    for shape in ((20, 40), (1, 80), (80,)):
        with pytest.raises(ValueError, match=r"\(frames, 80\)"):
            processor.waveform(np.zeros(shape))
