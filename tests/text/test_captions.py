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
from phonate.text.captions import LINE, TimedWord, captions, lines, write_captions

WORDS = [TimedWord("Hello,", 0.02, 0.4), TimedWord("world.", 0.45, 0.9), TimedWord("Again.", 3661.5, 3662.0004)]


def test_subrip() -> None:
    assert captions(WORDS, ".srt") == (
        "1\n00:00:00,020 --> 00:00:00,900\nHello, world.\n\n2\n01:01:01,500 --> 01:01:02,000\nAgain.\n"
    )


def test_webvtt() -> None:
    assert captions(WORDS[:2], ".vtt") == "WEBVTT\n\n00:00:00.020 --> 00:00:00.900\nHello, world.\n"


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
    assert [" ".join(word.text for word in line) for line in lines(said)] == ["At three P.M. she left.", "He stayed."]


def test_an_ellipsis_ends_a_caption_where_a_sentence_begins() -> None:
    words = [
        TimedWord(text, float(at), at + 0.5)
        for at, text in enumerate(["Wait...", "what?", "He", "paused...", "Then", "on..."])
    ]
    shown = [" ".join(word.text for word in line) for line in lines(words)]
    assert shown == ["Wait... what?", "He paused...", "Then on..."]


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.srt, \.vtt, \.json.*\.doc"):
        write_captions(tmp_path / "words.doc", WORDS)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone/words\.srt: "):
        write_captions(tmp_path / "gone" / "words.srt", WORDS)


@given(st.lists(st.text("ab.?", min_size=1, max_size=60), max_size=30))
def test_captions_keep_the_words_in_order_and_fit(texts: list[str]) -> None:
    words = [TimedWord(text, number, number + 0.5) for number, text in enumerate(texts)]
    found = list(lines(words))
    assert [word for line in found for word in line] == words
    for line in found:
        assert len(line) == 1 or len(" ".join(word.text for word in line)) <= LINE
        ended = [word.text for word in line[:-1] if word.text.endswith((".", "?"))]
        # texts of "ab.?" begin in lower case, or with a mark
        assert all(re.fullmatch(r"([ab]\.){2,}", text) or text.endswith("...") for text in ended)


def test_a_pipe_takes_no_captions(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.srt")
    with pytest.raises(InputError, match=r"c\.srt: .*a folder"):
        write_captions(tmp_path / "c.srt", [])
