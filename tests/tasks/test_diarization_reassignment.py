"""Segments go to the speaker whose voice they have."""

from __future__ import annotations

import numpy as np
import pytest

from phonate.tasks.diarization.segmentation import Exchange, Segmentation, Segments, exchanges, joined, voices_of_tracks

ANN, BEN = 0, 1
FRAMES = 40


def unit(values):
    return values / np.linalg.norm(values)


def segments(*rows):
    """Each row: window, column, first and end frame in the window, and whose voice it is. Windows of 40 frames follow
    every 20."""
    rng = np.random.default_rng(0)
    windows, columns, starts, ends, persons = (np.array(one) for one in zip(*rows, strict=True))
    voices = np.stack([unit(np.eye(8)[person] + 0.1 * rng.normal(size=8)) for person in persons])
    frames = np.stack([starts, ends], axis=1)
    return Segments(windows, columns, frames, windows * FRAMES // 2 + starts, voices.astype(np.float32))


CONFUSED = segments(
    (0, ANN, 0, 10, ANN),
    (0, BEN, 10, 20, BEN),
    (0, ANN, 25, 35, BEN),  # the model gives Ann what Ben says
    (1, ANN, 5, 15, BEN),  # the same seconds in the next window
    (1, BEN, 20, 30, BEN),
    (2, ANN, 20, 40, ANN),
)
SAME_ORDER = np.array([[ANN, BEN], [ANN, BEN], [ANN, BEN]])


def test_a_segment_goes_to_the_speaker_with_its_voice():
    assert exchanges(CONFUSED, SAME_ORDER, 0.1) == [Exchange(0, 25, 35, ANN, BEN), Exchange(1, 5, 15, ANN, BEN)]


def test_columns_are_those_of_the_model():
    """Ann is the second speaker of window 1."""
    confused = segments((0, 0, 0, 10, ANN), (0, 1, 10, 20, BEN), (1, 0, 20, 30, BEN), (1, 0, 31, 40, ANN))
    assert exchanges(confused, np.array([[ANN, BEN], [BEN, ANN]]), 0.1) == [Exchange(1, 31, 40, BEN, ANN)]


def test_a_margin_leaves_doubtful_segments_where_they_are():
    assert exchanges(CONFUSED, SAME_ORDER, 1.5) == []


def test_the_same_seconds_in_another_window_prove_nothing():
    """Ben's only segment, seen in two windows, has no other one to be compared with: it stays."""
    once = segments((0, ANN, 0, 15, ANN), (0, BEN, 25, 35, ANN), (1, BEN, 5, 15, ANN), (2, ANN, 0, 20, ANN))
    assert BEN not in {one.speaker for one in exchanges(once, SAME_ORDER, 0.0)}


def test_long_and_short_segments_that_share_frames_are_found():
    """A long segment begins before a short one and ends after it."""
    nested = segments((0, ANN, 2, 38, BEN), (1, ANN, 0, 5, BEN), (2, BEN, 10, 30, BEN), (2, ANN, 32, 40, ANN))
    found = exchanges(nested, SAME_ORDER, 0.1)
    assert Exchange(0, 2, 38, ANN, BEN) in found  # compared with Ann's last words only
    assert Exchange(2, 32, 40, ANN, BEN) not in found


def test_a_track_of_two_voices_is_divided():
    """Short segments go to the nearer one; another track is another voice, whatever it sounds like."""
    voices = voices_of_tracks(
        CONFUSED, np.array([0, 0, 0, 0, 0, 1]), np.array([2.0, 2.0, 0.5, 2.0, 2.0, 2.0], dtype=np.float32), 0.4
    )
    assert voices[1] == voices[2] == voices[3] == voices[4] != voices[0]
    assert voices[5] not in voices[:5]


def test_nobody_speaks():
    nothing = Segments(*(np.zeros(0, dtype=np.int64),) * 2, np.zeros((0, 2), dtype=np.int64), *(np.zeros(0),) * 2)
    assert exchanges(nothing, SAME_ORDER, 0.1) == []


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_activity_is_exchanged_in_the_frames_of_a_segment(noise):
    probabilities = np.full((FRAMES, 2), noise, dtype=np.float32)
    probabilities[25:35, ANN] = 0.9
    windows = Segmentation([0], [probabilities])
    found = joined(windows, SAME_ORDER[:1], [Exchange(0, 25, 35, ANN, BEN)])
    assert found[25:35] == pytest.approx(np.tile([noise, 0.9], (10, 1)))
    assert found[:25] == pytest.approx(noise)
    assert joined(windows, SAME_ORDER[:1])[25:35, ANN] == pytest.approx(0.9)
