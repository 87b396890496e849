"""A step of a run again: the same loss to the bit, and what was in its batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from phonate.cli import main
from phonate.config.errors import InputError, TrainingError
from phonate.tasks.sequence.task import SequenceTask
from phonate.workflows.replay import replay
from phonate.workflows.train import train


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "size": "tiny",
        "data.path": str(folder / "rows.jsonl"),
        "training.batch_size": 4,
        "training.gradient_accumulation_steps": 2,
        "training.max_steps": 12,
        "training.scheduler": {"type": "plateau", "patience": 0, "warmup_steps": 2},
        "training.ema.decay": 0.9,
        "training.checkpoint": {"interval": 5, "save_total_limit": 9},
        "training.validation": {"interval": 3, "previews": False},
        "training.logging": {"interval": 1, "tensorboard": False, "system": False, "verbosity": "quiet"},
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    rows = [json.dumps({"source": f"{n} one two", "target": f"two one {n}"}) for n in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    train("sequence", settings(folder), output=folder / "run")
    return folder


def logged(run: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if row["split"] == "train"}


@pytest.mark.parametrize("step", [1, 4, 9])
def test_the_loss_is_the_same_to_the_bit_and_the_run_is_untouched(folder, step):
    run = folder / "run"
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    replayed = replay(run, step)
    assert replayed.losses["loss"] == logged(run)[step]
    saved = max((int(path.name[5:]) for path in run.glob("checkpoints/step-*") if int(path.name[5:]) < step), default=0)
    assert replayed.checkpoint == (run / f"checkpoints/step-{saved:08d}" if saved else None)
    assert replayed.compared == list(range(saved + 1, step + 1))
    assert not replayed.differing
    assert len(replayed.samples) == 8
    assert [one.micro_batch for one in replayed.samples] == [0] * 4 + [1] * 4
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_samples_have_their_texts_and_their_loss(folder):
    replayed = replay(folder / "run", 2)
    rows = (folder / "rows.jsonl").read_text().splitlines()
    for one in replayed.samples:
        row = json.loads(rows[int(one.id.rpartition(":")[2]) - 1])
        assert one.preview.text == f"{row['source']}\n{row['target']}"
        assert one.loss is not None
    alone = [one.loss or 0.0 for one in replayed.samples]
    assert replayed.losses["loss"] == pytest.approx(sum(alone) / len(alone), rel=0.1), "with dropout"


def test_a_log_that_is_another_is_said(folder, tmp_path, capsys):
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "recipe.yaml").write_text((folder / "run/recipe.yaml").read_text())
    rows = (folder / "run/metrics.jsonl").read_text().splitlines()
    rows = [row.replace('"loss": ', '"loss": 1') if '"step": 2' in row else row for row in rows]
    (copy / "metrics.jsonl").write_text("\n".join(rows))
    assert main(["replay", str(copy), "--step", "3"]) == 0
    said = capsys.readouterr().out
    assert "NOT the same: the loss at step 2 was 1" in said
    assert "sample" in said


def test_a_loss_that_is_not_finite_is_replayed_with_its_batch(folder, monkeypatch, capsys):
    loss = SequenceTask.loss

    def bad(self, model, batch, phase):
        terms = loss(self, model, batch, phase)
        wrong = float("nan") if self.step == 6 and torch.is_grad_enabled() else 1.0
        return {name: (total * wrong, count) for name, (total, count) in terms.items()}

    monkeypatch.setattr(SequenceTask, "loss", bad)
    with pytest.raises(TrainingError, match="loss is nan at step 7") as error:
        train("sequence", settings(folder), output=folder / "bad")
    replayed = replay(folder / "bad", 7)
    assert "loss is nan at step 7" in str(replayed.problems[0])
    assert all(one.id in str(error.value) for one in replayed.samples[:4]), "the first micro-batch"
    assert replayed.losses["loss"] != replayed.losses["loss"]


def test_what_can_not_be_replayed_is_one_line(folder, tmp_path):
    with pytest.raises(InputError, match="the run has 12"):
        replay(folder / "run", 13)
    with pytest.raises(InputError, match="counted from 1"):
        replay(folder / "run", 0)
    with pytest.raises(InputError, match=r"it has no recipe\.yaml"):
        replay(tmp_path, 1)


def test_a_step_before_a_resume_has_the_settings_of_then(folder, tmp_path):
    run = tmp_path / "run"
    train("sequence", settings(folder, **{"training.max_steps": 12}), output=run)
    again = {"training.max_steps": 18, "training.batch_size": 3}
    train("sequence", settings(folder, **again), output=run, resume="auto")
    for step, samples in ((8, 8), (14, 6)):
        replayed = replay(run, step)
        assert replayed.losses["loss"] == logged(run)[step]
        assert len(replayed.samples) == samples


def test_sounds_are_written(folder, tmp_path, monkeypatch):
    import numpy as np

    from phonate.data.batches import SamplePreview
    from phonate.tasks.sequence.data import SequenceDataset

    sound = SamplePreview("a", "b", np.full(2000, 0.5, dtype=np.float32), 8000)
    monkeypatch.setattr(SequenceDataset, "preview", lambda self, index, rng: sound)
    replay(folder / "run", 1).save(tmp_path / "heard")
    written = sorted((tmp_path / "heard").glob("*.wav"))
    assert len(written) == 8
    assert soundfile.info(str(written[0])).samplerate == 8000
    table = json.loads((tmp_path / "heard/samples.json").read_text())
    assert table["samples"][0]["seconds"] == 0.25
