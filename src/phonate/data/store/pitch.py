"""F0 of a prepared corpus's recordings, computed in worker processes without torch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from phonate.audio.decoding import FloatArray
from phonate.audio.pitch import f0
from phonate.audio.settings import AudioConfig
from phonate.config.errors import DataError
from phonate.data.store.cache import FeatureCache
from phonate.data.store.index import Index


def pitch_of(folder: Path, audio: AudioConfig, position: int) -> FloatArray:
    """F0 (T, 1) in Hz of recording number `position` of the corpus in `folder`, at the frames of its mel."""
    return f0(_waveforms(folder).waveform(position), audio.sample_rate, audio.hop_length)[:, None]


@lru_cache(maxsize=1)
def _waveforms(folder: Path) -> FeatureCache:
    return FeatureCache(folder, Index.load(folder))


def crashed(position: int) -> FloatArray:
    """Raises, for a process that died at a recording."""
    raise DataError(f"the process that computed the pitch of recording {position} died; free some memory and try again")
