"""DER and JER against published figures, pyannote.metrics and spy-der."""

from __future__ import annotations

import itertools
import random
import warnings
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.cli.runs import CONVENTIONS as OFFERED
from phonate.config.errors import InputError
from phonate.data.annotations import SpeakerTurn, read_rttm, read_uem, read_zones, turns_from_activity
from phonate.evaluation.diarization import CONVENTIONS, DiarizationErrors, score, score_activity, score_recordings


def turns(*listed):
    return [SpeakerTurn(*one) for one in listed]


def annotation(listed):
    from pyannote.core import Annotation, Segment

    found = Annotation(uri="m")
    for track, one in enumerate(listed):
        found[Segment(one.start, one.end), track] = one.speaker
    return found


def pyannote_errors(reference, hypothesis, regions, collar, skip_overlap):
    """Parts of DER in seconds, and the sum and count of JER; pyannote's collar is the total width."""
    from pyannote.core import Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate

    uem = None if regions is None else Timeline([Segment(*one) for one in regions], uri="m")
    kept = {"collar": 2 * collar, "skip_overlap": skip_overlap}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = DiarizationErrorRate(**kept)(annotation(reference), annotation(hypothesis), uem=uem, detailed=True)
        two = JaccardErrorRate(**kept)(annotation(reference), annotation(hypothesis), uem=uem, detailed=True)
    return (
        *(one[name] for name in ("total", "missed detection", "false alarm", "confusion")),
        two["speaker error"],
        two["speaker count"],
    )


def as_tuple(errors):
    return (errors.speech, errors.miss, errors.false_alarm, errors.confusion, errors.jaccard, errors.speakers)


def conversation(rng, speakers, seconds):
    """Turns of each speaker that touch now and then but never overlap each other."""
    found = []
    for speaker in range(speakers):
        at = rng.uniform(0.0, 3.0)
        while at < seconds:
            end = at + rng.uniform(0.05, 5.0)
            found.append(SpeakerTurn(at, end, f"{speaker}"))
            at = end + rng.choice([0.0, rng.uniform(0.05, 8.0)])
    return sorted(found)


def altered(rng, listed):
    """A hypothesis: boundaries moved, turns lost, speakers confused."""
    found = []
    for turn in listed:
        if rng.random() < 0.8:
            start = max(0.0, turn.start + rng.uniform(-0.5, 0.5))
            speaker = turn.speaker if rng.random() < 0.8 else f"{rng.randrange(5)}"
            found.append(SpeakerTurn(start, max(start + 0.05, turn.end + rng.uniform(-0.5, 0.5)), f"h{speaker}"))
    return merged(found)


def merged(listed):
    """One turn where several of one speaker overlap or touch: pyannote.metrics would count them twice."""
    found = []
    for turn in sorted(listed, key=lambda one: (one.speaker, one.start)):
        if found and found[-1].speaker == turn.speaker and turn.start <= found[-1].end:
            last = found.pop()
            turn = SpeakerTurn(last.start, max(last.end, turn.end), turn.speaker)
        found.append(turn)
    return sorted(found)


def is_ambiguous(reference, hypothesis, regions, collar, skip_overlap):
    """Whether several mappings of speakers have the largest time in common, by trying all of them."""
    from pyannote.core import Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate

    uem = None if regions is None else Timeline([Segment(*one) for one in regions], uri="m")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scored = DiarizationErrorRate().uemify(
            annotation(reference), annotation(hypothesis), uem=uem, collar=2 * collar, skip_overlap=skip_overlap
        )
    common = np.zeros((8, 8))
    found = scored[0] * scored[1]
    common[: found.shape[0], : found.shape[1]] = found
    rows = range(found.shape[0])
    mappings = {
        frozenset((row, column) for row, column in zip(rows, columns, strict=True) if common[row, column] > 0.0)
        for columns in itertools.permutations(range(8), len(rows))
    }
    totals = sorted(sum(common[pair] for pair in mapping) for mapping in mappings)
    return len(totals) > 1 and totals[-1] - totals[-2] < 1e-6


