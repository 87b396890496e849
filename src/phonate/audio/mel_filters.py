"""Mel filters, on Slaney's mel scale (Auditory Toolbox, 1998): linear up to 1 kHz, logarithmic above.

No torch, and numpy only where filters are computed, so that settings can be checked without importing either.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LINEAR_STEP = 200.0 / 3  # Hz per mel below the break
_BREAK_HZ = 1000.0
_LOG_STEP = math.log(6.4) / 27.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_STEP


def band_edges(n_mels: int, fmin: float, fmax: float) -> list[float]:
    """n_mels + 2 frequencies in Hz, evenly spaced in mel; band i rises from [i], peaks at [i + 1], ends at [i + 2]."""
    low, high = _mel(fmin), _mel(fmax)
    return [_hertz(low + (high - low) * edge / (n_mels + 1)) for edge in range(n_mels + 2)]


def empty_bands(sample_rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float) -> int:
    """Number of bands so narrow that they contain no frequency bin of the transform."""
    edges, step = band_edges(n_mels, fmin, fmax), sample_rate / n_fft
    return sum((math.floor(low / step) + 1) * step >= high for low, high in zip(edges, edges[2:], strict=False))


def _mel(hertz: float) -> float:
    return hertz / _LINEAR_STEP if hertz < _BREAK_HZ else _BREAK_MEL + math.log(hertz / _BREAK_HZ) / _LOG_STEP


def _hertz(mel: float) -> float:
    return mel * _LINEAR_STEP if mel < _BREAK_MEL else _BREAK_HZ * math.exp(_LOG_STEP * (mel - _BREAK_MEL))


def mel_filters(
    sample_rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float, allow_empty: bool = False
) -> NDArray[np.float32]:
    """Triangular filters (n_mels, n_fft // 2 + 1) of equal area, as librosa.filters.mel makes them.

    Raises ValueError where a band is so narrow that no frequency of the transform falls into it, unless `allow_empty`.
    """
    import numpy as np

    # as np.fft.rfftfreq gives them, whose import takes longer than to prepare ten recordings
    frequencies = np.arange(n_fft // 2 + 1) * (1.0 / (n_fft * (1.0 / sample_rate)))
    edges = np.array(band_edges(n_mels, fmin, fmax))
    rising = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    filters = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))[:, None]
    empty = np.flatnonzero(filters.max(axis=1) == 0.0)
    if empty.size and not allow_empty:
        raise ValueError(
            f"{empty.size} of n_mels {n_mels} bands would be empty at n_fft {n_fft} and sample_rate "
            f"{sample_rate}; lower n_mels or raise n_fft"
        )
    return np.asarray(filters, dtype=np.float32)


_VERSION = 1  # increment when a change alters the features by more than rounding, so that cached ones are recomputed
_DOCUMENTED_REF_LEVEL_DB = 20.0


@dataclass(frozen=True)
class MelFacts:
    """What tells the mel features of one `AudioConfig` from those of another."""

    sample_rate: int
    n_fft: int
    hop_length: int
    win_length: int
    n_mels: int
    fmin: float
    fmax: float
    preemphasis: float
    ref_level_db: float
    min_level_db: float
    loudness: float | None = None
    """LUFS to which recordings are brought. None: their peak is brought to 1."""

    @property
    def offset_db(self) -> float:
        """The level that is 1 in features, in dB over a magnitude of 1."""
        return self.ref_level_db - _DOCUMENTED_REF_LEVEL_DB

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all of it: equal fingerprints mean equal features."""
        return self._hashed(set() if self.loudness is not None else {"loudness"})

    @property
    def scale_fingerprint(self) -> str:
        """The same without the level to which recordings are brought: vocoders render any level."""
        return self._hashed({"loudness"})

    def _hashed(self, left_out: set[str]) -> str:
        facts = {"version": _VERSION, **{key: one for key, one in asdict(self).items() if key not in left_out}}
        return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()

    def filters(self) -> NDArray[np.float32]:
        """(n_mels, n_fft // 2 + 1) mel filters."""
        return mel_filters(self.sample_rate, self.n_fft, self.n_mels, self.fmin, self.fmax)
