"""A voice trained on real recordings in a process of its own, as W&B sees it: read back from its offline file."""

from __future__ import annotations

from pathlib import Path

import pytest

import phonate_process
from phonate.cli import main
from wandb_files import history, offline_file, records

pytestmark = pytest.mark.slow

TERMS = ("total", "mel", "duration", "stop")
SHORT = [
    "data.limit=8",
    "data.validation=0.2",
    "data.audio.max_seconds=7",
    "training.max_steps=20",
    "training.batch_size=2",
    "training.scheduler.warmup_steps=2",
    "training.validation={interval: 5 epochs, previews: false}",
    "training.logging.wandb=true",
]


@pytest.fixture(scope="module")
def voice(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments that name the corpus."""
    pytest.importorskip("wandb", reason="pip install 'phonate[wandb]'")
    cache = tmp_path_factory.mktemp("cache")
    return [f"data.path={recordings / 'tts_en_lj'}", f"data.cache_dir={cache}"]


def trained(recipe: str, output: Path, *overrides: str) -> Path:
    done = phonate_process.run("train", recipe, *SHORT, *overrides, "--device", "cpu", "--output", output)
    assert done.returncode == 0, done.stderr[-2000:]
    return offline_file(output)


@pytest.fixture(scope="module")
def tracked(voice: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an autoregressive run."""
    run = tmp_path_factory.mktemp("runs") / "autoregressive"
    trained(
        "speech-autoregressive",
        run,
        *voice,
        "size=tiny",
        "model.width=32",
        "model.heads=2",
        "model.feed_forward=64",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "model.postnet_channels=0",
        "training.checkpoint={interval: 5 epochs, save_total_limit: 1}",
        "training.logging.log_model=true",
        "training.logging.wandb_name=first",
        "training.logging.wandb_tags=[tiny, try]",
    )
    return run


def test_every_ten_batches_wandb_gets_the_documented_names(tracked: Path) -> None:
    rows = history(offline_file(tracked))
    lines = [row for row in rows if "train/batch_total_loss" in row]
    assert [row["step"] for row in lines] == [10, 20]
    wanted = {f"train/batch_{term}_loss" for term in TERMS} | {"train/learning_rate", "train/throughput"}
    wanted |= {"memory/pressure", "memory/cleanup_count", "memory/cleanup_overhead_percent"}
    wanted |= {"system/memory_gb", "system/cpu_percent"}
    for row in lines:
        assert wanted <= row.keys()
        assert row["memory/pressure"] in {0, 1, 2, 3}
        assert row["train/throughput"] > 0
    assert lines[0]["train/learning_rate"] > lines[1]["train/learning_rate"] > 0


def test_every_epoch_has_its_summary(tracked: Path) -> None:
    epochs = [row for row in history(offline_file(tracked)) if "train/epoch_total_loss" in row]
    assert len(epochs) > 3
    assert [row["epoch"] for row in epochs] == list(range(1, len(epochs) + 1))
    assert all({f"train/epoch_{term}_loss" for term in TERMS} <= row.keys() for row in epochs)
    assert epochs[-1]["train/epoch_mel_loss"] < epochs[0]["train/epoch_mel_loss"]


def test_the_recipe_and_the_checkpoints_are_with_it(tracked: Path) -> None:
    found = list(records(offline_file(tracked)))
    (run,) = (one.run for one in found if one.WhichOneof("record_type") == "run")
    assert (run.display_name, list(run.tags)) == ("first", ["tiny", "try"])
    assert {"task", "data", "model", "training"} <= {update.key for update in run.config.update}
    artifacts = [one.artifact for one in found if one.WhichOneof("record_type") == "artifact"]
    assert {"first-checkpoint"} == {one.name for one in artifacts}
    assert "latest" in artifacts[-1].aliases
    held = {entry.path for entry in artifacts[-1].manifest.contents}
    assert {"weights.safetensors", "state.safetensors", "recipe.yaml", "manifest.json"} <= held


def test_with_a_discriminator_too_there_is_one_learning_rate(voice: list[str], tmp_path: Path) -> None:
    path = trained(
        "speech",
        tmp_path / "parallel",
        *voice,
        "size=tiny",
        "model.width=32",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "model.discriminator_channels=2",
        "data.judged=0",
        "training.adversarial_start=5",
        "training.max_steps=10",
        "training.validation={metric_for_best_model: val_loss, greater_is_better: false}",
        "training.ema=null",
    )
    (row,) = (row for row in history(path) if "train/batch_total_loss" in row)
    assert {"train/batch_mel_loss", "train/batch_duration_loss", "train/learning_rate"} <= row.keys()


def test_a_voice_speaks_without_its_vocoder_where_it_is_told_to(
    tracked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ["speak", str(tracked), "Hello.", "-o", str(tmp_path / "a.wav")]
    assert main([*plain, "--vocoder", "griffin_lim", "--device", "cpu"]) == 0
    assert main([*plain, "--device", "cuda:7"]) == 2
    assert "cuda:7 does not exist" in capsys.readouterr().err
