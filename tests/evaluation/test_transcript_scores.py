"""Scores of what is said in conversations, against what MeetEval 0.4.3 gives for them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from phonate.config.errors import InputError
from phonate.data.labels import read_pair, read_texts
from phonate.evaluation.words import TranscriptErrors, character_edits, plain, score_transcripts

_WORDS = ["a", "the", "cat", "sat", "on", "mat", "it", "was", "good", "morning", "everybody", "extraordinarily"]
_WORDS += ["yes", "no", "well", "then"]


def conversation(seed: int) -> tuple[str, str]:
    """A conversation and a bad transcript of it, as lines of STM. In every other one each word has its own times."""
    rng = random.Random(seed)
    speakers, begin = rng.randint(1, 5), 0.0
    reference, hypothesis = [], []
    for _ in range(rng.randint(1, 25)):
        length = rng.choice([0.3, 1, 3, 8, 20]) * rng.uniform(0.3, 1.5)
        count = 1 if seed % 2 else rng.randint(1, max(1, int(length * 3)))
        words = [rng.choice(_WORDS) for _ in range(count)]
        who = rng.randrange(speakers)
        reference.append(f"r 1 s{who} {begin:.2f} {begin + length:.2f} {' '.join(words)}\n")
        heard = [
            other for word in words for other in rng.choice([[word]] * 8 + [[], [rng.choice(_WORDS)], [word, "uh"]])
        ]
        shift = rng.choice([0, 0, 0.2, 1, 3, 7, -4]) * rng.uniform(0.5, 1.5)
        first = max(0.0, begin + shift)
        if heard:
            label = who if rng.random() > 0.15 else rng.randrange(6)
            last = max(first + 0.05, begin + length + shift)
            hypothesis.append(f"r 1 h{label} {first:.2f} {last:.2f} {' '.join(heard)}\n")
        begin += length * rng.choice([1, 1, 1, 0.4, 2.5])
    return "".join(reference), "".join(hypothesis)


# Errors that MeetEval's cpwer, and its tcpwer with collars of 5 and 0.5 s, count in the conversations 0, 1, ...
MEETEVAL = [
    (83, 95, 169),
    (8, 12, 15),
    (6, 6, 10),
    (11, 12, 17),
    (24, 27, 46),
    (1, 3, 5),
    (4, 6, 11),
    (3, 3, 3),
    (24, 36, 59),
    (13, 16, 20),
    (2, 3, 3),
    (13, 17, 21),
    (28, 42, 79),
    (5, 6, 10),
    (60, 62, 149),
    (0, 0, 0),
    (81, 94, 129),
    (8, 10, 13),
    (28, 28, 49),
    (13, 14, 15),
    (10, 10, 22),
    (7, 7, 12),
    (22, 33, 83),
    (1, 1, 3),
    (140, 163, 223),
    (14, 14, 22),
    (87, 103, 171),
    (16, 17, 23),
    (151, 163, 195),
    (1, 1, 2),
    (27, 29, 118),
    (13, 14, 18),
    (7, 7, 14),
    (3, 4, 6),
    (44, 50, 79),
    (5, 7, 10),
    (2, 2, 8),
    (2, 2, 3),
    (59, 60, 128),
    (2, 2, 7),
    (116, 146, 244),
    (0, 0, 9),
    (0, 0, 0),
    (10, 13, 13),
    (39, 39, 70),
    (8, 10, 11),
    (47, 47, 149),
    (0, 0, 3),
    (33, 41, 76),
    (8, 11, 12),
    (30, 32, 106),
    (11, 11, 11),
    (8, 18, 31),
    (2, 4, 4),
    (46, 47, 122),
    (5, 5, 7),
    (2, 2, 2),
    (7, 10, 12),
    (6, 6, 14),
    (0, 0, 0),
    (27, 51, 85),
    (4, 4, 4),
    (12, 12, 12),
    (8, 8, 17),
]


def errors(folder: Path, reference: str, hypothesis: str, collar: float = 5.0) -> TranscriptErrors:
    (folder / "ref.stm").write_text(reference)
    (folder / "hyp.stm").write_text(hypothesis)
    pair = read_pair(read_texts, folder / "ref.stm", folder / "hyp.stm")
    return score_transcripts(*pair, collar)["total"]


def test_errors_of_speakers_are_those_of_meeteval(tmp_path: Path) -> None:
    for seed, (concatenated, *timed) in enumerate(MEETEVAL):
        one, two = (errors(tmp_path, *conversation(seed), collar) for collar in (5.0, 0.5))
        assert (one.speaker_edits, one.timed_edits, two.timed_edits) == (concatenated, *timed), seed


@pytest.mark.parametrize(
    ("hypothesis", "collar", "edits"),
    [
        ("r 1 x 10 11 hello\n", 5.0, 0),
        ("r 1 x 16 16.9 hello\n", 5.0, 2),  # one deleted, one inserted: its middle is 5.45 s behind the reference
        ("r 1 x 15 16.9 hello\n", 5.0, 0),
        ("r 1 x 15.5 16.5 hello\n", 5.0, 2),  # touching is not overlapping
        ("r 1 x 10 11 hello\nr 1 y 10 11 hello\n", 5.0, 1),
        ("r 1 x 10 12 hello there\n", 0.0, 1),  # the middle of hello, 10.5, is in the reference
        ("r 1 x 9 12 well well hello\n", 0.0, 3),  # the middle of hello is 11.4, that of the second well in it
    ],
)
def test_words_count_only_near_their_time(tmp_path: Path, hypothesis: str, collar: float, edits: int) -> None:
    assert errors(tmp_path, "r 1 ann 10 11 hello\n", hypothesis, collar).timed_edits == edits


def test_recordings_of_other_names_are_told_with_both_sides(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the hypothesis has tuesday, the reference m; name them alike"):
        errors(tmp_path, "m 1 ann 0 1 yes", "tuesday 1 ann 0 1 yes")


def test_words_have_the_times_that_labels_give_them(tmp_path: Path) -> None:
    """A TextGrid of an aligner has a long pause in an utterance, which words that share its time would ignore."""
    tier = '"IntervalTier" "ann - words" 0 40 {}\n{}'
    for name, words in (("ref", [(0, 1, "one"), (1.4, 30, "two")]), ("hyp", [(0, 1, "one"), (29, 30, "two")])):
        (tmp_path / name).mkdir()
        lines = "".join(f'{start} {end} "{word}"\n' for start, end, word in words)
        (tmp_path / name / "r.TextGrid").write_text(
            f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0 40 <exists> 1\n{tier.format(len(words), lines)}'
        )
    pair = read_pair(read_texts, tmp_path / "ref", tmp_path / "hyp")
    assert score_transcripts(*pair, 0.0)["total"].timed_edits == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Café, naïve!", "cafe naive", True),
        ("כִּתָּב", "כתב", True),
        ("كِتَابٌ أحمد", "كتاب احمد", True),
        ("IŞIK", "ışık", True),
        ("कि", "की", False),
        ("กา", "กี", False),
        ("が", "か", False),
        ("한국", "한국", True),
    ],
)
def test_vowels_and_tones_are_letters_and_accents_are_not(one: str, other: str, same: bool) -> None:
    assert (plain(one) == plain(other)) is same


def test_korean_is_counted_by_syllables() -> None:
    assert character_edits(["한국"], ["한곡"]) == (1, 2)
