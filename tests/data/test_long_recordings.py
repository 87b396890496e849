"""Recordings of hours are prepared in blocks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import soundfile
from small_corpora import RATE, corpus

from phonate.audio.kaldi import KaldiFeatures
from phonate.audio.processor import AudioProcessor
from phonate.data import prepared
from phonate.data.corpora import rows, validation
from phonate.data.corpora.rows import Requirements
from phonate.data.prepared import prepare
from phonate.data.settings import KaldiData, VoiceData


class AnyLength(VoiceData):
    """Settings of a task that takes recordings of any length."""

    @property
    def requirements(self):
        return Requirements()


def test_features_and_waveform_in_blocks_are_those_of_the_whole(tmp_path, monkeypatch):
    noise = 0.2 * np.random.default_rng(0).normal(size=(70 * 8000, 2)).astype(np.float32)
    (tmp_path / "corpus").mkdir()
    soundfile.write(tmp_path / "corpus/long.flac", noise, 8000)
    data = AnyLength(**corpus(tmp_path / "corpus").model_dump())
    whole = prepare(data)
    for module in (rows, validation, prepared):
        monkeypatch.setattr(module, "LONG_SECONDS", 20.0)
    blocks = prepare(data.model_copy(update={"cache_dir": str(tmp_path / "other")}))
    assert np.array_equal(blocks.cache.waveform(0), whole.cache.waveform(0))
    assert np.array_equal(blocks.cache.features(0), whole.cache.features(0))
    processor = AudioProcessor(data.audio)
    assert np.array_equal(blocks.cache.features(0), processor.mel(processor.load(tmp_path / "corpus/long.flac")))
    assert not list(blocks.folder.glob("*scratch*"))
    part = blocks.cache.waveform(0, 3 * RATE, 4 * RATE)
    assert np.array_equal(part, whole.cache.waveform(0)[3 * RATE : 4 * RATE])


@pytest.mark.parametrize("storage", ["disk", "on_the_fly"])
def test_kaldi_features_of_long_recordings_are_those_of_kaldi(tmp_path, monkeypatch, storage):
    rng = np.random.default_rng(0)
    noise = np.round(rng.normal(size=70 * RATE) * 2000).astype(np.int16)
    noise[1000:1003] = [-32768, 32767, 20001]  # values of 16 bits are kept as they are
    (tmp_path / "corpus").mkdir()
    soundfile.write(tmp_path / "corpus/long.flac", noise, RATE)
    for module in (rows, validation, prepared):
        monkeypatch.setattr(module, "LONG_SECONDS", 20.0)
    data = KaldiData(path=str(tmp_path / "corpus"), cache_dir=str(tmp_path / "cache"), storage_type=storage)
    cache = prepare(data).cache
    assert np.array_equal(cache.waveform(0), (noise / 32768).astype(np.float32))
    whole = KaldiFeatures(data.audio)(cache.waveform(0))
    assert np.array_equal(cache.features(0), whole)
    assert np.array_equal(cache.features(0, 3001, 3333), whole[3001:3333])


@pytest.mark.slow
def test_an_hour_takes_a_bounded_memory(tmp_path):
    (tmp_path / "corpus").mkdir()
    rng = np.random.default_rng(0)
    minute = 0.1 * rng.standard_normal(60 * RATE, dtype=np.float32)
    with soundfile.SoundFile(tmp_path / "corpus/long.wav", "w", RATE, 1, subtype="PCM_16") as file:
        for _ in range(60):
            file.write(minute)
    code = f"""
import resource
from phonate.audio.processor import AudioProcessor
from phonate.data.corpora.rows import Requirements
from phonate.data.settings import VoiceData
from phonate.data.prepared import prepare
class AnyLength(VoiceData):
    @property
    def requirements(self):
        return Requirements()
AudioProcessor().mel([0.0] * 22050)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
prepared = prepare(AnyLength(path={str(tmp_path / "corpus")!r}, cache_dir={str(tmp_path / "cache")!r}))
print(len(prepared.cache.features(0)), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frames, megabytes = map(int, done.stdout.split())
    assert frames == 1 + 3600 * 22050 // 256
    assert megabytes < 200  # its samples alone are 303
