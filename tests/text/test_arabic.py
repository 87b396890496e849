"""Arabic text: each option changes what it says, and nothing else."""

from __future__ import annotations

import importlib.util
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.config.errors import MissingPackageError
from phonate.text.arabic import ArabicText, has_arabic, normalise_arabic

NOTHING = ArabicText(remove_tatweel=False)


@pytest.mark.parametrize(
    ("option", "text", "wanted"),
    [
        ({"remove_diacritics": True}, "كِتَابٌ جَمِيلٌ لِلرَّجُلِ هٰذَا", "كتاب جميل للرجل هذا"),
        ({"remove_diacritics": True}, "آمن أمر إلى سؤال قرأ", "آمن أمر إلى سؤال قرأ"),  # letters of their own
        ({"remove_tatweel": True}, "كـــتاب", "كتاب"),
        ({"unify_alef": True}, "أحمد إلى آخر ٱلكتاب", "احمد الى اخر الكتاب"),
        ({"unify_yeh": True}, "على مستشفى", "علي مستشفي"),
        ({"unify_teh_marbuta": True}, "مدرسة كبيرة", "مدرسه كبيره"),
        ({"digits": "western"}, "١٢٣ و ۴۵٫۶٪", "123 و 45.6%"),
        ({"punctuation": "western"}, "نعم، لا؛ لماذا؟", "نعم, لا; لماذا?"),
    ],
)
def test_options(option: dict[str, object], text: str, wanted: str) -> None:
    assert normalise_arabic(text, ArabicText(**{"remove_tatweel": False, **option})) == wanted
    assert normalise_arabic(text, NOTHING) == text


def test_marks_that_unicode_composes_are_removed_too() -> None:
    """Alef with a hamza may be one character or two; both are the same text."""
    assert normalise_arabic("\u0627\u0654", ArabicText(unify_alef=True)) == "\u0627"
    assert normalise_arabic("\u0627\u0654", ArabicText(remove_diacritics=True)) == "\u0623"


words = pytest.mark.skipif(
    importlib.util.find_spec("num2words") is None, reason="needs num2words, which spells out numbers"
)


@words
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("عندي ٣ كتب", "عندي ثلاثة كتب"),
        ("عام ۱۹۹۹.", "عام ألف و تسعمائة و تسعة و تسعون."),
        ("200 و 0", "مئتان و صفر"),
        ("ب 2000000", "ب مليونان"),
        ("بين 2000 و 200000", "بين ألفان و مئتا ألف"),
        ("رقم 0501234567 الساعة 10:30", "رقم 0501234567 الساعة 10:30"),
        ("3.5 و ٣٫٥ و 1,000 و 2024-01-02 و م2", "3.5 و ٣٫٥ و 1,000 و 2024-01-02 و م2"),
        ("1234567890123 كبير", "1234567890123 كبير"),
        ("only 3 words", "only 3 words"),
    ],
)
def test_numbers_as_words(text: str, wanted: str) -> None:
    assert normalise_arabic(text, ArabicText(digits="words")) == wanted


def test_numbers_as_words_need_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"digits: words .*num2words"):
        normalise_arabic("عندي ٣ كتب", ArabicText(digits="words"))


options = st.builds(
    ArabicText,
    remove_diacritics=st.booleans(),
    remove_tatweel=st.booleans(),
    unify_alef=st.booleans(),
    unify_yeh=st.booleans(),
    unify_teh_marbuta=st.booleans(),
    digits=st.sampled_from(["keep", "western"]),
    punctuation=st.sampled_from(["keep", "western"]),
)
arabic = st.text(
    st.characters(min_codepoint=0x0600, max_codepoint=0x06FF) | st.sampled_from(" .,3\n\u0654"), max_size=40
)


@settings(max_examples=200)
@given(arabic | st.text(max_size=40), options)
def test_twice_is_once_and_nothing_forbidden_is_left(text: str, chosen: ArabicText) -> None:
    once = normalise_arabic(text, chosen)
    assert normalise_arabic(once, chosen) == once
    assert once == " ".join(once.split())
    assert unicodedata.is_normalized("NFC", once)
    if chosen.remove_tatweel:
        assert "ـ" not in once
    if chosen.remove_diacritics:
        assert not any(unicodedata.category(letter) == "Mn" and "\u064b" <= letter <= "\u0652" for letter in once)
    if chosen.unify_alef:
        assert not set(once) & set("أإآٱ")
    if chosen.digits == "western":
        assert not set(once) & set("٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹")
    if chosen.punctuation == "western":
        assert not set(once) & set("،؛؟")


@settings(max_examples=100)
@given(st.text(st.characters(codec="ascii"), max_size=40) | st.text("äöüßéçñ你好 .", max_size=20), options)
def test_other_scripts_are_left_as_they_are(text: str, chosen: ArabicText) -> None:
    assert normalise_arabic(text, chosen) == " ".join(text.split())
    assert not has_arabic(text)


@settings(max_examples=100)
@given(arabic)
def test_letters_are_kept_unless_asked(text: str) -> None:
    """Without diacritics the letters are the same, in the same order."""
    bare = normalise_arabic(text, ArabicText(remove_tatweel=False, remove_diacritics=True))
    letters = [one for one in unicodedata.normalize("NFC", text) if unicodedata.category(one) == "Lo"]
    assert [one for one in bare if unicodedata.category(one) == "Lo"] == letters
