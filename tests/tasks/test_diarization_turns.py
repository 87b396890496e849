"""From probabilities of windows to turns: thresholds, filters, stitching, streams."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.nn.diarization import Powerset
from phonate.tasks.diarization.segmentation import (
    SILENT,
    Segmentation,
    TurnStream,
    _Samples,
    _sliding,
    by_overlap,
    joined,
    same_columns,
    smoothed,
    speaker_turns,
    tracks,
    transitions,
)
from phonate.tasks.diarization.settings import DecodingSettings, SmoothingSettings


def column(*values):
    return np.array(values, dtype=np.float32)[:, None]


def spans(turns):
    return [(round(turn.start, 3), round(turn.end, 3)) for turn in turns]


def test_threshold_median_and_shortest():
    probabilities = column(0.1, 0.9, 0.9, 0.2, 0.9, 0.9, 0.1, 0.1, 0.6, 0.1)
    assert spans(speaker_turns(probabilities, 10.0, DecodingSettings())[0]) == [(0.1, 0.3), (0.4, 0.6), (0.8, 0.9)]
    assert spans(speaker_turns(probabilities, 10.0, DecodingSettings(threshold=0.7))[0]) == [(0.1, 0.3), (0.4, 0.6)]
    assert spans(speaker_turns(probabilities, 10.0, DecodingSettings(median=3))[0]) == [(0.1, 0.6)]
    assert spans(speaker_turns(probabilities, 10.0, DecodingSettings(min_silence=0.2))[0]) == [(0.1, 0.6), (0.8, 0.9)]
    assert spans(speaker_turns(probabilities, 10.0, DecodingSettings(min_speech=0.2))[0]) == [(0.1, 0.3), (0.4, 0.6)]
    assert spans(speaker_turns(probabilities, 10.0, DecodingSettings(min_silence=0.3, min_speech=0.3))[0]) == [
        (0.1, 0.9)
    ]


MEMBERS = Powerset(3, 2).members_PK.numpy()  # nobody, 0, 1, 2, 0 and 1, 0 and 2, 1 and 2


def by_enumeration(probabilities, settings, rate):
    """The same by the sum over all paths."""
    change = transitions(MEMBERS, 1.0 / (rate * settings.change_seconds))
    evidence = probabilities.astype(np.float64) ** settings.weight
    found = np.zeros_like(evidence)
    for path in itertools.product(range(len(MEMBERS)), repeat=len(evidence)):
        steps = np.prod([change[one, two] for one, two in itertools.pairwise(path)])
        seen = np.prod([evidence[frame, state] for frame, state in enumerate(path)])
        for frame, state in enumerate(path):
            found[frame, state] += steps * seen
    return found / found.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("seconds", "weight"), [(2.0, 0.5), (0.1, 1.0), (30.0, 0.2)])
def test_smoothing_is_the_sum_over_all_paths(seconds, weight):
    probabilities = np.random.default_rng(1).dirichlet(np.full(7, 0.5), 5).clip(1e-3).astype(np.float32)
    settings = SmoothingSettings(change_seconds=seconds, weight=weight)
    found = smoothed(probabilities, MEMBERS, 10.0, settings)
    np.testing.assert_allclose(found, by_enumeration(probabilities, settings, 10.0), atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)


def test_smoothing_removes_flicker_and_keeps_certain_interjections():
    sure, unsure = 0.999, 0.55
    classes = np.array([1] * 20 + [2] + [1] * 20 + [4] * 5 + [1] * 20)  # a flicker of speaker 1, and 0.5 s together
    level = np.where(classes == 2, unsure, sure)[:, None]
    one_hot = np.eye(7)[classes]
    probabilities = (level * one_hot + (1.0 - level) * (1.0 - one_hot) / 6.0).astype(np.float32)
    found = smoothed(probabilities, MEMBERS, 10.0, SmoothingSettings()).argmax(axis=1)
    assert found.tolist() == [1] * 41 + [4] * 5 + [1] * 20


def test_smoothing_of_one_frame_and_of_impossible_changes_is_finite():
    assert smoothed(np.eye(7, dtype=np.float32)[:1], MEMBERS, 10.0, SmoothingSettings()).argmax() == 0
    jumps = np.eye(7, dtype=np.float32)[[1, 6, 1, 6] * 500]  # speaker 0, then only the two others
    found = smoothed(jumps, MEMBERS, 10.0, SmoothingSettings(change_seconds=1000.0))
    assert np.isfinite(found).all()


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=80),
    st.lists(st.integers(1, 12), min_size=1, max_size=80),
    st.sampled_from([1, 3, 5]),
    st.sampled_from([0.0, 0.1, 0.3, 0.7]),
    st.sampled_from([0.0, 0.2, 0.5]),
)
@settings(max_examples=400)
def test_a_stream_has_the_turns_of_the_whole(values, sizes, median, silence, speech):
    probabilities = np.array(values, dtype=np.float32).reshape(-1, 2) / 10.0
    decoding = DecodingSettings(threshold=0.45, median=median, min_silence=silence, min_speech=speech)
    whole = [
        (speaker, *span)
        for speaker, turns in enumerate(speaker_turns(probabilities, 10.0, decoding))
        for span in spans(turns)
    ]
    stream, found, at = TurnStream(10.0, decoding), [], 0
    for size in sizes:
        found += stream.push(probabilities[at : at + size])
        at += size
    found += stream.push(probabilities[at:]) + stream.end()
    assert sorted((speaker, *spans([turn])[0]) for speaker, turn in found) == sorted(whole)


def test_a_turn_is_given_when_it_has_ended_and_the_rest_is_forgotten():
    stream = TurnStream(10.0, DecodingSettings(min_silence=0.3))
    assert stream.push(column(0, 1, 1, 0, 0)) == []
    assert [spans([turn]) for _, turn in stream.push(column(0))] == [[(0.1, 0.3)]]
    for _ in range(50):
        assert stream.push(np.zeros((100, 1), dtype=np.float32)) == []
    assert len(stream._held_UG) < 10


@given(st.integers(1, 200), st.integers(1, 10), st.integers(1, 10), st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=200)
def test_windows_cover_a_recording(total, length, step, stride, seed):
    length, step = length * stride, min(step, length) * stride
    frames = np.arange(total, dtype=np.float32)[:, None]
    cuts = np.sort(np.random.default_rng(seed).integers(0, total + 1, 4))
    found = list(_sliding([block for block in np.split(frames, cuts) if len(block)], length, step, stride))
    covered = np.zeros(total, dtype=bool)
    for start, window in found:
        assert start % stride == 0
        assert 0 < len(window) <= length
        np.testing.assert_array_equal(window, frames[start : start + len(window)])
        covered[start : start + len(window)] = True
    assert covered.all()
    assert found[-1][0] + len(found[-1][1]) == total
    # no short rest at the end, of which a model would make little
    assert len(found) == 1 or all(len(window) > length - stride for _, window in found)


def test_samples_are_cut_from_left_to_right():
    blocks = [np.arange(start, start + 7, dtype=np.float32) for start in range(0, 70, 7)]
    samples = _Samples(iter(blocks))
    for start, end in ((0, 10), (5, 25), (5, 6), (30, 69), (60, 99)):
        np.testing.assert_array_equal(samples.cut(start, end), np.arange(start, min(end, 70), dtype=np.float32))


def permuted_windows(truth, length, step, rng):
    """A perfect model's windows, each with its columns in another order."""
    starts = list(range(0, len(truth) - length + 1, step))
    orders = [rng.permutation(truth.shape[1]) for _ in starts]
    windows = Segmentation(
        starts, [truth[at : at + length][:, order] for at, order in zip(starts, orders, strict=True)]
    )
    return windows, orders


