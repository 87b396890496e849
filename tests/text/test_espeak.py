from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.config.errors import InputError, MissingPackageError
from phonate.text import espeak
from phonate.text.characters import left_out
from phonate.text.phonemes import Inventory, phonemizer

try:
    import espeakng_loader  # noqa: F401
except ModuleNotFoundError:
    pytest.skip("espeakng-loader is not installed; pip install 'phonate[espeak]'", allow_module_level=True)


def said(text: str, language: str = "en-us") -> list[tuple[str, str, str]]:
    return [(word.text, "".join(word.phones), word.mark) for word in phonemizer("espeak", language)(text)]


def test_english_is_normalised_and_joined_words_stay_together() -> None:
    assert said("Hello, Dr. Lee! The top of the hill (5 km)…") == [
        ("Hello", "həlˈoʊ", ","), ("Doctor", "dˈɑːktɚ", ""), ("Lee", "lˈiː", "!"), ("The", "ðə", ""),
        ("top", "tˈɑːp", ""), ("of the", "ʌvðə", ""), ("hill", "hˈɪl", ""), ("five", "fˈaɪv", ""),
        ("kilometers", "kɪlˈɑːmɪɾɚz", "."),
    ]  # fmt: skip


def test_phones_are_single_code_points() -> None:
    assert phonemizer("espeak")("day")[0].phones == ("d", "ˈ", "e", "ɪ")


def test_other_languages_read_numbers_themselves() -> None:
    german = said("Ich bin 25 Jahre alt — „gut“!", "de")
    assert [(text, mark) for text, _, mark in german] == [
        ("Ich", ""), ("bin", ""), ("25", ""), ("Jahre", ""), ("alt", "-"), ("gut", "!"),
    ]  # fmt: skip
    assert german[2][1].startswith("fˈʏnf")
    assert [mark for _, _, mark in said("你好，世界。", "cmn")] == [",", "."]


def test_switches_of_language_leave_no_trace() -> None:
    assert all("(" not in phones and phones != "en" for _, phones, _ in said("Das ist the weather, okay.", "de"))


@pytest.mark.parametrize(
    ("language", "text", "phones"),
    [
        ("bn", "\u09ac\u09be\u09dc\u09bf", "bˈaɽi"),  # the same in one piece and with its dot by itself
        ("bn", "\u09ac\u09be\u09a1\u09bc\u09bf", "bˈaɽi"),
        ("ur", "لڑی", "lˈʌɽi"),
        ("ur", "لری", "lˈʌri"),
        ("pa", "ਘਰ", "kˈʌɾ"),  # its tone is left out
    ],
)
def test_letters_of_south_asia_are_told_apart(language: str, text: str, phones: str) -> None:
    assert "".join(phonemizer("espeak", language)(text)[0].phones) == phones


def test_an_arabic_vowel_is_said_whatever_the_order_of_its_marks() -> None:
    """NFC puts the vowel in front of the mark that doubles the consonant, keyboards and most texts behind it."""
    behind, before = "ال\u0634\u0651\u064eهَادَةِ", "ال\u0634\u064e\u0651هَادَةِ"
    said = ["".join(phonemizer("espeak", "ar")(text)[0].phones) for text in (behind, before)]
    assert said == ["ʔaʃʃahˈaːdatˌi"] * 2


def test_every_language_can_say_its_digits() -> None:
    voices = espeak._library().voices
    assert len(voices) > 100
    without = []
    for language in voices:
        try:
            phonemizer("espeak", language)("1 2 3, 4 5 10 20 25 999")
        except InputError as error:
            without.append((language, str(error)))
    assert len(without) < 12, without


@pytest.mark.parametrize(("code", "advice"), [("en-uk", "use en"), ("de_DE", "use de"), ("dde", "did you mean de")])
def test_an_unknown_language_is_told_the_nearest(code: str, advice: str) -> None:
    with pytest.raises(InputError, match=f"'{code}'; {advice}"):
        phonemizer("espeak", code)


def test_a_code_point_outside_the_table_is_named_with_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(espeak, "_KNOWN", frozenset("k"))
    with pytest.raises(InputError, match=r"'ˈ' \(U\+02C8\) for 'cat'"):
        phonemizer("espeak")("cat")


def test_without_the_package_the_install_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "espeakng_loader", None)
    espeak._library.cache_clear()
    with pytest.raises(MissingPackageError, match=r"pip install 'phonate\[espeak\]'"):
        phonemizer("espeak")


def test_nothing_to_say_quotes_the_text() -> None:
    with pytest.raises(InputError, match="'!!'"):
        phonemizer("espeak", "de")("!!")


def test_threads_wait_for_each_other() -> None:
    expected = {language: said("Internet und Radio", language) for language in ("de", "en-us", "fr")}
    wrong: list[str] = []

    def work(language: str) -> None:
        for _ in range(30):
            if said("Internet und Radio", language) != expected[language]:
                wrong.append(language)

    threads = [threading.Thread(target=work, args=(language,)) for language in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_several_processes_work() -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(said, ["a cat", "a dog"]))
    assert results == [said("a cat"), said("a dog")]


@given(st.text(max_size=25), st.sampled_from(["en-us", "de", "fr", "ru", "ar"]))
@settings(max_examples=150)
def test_any_text_gives_phones_of_the_table_or_one_clear_error(text: str, language: str) -> None:
    inventory = Inventory.of(phonemizer("espeak", language))
    try:
        words = inventory.phonemizer()(text)
    except InputError as error:
        line = str(error)
        assert "\n" not in line
        return
    assert words
    assert len(inventory.ids(words)) > 2


def test_written_and_spoken_words_are_matched_by_length() -> None:
    assert espeak.align([2, 2, 5], [4, 5]) == [(0, 2, 0, 1), (2, 3, 1, 2)]
    assert espeak.align([3], [1] * 30) == [(0, 1, 0, 30)]  # a long number
    assert espeak.align([3, 9, 2], [3, 4, 5, 2]) == [(0, 1, 0, 1), (1, 2, 1, 3), (2, 3, 3, 4)]


@pytest.mark.parametrize("text", ["है। नहीं।", "ہے۔ نہیں۔"])
def test_full_stops_of_other_scripts_are_marks(text: str) -> None:
    words = phonemizer("espeak", "hi" if "।" in text else "ur")(text)
    assert [word.mark for word in words] == [".", "."]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("de", "Guten Tag, 你好! Привет ★ 5 €, schön, WWW, α, 한국 😀", "你好Приветт★"),
        ("ru", "Привет, объект, США и Hello 你", "你"),
        ("ja", "日本のテスト", "日本"),  # espeak has no readings of Chinese characters there
        ("cmn", "你好，世界。", ""),
        ("ar", "مَرْحَبًا بِالعَالَم Жук", "Жук"),
        ("hi", "क्षत्रिय स्त्री", ""),
        ("en-us", "Go Ж", "Ж"),
    ],
)
def test_letters_of_other_scripts_are_told(language: str, text: str, expected: str) -> None:
    assert left_out(text, phonemizer("espeak", language)) == list(dict.fromkeys(expected))