@given(
    st.integers(0, 10**9), st.integers(0, 4), st.sampled_from([0.0, 0.1, 0.25, 1.0]), st.booleans(), st.integers(0, 2)
)
@settings(max_examples=150)
def test_equal_to_pyannote(seed, speakers, collar, skip_overlap, parts):
    rng = random.Random(seed)
    reference = conversation(rng, speakers, 60.0)
    hypothesis = altered(rng, reference) + turns((2.0, 3.0, "new")) * rng.randrange(2)
    regions = None
    if parts:
        cuts = sorted(rng.uniform(0.0, 70.0) for _ in range(2 * parts))
        regions = list(zip(cuts[::2], cuts[1::2], strict=True))
    ours = score(reference, hypothesis, regions=regions, collar=collar, skip_overlap=skip_overlap)
    theirs = pyannote_errors(reference, hypothesis, regions, collar, skip_overlap)
    assert as_tuple(ours)[:4] == pytest.approx(theirs[:4], abs=1e-6)
    assert ours.speakers == theirs[5]
    # of mappings with the same time in common pyannote takes any, we the one with the lowest JER
    assert ours.jaccard <= theirs[4] + 1e-6
    if not is_ambiguous(reference, hypothesis, regions, collar, skip_overlap):
        assert ours.jaccard == pytest.approx(theirs[4], abs=1e-6)


@given(st.integers(0, 10**9), st.integers(1, 4))
@settings(max_examples=100)
def test_equal_to_spy_der(seed, speakers):
    """Without a collar: with one, spy-der rarely differs from pyannote.metrics, which phonate follows."""
    from spyder import DER

    rng = random.Random(seed)
    reference = merged(conversation(rng, speakers, 60.0))
    hypothesis = altered(rng, reference)
    ours = score(reference, hypothesis, regions=[(0.0, 80.0)])
    listed = [[(one.speaker, one.start, one.end) for one in found] for found in (reference, hypothesis)]
    theirs = DER({"m": listed[0]}, {"m": listed[1]}, uem={"m": [(0.0, 80.0)]})["Overall"]
    if ours.speech:
        assert ours.der == pytest.approx(theirs.der, abs=1e-5)


def test_published_figures_of_ami(recordings):
    folder = recordings / "diar_scoring_ami_dev"
    reference, hypothesis = read_rttm(folder / "ref.rttm"), read_rttm(folder / "sys_vbx.rttm")
    uem = read_uem(folder / "ref.uem")
    found = [
        score_recordings(reference, hypothesis, uem=uem, collar=collar, skip_overlap=skip_overlap).total
        for collar, skip_overlap in ((0.0, False), (0.25, False), (0.25, True))
    ]
    assert [f"{100 * errors.der:.2f}" for errors in found] == ["16.33", "9.68", "1.56"]
    # the collar of pyannote, the total width, gives other figures: the convention matters
    half = score_recordings(reference, hypothesis, uem=uem, collar=0.125).total
    assert f"{100 * half.der:.2f}" != "9.68"


def test_each_meeting_of_ami_as_in_pyannote(recordings):
    folder = recordings / "diar_scoring_ami_dev"
    reference, hypothesis = read_rttm(folder / "ref.rttm"), read_rttm(folder / "sys_vbx.rttm")
    uem = read_uem(folder / "ref.uem")
    for name in ("ES2011a", "IB4001"):
        ours = score(reference[name], hypothesis[name], regions=uem[name], collar=0.25)
        theirs = pyannote_errors(reference[name], hypothesis[name], uem[name], 0.25, False)
        assert as_tuple(ours) == pytest.approx(theirs, abs=1e-6)


def test_the_parts_of_an_error():
    reference = turns((0.0, 4.0, "ann"), (3.0, 6.0, "bob"))
    hypothesis = turns((0.0, 3.0, "x"), (4.0, 5.0, "y"), (5.0, 6.5, "x"))
    errors = score(reference, hypothesis)
    assert errors == DiarizationErrors(
        speech=7.0, miss=2.0, false_alarm=0.5, confusion=1.0, jaccard=pytest.approx(1 - 3 / 5.5 + 1 - 1 / 3),
        speakers=2, scored=6.5,
    )  # fmt: skip
    assert errors.der == pytest.approx(3.5 / 7.0)
    assert score(reference, reference).wrong == 0.0


