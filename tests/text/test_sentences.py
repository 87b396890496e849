from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.config.errors import InputError
from phonate.text.sentences import SentenceStream, sentences


def test_sentences_end_where_sentences_end() -> None:
    text = (
        'Dr. Smith met J. R. R. Tolkien at 3 p.m. on Elm St. near No. 5. It cost $3.50! "Why?" he asked. At the '
        "U.S. Senate, e.g. there, all went well... The end.\n\nA heading\n\nMore"
    )
    assert sentences(text) == [
        "Dr. Smith met J. R. R. Tolkien at 3 p.m. on Elm St. near No. 5.", "It cost $3.50!", '"Why?" he asked.',
        "At the U.S. Senate, e.g. there, all went well...", "The end.", "A heading", "More",
    ]  # fmt: skip
    assert sentences("你好。世界！") == ["你好。", "世界！"]


@pytest.mark.parametrize(
    "text",
    [
        "She said no. | He left.",
        "She said no. | I left.",
        "See No. 5, vol. II, fig. B. | Then go.",
        "He ate a fig. | Then he sat. | Nos. 5 and 6 on pp. 7 and p. 8 came.",
        "Vol. IV. | See Vol. X",
        "On Sat. 5 Oct. he sat. | She lay in the sun. | They left.",
        "Take plan B. | Then wait in the U.S. | The end.",
        "J. A. Smith met Mr. B. A. Lee and J. Doe.",
    ],
)
def test_some_abbreviations_are_words_too(text: str) -> None:
    assert sentences(text.replace(" | ", " ")) == text.split(" | ")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("hi", "भारत महान है। | दिल्ली राजधानी है॥ | पानी लाओ।"),
        ("bn", "এটা বই। | ওটা ঘর।"),
        ("ur", "یہ کتاب ہے۔ | وہ گھر ہے۔"),
        ("hy", "Սա գիրք է։ | Նա տուն է։"),
        ("am", "ይህ ቤት ነው። | ያ ነው።"),
        ("my", "ဒါ။ | ဟို။"),
        ("km", "នេះ។ | នោះ។"),
        ("de", "Am 3.–5. Mai geht es los. | Vom 1.-3. Juni ist zu. | Die 1.–3. Klasse hat frei."),
        ("de", "Die Muster GmbH & Co. KG baut. | Sie verkauft auch."),
        ("de", "Die Muster GmbH & Co.  KG baut. | Sie verkauft auch."),
        ("de", "Er kam 2024. | Dann ging er."),
    ],
)
def test_every_script_has_its_own_full_stop(code: str, text: str) -> None:
    assert sentences(text.replace(" | ", " "), code=code) == text.split(" | ")


def test_what_closes_stays_with_its_sentence() -> None:
    assert sentences("「行こう。」彼は立った。「もう？」「うん。」", code="ja") == [
        "「行こう。」", "彼は立った。", "「もう？」", "「うん。」",
    ]  # fmt: skip
    assert sentences("「いこう。」といった。終わり｡", code="ja") == ["「いこう。」といった。", "終わり｡"]


@given(st.text(alphabet='ab .?!।。」\n"ABC1', max_size=60), st.lists(st.integers(1, 8), max_size=30))
@settings(max_examples=200, deadline=None)
def test_a_text_in_pieces_has_the_sentences_of_the_whole(text: str, lengths: list[int]) -> None:
    stream, ready, at = SentenceStream(100), [], 0
    for length in [*lengths, len(text)]:
        ready += stream.add(text[at : at + length])
        at += length
    assert [one.strip() for one in [*ready, *stream.finish()]] == sentences(text, 100)


def test_a_sentence_in_pieces_is_ready_with_the_first_word_of_the_next() -> None:
    stream = SentenceStream()
    assert [stream.add(piece) for piece in ("Dr. Who ", "left", ". ", "He ", "ran")] == [
        [],
        [],
        [],
        ["Dr. Who left."],
        [],
    ]
    assert stream.add(".\n\n") == ["He ran.\n\n"]
    assert stream.finish() == []


def test_a_byte_order_mark_is_no_space() -> None:
    assert sentences("\ufeffone\ufeff.\ufeff Two.") == ["one.", "Two."]


def test_long_sentences_break_at_clauses_and_else_at_spaces() -> None:
    assert sentences("one two three, four five six seven", 20) == ["one two three,", "four five six seven"]
    assert sentences("the man saw that nothing was there", 20) == ["the man saw", "that nothing was", "there"]
    assert sentences("one two three four five", 10) == ["one two", "three four", "five"]
    assert sentences("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_each_item_of_a_list_is_a_sentence() -> None:
    assert sentences("To buy:\n- apples\n  * pears\n1. figs\n2) nuts,\nof course") == [
        "To buy:", "- apples", "* pears", "1. figs", "2) nuts,\nof course",
    ]  # fmt: skip
    assert sentences("from\n1990 on") == ["from\n1990 on"]


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"1 character .*not 0"):
        sentences("a", 0)


@given(st.one_of(st.text(max_size=80), st.text("ab A.,!? \n-", max_size=120)), st.integers(1, 60))
@settings(max_examples=300)
def test_nothing_is_lost_and_no_piece_is_longer(text: str, longest: int) -> None:
    pieces = sentences(text, longest)
    assert "".join("".join(pieces).split()) == "".join(text.replace("\ufeff", "").split())
    assert all(0 < len(piece) <= longest and piece == piece.strip() for piece in pieces)
