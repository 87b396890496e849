"""Which questions rise by rule, and where."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from phonate.text.intonation import rises
from phonate.text.language import language
from phonate.text.phonemes import Inventory, phonemizer

ENGLISH = phonemizer("english")
NEEDS_ESPEAK = pytest.mark.skipif(importlib.util.find_spec("espeakng_loader") is None, reason="needs phonate[espeak]")


def risen(text: str, name: str = "english", code: str = "en-us") -> dict[str, float]:
    """Tokens that rise, with the semitones at their ends."""
    own = phonemizer(name, code)
    words, questions = own(text), language(code).questions
    assert questions is not None
    found = rises(words, questions)
    tokens = Inventory.of(own).tokens(words)
    if found is None:
        return {}
    assert found.shape == (len(tokens), 2)
    return {f"{number}:{token}": float(found[number, 1]) for number, token in enumerate(tokens) if found[number].any()}


@pytest.mark.parametrize(
    ("text", "rising"),
    [
        ("Are you coming?", True),
        ("You saw him?", True),
        ("When he comes, will you stay?", True),
        ("Would you like tea or something?", True),
        ("You are coming.", False),
        ("Where are you going?", False),
        ("And in which house do you live?", False),
        ("For how long will they stay?", False),
        ("If it rains, where do we go?", False),
        ("Who's there?", False),
        ("It's cold, isn't it?", False),
        ("You didn't see it, did you?", False),
    ],
)
def test_english_questions(text: str, rising: bool) -> None:
    assert bool(risen(text)) is rising


@NEEDS_ESPEAK
@pytest.mark.parametrize(
    ("code", "text", "rising"),
    [
        ("de", "Kommst du morgen?", True),
        ("de", "Wenn er kommt, gehst du dann?", True),
        ("de", "Wann kommst du?", False),
        ("de", "Und mit wem kommst du?", False),
        ("ar", "هل تسمعني؟", True),
        ("ar", "أين تسكن؟", False),
    ],
)
def test_questions_of_other_languages(code: str, text: str, rising: bool) -> None:
    assert bool(risen(text, "espeak", code)) is rising


def test_it_rises_from_the_last_accented_syllable_to_the_end() -> None:
    whole = language("en").questions.rise
    assert risen("Are you remembering?").keys() == {
        f"{number}:{token}" for number, token in enumerate(["EH1", "M", "B", "ER0", "IH0", "NG", "?"], start=10)
    }
    values = list(risen("Are you remembering?").values())
    assert np.allclose(np.diff([0.0, *values]), [whole / 6] * 6 + [0.0])
    assert next(iter(risen("Did you see him there with it?"))) == "9:IY1"  # words such as him are not accented
    assert next(iter(risen("Is it a boat?").values())) == whole  # the vowel, for a T has no pitch


def test_alternatives_rise_before_or_and_fall_at_the_end() -> None:
    found = risen("Do you want coffee or tea?")
    assert list(found.values())[-1] == language("en").questions.rise / 2
    assert max(int(name.split(":")[0]) for name in found) < 17  # "or" is 18


def test_each_question_of_a_text_is_one_by_itself() -> None:
    assert {name.split(":")[1] for name in risen("Did you see? he asked.")} == {"IY1", "?"}
    assert risen("Why? Because I say so.") == {}
