"""What a diarization model reads: the fixed statistics by which features are normalised, and Whisper's features."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

import phonate_process
from meetings import VOICES, tiny_model_of, write_meetings
from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.data.features import FEATURES
from phonate.data.progress import progress_listener
from phonate.tasks.diarization.inference import Diarizer
from phonate.tasks.diarization.model import SpeakerActivityModel
from phonate.tasks.diarization.task import DiarizationTask
from phonate.workflows.train import train
from sounds import SAMPLE_RATE, voiced_tone

STATISTICS = ("normalisation.mean_F", "normalisation.deviation_F")
CAUSAL = {"model.model_type": "decoder", "model.decoder.attention_type": "causal_linear"}
WHISPER = {
    "data.audio.feature_type": "whisper",
    "data.audio.whisper_with_fbank": True,
    "data.audio.num_mel_bins": 40,
    "model.front_end.subsampling": 5,
    "model.front_end.context": 2,
}
needs_whisper = pytest.mark.usefixtures("whisper")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `meetings/`: six meetings of two speakers, 6 s each; `clips/`: three speakers who talk alone; and
    `recipe.yaml` for a small model."""
    folder = tmp_path_factory.mktemp("diarization")
    write_meetings(folder / "meetings")
    for speaker, (pitch, formants) in VOICES.items():
        (folder / "clips" / speaker).mkdir(parents=True)
        for number in range(3):
            sound = np.pad(voiced_tone(1.5, pitch, formants, seed=number), SAMPLE_RATE // 2)
            soundfile.write(folder / "clips" / speaker / f"{number}.wav", sound, SAMPLE_RATE)
    (folder / "recipe.yaml").write_text("task: diarization\nsize: tiny\n")
    return folder


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Overrides for a tiny model."""
    return {
        **tiny_model_of(folder),
        "training.batch_size": 2,
        "training.max_steps": 4,
        "training.logging": {"tensorboard": False, "interval": 1, "system": False},
        "training.validation.interval": 4,
        **changes,
    }


def task_of(folder: Path, **changes: Any) -> DiarizationTask:
    """The task of a recipe."""
    return DiarizationTask(resolve(folder / "recipe.yaml", settings(folder, **changes)).recipe)


def model_of(task: DiarizationTask) -> SpeakerActivityModel:
    """Its model."""
    model = task.model(torch.device("cpu"))
    assert isinstance(model, SpeakerActivityModel)
    return model.eval()


def test_what_a_model_reads_before_it_is_trained_is_shown(folder: Path) -> None:
    """Features of meetings may take minutes."""
    reports: list[tuple[int, int]] = []
    task = task_of(folder)
    _ = task.corpus
    with progress_listener(lambda what, done, total: reports.append((done, total))):
        model_of(task)
    assert reports[0][0] == 1
    assert reports[-1][0] == reports[-1][1] == len(reports)


def test_global_statistics_are_those_of_training_samples(folder: Path) -> None:
    """Those of validation don't count, and whoever asks gets the same bits."""
    task = task_of(folder)
    model = model_of(task)
    samples = task.dataset("train")
    frames_NF = np.concatenate(
        [samples.get(index, np.random.default_rng(0)).features_TF for index in range(len(samples.ids))]
    )
    assert np.abs(model.normalisation.mean_F.numpy() - frames_NF.mean(axis=0)).max() < 0.7
    np.testing.assert_allclose(model.normalisation.deviation_F.numpy(), frames_NF.std(axis=0), rtol=0.3)
    torch.manual_seed(5)
    np.random.seed(5)
    other = model_of(task_of(folder))
    for one, two in zip(model.normalisation.buffers(), other.normalisation.buffers(), strict=True):
        assert torch.equal(one, two)


def test_a_constant_feature_does_not_blow_up(folder: Path) -> None:
    """A value that is the same in all training samples is not divided by its deviation, nearly 0."""
    normalisation = model_of(task_of(folder)).normalisation
    frames_NF = torch.randn(50, 80)
    frames_NF[:, 3] = -15.9
    normalisation.fit(frames_NF)
    x_BTF = torch.zeros(1, 2, 80)
    assert normalisation(x_BTF).abs().max() < 100
    normalisation.fit(frames_NF[:1])
    assert normalisation(x_BTF).isfinite().all()


def test_a_loaded_model_normalises_as_in_training(folder: Path, tmp_path: Path) -> None:
    """The statistics are in the checkpoint; neither loading nor resuming takes them from data that changed."""
    shutil.copytree(folder / "meetings", tmp_path / "meetings")
    changed = {"data.path": str(tmp_path / "meetings")}
    run = tmp_path / "run"
    train(folder / "recipe.yaml", settings(folder, **changed), output=run)
    saved = load_file(run / "checkpoints" / "step-00000002" / "weights.safetensors")
    shutil.rmtree(tmp_path / "meetings")
    shutil.rmtree(folder / "cache")
    loaded = dict(Diarizer.load(run).model.named_buffers())
    for name in STATISTICS:
        assert torch.equal(loaded[name], saved[name])
        assert not torch.equal(loaded[name], torch.zeros_like(saved[name]))


@pytest.mark.slow
def test_statistics_are_the_same_on_all_ranks_and_after_a_resume(folder: Path, tmp_path: Path) -> None:
    """To the bits; also where half of the samples are simulated."""
    simulated = {
        "data.simulation.path": str(folder / "clips"),
        "data.simulation.share": 0.5,
        "data.simulation.speakers": [2, 2],
    }
    found = []
    for ranks in (1, 2):
        run = tmp_path / str(ranks)
        changes = settings(folder, **{**simulated, "data.cache_dir": str(tmp_path / f"cache{ranks}")})
        overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        command = ["train", folder / "recipe.yaml", *overrides, "--mode", "cpu", "--output", run]
        done = phonate_process.run_ranks(ranks, *command)
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(load_file(run / "checkpoints" / "step-00000004" / "weights.safetensors"))
    shutil.rmtree(tmp_path / "1" / "checkpoints" / "step-00000004")
    (tmp_path / "1" / "checkpoints" / "best.json").unlink(missing_ok=True)
    changes = settings(folder, **{**simulated, "data.cache_dir": str(tmp_path / "cache1")})
    train(folder / "recipe.yaml", changes, output=tmp_path / "1", resume="auto")
    resumed = load_file(tmp_path / "1" / "checkpoints" / "step-00000004" / "weights.safetensors")
    for name in STATISTICS:
        assert torch.equal(found[0][name], found[1][name])
    assert all(torch.equal(resumed[name], found[0][name]) for name in resumed)


@needs_whisper
def test_samples_have_the_features_of_the_recording(folder: Path) -> None:
    """On the fly and in memory, beside labels for as many frames."""
    task = task_of(folder, **WHISPER, **{"data.storage_type": "memory"})
    item = task.dataset("validation").get(0, np.random.default_rng(0))
    assert item.features_TF.shape == (150, 424)
    assert len(item.activity_TS) == 150
    prepared = task.corpus.prepared
    assert prepared is not None
    waveform = prepared.cache.waveform(list(prepared.index.id).index(item.source))
    features = FEATURES.get("whisper")(task.recipe.data)
    np.testing.assert_array_equal(item.features_TF, features.compute(waveform)[:150])
    same = task_of(folder, **WHISPER).dataset("validation").get(0, np.random.default_rng(0))
    np.testing.assert_array_equal(same.features_TF, item.features_TF)


@needs_whisper
@pytest.mark.slow
def test_a_model_is_trained_on_whisper_features_by_workers(folder: Path, tmp_path: Path) -> None:
    """On recordings and simulated conversations; then it diarizes, and refuses a stream."""
    changes = {
        **WHISPER,
        **CAUSAL,
        "data.simulation.path": str(folder / "clips"),
        "data.simulation.share": 0.5,
        "data.simulation.speakers": [2, 2],
        "training.performance.num_workers": 2,
    }
    run = tmp_path / "run"
    trained = train(folder / "recipe.yaml", settings(folder, **changes), output=run)
    assert np.isfinite(trained.metrics["val_loss"])
    alone = tmp_path / "alone"
    again = train(
        folder / "recipe.yaml", settings(folder, **{**changes, "training.performance.num_workers": 0}), output=alone
    )
    assert again.metrics["val_loss"] == trained.metrics["val_loss"], "workers compute the same bits"
    diarizer = Diarizer.load(run)
    found = diarizer.diarize(folder / "meetings" / "m0.wav")
    assert found.seconds == pytest.approx(6.0)
    assert found.frames_per_second == 10.0
    with pytest.raises(InputError, match="whisper"):
        list(diarizer.stream([np.zeros(16000, dtype=np.float32)]))


@needs_whisper
@pytest.mark.slow
def test_speech_in_real_meetings_is_learnt_from_whisper_features(recordings: Path, tmp_path: Path) -> None:
    """Who speaks in four extracts of AMI of 30 s, by heart and in a few dozen steps."""
    changes = {
        **WHISPER,
        "data.storage_type": "memory",
        "data.path": str(recordings / "diar_en_ami"),
        "data.cache_dir": str(tmp_path / "cache"),
        "data.limit": 4,
        "data.validation": 0.0,
        "data.chunk_seconds": 30.0,
        "model.num_speakers": 4,
        "model.global_config.d_model": 64,
        "model.global_config.dropout": 0.0,
        "training.batch_size": 4,
        "training.max_steps": 80,
        "training.optimizer.lr": 3e-3,
        "training.scheduler.warmup_steps": 10,
        "training.checkpoint.interval": 80,
    }
    (tmp_path / "recipe.yaml").write_text("task: diarization\nsize: tiny\n")
    train(tmp_path / "recipe.yaml", settings(tmp_path, **changes), output=tmp_path / "run")
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.15 < 0.5 < losses[0]
    file = next((recordings / "diar_en_ami").rglob("*.flac"))
    found = Diarizer.load(tmp_path / "run").diarize(file)
    assert found.seconds == pytest.approx(soundfile.info(file).duration, abs=0.01)
