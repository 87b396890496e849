from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.config.errors import InputError
from phonate.text.characters import lower_case
from phonate.text.phonemes import MARKS, Inventory, Word, phonemizer


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'englsh'; did you mean english\?"):
        phonemizer("englsh")
    with pytest.raises(InputError, match="'de'; use the phonemizer 'espeak'"):
        phonemizer("english", "de")


def test_characters_are_lower_case_letters() -> None:
    assert phonemizer("characters")("It's 5, Zoë!") == [
        Word("it's", ("i", "t", "'", "s")), Word("five", tuple("five"), ","), Word("zoe", tuple("zoe"), "!"),
    ]  # fmt: skip
    assert phonemizer("characters").symbols == ("'", *"abcdefghijklmnopqrstuvwxyz")


def test_characters_of_other_languages_keep_accents_apart_and_digits() -> None:
    assert phonemizer("characters", "fr")("Été 25?") == [
        Word("été", ("e", "\u0301", "t", "e", "\u0301")), Word("25", ("2", "5"), "?"),
    ]  # fmt: skip
    assert [word.text for word in phonemizer("characters", "ru")("Привет, мир!")] == ["привет", "мир"]
    assert len(phonemizer("characters", "ko")("안녕")[0].phones) == 6


def test_turkish_and_azeri_have_two_letters_i() -> None:
    words = [lower_case("ISIRGAN İzmir I\u0307ki", code) for code in ("tr", "tr-TR", "az", "en-us")]
    assert words == 3 * ["ısırgan izmir iki"] + ["isirgan i\u0307zmir i\u0307ki"]
    assert [word.text for word in phonemizer("characters", "tr")("ISIRGAN")] == ["ısırgan"]


def test_letters_of_another_script_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="phonate"):
        assert [word.text for word in phonemizer("characters", "fr")("oui ქ non")] == ["oui", "non"]
    assert "left out, no letters of the language fr: ქ (1 Georgian character)" in caplog.text


@given(st.text(max_size=30), st.sampled_from(["en-us", "fr", "ru", "ar", "ja", "xx"]))
@settings(max_examples=150)
def test_characters_take_any_text(text: str, language: str) -> None:
    phonemize = phonemizer("characters", language)
    try:
        words = phonemize(text)
    except InputError as error:
        refused = str(error)
        assert "can be spoken" in refused
        return
    assert all(word.phones and set(phonemize.symbols).issuperset(word.phones) for word in words)


@pytest.mark.parametrize(("name", "language"), [("english", "en-us"), ("characters", "en-us"), ("characters", "de")])
def test_an_inventory_goes_through_json_and_speaks_again(name: str, language: str) -> None:
    inventory = Inventory.of(phonemizer(name, language))
    again = Inventory.read(json.loads(json.dumps(inventory.document())))
    assert again == inventory
    assert again.phonemizer()("well, so be it") == phonemizer(name, language)("well, so be it")
    assert inventory.symbols[:10] == ("<pad>", "<word>", *MARKS, "<start>")


def test_every_word_ends_in_one_boundary() -> None:
    inventory = Inventory.of(phonemizer("english"))
    words = inventory.phonemizer()("Hello, big cat")
    tokens = inventory.tokens(words)
    assert tokens == ["<start>", "HH", "AH0", "L", "OW1", ",", "B", "IH1", "G", "<word>", "K", "AE1", "T", "<word>"]
    assert [inventory.symbols[number] for number in inventory.ids(words)] == tokens


@given(st.lists(st.sampled_from(["cat", "a", "Why?", "no,", "1999", "x-ray", "(so)", "Dr."]), min_size=1, max_size=9))
@settings(max_examples=60)
def test_every_id_round_trips(pieces: list[str]) -> None:
    inventory = Inventory.of(phonemizer("english"))
    words = inventory.phonemizer()(" ".join(pieces))
    numbers = inventory.ids(words)
    assert [inventory.symbols[number] for number in numbers] == inventory.tokens(words)
    assert len(numbers) == 1 + sum(len(word.phones) + 1 for word in words)
    assert min(numbers) > 0


def test_an_unknown_symbol_is_named_with_its_word() -> None:
    with pytest.raises(InputError, match="'XX1' of the word 'odd'"):
        Inventory.of(phonemizer("english")).ids([Word("odd", ("XX1", "D"))])


@pytest.mark.parametrize("document", [{}, {"symbols": ["a"], "phonemizer": "english", "language": "en-us"}])
def test_what_is_no_inventory_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InputError, match="inventory"):
        Inventory.read(document)
