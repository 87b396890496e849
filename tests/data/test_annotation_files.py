"""RTTM and UEM files, and turns as frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.config.errors import DataError, InputError
from phonate.data.annotations import (
    SpeakerTurn,
    read_rttm,
    read_uem,
    turns_from_activity,
    write_rttm,
    write_uem,
)

TURN = st.builds(
    lambda start, length, speaker: SpeakerTurn(start / 1e6, (start + length) / 1e6, speaker),
    st.integers(0, 10**10),
    st.integers(1, 10**8),
    st.sampled_from(["ann", "bob", "MÉO069"]),
)


@given(st.dictionaries(st.sampled_from(["m1", "ES2011a", "ü"]), st.lists(TURN, min_size=1, max_size=5), max_size=3))
@settings(max_examples=50)
def test_rttm_comes_back_as_it_was_written(tmp_path_factory, recordings):
    file = tmp_path_factory.mktemp("rttm") / "out.rttm"
    write_rttm(file, recordings)
    found = read_rttm(file)
    assert found.keys() == recordings.keys()
    for name, turns in recordings.items():
        assert [one.speaker for one in found[name]] == [one.speaker for one in sorted(turns)]
        for one, two in zip(found[name], sorted(turns), strict=True):
            assert (one.start, one.end) == pytest.approx((two.start, two.end), abs=1e-6)


def test_a_written_line_is_what_other_tools_read(tmp_path):
    write_rttm(tmp_path / "out.rttm", {"m1": [SpeakerTurn(34.27, 44.39, "ann")]})
    assert (tmp_path / "out.rttm").read_text() == "SPEAKER m1 1 34.27 10.12 <NA> <NA> ann <NA> <NA>\n"


def test_other_lines_comments_and_empty_turns_are_passed_over(tmp_path):
    file = tmp_path / "m.rttm"
    file.write_text(
        "\ufeff;; a comment\n\nSPKR-INFO m1 1 <NA> <NA> <NA> unknown ann <NA>\r\n"
        "SPEAKER m1 1 2 1 <NA> <NA> bob <NA> <NA>\r\nSPEAKER m1 1 1.0 0.5 <NA> <NA> ann\n"
        "SPEAKER m2 1 1.0 0.0 <NA> <NA> ann <NA> <NA>\n"
    )
    assert read_rttm(file) == {"m1": [SpeakerTurn(1.0, 1.5, "ann"), SpeakerTurn(2.0, 3.0, "bob")], "m2": []}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("SPEAKER m1 1 x 1.0 <NA> <NA> ann", "start .*, duration .*: expected seconds"),
        ("SPEAKER m1 1 nan 1.0 <NA> <NA> ann", "start .*, duration .*: expected seconds"),
        ("SPEAKER m1 1 1.0 -1.0 <NA> <NA> ann", "start .*, duration .*: expected seconds"),
        ("SPEAKER m1 1 1.0 1.0", "SPEAKER, recording, channel, start, duration"),
        ("m1 0.0 1.0 ann", "not RTTM"),
        ("SPEAKER m1 2 1.0 1.0 <NA> <NA> ann", "channels 1 and 2"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, line, message):
    file = tmp_path / "m.rttm"
    file.write_text(f"SPEAKER m1 1 0.0 1.0 <NA> <NA> bob <NA> <NA>\n{line}\n")
    with pytest.raises(DataError, match=message) as error:
        read_rttm(file)
    assert str(error.value).startswith(f"{file}:2: ")


def test_files_that_are_missing_or_binary_are_named(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_rttm(tmp_path / "none.rttm")
    (tmp_path / "b.rttm").write_bytes(b"RIFF\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        read_rttm(tmp_path / "b.rttm")


@pytest.mark.parametrize(("recording", "speaker"), [("my meeting", "ann"), ("m1", "ann lee"), ("m1", "")])
def test_names_that_rttm_cannot_hold_are_refused(tmp_path, recording, speaker):
    with pytest.raises(InputError, match="rename it"):
        write_rttm(tmp_path / "out.rttm", {recording: [SpeakerTurn(0.0, 1.0, speaker)]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("start", "end"), [(1.0, 1.0), (2.0, 1.0), (-0.1, 1.0), (float("nan"), 1.0)])
def test_a_turn_has_a_length(start, end):
    with pytest.raises(InputError, match=f"ann, {start:g} to {end:g} s"):
        SpeakerTurn(start, end, "ann")


def test_uem(tmp_path):
    file = tmp_path / "m.uem"
    write_uem(file, {"m1": [(5.0, 7.5), (0.0, 1.25)], "m2": [(0.0, 3.0)]})
    assert file.read_text() == "m1 1 0 1.25\nm1 1 5 7.5\nm2 1 0 3\n"
    assert read_uem(file) == {"m1": [(0.0, 1.25), (5.0, 7.5)], "m2": [(0.0, 3.0)]}
    file.write_text(";; regions\nm1 NA 0.000 30.000\nm1 1 3.0 2.0\n")
    with pytest.raises(DataError, match=r"m\.uem:3: .*3 to 2 s"):
        read_uem(file)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=40), st.sampled_from([10.0, 12.5, 100.0]))
@settings(max_examples=100)
def test_frames_become_turns_and_frames_again(rows, rate):
    activity = np.array(rows, dtype=np.uint8).reshape(-1, 3)
    turns = turns_from_activity(activity, rate, ["a", "b", "c"], start=7.0)
    assert turns == sorted(turns)
    again = np.zeros_like(activity)
    for turn in turns:
        begin, end = (round((time - 7.0) * rate) for time in (turn.start, turn.end))
        again[begin:end, "abc".index(turn.speaker)] += 1
    np.testing.assert_array_equal(again, activity)
