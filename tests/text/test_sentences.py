from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.config.errors import InputError
from phonate.text.sentences import sentences


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
