"""Evaluation of cloned voices, on real recordings of Arabic speakers."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloning_runs import settings, write_all
from higgs import small_model_folder
from higgs_codec import small_codec_folder
from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[cloning]'", allow_module_level=True)

from phonate.audio.decoding import resample
from phonate.cli import main
from phonate.evaluation.words import plain
from phonate.tasks.cloning import evaluation
from phonate.tasks.cloning.evaluation import writing_system
from phonate.workflows.train import train


def test_scripts() -> None:
    assert writing_system("هذا انت بيتي, ok") == "ARABIC"
    assert writing_system("Grüße, 12") == "LATIN"
    assert writing_system("12 !") == ""


def pairs(corpus: Path, speakers: int, each: int) -> list[dict[str, Any]]:
    """Rows of the first speakers, with absolute paths."""
    rows = json.loads((corpus / "chatml.json").read_text(encoding="utf-8"))
    by_speaker: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for message in row["messages"]:
            for part in message["content"] if isinstance(message["content"], list) else []:
                if part["type"] == "audio":
                    part["audio_url"] = str(corpus / part["audio_url"])
        by_speaker[row["speaker"]].append(row)
    return [row for own in list(by_speaker.values())[:speakers] for row in own[:each]]


SAID = "The quick, brown fox."
HEARD = {"natural": "the quick brown fox", "copy by the codec": "the quick brown fax", "cloned": "a quick fox"}
"""What the stand-in of a recogniser hears, system by system."""
ERRORS = {"natural": (0.0, 0.0), "copy by the codec": (1 / 19, 1 / 4), "cloned": (9 / 19, 2 / 4)}
"""CER and WER of that: edits by hand, of 19 characters and 4 words."""


class Timbre:
    """Stands in for the judge of speakers: a voice is its mean spectrum."""

    def embed(self, waveform: np.ndarray, rate: int, name: str = "") -> np.ndarray:
        samples = resample(waveform, rate, 16_000)
        spectrum = np.abs(np.fft.rfft(samples[: len(samples) // 400 * 400].reshape(-1, 400))).mean(0)
        return (spectrum / np.linalg.norm(spectrum)).astype(np.float32)


class Listener:
    """Stands in for the recogniser: hears HEARD, each text for as many recordings as there are pairs."""

    name, language = "stand-in", "en"

    def __init__(self, pairs: int) -> None:
        self._texts = [text for text in HEARD.values() for _ in range(pairs)]

    def transcribe(self, waveform: np.ndarray, rate: int) -> str:
        assert len(waveform) > 0
        return self._texts.pop(0)


@pytest.fixture
def merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A merged model, and beside it `chatml.json` with 8 pairs, in all of which SAID is said."""
    write_all(tmp_path)
    rows = json.loads((tmp_path / "chatml.json").read_text(encoding="utf-8"))
    for row in rows:
        row["messages"][1]["content"][2]["text"] = row["messages"][2]["content"][0]["text"] = SAID
    (tmp_path / "chatml.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "model" / "cloning.json").write_text(json.dumps({"codec": str(tmp_path / "codec")}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(evaluation, "SpeakerEncoder", lambda device: Timbre())
    monkeypatch.setattr(evaluation, "_recogniser", lambda script, pairs, cloner: Listener(len(pairs)))
    return tmp_path / "model"


def test_errors_of_a_merged_model_are_those_of_what_was_heard(
    merged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(tmp_path / "chatml.json")]
    assert main(["evaluate", str(merged), *data, "--dtype", "fp32", "--json", "-o", str(tmp_path / "found")]) == 0
    found = json.loads(capsys.readouterr().out)
    for system, (cer, wer) in ERRORS.items():
        assert found["systems"][system]["cer"] == pytest.approx(cer)
        assert found["systems"][system]["wer"] == pytest.approx(wer)
    assert len(found["items"]) == found["notes"]["pairs"] == 8
    assert "recordings_trained_on" not in found["notes"]  # a merged model does not know
    for item in found["items"].values():
        assert (item["reference"], item["heard"]) == (SAID, HEARD["cloned"])
        assert item["cer"] == pytest.approx(9 / 19)
    assert found["systems"]["natural"]["likeness"] > found["systems"]["another speaker"]["likeness"]
    assert json.loads((tmp_path / "found" / "evaluation.json").read_text(encoding="utf-8")) == found
    assert len(list((tmp_path / "found" / "samples").glob("*.flac"))) == 4 * 4
    assert not (merged / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MERGED"], "a merged model has no pairs kept for validation; give pairs with --data"),
        (["MERGED", "--vocoder", "griffin_lim"], "--vocoder: the task cloning has no use for it"),
        (["nobody/higgs", "--data", "chatml.json"], "a name on the hub needs --output, too"),
    ],
)
def test_what_can_not_be_evaluated_is_refused(
    merged: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *(str(merged) if one == "MERGED" else one for one in arguments)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_cloned_voices_stand_between_floor_and_ceiling(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "MOST_PAIRS", 4)  # the multilingual recogniser is slow with noise
    path = tmp_path / "chatml.json"
    path.write_text(json.dumps(pairs(recordings / "voice_ar_commands", 4, 2), ensure_ascii=False), encoding="utf-8")
    small_model_folder(tmp_path / "model")
    small_codec_folder(tmp_path / "codec")
    changes = {"training.max_steps": 2, "training.validation.interval": 2, "data.max_length": 1024}
    changes |= {"data.path": str(path), "data.max_seconds": 10}
    train("voice-cloning", settings(tmp_path, **changes), output=tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    systems = found["systems"]
    assert list(systems) == ["another speaker", "natural", "copy by the codec", "cloned"]
    assert systems["natural"]["likeness"] > 0.8
    assert abs(systems["another speaker"]["likeness"]) < 0.4
    assert systems["natural"]["accepted"] > systems["another speaker"]["accepted"]
    assert systems["cloned"]["likeness"] < systems["natural"]["likeness"]  # the model is not trained
    assert systems["natural"]["seconds"] == 1.0
    if "cer" in systems["natural"]:  # with the multilingual recogniser
        assert systems["natural"]["cer"] < systems["cloned"]["cer"]
        jiwer = pytest.importorskip("jiwer")
        for item in found["items"].values():
            assert item["cer"] == pytest.approx(jiwer.cer(plain(item["reference"]), plain(item["heard"])))
    (language,) = found["notes"]["languages"].values()
    assert language["calibration"]["same"] > language["calibration"]["threshold"] > language["calibration"]["other"]
    assert found["notes"]["pairs"] == 4 > found["notes"]["recordings_trained_on"] == 2  # the others validated
    assert len(found["items"]) == 4
    assert (tmp_path / "run" / "evaluation.json").is_file()
    assert main(["report", str(tmp_path / "run")]) == 0
