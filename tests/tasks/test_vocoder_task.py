"""The vocoder from a folder of recordings to sound, on small synthetic voices."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from compiled import calls_of_compiled
from phonate.audio.decoding import read_audio
from phonate.audio.processor import AudioProcessor
from phonate.cli import main
from phonate.config.errors import CheckpointError, InputError
from phonate.config.resolve import resolve
from phonate.nn import losses
from phonate.rendering import GriffinLim, TrainedVocoder, renderer
from phonate.tasks.vocoder.inference import NeuralVocoder
from phonate.tasks.vocoder.task import VocoderTask
from phonate.training.checkpoints import best_or_latest, resolve_checkpoint, snapshot
from phonate.training.checkpoints.loading import load
from phonate.training.state import check_identity
from phonate.training.task import Picture, Sound
from phonate.workflows.train import train
from trained import trained


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data.path": str(folder),
        "data.cache_dir": str(folder.parent / "cache"),
        "data.validation": 0.2,
        "data.crop_frames": 24,
        "model.width": 32,
        "model.layers": 2,
        "model.discriminator_channels": 2,
        "training.batch_size": 6,
        "training.validation.previews": False,
        "training.max_steps": 24,
        "training.adversarial_start": 12,
        "training.scheduler.warmup_steps": 2,
        "training.logging.tensorboard": False,
        "training.validation.interval": 24,
        "training.checkpoint.interval": 6,
        "training.checkpoint.save_total_limit": 10,
        "training.ema": None,
        **changes,
    }


@pytest.fixture(scope="module")
def run(tone_corpus: Path) -> Path:
    def write(folder: Path) -> None:
        shutil.copytree(tone_corpus, folder / "voices")
        train("vocoder", settings(folder / "voices"), output=folder / "run")

    return trained("vocoder", write) / "run"


def lines(run: Path, split: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


def test_it_learns_and_discriminators_join_when_the_recipe_says(run: Path) -> None:
    validation = lines(run, "validation")[-1]
    assert {"spectral", "mel", "pitch", "voicing", "copy_mel"} <= validation.keys()
    steps = [path.name for path in sorted((run / "checkpoints").glob("step-*"))]
    assert steps == [f"step-{step:08d}" for step in (6, 12, 18, 24)]
    weights = [load_file(run / "checkpoints" / step / "weights.safetensors") for step in steps]
    theirs = [name for name in weights[0] if name.startswith("discriminators.")]
    ours = [name for name in weights[0] if name.startswith("vocoder.")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in theirs)
    assert not all(torch.equal(weights[1][name], weights[2][name]) for name in theirs)
    assert not all(torch.equal(weights[0][name], weights[1][name]) for name in ours)


@pytest.mark.slow
def test_overfitting_a_corpus_takes_the_loss_down(tone_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "voices").symlink_to(tone_corpus)
    changes = settings(tmp_path / "voices", **{"training.adversarial_start": None, "training.max_steps": 60})
    changes |= {"training.logging.interval": 1, "training.optimizer.lr": 3e-3}
    train("vocoder", changes, output=tmp_path / "run")
    losses = [line["loss"] for line in lines(tmp_path / "run", "train")]
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])


def test_a_resumed_run_is_the_undisturbed_one_discriminators_and_all(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000024")
    (tmp_path / "run/checkpoints/best.json").unlink()
    trained = train("vocoder", settings(run.parent / "voices"), output=tmp_path / "run", resume="auto")
    assert trained.step == 24
    first, second = (
        load_file(where / "checkpoints/step-00000024/weights.safetensors") for where in (run, trained.run.path)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_with_other_discriminators_is_not_resumed(run: Path) -> None:
    task = VocoderTask(resolve(run / "recipe.yaml").recipe)
    checkpoint = load(best_or_latest(run))
    check_identity(checkpoint, task, task.identity(), "")
    earlier = {**checkpoint.inference, "resolutions": task.identity()["discriminators"]}
    check_identity(replace(checkpoint, state={}, inference=earlier), task, task.identity(), "")
    other = {**checkpoint.inference, "resolutions": [[512, 128]]}
    with pytest.raises(InputError, match="discriminators"):
        check_identity(replace(checkpoint, state={}, inference=other), task, task.identity(), "")


def test_what_the_vocoder_made_is_used_again_in_its_step(tone_corpus: Path, tmp_path: Path) -> None:
    """The discriminators' phase of a step sees the sound of the vocoder's phase, and of no other batch."""
    (tmp_path / "voices").symlink_to(tone_corpus)
    task = VocoderTask(resolve("vocoder", settings(tmp_path / "voices")).recipe)
    model, samples = task.model(torch.device("cpu")), task.dataset("train")
    batch, other = (
        samples.collate([samples.get(i, np.random.default_rng(i)) for i in range(start, start + 3)]) for start in (0, 3)
    )
    task.step = 12
    task.loss(model, batch, VocoderTask.generator)
    again = task.loss(model, batch, VocoderTask.discriminator)["discriminator"][0]
    fresh = VocoderTask(task.recipe)
    fresh.step = 12
    assert torch.equal(again, fresh.loss(model, batch, VocoderTask.discriminator)["discriminator"][0])
    assert not torch.equal(again, task.loss(model, other, VocoderTask.discriminator)["discriminator"][0])


def test_counts_are_those_of_the_loss(tone_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "voices").symlink_to(tone_corpus)
    task = VocoderTask(resolve("vocoder", settings(tmp_path / "voices")).recipe)
    model, samples = task.model(torch.device("cpu")), task.dataset("train")
    items = [samples.get(i, np.random.default_rng(i)) for i in range(3)]
    batch = samples.collate(items)
    units = samples.unit_counts(batch)
    voiced = sum(int((item.f0_T > 0).sum()) for item in items)
    assert units == {"items": 3, "frames": sum(len(item.mel_TM) for item in items), "voiced frames": voiced}
    for task.step in (0, 12):
        for phase in (VocoderTask.generator, VocoderTask.discriminator):
            assert {unit for _, unit in task.loss(model, batch, phase).values()} <= units.keys()


def test_its_spectral_distance_is_that_of_the_losses(
    tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "voices").symlink_to(tone_corpus)
    task = VocoderTask(resolve("vocoder", settings(tmp_path / "voices")).recipe)
    model, samples = task.model(torch.device("cpu")), task.dataset("train")
    batch = samples.collate([samples.get(0, np.random.default_rng(0))])

    def spectral() -> float:
        task.step += 1
        return task.loss(model, batch, VocoderTask.generator)["spectral"][0].item()

    whole = spectral()
    monkeypatch.setattr(losses, "convergence", lambda *_: (torch.zeros(()), None))
    assert 0 < spectral() < whole - 0.1


def test_previews_are_sounds_and_pictures(run: Path) -> None:
    task = VocoderTask(resolve(run / "recipe.yaml").recipe)
    shown = task.previews(task.model(torch.device("cpu")).eval())
    assert {name: type(preview) for name, preview in shown.items()} == {
        "natural": Sound,
        "made": Sound,
        "natural_mel": Picture,
        "made_mel": Picture,
    }


def test_a_trained_vocoder_renders_mels_of_its_features_only(run: Path, tone_corpus: Path) -> None:
    recipe = resolve(run / "recipe.yaml").recipe
    processor = AudioProcessor(recipe.data.audio)
    assert isinstance(renderer(None, processor), GriffinLim)
    vocoder = renderer(run, processor)
    assert isinstance(vocoder, TrainedVocoder)
    waveform, _ = read_audio(tone_corpus / "anna" / "05.wav", recipe.data.audio.sample_rate)
    mel = processor.mel(waveform)
    made = vocoder(mel)
    assert len(made) == (len(mel) - 1) * recipe.data.audio.hop_length
    assert np.abs(processor.mel(made)[4:-4] - mel[: len(mel) - 4][4:]).mean() < 0.08
    for frames in (0, 1):
        assert vocoder(mel[:frames]).shape == (0,)
        assert list(vocoder.stream(mel[:frames])) == []
    other = AudioProcessor(recipe.data.audio.model_copy(update={"hop_length": 200}))
    with pytest.raises(CheckpointError, match="features"):
        renderer(run, other)
    with pytest.raises(InputError, match="no such run"):
        renderer(run.parent / "nothing", processor)


def test_validations_read_a_vocoder_once_until_another_takes_its_place(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(best_or_latest(run), tmp_path / "vocoder")
    processor, reads = AudioProcessor(resolve(run / "recipe.yaml").recipe.data.audio), []
    read = snapshot.read_tensors
    monkeypatch.setattr(snapshot, "read_tensors", lambda *given: reads.append(given) or read(*given))
    for _ in range(3):
        assert isinstance(renderer(copy, processor), TrainedVocoder)
    assert len(reads) == 1
    shutil.rmtree(copy)
    os.utime(shutil.copytree(best_or_latest(run), copy), (1, 1))
    renderer(copy, processor)
    assert len(reads) == 2


def test_the_postfilter_is_for_rendering_alone(tone_corpus: Path, tmp_path: Path, run: Path) -> None:
    changes = settings(run.parent / "voices", **{"training.max_steps": 2, "model.postfilter": 0.0})
    for share in (0.0, 0.2):
        train("vocoder", changes | {"model.postfilter": share}, output=tmp_path / str(share))
    plain, sharp = (lines(tmp_path / str(share), "validation")[-1] for share in (0.0, 0.2))
    assert plain["spectral"] == sharp["spectral"]
    recipe = resolve(run / "recipe.yaml").recipe
    assert recipe.model.postfilter == 0.1
    processor = AudioProcessor(recipe.data.audio)
    mel = processor.mel(read_audio(tone_corpus / "anna" / "05.wav", recipe.data.audio.sample_rate)[0])
    sounds = [renderer(tmp_path / str(share), processor)(mel) for share in (0.0, 0.2)]
    sounds += [NeuralVocoder.load(tmp_path / str(share)).render(mel) for share in (0.0, 0.2)]
    assert np.array_equal(sounds[0], sounds[2])
    assert np.array_equal(sounds[1], sounds[3])
    assert not np.allclose(sounds[0], sounds[1], atol=1e-3)


def test_conversion_sounds_through_a_vocoder(run: Path, tone_corpus: Path, tmp_path: Path) -> None:
    changes = {
        "model.d_model": 32,
        "model.n_layers": 1,
        "model.n_heads": 2,
        "model.d_ff": 64,
        "training.max_steps": 2,
        "training.scheduler.warmup_steps": 0,
        "training.ema": None,
        "data.path": str(run.parent / "voices"),
        "data.cache_dir": str(run.parent / "cache"),
        "data.vocoder": str(run),
    }
    train("conversion", changes, output=tmp_path / "run")
    source = str(tone_corpus / "ben" / "03.wav")
    for name, extra in (("own", []), ("other", ["--vocoder", str(run / "checkpoints" / "step-00000006")])):
        arguments = ["convert", str(tmp_path / "run"), source, "-o", str(tmp_path / f"{name}.wav"), *extra]
        assert main(arguments) == 0
    assert resolve_checkpoint(run) == best_or_latest(run)
    sounds = [read_audio(tmp_path / f"{name}.wav")[0] for name in ("own", "other")]
    assert len(sounds[0]) == len(sounds[1])
    assert not np.allclose(*sounds, atol=1e-3)
    assert main(["convert", str(tmp_path / "run"), source, "-o", str(tmp_path / "x.wav"), "--vocoder", "no/such"]) == 2


def test_what_is_compiled_runs(tone_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"training.max_steps": 2, "training.adversarial_start": 1, "training.performance.compile_model": True}
    calls = calls_of_compiled(monkeypatch)
    shutil.copytree(tone_corpus, tmp_path / "voices")
    train("vocoder", settings(tmp_path / "voices", **more), output=tmp_path / "run")
    assert calls.keys() == {"Vocoder", "Discriminators"}
    assert all(calls.values())
