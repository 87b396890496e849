"""The page in a browser: speaking, recording with a microphone, and adding a voice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import STAND_IN, Server, recording

sync_api = pytest.importorskip("playwright.sync_api", reason="needs a browser's driver: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium"),
]


def test_a_key_opens_the_page_and_its_links(tmp_path: Path) -> None:
    with Server(str(STAND_IN), str(tmp_path), "key=secret") as server, sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context().new_page()
        page.goto(server.url)
        page.fill("#key", "wrong")
        page.click("#unlock button")
        sync_api.expect(page.locator("#refused")).to_contain_text("not valid")
        page.fill("#key", "secret")
        page.click("#unlock button")
        page.wait_for_selector("#voice option:not([data-once])", state="attached")
        page.select_option("#voice", index=0)
        speak(page, "Good morning.")
        with page.context.expect_page() as opened:
            page.click("a[href='v1/models']")
        opened.value.wait_for_url("blob:**")
        sync_api.expect(opened.value.locator("body")).to_contain_text('"object"')
        browser.close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """The page of a model that clones, in a browser whose microphone gives beeps. Fails on errors in the console."""
    said: list[str] = []
    with Server(str(STAND_IN), str(tmp_path)) as server, sync_api.sync_playwright() as driver:
        microphone = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *microphone])
        opened = browser.new_context(permissions=["microphone"]).new_page()
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.goto(server.url)
        opened.wait_for_selector("#voice option:not([data-once])", state="attached")
        yield opened
        browser.close()
    assert said == []


def record(page: Any, name: str) -> None:
    button = page.locator(f"button.record[data-for={name}]")
    button.click()
    sync_api.expect(button).to_have_text("Stop recording")
    page.wait_for_timeout(1500)
    button.click()
    sync_api.expect(page.locator(f"#{name}-hint")).to_have_text("Recorded.")


def speak(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.click("#go")
    sync_api.expect(page.locator("#status")).to_have_text("Done.", timeout=60_000)
    sync_api.expect(page.locator("#timing")).to_contain_text(f"{len(text) / 10:.1f} s of speech")


def test_a_text_is_spoken(page: Any) -> None:
    speak(page, "Good morning.")
    page.wait_for_timeout(500)
    assert page.evaluate("document.getElementById('player').duration") == pytest.approx(1.3, abs=0.01)
    assert page.get_attribute("#save", "href").startswith("blob:")


def test_what_the_server_warns_of_is_shown(page: Any) -> None:
    def warn(route: Any) -> None:
        answer = route.fetch()
        warning = '299 phonate "left out: 2 Chinese characters", 299 phonate "too fast"'
        route.fulfill(response=answer, headers={**answer.headers, "Warning": warning})

    page.route("**/v1/audio/speech", warn)
    page.fill("#text", "Hello.")
    page.click("#go")
    sync_api.expect(page.locator("#status")).to_have_text(
        "Done, but: left out: 2 Chinese characters; too fast", timeout=60_000
    )


def test_a_recorded_voice_speaks_once(page: Any) -> None:
    page.select_option("#voice", "")
    page.fill("#text", "Hello.")
    page.click("#go")
    sync_api.expect(page.locator("#error")).to_have_text("Choose or record the voice first.")
    record(page, "once-audio")
    page.click("#go")
    sync_api.expect(page.locator("#error")).to_have_text("Type the name of the person who is heard first.")
    page.fill("#once-speaker", "Zoë Example")
    sync_api.expect(page.locator("#once-sentence")).to_contain_text("I, Zoë Example, agree")
    page.click("#go")
    sync_api.expect(page.locator("#error")).to_have_text("Choose or record the consent sentence first.")
    record(page, "once-spoken")
    page.click("#go")
    sync_api.expect(page.locator("#error")).to_have_text("Tick the consent box first.")
    page.check("#once-agreed")
    speak(page, "Hello.")


def test_a_voice_is_added_with_consent_used_and_deleted(page: Any) -> None:
    page.fill("#name", "zoe")
    page.fill("#speaker", "Zoë Example")
    sync_api.expect(page.locator("#sentence")).to_contain_text("I, Zoë Example, agree")
    record(page, "reference")
    record(page, "spoken")
    page.check("#agreed")
    page.click("#add button:not([type=button])")
    sync_api.expect(page.locator("#add-status")).to_have_text("The voice zoe can be used now.", timeout=30_000)
    sync_api.expect(page.locator("#voice")).to_have_value("zoe")
    speak(page, "Hello.")
    page.click("#voices-list button")
    sync_api.expect(page.locator("#stored")).to_be_hidden()
    assert page.locator("#voice option[value=zoe]").count() == 0


def test_of_a_recording_and_a_chosen_file_the_later_is_sent(page: Any, tmp_path: Path) -> None:
    sound = tmp_path / "chosen.wav"
    sound.write_bytes(b"RIFF")
    page.select_option("#voice", "")
    page.fill("#text", "Hello.")
    hint, button = page.locator("#once-audio-hint"), page.locator("button.record[data-for=once-audio]")
    advice = hint.text_content()
    sizes = "() => [document.getElementById('once-audio').files.length, soundOf('once-audio').size === 4]"
    page.set_input_files("#once-audio", sound)
    record(page, "once-audio")
    assert page.evaluate(sizes) == [0, False]
    page.set_input_files("#once-audio", sound)
    sync_api.expect(hint).to_have_text(advice)
    assert page.evaluate(sizes) == [1, True]
    button.click()
    sync_api.expect(button).to_have_text("Stop recording")
    page.click("#go")
    sync_api.expect(page.locator("#error")).to_have_text("Stop the recording first.")


def test_two_clicks_ask_for_the_microphone_once(page: Any) -> None:
    page.evaluate("""() => {
      const devices = navigator.mediaDevices, ask = devices.getUserMedia.bind(devices);
      window.asked = 0;
      devices.getUserMedia = wanted => { window.asked++; return ask(wanted); };
    }""")
    page.select_option("#voice", "")
    button = page.locator("button.record[data-for=once-audio]")
    button.evaluate("one => { one.click(); one.click(); }")
    sync_api.expect(button).to_have_text("Stop recording")
    assert page.evaluate("() => window.asked") == 1


@pytest.mark.parametrize("diarizer", ["", "diarizer"])
def test_a_recording_is_transcribed_with_times_and_saved(tmp_path: Path, diarizer: str) -> None:
    (sound := tmp_path / "talk.wav").write_bytes(recording(seconds=2.0))
    words = ["hears=whisper", f"diarizer={diarizer}"]
    with Server(str(STAND_IN), str(tmp_path), *words) as server, sync_api.sync_playwright() as driver:
        assert f"serving stand-in, whisper{', diarizer' if diarizer else ''} at" in "".join(server.lines)
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(server.url)
        page.click("#read")
        sync_api.expect(page.locator("#transcribe-error")).to_have_text("Choose or record something first.")
        page.set_input_files("#heard", str(sound))
        page.click("#read")
        sync_api.expect(page.locator("#transcribed")).to_be_visible(timeout=60_000)
        first, second = ("speaker1: ", "speaker2: ") if diarizer else ("", "")
        lines = f"00:00:00  {first}Good morning.\n00:00:01  {second}Hello Ben.\n"
        assert page.locator("#transcript").text_content() == lines
        texts = {}
        for name in ("save-txt", "save-srt"):
            with page.expect_download() as download:
                page.click(f"#{name}")
            texts[download.value.suggested_filename] = download.value.path().read_text()
        browser.close()
    assert texts["transcript.txt"] == lines
    assert texts["transcript.srt"].startswith("1\n00:00:00,")
    assert texts["transcript.srt"].count(" --> ") == 2