def test_neighbouring_windows_are_put_into_one_order():
    rng = np.random.default_rng(0)
    truth = (rng.random((200, 3)) < 0.4).astype(np.float32)
    windows, orders = permuted_windows(truth, 40, 20, rng)
    found = joined(windows, by_overlap(windows))
    np.testing.assert_allclose(found[:, np.argsort(orders[0])], truth)
    unordered = joined(windows, same_columns(windows))
    assert np.abs(unordered[:, np.argsort(orders[0])] - truth).mean() > 0.1


def test_joined_windows_fade_and_take_the_likeliest_of_one_person():
    windows = Segmentation([0, 2], [column(1, 1, 1, 1), np.array([[0.0, 0.5]] * 4, dtype=np.float32)])
    windows.probabilities[0] = np.concatenate([windows.probabilities[0], column(0, 0, 0, 0)], axis=1)
    persons = np.array([[0, SILENT], [0, 0]])
    found = joined(windows, persons)[:, 0]
    assert found.tolist() == pytest.approx([1.0, 1.0, 2.5 / 3, 2 / 3, 0.5, 0.5])


def test_tracks_follow_activity_that_windows_share():
    active = [np.zeros((10, 3), dtype=np.uint8) for _ in range(2)]
    active[0][4:9, 0] = active[1][0:4, 2] = 1  # the same person: shared frames begin at frame 5 of the first window
    active[0][6:7, 1] = active[1][1:2, 0] = 1  # together for a single frame
    assert tracks([0, 5], active, 2).tolist() == [[0, 1, 2], [3, 4, 0]]
    assert tracks([0, 5], active, 1).tolist() == [[0, 1, 2], [1, 4, 0]]
