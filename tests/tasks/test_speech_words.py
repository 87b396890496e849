"""The words of a corpus's texts, which are kept between runs."""

from __future__ import annotations

import logging
import os

import pytest

from phonate.tasks.speech import data
from phonate.text import phonemes
from phonate.text.english.phonemizer import EnglishPhonemizer

TEXTS = ["Read the lead, please!", "Take the \u2603 home.", "\u2603", "It's \u201c3\u00bd\u201d (or so)\u2026 Yes."]


@pytest.fixture
def pronounced(monkeypatch):
    """The texts that were pronounced, not read."""
    seen: list[str] = []
    original = EnglishPhonemizer.__call__

    def noted(self, text):
        seen.append(text)
        return original(self, text)

    monkeypatch.setattr(EnglishPhonemizer, "__call__", noted)
    return seen


def test_kept_words_are_those_that_are_pronounced(tmp_path, pronounced):
    expected = data.words_of(TEXTS, EnglishPhonemizer())
    assert data.kept_words(tmp_path, TEXTS, EnglishPhonemizer()) == expected
    pronounced.clear()
    assert data.kept_words(tmp_path, TEXTS, EnglishPhonemizer()) == expected
    assert pronounced == [TEXTS[1], TEXTS[2]]


def test_words_are_pronounced_where_nothing_can_be_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert data.kept_words(tmp_path, TEXTS, EnglishPhonemizer()) == data.words_of(TEXTS, EnglishPhonemizer())
    assert not any(tmp_path.iterdir())


def test_what_is_left_out_is_told_by_each_run(tmp_path, monkeypatch, caplog):
    for _ in range(2):
        monkeypatch.setattr(phonemes, "_reported", set())  # as in a new process
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            _, reasons = data.kept_words(tmp_path, TEXTS, EnglishPhonemizer())
        assert "snowman" in caplog.text
        assert list(reasons) == [2]


@pytest.mark.parametrize("change", ["text", "package"])
def test_changed_texts_and_other_rules_are_pronounced_anew(tmp_path, monkeypatch, pronounced, change):
    data.kept_words(tmp_path, TEXTS, EnglishPhonemizer())
    pronounced.clear()
    texts = [*TEXTS[:-1], "No."] if change == "text" else TEXTS
    if change == "package":
        monkeypatch.setattr(data, "_package", lambda: "changed")
    assert data.kept_words(tmp_path, texts, EnglishPhonemizer())[0][-1]
    assert texts[-1] in pronounced
