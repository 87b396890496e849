"""The page of a diarization in a browser: clicks play from there, and the cursor follows."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from phonate.data.annotations import SpeakerTurn

sync_api = pytest.importorskip("playwright.sync_api", reason="needs a browser's driver: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium"),
]
SECONDS = 330.0
"""More than a row of the timeline."""


def test_clicks_play_from_there_and_the_cursor_follows(tmp_path: Path) -> None:
    from phonate.tasks.diarization.inference import Diarization
    from phonate.workflows.pages.recordings import write_diarization_page

    noise = 0.05 * np.random.default_rng(0).normal(size=int(SECONDS * 16_000))
    soundfile.write(tmp_path / "talk.flac", noise, 16_000)
    turns = [SpeakerTurn(2.0, 100.0, "ann"), SpeakerTurn(90.0, 320.5, "bob")]
    found = Diarization(turns, ["ann", "bob"], np.zeros((0, 2), np.float32), 10.0, SECONDS)
    path = write_diarization_page(tmp_path / "talk.html", tmp_path / "talk.flac", found)
    said: list[str] = []
    with sync_api.sync_playwright() as driver:
        autoplay = "--autoplay-policy=no-user-gesture-required"
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", autoplay])
        tab = browser.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.goto(path.as_uri())
        tab.wait_for_function("document.querySelector('audio').readyState > 0")
        first, second = tab.locator(".lanes").all()
        box = first.bounding_box()
        assert box is not None
        first.click(position={"x": box["width"] / 2, "y": box["height"] / 4})
        tab.wait_for_function("!audio.paused && audio.currentTime > 150.2")
        assert 150.2 < tab.evaluate("audio.currentTime") < 170.0
        before = float(first.locator(".now").get_attribute("x1") or "nan")
        tab.wait_for_function(f"Number(rows[0].querySelector('.now').getAttribute('x1')) > {before} + 0.2")
        assert second.locator(".now").evaluate("line => line.style.visibility") == "hidden"
        tab.locator("summary").click()
        tab.locator("button.go").nth(1).click()
        tab.wait_for_function("audio.currentTime > 90.1 && audio.currentTime < 110")
        tab.evaluate("audio.pause(); audio.currentTime = 310")
        tab.wait_for_function("rows[1].querySelector('.now').style.visibility === 'visible'")
        assert float(second.locator(".now").get_attribute("x1") or "nan") == pytest.approx(10.0, abs=0.1)
        browser.close()
    assert said == []
