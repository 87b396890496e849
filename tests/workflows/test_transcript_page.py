"""The page of a transcript: the words in it, and in a browser that they play, light up, are corrected and saved."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from phonate.data.transcripts import Transcription, format_transcription
from phonate.text.captions import TimedWord
from phonate.workflows.pages.recordings import write_transcript_page

WORDS = [
    TimedWord("Good", 0.5, 1.0, 0.9, "speaker1"),
    TimedWord("mourning.", 1.0, 1.5, 0.3, "speaker1"),
    TimedWord("</script><b>Hello", 2.0, 2.5, 0.9, "speaker2"),
    TimedWord("again.", 3.0, 3.5, 0.9, "speaker1"),
]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    tone = 0.1 * np.sin(2 * np.pi * 300 * np.arange(4 * 16000) / 16000)
    soundfile.write(tmp_path / "talk.flac", tone, 16000)
    return write_transcript_page(tmp_path / "talk.html", tmp_path / "talk.flac", Transcription(WORDS, 4.0, "en"))


def test_words_are_text_and_not_markup(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<b>Hello" not in text
    assert text.count('class="word') == len(WORDS)
    assert text.count('class="word unsure"') == 1
    assert "http" not in text


@contextlib.contextmanager
def _tab(page: Path) -> Iterator[Any]:
    """A browser that shows `page`."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs a browser's driver: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        autoplay = "--autoplay-policy=no-user-gesture-required"
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", autoplay])
        tab = browser.new_page()
        tab.goto(page.as_uri())
        yield tab
        browser.close()


@pytest.mark.slow
def test_words_play_light_up_are_corrected_and_saved(page: Path, tmp_path: Path) -> None:
    with _tab(page) as tab:
        tab.click(".word >> nth=1")
        tab.wait_for_function("document.querySelector('.word.now')?.textContent === 'mourning.'")
        tab.evaluate("document.querySelector('audio').pause()")
        tab.check("#edit")
        tab.fill(".word >> nth=1", "morning.")
        tab.fill(".speaker >> nth=0", "anna")
        saved = {form: _saved(tab, form, tmp_path) for form in ("json", "txt", "srt", "vtt")}
    document = json.loads(saved["json"])
    assert document["speakers"] == ["anna", "speaker2"]
    assert [word["speaker"] for word in document["words"]] == ["anna", "anna", "speaker2", "anna"]
    assert document["words"][1] == {"text": "morning.", "start": 1.0, "end": 1.5, "speaker": "anna"}
    assert document["words"][0]["confidence"] == 0.9
    assert saved["txt"].startswith("anna: Good morning.\nspeaker2: ")
    assert saved["srt"].startswith("1\n00:00:00,500 --> 00:00:01,500\nanna: Good morning.\n\n2\n")
    assert "<v anna>Good morning.\n" in saved["vtt"]


@pytest.mark.slow
def test_one_turn_is_given_to_another_speaker(page: Path, tmp_path: Path) -> None:
    with _tab(page) as tab:
        assert not tab.is_visible(".who >> nth=2")
        tab.check("#edit")
        tab.fill(".speaker >> nth=1", "ben")
        tab.select_option(".who >> nth=2", label="ben")
        tab.select_option(".who >> nth=0", label="another")
        tab.fill(".speaker >> nth=0", "carla")
        document = json.loads(_saved(tab, "json", tmp_path))
        assert "carla: Good" in _saved(tab, "srt", tmp_path)
        assert (
            tab.locator(".paragraph").evaluate_all("all => new Set(all.map((one) => one.style.borderColor)).size") == 2
        )
    assert [word["speaker"] for word in document["words"]] == ["carla", "carla", "ben", "ben"]
    assert document["speakers"] == ["carla", "ben"]


@pytest.mark.slow
def test_the_page_saves_the_captions_that_the_command_writes(page: Path, tmp_path: Path) -> None:
    text = "Well. Yes. I have thought about the very long way that we came. No. OK. We will have to see it then. Mhm."
    said = [TimedWord(one, 0.25 * at, 0.25 * at + 0.2, speaker="anna") for at, one in enumerate(text.split())]
    said = sorted([*said, *WORDS, TimedWord("mhm", 2.2, 2.4, speaker="ben")], key=lambda word: word.start)
    transcription = Transcription(said, 6.0, "en")
    write_transcript_page(page, tmp_path / "talk.flac", transcription)
    with _tab(page) as tab:
        for form in ("srt", "vtt"):
            assert _saved(tab, form, tmp_path) == format_transcription(transcription, "talk", f".{form}")


def _saved(tab: Any, form: str, folder: Path) -> str:
    with tab.expect_download() as download:
        tab.click(f"button[data-form={form}]")
    assert download.value.suggested_filename == f"talk.{form}"
    download.value.save_as(folder / f"saved.{form}")
    return (folder / f"saved.{form}").read_text(encoding="utf-8")
