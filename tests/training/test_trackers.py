"""MLflow and Trackio, each read back by its own program. Skipped where it is not installed."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import soundfile

from phonate.config.errors import InputError, MissingPackageError
from phonate.training.settings import LoggingSettings
from phonate.training.task import Picture, Sound
from phonate.training.trackers import build_stream, check_trackers
from phonate.training.tracking import MetricStream

RECIPE = {"task": "speech", "training": {"optimizer": {"lr": 1e-3}, "max_steps": 20}, "notes": "x" * 7000}


def stream(run: Path, resume_step: int | None = None, **trackers: bool) -> MetricStream:
    settings = LoggingSettings(tensorboard=False, system=False, verbosity="quiet", log_model=True, **trackers)
    return build_stream(settings, run, {}, 20, resume_step, hyperparameters=RECIPE)


def train_twice(run: Path, **trackers: bool) -> None:
    """What a run reports that stops after step 2 and is resumed."""
    first = stream(run, **trackers)
    first.emit(1, "train", {"loss": 2.0, "odd (name)": 1.0}, epoch=0)
    first.emit(2, "val", {"loss": math.nan}, epoch=0)
    first.media(2, {"said": Sound(np.full(800, 0.25, np.float32), 8000), "mel": Picture(np.eye(4, 8))})
    (run / "step-00000002").mkdir()
    (run / "step-00000002" / "weights.safetensors").write_bytes(b"weights")
    first.artifact(run / "step-00000002")
    first.close()
    second = stream(run, 2, **trackers)
    second.emit(3, "train", {"loss": 1.0}, epoch=1)
    second.close()


@pytest.mark.slow
def test_mlflow_has_the_curves_of_a_run_and_of_its_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy", reason="MLflow's light client has no store of its own")
    monkeypatch.chdir(tmp_path)
    address = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    run = tmp_path / "night"
    train_twice(run, mlflow=True)
    client = mlflow.MlflowClient(address)
    (found,) = client.search_runs([client.get_experiment_by_name("phonate").experiment_id])
    curve = client.get_metric_history(found.info.run_id, "train/loss")
    assert sorted((point.step, point.value) for point in curve) == [(1, 2.0), (3, 1.0)]
    assert found.data.metrics["train/odd _name_"] == 1.0
    assert math.isnan(found.data.metrics["val/loss"])
    assert found.data.params["training.optimizer.lr"] == "0.001"
    assert (found.info.run_name, found.info.status) == ("night", "FINISHED")
    previews = {item.path for item in client.list_artifacts(found.info.run_id, "previews/step-00000002")}
    assert previews == {"previews/step-00000002/said.flac", "previews/step-00000002/mel.png"}
    saved = client.list_artifacts(found.info.run_id, "checkpoints/step-00000002")
    assert [item.path for item in saved] == ["checkpoints/step-00000002/weights.safetensors"]


@pytest.mark.slow
def test_an_address_of_mlflow_where_nobody_answers_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI") as refused:
        stream(tmp_path / "night", mlflow=True)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_trackio_has_the_curves_of_a_run_and_of_its_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trackio")
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio", raising=False)
    for module in ("trackio.utils", "trackio.media.media"):
        monkeypatch.setattr(f"{module}.MEDIA_DIR", tmp_path / "trackio" / "media")
    train_twice(tmp_path / "night", trackio=True)
    (database,) = (tmp_path / "trackio").rglob("*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert len({name for name, _, _ in rows}) == 1
    assert rows[0][0].startswith("night-")
    losses = [(step, json.loads(text)["train/loss"]) for _, step, text in rows if "train/loss" in json.loads(text)]
    assert losses == [(1, 2.0), (3, 1.0)]
    (sound,) = (tmp_path / "trackio").rglob("*.wav")
    assert soundfile.read(sound)[0].max() == pytest.approx(0.25, abs=1e-4)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["mlflow", "trackio"])
def test_a_tracker_that_is_not_installed_is_named_before_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(MissingPackageError, match=rf"training\.logging\.{name} .*pip install {name}"):
        check_trackers(LoggingSettings(**{name: True}))
