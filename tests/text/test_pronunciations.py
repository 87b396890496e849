"""Pronunciations of one's own."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from phonate.config.errors import InputError
from phonate.text.phonemes import Phonemizer, phonemizer
from phonate.text.pronunciations import LexiconPhonemizer, read_lexicon


def espeak_phonemizer(code: str) -> Phonemizer:
    pytest.importorskip("espeakng_loader", reason="needs phonate[espeak]")
    return phonemizer("espeak", code)


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


def test_a_byte_order_mark_is_no_part_of_a_word_and_apostrophes_may_be_curly(tmp_path: Path) -> None:
    english = phonemizer("english")
    path = lexicon(tmp_path, "\ufeffbanana F OW1\no’brien B R AY1 N\n")
    assert read_lexicon(path, english) == {"banana": ("F", "OW1"), "o'brien": ("B", "R", "AY1", "N")}


def test_words_have_the_letters_of_english_texts(tmp_path: Path) -> None:
    found = read_lexicon(lexicon(tmp_path, "café K AE1 F AH0\n"), english := phonemizer("english"))
    assert LexiconPhonemizer(english, found)("A café.")[1].phones == ("K", "AE1", "F", "AH0")


def test_the_last_of_two_lines_is_followed_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = read_lexicon(lexicon(tmp_path, "Lee L IY1\nlee L AH1\n"), phonemizer("english"))
    assert found == {"lee": ("L", "AH1")}
    assert "names.txt:2: lee is listed twice" in caplog.text


@pytest.mark.parametrize("word", ["banana,", "x-ray", "read(2)", "AT&T", "20"])
def test_what_no_text_looks_up_is_reported(tmp_path: Path, word: str, caplog: pytest.LogCaptureFixture) -> None:
    read_lexicon(lexicon(tmp_path, f"{word} F OW1\n"), phonemizer("english"))
    assert f"names.txt:1: {word.lower()} is never looked up" in caplog.text


def test_what_is_looked_up_depends_on_the_phonemizer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The words of espeak are cut at spaces only."""
    path = lexicon(tmp_path, "E-Mail imeil\n")
    read_lexicon(path, phonemizer("characters", "de"))
    assert "names.txt:1: e-mail is never looked up" in caplog.text
    caplog.clear()
    espeak = espeak_phonemizer("de")
    assert LexiconPhonemizer(espeak, read_lexicon(path, espeak))("Eine E-Mail!")[1].phones == tuple("imeil")
    read_lexicon(lexicon(tmp_path, "AT&T a\nbanana, a\n!! a\n"), espeak)
    assert [record.args[2] for record in caplog.records] == ["at&t", "banana,", "!!"]


@pytest.mark.parametrize("word", ["Nguyen", "Müller", "P.M.", "it's", "مَرْحَبًا"])
def test_words_are_not_reported(tmp_path: Path, word: str, caplog: pytest.LogCaptureFixture) -> None:
    read_lexicon(lexicon(tmp_path, f"{word} F OW1\n"), phonemizer("english"))
    assert not caplog.records


def test_phones_of_single_characters_need_no_spaces(tmp_path: Path) -> None:
    characters = phonemizer("characters")
    assert read_lexicon(lexicon(tmp_path, "two tu\nthree t r i\n"), characters) == {
        "two": ("t", "u"),
        "three": ("t", "r", "i"),
    }


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_and_phones_may_be_composed_or_not(tmp_path: Path, form: Literal["NFC", "NFD"]) -> None:
    path = lexicon(tmp_path, unicodedata.normalize(form, "Müller mül\n"))
    letters = phonemizer("characters", "de")
    own = LexiconPhonemizer(letters, read_lexicon(path, letters))
    for text in ("Müller", unicodedata.normalize("NFD", "Müller")):
        assert own(text)[0].phones == ("m", "u", "\u0308", "l")


def test_the_ipa_is_written_as_espeak_writes_it(tmp_path: Path) -> None:
    espeak = espeak_phonemizer("de")
    found = read_lexicon(lexicon(tmp_path, "ich ɪç\nWasser vˈas.ɐ\ngehts ge:ts\n"), espeak)
    assert found == {"ich": ("ɪ", "c", "\u0327"), "wasser": tuple("vˈasɐ"), "gehts": tuple("ɡeːts")}
    assert set(found["ich"]) <= set(espeak("ich")[0].phones)
    assert LexiconPhonemizer(espeak, found)("Geht’s, gehts?")[1].phones == tuple("ɡeːts")
    with pytest.raises(InputError, match=r"names\.txt:1: '\.'"):
        read_lexicon(lexicon(tmp_path, "ich .\n"), espeak)


@pytest.mark.parametrize(
    ("written", "phones"),
    [
        ("təˈmeɪtoʊ", "T AH0 M EY1 T OW0"),
        ("ˌʌndərˈstænd", "AH2 N D ER0 S T AE1 N D"),
        ("t͡ʃɜːɹt͡ʃ", "CH ER1 CH"),
        ("ˈbʌt.n\u0329", "B AH1 T AH0 N"),
        ("ɡoʊ", "G OW1"),
        ("wɪn", "W IH1 N"),
        ("k æ t", "K AE1 T"),
        ("t i", "T IY1"),
    ],
)
def test_english_phones_may_be_written_in_the_ipa(tmp_path: Path, written: str, phones: str) -> None:
    english = phonemizer("english")
    assert read_lexicon(lexicon(tmp_path, f"word {written}\n"), english) == {"word": tuple(phones.split())}
    assert set(phones.split()) <= set(english.symbols)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("none ˈ.\n", r"names\.txt:1: 'ˈ\.'"),
        ("sch yː\n", r"names\.txt:1: 'y' .*IPA"),
        ("fine F AY1 N\nphonate F OW9\n", r"names\.txt:2: 'OW9' .*did you mean"),
        ("phonate\n", r"names\.txt:1: phonate "),
        ("phonate F OW N EY1 T\n", r"names\.txt:1: OW .*OW0 .*OW1 .*OW2"),
        ("phonate f ow1 n\n", r"names\.txt:1: .*: F OW1 N"),
        ("Nguyen w ih n\n", r"names\.txt:1: .*: W IH N"),
        ("New York N UW1 Y AO1 R K\n", r"names\.txt:1: 'York' "),
        ("win W IH1 N # rare\n", r"names\.txt:1: '#' "),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_lexicon(lexicon(tmp_path, text), phonemizer("english"))


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes(b"\xff\xfe\x00")
    for one in (path, tmp_path / "missing.txt"):
        with pytest.raises(InputError, match=rf"{one.name}: can't be read"):
            read_lexicon(one, phonemizer("english"))
