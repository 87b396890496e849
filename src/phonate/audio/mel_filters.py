"""Mel filter bank. No torch, so that processes that only inspect recordings start fast."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phonate.audio.mel_scale import band_edges


def mel_filters(sample_rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float) -> npt.NDArray[np.float32]:
    """Triangular filters (n_mels, n_fft // 2 + 1) of equal area, as librosa.filters.mel makes them.

    Raises ValueError where a band is so narrow that no frequency of the transform falls into it.
    """
    frequencies = np.fft.rfftfreq(n_fft, 1.0 / sample_rate)
    edges = np.array(band_edges(n_mels, fmin, fmax))
    rising = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    filters = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))[:, None]
    empty = np.flatnonzero(filters.max(axis=1) == 0.0)
    if empty.size:
        raise ValueError(
            f"{empty.size} of n_mels {n_mels} bands would be empty at n_fft {n_fft} and sample_rate "
            f"{sample_rate}; lower n_mels or raise n_fft"
        )
    return np.asarray(filters, dtype=np.float32)
