"""Small corpora of tones for the tests of this folder."""

from __future__ import annotations

import numpy as np

from phonate.audio.decoding import write_audio
from phonate.audio.settings import AudioConfig
from phonate.data.corpora.manifest import read_corpus
from phonate.data.settings import VoiceData

RATE = 16000


def tone(seconds=0.4, hertz=220.0):
    time = np.arange(int(seconds * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def wav(path, seconds=0.4, hertz=220.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_audio(path, tone(seconds, hertz), RATE)
    return path


def corpus(path, **changes) -> VoiceData:
    audio = AudioConfig(sample_rate=RATE, min_seconds=0.1, max_seconds=5.0)
    return VoiceData(path=str(path), audio=audio, cache_dir=str(path.parent / "cache"), **changes)


def rows_of(data):
    cuts, report = read_corpus(data)
    return {cut.id: (cut.supervisions[0].speaker, cut.supervisions[0].text) for cut in cuts}, report
