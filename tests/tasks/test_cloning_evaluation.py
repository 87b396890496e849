"""Evaluation of cloned voices, on real recordings of Arabic speakers."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from cloning_runs import settings
from higgs import small_model_folder
from higgs_codec import small_codec_folder

pytest.importorskip("transformers", reason="needs transformers: pip install 'phonate[cloning]'")

from phonate.cli import main
from phonate.tasks.cloning.evaluation import script_of
from phonate.workflows.train import train


def test_scripts() -> None:
    assert script_of("هذا انت بيتي, ok") == "ARABIC"
    assert script_of("Grüße, 12") == "LATIN"
    assert script_of("12 !") == ""


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


@pytest.mark.slow
def test_cloned_voices_stand_between_floor_and_ceiling(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    (language,) = found["notes"]["languages"].values()
    assert language["calibration"]["same"] > language["calibration"]["threshold"] > language["calibration"]["other"]
    assert found["notes"]["pairs"] == 8
    assert len(found["items"]) == 8
    assert (tmp_path / "run" / "evaluation.json").is_file()
    assert main(["report", str(tmp_path / "run")]) == 0
