"""Voice conversion with a discriminator, on small synthetic voices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from compiled import calls_of_compiled
from phonate.audio.decoding import read_audio
from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.tasks.conversion.inference import Converter
from phonate.tasks.conversion.model import ConversionGAN
from phonate.tasks.conversion.task import ConversionTask
from phonate.workflows.train import train

START = 6
GENERATOR, DISCRIMINATOR = ConversionTask.generator, ConversionTask.discriminator
TINY = {
    "model.d_model": 32,
    "model.n_layers": 2,
    "model.n_heads": 2,
    "model.d_ff": 64,
    "model.discriminator_channels": 4,
    "training.adversarial_start": START,
    "training.batch_size": 6,
    "training.max_steps": 12,
    "training.scheduler.warmup_steps": 2,
    "training.checkpoint.interval": 6,
    "training.validation.interval": 6,
    "training.logging.interval": 1,
    "training.logging.tensorboard": False,
    "training.performance.num_workers": 0,
    "training.validation.previews": False,
    "training.ema": None,
    "data.validation": 0.2,
    "data.crop_frames": 60,
    "data.target": "anna",
}


@pytest.fixture(scope="module")
def run(two_voices: Path) -> Path:
    return train("conversion", settings(two_voices), output=two_voices / "run").run.path


def settings(two_voices: Path, **more: Any) -> dict[str, Any]:
    return {**TINY, "data.path": str(two_voices / "voices"), "data.cache_dir": str(two_voices / "cache"), **more}


def task(two_voices: Path, recipe: str = "conversion", **more: Any) -> ConversionTask:
    return ConversionTask(resolve(recipe, settings(two_voices, **more)).recipe)


def steps_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == "train"]


def weights_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:08d}" / "weights.safetensors")


def test_the_discriminator_takes_part_from_its_first_step_on(run: Path) -> None:
    steps = steps_of(run)
    assert [{"adversarial", "features", "discriminator"} <= step.keys() for step in steps] == [False] * START + [
        True
    ] * 6
    before, after = weights_of(run, START), weights_of(run, 12)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert any(name.startswith(f"{DISCRIMINATOR}.") for name in moved)
    assert any(name.startswith(f"{GENERATOR}.") for name in moved)


def test_the_run_converts(run: Path, tone_corpus: Path) -> None:
    converter = Converter.load(run)
    waveform, _ = read_audio(tone_corpus / "cleo" / "05.wav", converter.sample_rate)
    assert abs(len(converter.convert(waveform)) - len(waveform)) <= 256


def test_a_resumed_run_is_the_same_run(run: Path, two_voices: Path, tmp_path: Path) -> None:
    """From the step in which the discriminator starts."""
    again = tmp_path / "again"
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / "step-00000012")
    train("conversion", settings(two_voices), output=again, resume="auto")
    one, other = weights_of(run, 12), weights_of(again, 12)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_each_phase_trains_its_own_part(two_voices: Path) -> None:
    conversion = task(two_voices)
    conversion.step = START
    model = cast(ConversionGAN, conversion.model(torch.device("cpu")).train())
    samples = conversion.dataset("train")
    batch = samples.collate([samples.get(index, np.random.default_rng(index)) for index in range(4)])
    terms = conversion.loss(model, batch, DISCRIMINATOR)
    torch.autograd.backward(terms["discriminator"][0])
    assert all(p.grad is None for p in model.network.parameters())
    terms = conversion.loss(model, batch, GENERATOR)
    assert [unit for _, unit in terms.values()] == ["elements", "items", "items"]
    assert samples.unit_counts(batch)["items"] == 4
    torch.autograd.backward(terms["adversarial"][0] + terms["features"][0])
    assert all(p.grad is not None for p in model.network.output.parameters())


def test_padding_is_not_judged(two_voices: Path) -> None:
    conversion = task(two_voices)
    conversion.step = START
    torch.manual_seed(0)
    model = conversion.model(torch.device("cpu")).train()
    samples = conversion.dataset("train")
    batch = dict(samples.collate([samples.get(index, np.random.default_rng(index)) for index in range(4)]))
    batch["lengths"] = batch["lengths"] - torch.arange(4) * 5

    def found() -> list[float]:
        terms = {
            **conversion.loss(model, batch, GENERATOR),
            **conversion.loss(model, dict(batch), DISCRIMINATOR),
        }
        return [terms[name][0].item() for name in ("adversarial", "features", "discriminator")]

    before = found()
    for name in ("features", "target", "prosody"):
        batch[name] = batch[name].clone()
        for row, length in zip(batch[name], batch["lengths"], strict=True):
            row[length:] = 1e3
    assert found() == pytest.approx(before, rel=1e-4)


@pytest.mark.parametrize("recipe", ["conversion", "conversion-live"])
def test_without_a_discriminator_nothing_changes(two_voices: Path, recipe: str) -> None:
    conversion = task(two_voices, recipe, **{"training.adversarial_start": None})
    assert [phase.name for phase in conversion.phases] == ["main"]
    assert not isinstance(conversion.model(torch.device("cpu")), ConversionGAN)


def test_a_run_starts_from_one_without_a_discriminator_and_the_other_way_round(
    run: Path, two_voices: Path, tmp_path: Path
) -> None:
    none = {"training.adversarial_start": None, "training.max_steps": 1}
    plain = train("conversion", settings(two_voices, **none), output=tmp_path / "plain").run.path
    frozen = {"training.max_steps": 1, "training.optimizer.lr": 1e-12, "training.optimizer.weight_decay": 0.0}
    for source, step, more in ((plain, 1, {}), (run, 12, {"training.adversarial_start": None})):
        begun = {**frozen, **more, "training.init_from": str(source)}
        new = train("conversion", settings(two_voices, **begun), output=tmp_path / f"from-{source.name}").run.path
        old_weights, new_weights = weights_of(source, step), weights_of(new, 1)
        names = [name for name in new_weights if not name.startswith(DISCRIMINATOR)]
        prefix = f"{GENERATOR}."
        for name in names:
            other = name.removeprefix(prefix) if name.startswith(prefix) else prefix + name
            assert torch.allclose(new_weights[name], old_weights[other], atol=1e-6), name


def test_resuming_without_the_discriminator_is_refused(run: Path, two_voices: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    changed = settings(two_voices, **{"training.adversarial_start": None, "training.max_steps": 14})
    with pytest.raises(InputError, match="put the model's settings back"):
        train("conversion", changed, output=tmp_path / "run", resume="auto")


@pytest.mark.parametrize(
    ("recipe", "modules"),
    [
        ("conversion", {"VoiceTransformer", "MelDiscriminator"}),
        ("conversion-live", {"VoiceTransformer", "MelDiscriminator"}),
    ],
)
def test_what_is_compiled_runs(
    two_voices: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, modules: set[str]
) -> None:
    more = {"training.max_steps": 2, "training.adversarial_start": 1, "training.performance.compile_model": True}
    if recipe == "conversion-live":
        more["data.distil_from"] = str(run)
    calls = calls_of_compiled(monkeypatch)
    train(recipe, settings(two_voices, **more), output=tmp_path / "run")
    assert calls.keys() == modules
    assert all(calls.values())
