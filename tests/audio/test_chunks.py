"""Long recordings in pieces give what they would give whole."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phonate.audio.decoding import overlap_add, quiet_cuts, rendered_in_pieces, windows


@given(st.integers(1, 500), st.integers(2, 90), st.integers(0, 40))
def test_windows_cover_every_frame(frames: int, window: int, overlap: int) -> None:
    if overlap >= window:
        with pytest.raises(ValueError, match="does not fit"):
            list(windows(frames, window, overlap))
        return
    cut = list(windows(frames, window, overlap))
    assert cut[0][0] == 0
    assert cut[-1][1] == frames
    assert all(0 < end - start <= window for start, end in cut)
    assert all(end - start == overlap for (_, end), (start, _) in itertools.pairwise(cut))


@given(st.integers(1, 500), st.integers(2, 90), st.integers(0, 40))
def test_overlap_add_of_a_known_signal_is_that_signal(frames: int, window: int, overlap: int) -> None:
    signal = np.random.default_rng(0).normal(size=(frames, 3)).astype(np.float32)
    if overlap < window:
        whole = overlap_add(frames, window, overlap, lambda start, end: signal[start:end])
        np.testing.assert_allclose(whole, signal, atol=1e-6)


@given(st.integers(200, 2000), st.integers(0, 10))
def test_pieces_of_a_waveform_fit_together(frames: int, seed: int) -> None:
    hop, rng = 4, np.random.default_rng(seed)
    mel = rng.random((frames, 2), dtype=np.float32)

    def render(part: np.ndarray) -> np.ndarray:
        return np.repeat(part[:-1].mean(axis=1), hop)

    pieces = rendered_in_pieces(mel, render, hop, piece=120, margin=16)
    np.testing.assert_allclose(pieces, render(mel), atol=1e-6)


def test_cuts_are_in_the_quiet() -> None:
    mel = np.ones((1000, 4), dtype=np.float32)
    mel[[290, 580, 870]] = 0.0
    assert quiet_cuts(mel, piece=320, margin=16) == [0, 290, 580, 870, 1000]
