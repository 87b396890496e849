"""Transcripts: whose words they are, and the files that other programs read."""

from __future__ import annotations

import errno
import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from phonate.audio.decoding import write_audio
from phonate.compute import system
from phonate.config.errors import InputError
from phonate.data.annotations import SpeakerTurn, read_rttm, write_lines
from phonate.data.transcripts import Transcription, format_transcription, write_transcription
from phonate.text.captions import TimedWord, write_captions

WORDS = [
    TimedWord("Good", 0.5, 0.8, 0.9, "anna"),
    TimedWord("<morning>.", 0.8, 1.4, 0.8, "anna"),
    TimedWord("Hello", 1.3, 1.6, 0.7, "ben"),
    TimedWord('"Ben"', 4.0, 4.5, 0.6, "ben"),
]
TALK = Transcription(WORDS, 5.0, "en")


def test_a_word_is_of_whoever_talks_for_most_of_it() -> None:
    turns = [SpeakerTurn(0.0, 1.0, "a"), SpeakerTurn(0.9, 2.0, "b"), SpeakerTurn(6.0, 7.0, "c")]
    words = [
        TimedWord("first", 0.7, 1.05),  # 0.3 s of a, 0.15 of b
        TimedWord("second", 0.9, 1.3),
        TimedWord("gap", 2.1, 2.5),  # nobody: b ended 0.1 s before, c begins 3.5 s later
        TimedWord("late", 5.5, 5.8),
        TimedWord("instant", 6.5, 6.5),
    ]
    found = Transcription(words, 8.0).with_speakers(turns)
    assert [word.speaker for word in found.words] == ["a", "b", "b", "c", "c"]
    assert found.speakers == ["a", "b", "c"]
    assert Transcription(words, 8.0).with_speakers([]).speakers == []


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_transcription(path, TALK, "talk"),
        lambda path: write_captions(path, WORDS),
        lambda path: write_lines(path, ["0.5 1.6"] * 20),
        lambda path: write_audio(path.with_suffix(".wav"), np.zeros(400, np.float32), 8000),
    ],
)
def test_what_a_full_disk_has_no_room_for_is_told_and_nothing_is_there(write, tmp_path, monkeypatch) -> None:
    """(As a disk does it: what fits is written.)"""

    def full(path, content, *_, **__):
        with path.open("wb") as file:
            file.write(bytes(content[:10], "utf-8") if isinstance(content, str) else content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(system, "free_bytes", lambda path: 0)
    with pytest.raises(InputError, match=r"disk full: 1 kB needed, 1 kB more than is free\); choose another path"):
        write(tmp_path / "talk.srt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError("4800 requested and 384 written"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_every_librarys_words_for_a_full_disk_are_known(error, tmp_path) -> None:
    with (
        pytest.raises(InputError, match=r"model: can't be written \(disk full: .*B free\)"),
        system.writing(tmp_path / "model"),
    ):
        raise error
    with pytest.raises(RuntimeError, match="another"), system.writing(tmp_path / "model"):
        raise RuntimeError("another")


def test_captions_name_the_speakers_and_end_with_them() -> None:
    assert format_transcription(TALK, "talk", ".srt") == (
        "1\n00:00:00,500 --> 00:00:01,500\nanna: Good <morning>.\n\n"
        "2\n00:00:01,300 --> 00:00:02,300\nben: Hello\n\n"  # a long pause follows
        '3\n00:00:04,000 --> 00:00:05,000\nben: "Ben"\n'
    )
    assert format_transcription(TALK, "talk", ".vtt").startswith(
        "WEBVTT\n\n00:00:00.500 --> 00:00:01.500\n<v anna>Good &lt;morning&gt;.\n\n"
    )
    assert format_transcription(TALK, "talk", ".txt") == 'anna: Good <morning>.\nben: Hello "Ben"\n'


def test_turns_are_read_back_as_rttm(tmp_path: Path) -> None:
    write_transcription(tmp_path / "talk.rttm", TALK, "talk")
    assert read_rttm(tmp_path / "talk.rttm")["talk"] == [
        SpeakerTurn(0.5, 1.4, "anna"),
        SpeakerTurn(1.3, 1.6, "ben"),
        SpeakerTurn(4.0, 4.5, "ben"),
    ]
    with pytest.raises(InputError, match="speakers="):
        write_transcription(tmp_path / "talk.rttm", Transcription([TimedWord("a", 0.0, 1.0)], 1.0), "talk")


def test_json_has_each_word_with_its_time_confidence_and_speaker(tmp_path: Path) -> None:
    write_transcription(tmp_path / "talk.json", TALK, "talk")
    document = json.loads((tmp_path / "talk.json").read_text())
    assert document["words"][0] == {"text": "Good", "start": 0.5, "end": 0.8, "confidence": 0.9, "speaker": "anna"}
    assert (document["language"], document["seconds"], document["speakers"]) == ("en", 5.0, ["anna", "ben"])
    unnamed = json.loads(format_transcription(Transcription([TimedWord("a", 0.0, 1.0)], 1.0), "x", ".json"))
    assert unnamed["words"] == [{"text": "a", "start": 0.0, "end": 1.0}]


def test_a_textgrid_has_a_tier_without_gaps_for_each_speaker() -> None:
    text = format_transcription(TALK, "talk", ".TextGrid")
    assert [line.split('"')[1] for line in text.splitlines() if line.strip().startswith("name")] == ["anna", "ben"]
    marks = [line.split("=")[1].strip() for line in text.splitlines() if line.strip().startswith("text")]
    assert marks == ['""', '"Good"', '"<morning>."', '""', '""', '"Hello"', '""', '"""Ben"""', '""']
    edges = [tuple(float(line.split("=")[1]) for line in pair) for pair in _edges(text)]
    for own in (edges[:4], edges[4:]):
        assert own[0][0] == 0.0
        assert own[-1][1] == 5.0
        assert all(before[1] == after[0] for before, after in pairwise(own))


def _edges(text: str) -> list[tuple[str, str]]:
    lines = [line.strip() for line in text.splitlines()]
    return [(lines[at - 2], lines[at - 1]) for at, line in enumerate(lines) if line.startswith("text")]


def test_ctm_has_words_alone() -> None:
    """A line is a word to scorers: marks that stand alone are none, those that are spoken stay."""
    said = ["It's", "—", '"50%,"', "$5.", "(uh)", "C++.", "%,", "&", "@", "♪"]
    words = [TimedWord(text, number / 2, number / 2 + 0.4, 0.5) for number, text in enumerate(said)]
    lines = format_transcription(Transcription(words, 5.0), "my talk", ".ctm").splitlines()
    assert lines[0] == "my_talk 1 0.000 0.400 It's 0.5000"
    assert [line.split()[4] for line in lines] == ["It's", "50%", "$5", "uh", "C++", "%", "&"]


@pytest.mark.parametrize("name", ["talk.doc", "talk", "talk.SRT"])
def test_other_kinds_of_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"\.txt, \.srt, \.vtt, \.json, \.rttm, \.TextGrid"):
        write_transcription(tmp_path / name, TALK, "talk")
    assert not (tmp_path / name).exists()
