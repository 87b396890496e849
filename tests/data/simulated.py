"""Speakers whose clips hold speech, silence at both ends, and a pause, at known places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from phonate.data.clips import ClipBank, Source
from phonate.data.conversations import Acoustics, ColouredNoise, Conversation, ConversationSimulator
from phonate.data.prepared import PreparedCorpus, prepare
from phonate.data.settings import AcousticSettings, KaldiData, SimulationSettings

RATE = 16_000
DRY = AcousticSettings(reverberation=0.0, noise=0.0, level_db=None)


def voice(seconds: float, pitch: float, seed: int) -> np.ndarray:
    """A buzz with harmonics and a little breath, float32 at 16 kHz, RMS near 0.1; four times a second it is softer for
    a moment, as between syllables."""
    rng = np.random.default_rng(seed)
    at = np.arange(round(seconds * RATE)) / RATE
    sound = sum(np.sin(2 * np.pi * pitch * h * at) / h for h in range(1, 12))
    softer = np.where((4 * at) % 1.0 > 0.8, 0.2, 1.0)
    return (softer * (0.1 * sound + 0.005 * rng.standard_normal(len(at)))).astype(np.float32)


def clip(parts: list[tuple[float, float]], pitch: float, seed: int, floor: float = 1e-4) -> np.ndarray:
    """(pause, speech) seconds one after the other, and half a second of silence at the end."""
    rng = np.random.default_rng(seed)
    pieces = [
        piece
        for number, (pause, speech) in enumerate(parts)
        for piece in (np.zeros(round(pause * RATE), np.float32), voice(speech, pitch, seed + number))
    ]
    sound = np.concatenate([*pieces, np.zeros(RATE // 2, np.float32)])
    return sound + (floor * rng.standard_normal(len(sound))).astype(np.float32)


def speaker_folder(folder: Path, speakers: int = 6, clips: int = 4) -> Path:
    """A sub-folder for each speaker, whose clips are 0.5 s of silence, 1.2 s of speech, a pause of 0.4 s, 1 to 3 s of
    speech, 0.5 s of silence."""
    for number in range(speakers):
        (folder / f"s{number}").mkdir(parents=True)
        for place in range(clips):
            parts = [(0.5, 1.2), (0.4, 1.0 + 0.5 * (place % 5))]
            sound = clip(parts, 90.0 + 25.0 * number, seed=100 * number + place)
            soundfile.write(folder / f"s{number}" / f"{place}.wav", sound, RATE, subtype="PCM_16")
    return folder


def source(folder: Path, cache: Path) -> Source:
    """All rows of a folder of speakers."""
    prepared = prepared_folder(folder, cache)
    index = prepared.index
    return Source(prepared, range(len(index)), lambda position, speaker: index.speakers[speaker], RATE)


def prepared_folder(folder: Path, cache: Path) -> PreparedCorpus:
    """A folder of speakers, prepared."""
    return prepare(KaldiData(path=str(folder), cache_dir=str(cache), validation=0.0))


def simulator(bank: ClipBank, acoustics: AcousticSettings = DRY, **settings: object) -> ConversationSimulator:
    """A simulator without room, noise and speed unless they are asked for."""
    simulation = SimulationSettings.model_validate({"speed": None, **settings})
    return ConversationSimulator(simulation, bank, Acoustics(acoustics, RATE, ColouredNoise()))


def talking(conversation: Conversation) -> np.ndarray:
    """(T, S) who speaks in each hundredth of a second, counted from the conversation's segments."""
    hop, frames = RATE // 100, len(conversation.waveform_N) // (RATE // 100)
    speakers = sorted(set(conversation.speaker_K.tolist()))
    active = np.zeros((frames, len(speakers)), dtype=bool)
    for (begin, end), speaker in zip(conversation.segments_K2, conversation.speaker_K, strict=True):
        active[max(0, begin // hop) : max(0, end // hop), speakers.index(speaker)] = True
    return active