def test_overlapping_turns_of_one_speaker_are_one():
    """pyannote.metrics counts the two seconds twice: 8 seconds of speech, of which it finds 2 missed."""
    reference, hypothesis = turns((0.0, 4.0, "ann"), (2.0, 6.0, "ann")), turns((0.0, 6.0, "x"))
    assert (score(reference, hypothesis).speech, score(reference, hypothesis).wrong) == (6.0, 0.0)
    assert pyannote_errors(reference, hypothesis, None, 0.0, False)[:2] == (8.0, 2.0)


def test_the_mapping_of_speakers_is_the_best_not_the_first():
    reference = turns((0.0, 10.0, "ann"), (10.0, 16.0, "bob"))
    hypothesis = turns((0.0, 5.0, "x"), (5.0, 10.0, "y"), (10.0, 16.0, "x"))
    greedy = 5.0 + 0.0  # ann takes x, the first of her two, and leaves y for bob
    assert score(reference, hypothesis).speech - score(reference, hypothesis).confusion == 11.0 > greedy


def test_recordings_without_speech():
    assert score([], []) == DiarizationErrors()
    assert score([], []).der == 0.0
    alarm = score([], turns((0.0, 1.0, "x")), regions=[(0.0, 3.0)])
    assert (alarm.false_alarm, alarm.der, alarm.jer, alarm.scored) == (1.0, 1.0, 1.0, 3.0)
    assert score(turns((0.0, 1.0, "ann")), []).der == 1.0


@pytest.mark.parametrize("collar", [-0.1, inf, nan])
def test_a_collar_is_a_time(collar):
    with pytest.raises(InputError, match="collar"):
        score([], [], collar=collar)


@given(st.integers(0, 10**9))
@settings(max_examples=50)
def test_frames_are_scored_as_their_turns(seed):
    rng = np.random.default_rng(seed)
    reference, hypothesis = rng.random((50, 3)) < 0.3, rng.random((50, 4)) < 0.3
    ours = score_activity(reference, hypothesis, 10.0)
    theirs = score(
        turns_from_activity(reference, 10.0, "abc"), turns_from_activity(hypothesis, 10.0, "wxyz"), regions=[(0.0, 5.0)]
    )
    assert as_tuple(ours)[:4] == pytest.approx(as_tuple(theirs)[:4], abs=1e-9)
    assert ours.scored == pytest.approx(5.0)


def test_recordings_add_up_by_their_seconds():
    reference = {"long": turns((0.0, 90.0, "ann")), "short": turns((0.0, 10.0, "ann"))}
    hypothesis = {"long": turns((0.0, 90.0, "x"))}
    found = score_recordings(reference, hypothesis)
    assert found.missed == ["short"]
    assert (found.recordings["long"].der, found.recordings["short"].der) == (0.0, 1.0)
    assert found.total.der == pytest.approx(0.1)  # the mean of the two rates would be 0.5
    assert found.total.jer == pytest.approx(0.5)


def test_recordings_that_only_one_side_has():
    reference, hypothesis = {"a": turns((0.0, 1.0, "ann"))}, {"a.Mix-Headset": turns((0.0, 1.0, "x"))}
    alike = r"has a\.Mix-Headset, the reference a; name them alike: in the 2nd column of RTTM"
    with pytest.raises(InputError, match=alike):
        score_recordings(reference, hypothesis)
    with pytest.raises(InputError, match="has b, the reference a; give a UEM"):
        score_recordings(reference, {**reference, "b": turns((0.0, 1.0, "ann"))})
    with pytest.raises(InputError, match=r"the UEM lists b, the labels a, a\.Mix-Headset"):
        score_recordings(reference, hypothesis, uem={"b": [(0.0, 1.0)]})
    found = score_recordings(reference, {**hypothesis, "quiet": turns((0.0, 2.0, "x"))}, uem={"quiet": [(0.0, 9.0)]})
    assert found.left_out == ["a", "a.Mix-Headset"]
    assert found.total == DiarizationErrors(false_alarm=2.0, scored=9.0)


# Where scorers differ: the table of docs/reference/metrics.md. The figures are those of md-eval 22 (Debian's sctk
# 2.4.10), pyannote.metrics 4.2.0 and dscore e02f949 themselves.

HOLE = turns((0.0, 4.9, "a"), (5.1, 10.0, "a"))
"""A fifth of a second around 5 s is missing."""


