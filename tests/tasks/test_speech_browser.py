"""A voice as a page: what is in it, what it refuses, and what it says in a browser, beside what Python says."""

from __future__ import annotations

import base64
import copy
import gzip
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from test_export_runtimes import problems

import phonate
from installed import missing
from phonate.cli import main
from phonate.tasks.speech import export as export_module
from phonate.tasks.speech.inference import Synthesiser
from phonate.text.phonemes import known_mark

if missing("onnxruntime", "onnxscript"):
    pytest.skip("needs onnxruntime, onnxscript: pip install 'phonate[onnx]'", allow_module_level=True)

ROOT = Path(__file__).parents[2]
RUNTIME = Path(os.environ.get("PHONATE_ONNXRUNTIME_WEB", ROOT / "node_modules" / "onnxruntime-web"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUESTION = "Did she sell the boat? Wait... what: a boat (the yellow one)!\n\nYes; she did - or did she not?"
TEXT = "The kettle began to whistle at 3:45 pm. Dr. Smith paid $20 for two cups of tea!"
SAMPLES = """async ([text, options]) => {
  const bytes = new Uint8Array((await window.phonate.speak(text, options)).buffer);
  return btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(""));
}"""

in_a_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium"),
    pytest.mark.skipif(
        not (RUNTIME / "package.json").is_file(),
        reason="needs onnxruntime-web: npm install --no-save onnxruntime-web, or PHONATE_ONNXRUNTIME_WEB=FOLDER",
    ),
]


@pytest.fixture(autouse=True, scope="module")
def _graphs_converted_once() -> Iterator[None]:
    """Files that differ in the precision of their weights share the half minute that torch takes for their graph."""
    known: dict[type, Any] = {}
    convert = export_module._converted

    def converted(graph: Any, *given: Any) -> Any:
        model = known.get(type(graph)) or known.setdefault(type(graph), convert(graph, *given))
        return copy.deepcopy(model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "_converted", converted)
        yield


@pytest.fixture(scope="module")
def voice() -> Synthesiser:
    return phonate.load("base/voice", "speech")


def empty_runtime(folder: Path) -> Path:
    """A folder with the names of the package's files."""
    (folder / "dist").mkdir(parents=True)
    (folder / "package.json").write_text('{"version": "1.2.3"}')
    for name in ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"):
        (folder / "dist" / name).write_text(name)
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page in which nothing computes."""
    folder = tmp_path_factory.mktemp("page")
    page = folder / "out" / "Kathleen & co.html"
    runtime = empty_runtime(folder / "onnxruntime-web")
    assert export("--format", "browser", "-o", page, "--runtime", runtime, "--dtype", "fp16") == 0
    return page


def export(*arguments: str | Path) -> int:
    return main(["checkpoints", "export", "base/voice", *map(str, arguments)])


def packed(text: str, name: str) -> bytes:
    """What is compressed in a page."""
    found = re.search(rf'id="packed-{name}">([^<]+)<', text)
    assert found
    return gzip.decompress(base64.b64decode(found[1]))


def spoken(model: bytes | Path, voice: Synthesiser, sentence: str) -> np.ndarray:
    """The samples that an ONNX file gives for one sentence."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (words,) = voice.sentences(sentence)
    tokens = np.array([voice.inventory.ids(words)])
    given = {"input": tokens, "scales": np.ones(3, dtype=np.float32)}
    if len(voice.speakers) > 1:
        given["sid"] = np.zeros(1, dtype=np.int64)
    if "semitones" in {one.name for one in session.get_inputs()}:
        given["semitones"] = np.zeros((*tokens.shape, 2), dtype=np.float32)
    samples: np.ndarray = session.run(None, given)[0].ravel()
    return samples


def likeness(one: np.ndarray, other: np.ndarray) -> float:
    """Correlation of two waveforms of the same length."""
    assert len(one) == len(other)
    return float(np.corrcoef(one, other)[0, 1])


def distance(voice: Synthesiser, one: np.ndarray, other: np.ndarray) -> float:
    """Between the mels of two sounds of nearly the same length: the mean of the absolute differences."""
    mels = [voice.processor.mel(sound) for sound in (one, other)]
    frames = min(map(len, mels))
    assert max(map(len, mels)) - frames <= 2
    return float(np.abs(mels[0][:frames] - mels[1][:frames]).mean())


@pytest.mark.slow
def test_a_page_is_one_file_that_loads_nothing(page: Path) -> None:
    assert sorted(file.name for file in page.parent.iterdir()) == ["Kathleen & co.html", "MODEL_CARD.md"]
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)="(?!data:)[^"]|url\(|https?://""", text)
    assert packed(text, "runtime") == b"ort-wasm-simd-threaded.wasm"


@pytest.mark.slow
def test_the_card_has_the_figures_of_the_voice(page: Path) -> None:
    card = page.with_name("MODEL_CARD.md").read_text(encoding="utf-8")
    assert "| **base/voice** | 4.0 % |" in card
    assert "Not evaluated" not in card
    assert "| licence | Apache-2.0" in card
    assert "dataset-voice-kathleen" in card
    assert "| sources of the vocoder | " in card
    assert "arabic-speech-commands-dataset (CC BY 4.0)" in card
    assert "| weights | fp16 |" in card
    assert "## Limits" not in card


@pytest.mark.slow
def test_it_tells_what_it_is(page: Path, voice: Synthesiser) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<title>Kathleen &amp; co · phonate</title>" in text
    assert "AI-generated speech" in text
    assert "onnxruntime-web 1.2.3" in text
    settings = re.search(r'id="settings">(.+?)</script>', text)
    assert settings
    assert json.loads(settings[1])["inventory"] == voice.inventory.document()


@pytest.mark.slow
def test_the_model_in_it_speaks(page: Path, voice: Synthesiser, tmp_path: Path) -> None:
    sentence = "The kettle began to whistle."
    model = packed(page.read_text(encoding="utf-8"), "model")
    (tmp_path / "model.onnx").write_bytes(model)
    assert problems(tmp_path / "model.onnx") == []
    sound = spoken(model, voice, sentence)
    assert likeness(sound, voice.speak(sentence)) > 0.9999


@pytest.mark.slow
def test_weights_in_fewer_bits(voice: Synthesiser, tmp_path: Path) -> None:
    files = {dtype: tmp_path / dtype / "model.onnx" for dtype in ("fp32", "fp16", "int8")}
    for dtype, file in files.items():
        assert export("--format", "onnx", "-o", file.parent, "--dtype", dtype) == 0
        assert problems(file) == []
    sizes = {dtype: file.stat().st_size for dtype, file in files.items()}
    assert sizes["int8"] < 0.36 * sizes["fp32"]
    sounds = {dtype: spoken(file, voice, "Hello.") for dtype, file in files.items()}
    assert 0 < distance(voice, sounds["int8"], sounds["fp32"]) < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "browser", "--runtime", "nowhere"], "nowhere: no onnxruntime-web there"),
        (["--format", "browser"], "npm install onnxruntime-web@"),
        (["--format", "onnx", "--runtime", "nowhere"], "--runtime: only for --format browser"),
        (["--dtype", "int8"], "--dtype: only for other formats than weights"),
    ],
)
def test_what_is_missing_or_has_no_effect_is_an_error(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(*arguments, "-o", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_page_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "voice.html").write_text("mine")
    assert export("--format", "browser", "-o", tmp_path, "--runtime", empty_runtime(tmp_path / "web")) == 2
    assert "voice.html: exists already" in capsys.readouterr().err


def test_a_release_with_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runtime = empty_runtime(tmp_path / "web")
    (runtime / "dist" / "ort-wasm-simd-threaded.wasm").unlink()
    assert export("--format", "browser", "-o", tmp_path / "out", "--runtime", runtime) == 2
    assert "onnxruntime-web 1.2.3 has other files" in capsys.readouterr().err


@contextmanager
def in_browser(folder: Path, *options: str) -> Iterator[Any]:
    """The page of the voice, opened as a file. Fails on errors in the console and on anything that it loads."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs a browser's driver: pip install playwright")
    page = folder / "voice.html"
    assert export("--format", "browser", "-o", page, "--runtime", RUNTIME, *options) == 0
    said: list[str] = []
    loaded: list[str] = []
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: loaded.append(request.url))
        tab.goto(page.as_uri())
        tab.wait_for_selector("#go:enabled", timeout=60_000)
        yield tab
        browser.close()
    assert said == []
    assert {address for address in loaded if not address.startswith(("data:", "blob:"))} == {page.as_uri()}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with in_browser(tmp_path_factory.mktemp("browser"), "--dtype", "fp16") as tab:
        yield tab


def samples(page: Any, text: str, **options: float) -> np.ndarray:
    """What the page's voice says."""
    return np.frombuffer(base64.b64decode(page.evaluate(SAMPLES, [text, options])), dtype=np.float32)


class TestOfEightBits:
    # In front of the tests whose page stays open: Playwright drives one browser at a time.
    pytestmark = in_a_browser

    def test_a_page_with_all_defaults_speaks(self, tmp_path: Path, voice: Synthesiser) -> None:
        """Its weights are int8: the sound is nearly that of Python."""
        with in_browser(tmp_path) as tab:
            sound = samples(tab, TEXT)
        assert distance(voice, sound, voice.speak(TEXT)) < 0.1


class TestInABrowser:
    pytestmark = in_a_browser

    def test_phones_are_those_of_python(self, opened: Any, voice: Synthesiser, recordings: Path) -> None:
        lines = (recordings / "text" / "en_ljspeech_sentences.txt").read_text(encoding="utf-8").splitlines()
        for text in [TEXT, *lines[::40]]:
            theirs = opened.evaluate("text => window.phonate.tokens(text)", text)
            known = [
                [replace(word, mark=known_mark(word, {",", "."})) for word in words] for words in voice.sentences(text)
            ]
            assert theirs == [voice.inventory.tokens(words) for words in known], text

    @pytest.mark.parametrize("text", [TEXT, QUESTION])
    def test_its_sound_is_that_of_python(self, text: str, opened: Any, voice: Synthesiser) -> None:
        sound = samples(opened, text)
        assert np.abs(sound).max() == pytest.approx(0.95, abs=1e-3)
        assert likeness(sound, voice.speak(text)) > 0.999

    def test_speed(self, opened: Any, voice: Synthesiser) -> None:
        assert len(samples(opened, TEXT, speed=1.5)) == len(voice.speak(TEXT, speed=1.5))

    def test_what_is_typed_is_played_and_can_be_saved(self, opened: Any, voice: Synthesiser) -> None:
        opened.fill("#text", TEXT)
        opened.click("#go")
        opened.wait_for_selector("#result:not([hidden])", timeout=60_000)
        opened.wait_for_selector("#go:enabled")
        assert "s of speech, made in" in opened.inner_text("#status")
        with opened.expect_download() as download:
            opened.click("#save")
        assert download.value.suggested_filename == "speech.wav"
        sound, rate = soundfile.read(io.BytesIO(download.value.path().read_bytes()), dtype="float32")
        assert rate == voice.sample_rate
        assert likeness(sound, voice.speak(TEXT)) > 0.999
        assert opened.evaluate("document.getElementById('player').duration") == pytest.approx(
            len(sound) / rate, abs=0.01
        )

    def test_nothing_to_say(self, opened: Any) -> None:
        opened.fill("#text", "* * *")
        opened.click("#go")
        opened.wait_for_selector("#error:not(:empty)")
        assert opened.inner_text("#error") == "There is nothing in this text that can be spoken."

    def test_everything_has_a_label(self, opened: Any) -> None:
        for role, name in (("textbox", "Text"), ("slider", "Speed"), ("button", "Speak"), ("link", "Download as WAV")):
            assert opened.get_by_role(role, name=name).count() == 1, name
