"""Distances of synthesised from natural speech, on real recordings."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from phonate.audio.decoding import FloatArray, read_audio
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import DataError
from phonate.evaluation.distances import Distances, distances

RATE = 22050


@pytest.fixture(scope="module")
def speech(recordings: Path) -> list[FloatArray]:
    paths = sorted((recordings / "tts_en_lj" / "wavs").glob("*.*"))[:3]
    return [read_audio(path, RATE)[0][: 4 * RATE] for path in paths]


def test_a_recording_is_at_no_distance_from_itself_at_any_level(speech: list[FloatArray]) -> None:
    for waveform in speech:
        assert distances(waveform, waveform, RATE) == Distances(0.0, 0.0, 0.0)
        louder = distances(3.0 * waveform, waveform, RATE)
        assert louder.mel_cepstral_distortion < 0.01
        assert louder.f0_rmse < 1.0
        assert louder.voicing_error < 0.01


def test_vocoded_and_slower_speech_is_near_and_another_sentence_is_far(speech: list[FloatArray]) -> None:
    import librosa

    processor = AudioProcessor()
    assert processor.config.sample_rate == RATE
    one, other = speech[0], speech[2]
    vocoded = distances(processor.waveform(processor.mel(one)), one, RATE)
    slower = distances(librosa.effects.time_stretch(one, rate=0.9), one, RATE)
    unlike = distances(other, one, RATE)
    assert vocoded.mel_cepstral_distortion < 1.5
    assert slower.mel_cepstral_distortion < 3.5
    assert unlike.mel_cepstral_distortion > max(5.0, 1.7 * slower.mel_cepstral_distortion)
    assert vocoded.f0_rmse < 100.0 < unlike.f0_rmse
    assert vocoded.voicing_error < 0.08 < 0.15 < unlike.voicing_error


def test_a_pitch_two_semitones_up_is_200_cents_off(speech: list[FloatArray]) -> None:
    import librosa

    higher = librosa.effects.pitch_shift(speech[0], sr=RATE, n_steps=2)
    assert distances(higher, speech[0], RATE).f0_rmse == pytest.approx(200.0, abs=40.0)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 24000, 44100, 48000])
def test_any_usual_rate_will_do(rate: int) -> None:
    phase = 2 * np.pi * 150.0 * np.arange(rate) / rate
    tone = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 20)).astype(np.float32)
    found = distances(2.0 * tone, tone, rate)
    assert found.mel_cepstral_distortion < 0.01
    assert found.voicing_error == 0.0


def test_the_distortion_is_a_difference_of_spectra_in_decibels() -> None:
    """A tilt that is one cosine over the mel bands, of 3 dB amplitude, is 3 / sqrt(2) dB root mean square."""
    from scipy.signal import firwin2, lfilter

    from phonate.audio.mel_filters import band_edges

    noise = np.random.default_rng(0).standard_normal(2 * 16000)
    edges = np.array(band_edges(80, 0.0, 8000.0))
    tilt_db = 3.0 * np.cos(np.pi * np.linspace(0.0, 1.0, 82))
    filtered = lfilter(firwin2(1023, edges / edges[-1], 10 ** (tilt_db / 20.0)), 1.0, noise)[511:]
    plain = noise[: len(filtered)]
    measured = distances(filtered.astype(np.float32), plain.astype(np.float32), 16000)
    assert measured.mel_cepstral_distortion == pytest.approx(3.0 / math.sqrt(2.0), rel=0.15)


def test_without_voice_there_is_no_pitch_and_silence_is_refused() -> None:
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    assert math.isnan(distances(noise, noise, RATE).f0_rmse)
    with pytest.raises(DataError, match="clip 7 as synthesised: "):
        distances(np.zeros(RATE, dtype=np.float32), noise, RATE, "clip 7")
    with pytest.raises(DataError, match="clip 7 as recorded: "):
        distances(noise, np.zeros(0, dtype=np.float32), RATE, "clip 7")
