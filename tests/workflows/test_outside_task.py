"""A task from another package has session, report, export, evaluation and inference without a change in this one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phonate
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.config.registry import load_plugin
from phonate.config.tasks import TASKS
from phonate.training.inference import Inference

RECIPE = """
task: loudness
data: {{path: {corpus}, cache_dir: {cache}, validation: 0.2}}
training:
  max_steps: 60
  batch_size: 4
  optimizer: {{lr: 0.05}}
  validation: {{interval: 30}}
  checkpoint: {{interval: 30}}
  logging: {{tensorboard: false}}
"""


@pytest.fixture(scope="module", autouse=True)
def _plugged_in() -> Iterator[None]:
    load_plugin(Path(__file__).with_name("outside_task.py"))
    yield
    TASKS._registered.pop("loudness")  # other tests list the tasks


@pytest.fixture(scope="module")
def run(tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    recipe = folder / "loudness.yaml"
    recipe.write_text(RECIPE.format(corpus=tone_corpus, cache=folder / "cache"))
    assert main(["train", str(recipe), "--output", str(folder / "run"), "--device", "cpu"]) == 0
    return folder / "run"


def test_it_is_loaded_and_used(run: Path, tone_corpus: Path) -> None:
    meter: Any = phonate.load(run, device="cpu")
    assert isinstance(meter, Inference)
    assert type(meter).__name__ == "LoudnessMeter"
    assert type(phonate.load(run, "loudness")) is type(meter)
    assert meter.distance(tone_corpus / "anna" / "00.wav") < meter.distance(np.zeros(20000, np.float32))


def test_it_is_evaluated_and_its_report_has_its_facts(
    run: Path, tone_corpus: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["systems"]["profile"]["distance"] < 0.2
    assert figures["notes"]["clips"] == 4
    assert main(["evaluate", str(run), "--data", str(tone_corpus), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["notes"]["clips"] == 18
    assert f"{run / 'evaluation.json'}: replaced that of an earlier evaluation; another --output " in printed.err
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Measured voices" in page
    assert "anna, ben, cleo" in page
    assert "distance" in page


def test_it_is_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "profile.txt"
    assert main(["checkpoints", "export", str(run), "--format", "txt", "-o", str(target)]) == 0
    assert len(np.loadtxt(target)) == 80
    assert main(["checkpoints", "export", str(run), "--format", "onnx", "-o", str(tmp_path / "x")]) == 2
    assert "--format onnx: the task loudness does not have it; there is only 'txt'" in capsys.readouterr().err


def test_an_option_that_it_does_not_declare_is_refused(run: Path) -> None:
    with pytest.raises(InputError, match="vocoder=: the task loudness "):
        phonate.load(run, vocoder="griffin_lim")


def test_a_session_trains_it(tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = RECIPE.format(corpus=tone_corpus, cache=tmp_path / "cache")
    Path("c.yaml").write_text(f"{text}session: {{rules: {{min_seconds: 0.5, min_quality: 0}}}}\n")
    arguments = ["session", "--voice-data-dir", str(tone_corpus), "--config", "c.yaml", "--output-dir", "out"]
    assert main([*arguments, "--device", "cpu", "--voice-mode", "voice"]) == 0
    saved: Any = phonate.load(tmp_path / "out" / "voice_model")
    assert saved.distance(tone_corpus / "anna" / "00.wav") < 0.2
    logs = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "out").rglob("*.json"))
    assert "wav is 0." in logs
    assert "loudness out/voice_model in.wav" in logs
