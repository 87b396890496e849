"""Captions of spoken words."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phonate.config.errors import InputError
from phonate.text.captions import LINE, SHORTEST, TimedWord, captions, cues, write_captions

WORDS = [TimedWord("Hello,", 0.02, 0.4), TimedWord("world.", 0.45, 0.9), TimedWord("Again.", 3661.5, 3662.0004)]


def test_subrip() -> None:
    assert captions(WORDS, ".srt") == (
        "1\n00:00:00,020 --> 00:00:01,020\nHello, world.\n\n2\n01:01:01,500 --> 01:01:02,500\nAgain.\n"
    )


def test_webvtt() -> None:
    assert captions(WORDS[:2], ".vtt") == "WEBVTT\n\n00:00:00.020 --> 00:00:01.020\nHello, world.\n"


def test_json_has_every_word(tmp_path: Path) -> None:
    write_captions(tmp_path / "words.JSON", WORDS)
    assert json.loads((tmp_path / "words.JSON").read_text())["words"][1] == {
        "text": "world.",
        "start": 0.45,
        "end": 0.9,
    }


def test_initials_end_no_caption() -> None:
    words = ["At", "three", "P.M.", "she", "left.", "He", "stayed."]
    said = [TimedWord(text, float(at), at + 0.5) for at, text in enumerate(words)]
    assert [" ".join(word.text for word in line) for line in cues(said)] == ["At three P.M. she left.", "He stayed."]


def test_an_ellipsis_ends_a_caption_where_a_sentence_begins() -> None:
    words = [
        TimedWord(text, float(at), at + 0.5)
        for at, text in enumerate(["Wait...", "what?", "He", "paused...", "Then", "on..."])
    ]
    shown = [" ".join(word.text for word in line) for line in cues(words)]
    assert shown == ["Wait... what?", "He paused...", "Then on..."]


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.srt, \.vtt, \.json.*\.doc"):
        write_captions(tmp_path / "words.doc", WORDS)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone/words\.srt: "):
        write_captions(tmp_path / "gone" / "words.srt", WORDS)


def _shown(words: list[TimedWord], seconds: float = 100.0) -> list[str]:
    return captions(words, ".srt", seconds).replace("00:00:", "").split("\n\n")


def test_a_short_caption_is_joined_with_the_nearer_neighbour() -> None:
    words = [TimedWord("Well.", 0.0, 1.2), TimedWord("Yes.", 2.0, 2.3), TimedWord("We", 2.4, 2.6)]
    words += [TimedWord("should", 2.6, 3.0), TimedWord("go.", 3.0, 4.0)]
    assert _shown(words) == ["1\n00,000 --> 01,200\nWell.", "2\n02,000 --> 04,000\nYes. We should go.\n"]


def test_an_interjection_stands_long_enough_to_be_read() -> None:
    said = ["And", "so", "we", "came"]
    words = [TimedWord(text, at, at + 0.9, speaker="anna") for at, text in enumerate(said)]
    words = sorted([*words, TimedWord("mhm", 1.2, 1.4, speaker="ben")], key=lambda word: word.start)
    assert _shown(words) == ["1\n00,000 --> 03,900\nanna: And so we came", "2\n01,200 --> 02,200\nben: mhm\n"]
    assert _shown(words[2:3], seconds=1.6) == ["1\n01,200 --> 01,600\nben: mhm\n"]


def test_an_answer_stays_between_what_it_answers_and_what_follows() -> None:
    words = [TimedWord("Ready?", 0.0, 0.5, speaker="anna"), TimedWord("Go.", 1.1, 1.4, speaker="anna")]
    assert [len(cue) for cue in cues(words)] == [2]
    words.insert(1, TimedWord("Yes.", 0.6, 1.0, speaker="ben"))
    assert [cue[0].text for cue in cues(words)] == ["Ready?", "Yes.", "Go."]


def test_a_line_ends_where_another_speaker_answers_in_a_pause() -> None:
    said = [("are", 0.0, "A"), ("you", 0.3, "A"), ("there", 0.6, "A"), ("yes", 1.1, "B"), ("good", 1.7, "A")]
    words = [TimedWord(text, at, at + 0.3, speaker=speaker) for text, at, speaker in said]
    assert [[word.text for word in cue] for cue in cues(words)] == [["are", "you", "there"], ["yes"], ["good"]]
    words[3:4] = [TimedWord("yes", 0.7, 0.8, speaker="B")]  # while A speaks
    assert [len(cue) for cue in cues(words)] == [4, 1]


def test_captions_in_a_file_end_with_the_sound(tmp_path: Path) -> None:
    write_captions(tmp_path / "words.vtt", [TimedWord("Yes.", 0.0, 0.4)], 0.5)
    assert "--> 00:00:00.500" in (tmp_path / "words.vtt").read_text()


def test_two_lines_are_even() -> None:
    long = "It lies on the other side of the river."
    words = [TimedWord(text, 0.3 * at, 0.3 * at + 0.3) for at, text in enumerate(f"No. {long}".split())]
    assert _shown(words) == ["1\n00,000 --> 03,000\nNo. It lies on the\nother side of the river.\n"]


@given(
    st.lists(st.tuples(st.text("ab.?", min_size=1, max_size=60), st.floats(0.05, 2.0), st.sampled_from("xy"))),
    st.floats(0.0, 2.0),
)
def test_captions_keep_the_words_of_each_speaker_and_fit(said: list[tuple[str, float, str]], pause: float) -> None:
    words, at = [], 0.0
    for text, seconds, speaker in said:
        words.append(TimedWord(text, at, at + seconds, speaker=speaker))
        at += seconds + pause
    found = cues(words)
    for speaker in "xy":
        own = [word for cue in found for word in cue if word.speaker == speaker]
        assert own == [word for word in words if word.speaker == speaker]
    shown = captions(words, ".srt").split("\n\n") if words else []
    assert len(shown) == len(found)
    for cue, text in zip(found, shown, strict=True):
        _, times, *rows = text.rstrip("\n").split("\n")
        assert len(cue) == 1 or (len(rows) <= 2 and max(map(len, rows)) <= LINE)
        start, end = ([float(part) for part in re.split("[:,]", one)] for one in times.split(" --> "))
        lasts = sum((b - a) * unit for a, b, unit in zip(start, end, (3600, 60, 1, 0.001), strict=True))
        alone = not any(other is not cue and other[0].speaker == cue[0].speaker for other in found)
        assert lasts >= SHORTEST - 0.01 or not alone


def test_a_pipe_takes_no_captions(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.srt")
    with pytest.raises(InputError, match=r"c\.srt: .*a folder"):
        write_captions(tmp_path / "c.srt", [])