@pytest.mark.parametrize(
    ("reference", "hypothesis", "options", "ders"),
    [
        (
            turns((0.0, 10.0, "A")),
            turns((0.0, 10.0, "a"), (12.0, 14.0, "b")),
            {},
            {"phonate": 20.0, "md-eval": 0.0, "pyannote": 20.0, "dscore": 20.0},
        ),
        (
            turns((0.0, 5.0, "A"), (5.0, 10.0, "A")),
            HOLE,
            {"collar": 0.25},
            {"phonate": 0.0, "md-eval": 0.0, "pyannote": 0.0, "dscore": 0.0},
        ),
        (
            turns((0.0, 6.0, "A"), (4.0, 10.0, "A")),
            HOLE,
            {"collar": 0.25},
            {"phonate": 2.35, "md-eval": 2.35, "pyannote": 17.0, "dscore": 2.11},
        ),
        (
            turns((0.0, 10.0, "A"), (8.0, 12.0, "B")),
            turns((0.0, 6.8, "a"), (8.0, 12.0, "b")),
            {"skip_overlap": True},
            {"phonate": 12.0, "md-eval": 12.0, "pyannote": 12.0, "dscore": 12.0},
        ),
    ],
    ids=["false alarm after the end", "abutting turns", "overlapping turns of one speaker", "overlap skipped"],
)
def test_edge_cases_of_scorers(reference, hypothesis, options, ders):
    assert CONVENTIONS == OFFERED == tuple(ders)
    for convention, der in ders.items():
        errors = score(reference, hypothesis, **options, convention=convention)
        assert round(100 * errors.der, 2) == der, convention


def test_jer_by_the_mapping_of_der_and_by_its_own():
    reference = turns((0.0, 10.0, "R1"), (20.0, 22.0, "R2"))
    hypothesis = turns((0.0, 6.5, "h1"), (20.0, 62.0, "h1"), (6.5, 10.0, "h2"))
    found = {name: round(100 * score(reference, hypothesis, convention=name).jer, 2) for name in CONVENTIONS}
    assert (found["phonate"], found["pyannote"], found["dscore"]) == (93.75, 93.75, 80.44)


def test_noises_and_unscored_regions_are_left_out_as_in_md_eval(tmp_path):
    (tmp_path / "r.rttm").write_text(
        "SPEAKER m 1 0 10 <NA> <NA> A <NA> <NA>\nNON-LEX m 1 4 1 <NA> laugh A <NA> <NA>\n"
        "NOSCORE m 1 7 1 <NA> <NA> <NA> <NA> <NA>\n"
    )
    zones = read_zones(tmp_path / "r.rttm")["m"]
    reference, hypothesis = turns((0.0, 10.0, "A")), turns((0.0, 8.0, "a"))
    found = {
        (name, collar): round(100 * score(reference, hypothesis, convention=name, collar=collar, zones=zones).der, 2)
        for name in CONVENTIONS
        for collar in (0.0, 0.25)
    }
    assert (found["md-eval", 0.0], found["md-eval", 0.25]) == (28.57, 26.92)
    assert {found[name, 0.0] for name in CONVENTIONS if name != "md-eval"} == {20.0}


@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.25]), st.booleans())
@settings(max_examples=60)
def test_overlapping_turns_of_one_speaker_as_pyannote_counts_them(seed, collar, skip_overlap):
    rng = random.Random(seed)

    def listed(name):
        starts = [rng.uniform(0.0, 40.0) for _ in range(rng.randrange(1, 9))]
        return [SpeakerTurn(one, one + rng.uniform(0.1, 6.0), f"{name}{rng.randrange(3)}") for one in starts]

    reference, hypothesis = listed("r"), listed("h")
    ours = score(reference, hypothesis, collar=collar, skip_overlap=skip_overlap, convention="pyannote")
    theirs = pyannote_errors(reference, hypothesis, None, collar, skip_overlap)
    assert as_tuple(ours)[:3] == pytest.approx(theirs[:3], abs=1e-6)


def test_an_unknown_convention_is_one_line():
    with pytest.raises(InputError, match=r"choose from 'dscore', 'md-eval', 'phonate', 'pyannote'"):
        score([], [], convention="sctk")
