"""Pronunciations of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from phonate.config.errors import InputError
from phonate.text.phonemes import phonemizer
from phonate.text.pronunciations import LexiconPhonemizer, read_lexicon


def lexicon(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "names.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_words_are_pronounced_as_the_lexicon_says(tmp_path: Path) -> None:
    english = phonemizer("english")
    path = lexicon(tmp_path, "; names\n\nPhonate  F OW1 N EY2 T\nnguyen W IH1 N\n")
    own = LexiconPhonemizer(english, read_lexicon(path, english))
    before, after = (speak("PHONATE by Nguyen, of course.") for speak in (english, own))
    assert [word.phones for word in after] == [
        ("F", "OW1", "N", "EY2", "T"),
        before[1].phones,
        ("W", "IH1", "N"),
        before[3].phones,
        before[4].phones,
    ]
    assert [(word.text, word.mark) for word in after] == [(word.text, word.mark) for word in before]


def test_phones_of_single_characters_need_no_spaces(tmp_path: Path) -> None:
    characters = phonemizer("characters")
    assert read_lexicon(lexicon(tmp_path, "two tu\nthree t r i\n"), characters) == {
        "two": ("t", "u"),
        "three": ("t", "r", "i"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fine F AY1 N\nphonate F OW9\n", r"names\.txt:2: 'OW9' is no phone of the phonemizer english; did you mean"),
        ("phonate\n", r"names\.txt:1: phonate has no phones"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_lexicon(lexicon(tmp_path, text), phonemizer("english"))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes(b"\xff\xfe\x00")
    for one in (path, tmp_path / "missing.txt"):
        with pytest.raises(InputError, match=rf"{one.name}: can't be read as text"):
            read_lexicon(one, phonemizer("english"))
