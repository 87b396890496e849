"""Clustering of the speakers of windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.tasks.diarization.segmentation import LocalSpeakers, SpeakerLimits, cluster


def local_speakers(windows, embeddings, seconds, tracks=None):
    """Each is a track of its own unless `tracks` says otherwise."""
    windows, seconds = np.asarray(windows), np.asarray(seconds, dtype=np.float32)
    return LocalSpeakers(windows, embeddings, seconds, np.arange(len(windows)) if tracks is None else np.array(tracks))


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def conversation(seed, persons, windows, noise=0.3, at_once=3):
    """Local speakers of `windows`, and who each of them is."""
    rng = np.random.default_rng(seed)
    voices = np.eye(16)[:persons]
    who, where = [], []
    for window in range(windows):
        there = rng.permutation(persons)[: rng.integers(1, min(persons, at_once) + 1)]
        who += there.tolist()
        where += [window] * len(there)
    embeddings = unit(voices[who] + noise * rng.normal(size=(len(who), 16)) / 4)
    seconds = rng.uniform(1.0, 9.0, len(who)).astype(np.float32)
    return local_speakers(where, embeddings, seconds), np.array(who)


def same(labels, truth):
    """Whether two labellings divide alike."""
    pairs = set(zip(labels.tolist(), truth.tolist(), strict=True))
    return len(pairs) == len(set(labels.tolist())) == len(set(truth.tolist()))


@pytest.mark.parametrize("persons", [1, 2, 5, 9])
def test_any_number_of_speakers_is_found(persons):
    found, truth = conversation(0, persons, 60)
    assert same(cluster(found, 0.5), truth)
    assert same(cluster(found, 0.5, SpeakerLimits(persons, persons)), truth)


def test_asking_for_more_speakers_than_there_are_splits_no_voice():
    found, truth = conversation(0, 3, 60)
    assert same(cluster(found, 0.5, SpeakerLimits(12, 12)), truth)


def test_one_speaker_in_two_places_of_a_window_is_one_where_the_model_may_be_wrong():
    voices = unit(np.array([[1.0, 0.0, 0.1], [1.0, 0.1, 0.0], [0.0, 1.0, 0.0]]))
    found = local_speakers([0, 0, 0], voices, [3.0, 3.0, 3.0])
    assert len(set(cluster(found, 0.4).tolist())) == 3
    assert same(cluster(found, 0.4, apart=0.1), np.array([0, 0, 1]))


def test_who_only_talks_over_others_is_never_one_of_them_to_meet_a_number():
    voices = unit(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    found = local_speakers([0, 1, 1, 2], voices, [3.0, 3.0, 0.0, 0.0])
    alone, talking, over, _ = cluster(found, 0.4, SpeakerLimits(3, 3), apart=0.05).tolist()
    assert len({alone, talking, over}) == 3 or over == alone


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 25), st.floats(0.0, 6.0), st.floats(0.05, 1.9))
@settings(max_examples=150)
def test_two_speakers_of_a_window_are_two_persons(seed, persons, windows, noise, distance):
    found, _ = conversation(seed, persons, windows, noise)
    labels = cluster(found, distance)
    for window in range(windows):
        there = labels[found.windows_N == window]
        assert len(set(there.tolist())) == len(there)


def test_without_the_constraint_like_voices_merge():
    """Two people with nearly the same voice who speak in the same window: average linkage alone makes them one."""
    from scipy.cluster.hierarchy import fcluster, linkage

    rng = np.random.default_rng(0)
    embeddings = unit(np.ones((8, 16)) + 0.02 * rng.normal(size=(8, 16)))
    found = local_speakers([0, 0, 1, 1, 2, 2, 3, 3], embeddings, np.full(8, 5.0))
    assert len(set(fcluster(linkage(embeddings, "average", "cosine"), 0.4, "distance"))) == 1
    labels = cluster(found, 0.4).reshape(4, 2)
    assert (labels[:, 0] != labels[:, 1]).all()
    assert len(set(labels.ravel())) == 2


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 20), st.integers(1, 4), st.integers(0, 3))
@settings(max_examples=150)
def test_limits_are_kept(seed, persons, windows, least, more):
    found, _ = conversation(seed, persons, windows)
    labels = cluster(found, 0.5, SpeakerLimits(least, least + more))
    count = len(set(labels.tolist()))
    assert count <= least + more
    if len(labels) >= 20 * least:
        assert count >= least


def test_short_turns_do_not_make_speakers():
    """An embedding of half a second is unlike any other; clustered, each would be a person of its own."""
    found, truth = conversation(1, 2, 30, at_once=1)
    rng = np.random.default_rng(5)
    short = rng.random(len(truth)) < 0.3
    embeddings = found.embeddings_ND.copy()
    embeddings[short] = unit(embeddings[short] + rng.normal(size=(short.sum(), 16)) / 2)
    seconds = np.where(short, 0.4, 5.0).astype(np.float32)
    assert len(set(cluster(local_speakers(found.windows_N, embeddings, seconds), 0.5).tolist())) == 2
    assert len(set(cluster(local_speakers(found.windows_N, embeddings, seconds + 5.0), 0.5).tolist())) > 2


def test_nobody_speaks():
    empty = local_speakers([], np.zeros((0, 16), np.float32), [])
    assert cluster(empty, 0.4).shape == (0,)


def test_silence_that_was_taken_for_speech_has_no_voice():
    found = local_speakers([0, 0], np.zeros((2, 16), np.float32), [2.0, 0.0])
    assert sorted(cluster(found, 0.4).tolist()) == [0, 1]


def test_tracks_stay_together_and_their_voices_are_averaged():
    """Single windows are so noisy that clustering them fails; tracks through five windows each are not."""
    found, truth = conversation(2, 3, 60, noise=1.3, at_once=1)
    tracks = truth + 100 * (np.arange(len(truth)) // 15)
    one = local_speakers(found.windows_N, found.embeddings_ND, found.seconds_N)
    two = local_speakers(found.windows_N, found.embeddings_ND, found.seconds_N, tracks)
    three = SpeakerLimits(3, 3)
    assert not same(cluster(one, 0.4, three), truth)
    assert same(cluster(two, 0.4, three), truth)


def test_who_has_no_free_place_is_a_person_of_his_own():
    """A short turn beside the only two known voices is a third speaker, unless there may be no third."""
    voices = np.eye(16, dtype=np.float32)[[0, 1, 0, 1, 0]]
    found = local_speakers([0, 0, 1, 1, 1], voices, [9.0, 9.0, 9.0, 9.0, 0.3])
    assert cluster(found, 0.4).tolist() == [0, 1, 0, 1, 2]
    assert cluster(found, 0.4, SpeakerLimits(2, 2)).tolist() == [0, 1, 0, 1, 0]
