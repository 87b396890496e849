"""Diarization from recordings with turns to a trained model: on voices made of tones, and on real meetings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import phonate_process
from meetings import tiny_model_of, write_meetings
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.data.batches import COLLATORS
from phonate.tasks.diarization.data import DiarizationCollator
from phonate.tasks.diarization.model import ActivityStream, SpeakerActivityModel
from phonate.tasks.diarization.settings import LabelTypeName
from phonate.tasks.diarization.task import DiarizationTask, timelines
from phonate.training.checkpoints import best_or_latest
from phonate.training.task import Batch, Coupling, Picture, Sound, counted
from phonate.workflows.train import train

LABEL_TYPES = [name for name in get_args(LabelTypeName) if name != "custom"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `meetings/`: six meetings of two speakers, 6 s each, and `recipe.yaml` for a small model."""
    folder = tmp_path_factory.mktemp("diarization")
    write_meetings(folder / "meetings")
    (folder / "recipe.yaml").write_text("task: diarization\nsize: tiny\n")
    return folder


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Overrides for a tiny model."""
    return {
        **tiny_model_of(folder),
        "training.batch_size": 4,
        "training.validation.previews": False,
        "training.max_steps": 6,
        "training.optimizer.lr": 2e-3,
        "training.logging": {"tensorboard": False, "interval": 2},
        "training.validation.interval": 3,
        **changes,
    }


def task_of(folder: Path, **changes: Any) -> DiarizationTask:
    """The task of a recipe."""
    return DiarizationTask(resolve(folder / "recipe.yaml", settings(folder, **changes)).recipe)


def model_of(task: DiarizationTask) -> SpeakerActivityModel:
    """Its model, with the same weights each time."""
    torch.manual_seed(0)
    model = task.model(torch.device("cpu"))
    assert isinstance(model, SpeakerActivityModel)
    return model.eval()


def batch_of(task: DiarizationTask, count: int = 3, split: str = "train") -> Batch:
    """The first samples."""
    samples = task.dataset(split)
    return samples.collate([samples.get(index, np.random.default_rng(index)) for index in range(count)])


def lines(run: Path, split: str) -> list[dict[str, Any]]:
    """Lines of a run's metrics."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


KINDS: dict[str, dict[str, Any]] = {
    "encoder": {},
    "linear encoder": {"model.global_config.attention_type": "linear"},
    "Conformer": {"model.global_config.conv_kernel": 5, "model.upsampling": 2},
    "convolutions": {"model.front_end.type": "convolution", "model.front_end.width": 24},
    "decoder": {"model.model_type": "decoder", "model.front_end.normalisation": "causal_mean"},
    "encoder_decoder": {
        "model.model_type": "encoder_decoder",
        "model.encoder.attention_type": "linear",
        "model.decoder.attention_type": "causal_linear",
    },
}


def test_too_few_recordings_that_validate_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        task_of(folder, **{"data.validation": 0.17}).dataset("validation")
    (told,) = (one for one in caplog.messages if "validates" in one)
    assert told.endswith(
        " and says little; a larger data.validation holds out more; phonate evaluate --tune needs 3 held-out recordings"
    )


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("label_type", ["powerset", "attractors"])
def test_padding_changes_nothing(folder: Path, label_type: str, changes: dict[str, Any]) -> None:
    """Neither the activity in real frames nor the loss, in float64 to 1e-6."""
    task = task_of(folder, **{"training.eval_knobs.label_type": label_type, **changes})
    model = model_of(task).double()
    batch = batch_of(task, 2)
    batch["features"] = batch["features"].double()
    longer = dict(batch)
    for name in ("features", "activity"):
        noise = 1e3 * torch.rand_like(batch[name])[:, :130]
        longer[name] = torch.cat([batch[name], noise if name == "features" else torch.full_like(noise, -100)], dim=1)
    with torch.no_grad():
        expected = model.activity_probabilities(batch["features"], batch["lengths"])
        found = model.activity_probabilities(longer["features"], batch["lengths"])
        assert (found[:, : expected.shape[1]] - expected).abs().max() < 1e-6
        assert not found[:, expected.shape[1] :].any()
        for name, (total, _) in task.loss(model, longer, "main").items():
            assert torch.isclose(total, task.loss(model, batch, "main")[name][0])
    dataset = task.dataset("train")
    assert dataset.unit_counts(longer) == dataset.unit_counts(batch)


STREAMING: dict[str, dict[str, Any]] = {
    "softmax": {},
    "causal_linear": {"model.decoder.attention_type": "causal_linear"},
    "convolutions": {"model.front_end.type": "convolution", "model.front_end.subsampling": 8},
    "finer output": {"model.upsampling": 5, "model.global_config.conv_kernel": 5},
}


@pytest.mark.parametrize("block", [1, 37, 250])
@pytest.mark.parametrize("changes", STREAMING.values(), ids=STREAMING.keys())
def test_a_stream_gives_what_the_whole_recording_gives(folder: Path, changes: dict[str, Any], block: int) -> None:
    """To 1e-5, for any length of blocks, to the last frame."""
    causal = {"model.model_type": "decoder", "model.front_end.normalisation": "causal_mean"}
    if block == 37:
        causal["model.front_end.normalisation"] = "global"
    task = task_of(folder, **{"training.eval_knobs.label_type": "arrival", **causal, **changes})
    model = model_of(task)
    features = torch.from_numpy(task.corpus.features.compute(np.random.default_rng(0).normal(size=64000) * 0.1))[None]
    features = features[:, :397].float()
    stream = ActivityStream(model)
    state = stream.initial_state(features)
    frames = features.shape[1]
    parts = [
        stream.step(features[:, at : at + block], state, last=at + block >= frames) for at in range(0, frames, block)
    ]
    with torch.no_grad():
        expected = model.activity_probabilities(features, torch.tensor([frames]))
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "recipe diarization-streaming"),
        ({"model.model_type": "decoder", "model.front_end.normalisation": "mean"}, "normalisation global"),
        ({**KINDS["decoder"], "training.eval_knobs.label_type": "attractors"}, "attractors"),
    ],
)
def test_models_that_look_ahead_do_not_stream(folder: Path, changes: dict[str, Any], reason: str) -> None:
    """And say what would."""
    with pytest.raises(InputError, match=reason):
        ActivityStream(model_of(task_of(folder, **changes)))


@pytest.mark.parametrize("label_type", LABEL_TYPES)
@pytest.mark.slow
def test_a_few_chunks_are_learnt_by_heart(folder: Path, label_type: str) -> None:
    """Every label type."""
    task = task_of(folder, **{"training.eval_knobs.label_type": label_type, "model.global_config.dropout": 0.0})
    model = model_of(task).train()
    batch = batch_of(task, 3)
    weights = task.loss_weights(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses, units = [], task.dataset("train").unit_counts(batch)
    for _ in range(160):
        terms = counted(task.loss(model, batch, "main"), units)
        loss = torch.stack([weights[name] * total / count for name, (total, count) in terms.items()]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_validation_counts_seconds(folder: Path) -> None:
    """Of a model that hears nobody all speech is missed; sums of shares are those of the whole."""
    task = task_of(folder)
    model = model_of(task)
    samples = task.dataset("validation")
    head = model.head
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(-9.0)
        sums = task.evaluate(model, samples, range(len(samples.ids)))
        parts = [task.evaluate(model, samples, [index]) for index in range(len(samples.ids))]
        head.bias.copy_(torch.tensor([9.0, -9.0]))
        one = task.evaluate(model, samples, range(len(samples.ids)))
    items = [samples.get(index, np.random.default_rng(0)) for index in range(len(samples.ids))]
    speech = sum(item.activity_TS.sum() for item in items) / 100
    assert sums["der"] == pytest.approx((speech, speech))
    assert sums["miss"] == sums["der"]
    assert sums["false_alarm"][0] == sums["confusion"][0] == 0
    for name, (total, count) in sums.items():
        assert total == pytest.approx(sum(part[name][0] for part in parts))
        assert count == pytest.approx(sum(part[name][1] for part in parts))
    silence = sum((item.activity_TS.sum(axis=1) == 0).sum() for item in items) / 100
    assert one["false_alarm"][0] == pytest.approx(silence)
    assert one["der"][0] == pytest.approx(sum(one[name][0] for name in ("miss", "false_alarm", "confusion")))


@pytest.mark.parametrize("label_type", LABEL_TYPES)
def test_every_label_type_is_scored(folder: Path, label_type: str) -> None:
    """In seconds and frames, not in batches; a rate of 0 to 1 for the parts in which nothing is invented."""
    task = task_of(folder, **{"training.eval_knobs.label_type": label_type, "training.validation.batch_size": 1})
    samples = task.dataset("validation")
    with torch.no_grad():
        sums = task.evaluate(model_of(task), samples, range(len(samples.ids)))
    seconds = sum(samples.lengths) / 100
    right, counted = sums["accuracy"]
    assert 0 <= right <= counted <= 10 * seconds + len(samples.ids)
    assert 0 <= sums["miss"][0] <= sums["miss"][1] <= 2 * seconds
    assert sums["der"][0] == pytest.approx(sum(sums[name][0] for name in ("miss", "false_alarm", "confusion")))
    assert set(sums) <= {one.name for one in task.metrics}


@pytest.mark.parametrize("feature_type", ["fbank", "mfcc", "spectrogram"])
@pytest.mark.parametrize("front_end", ["splice", "convolution"])
def test_every_feature_is_read(folder: Path, feature_type: str, front_end: str) -> None:
    """Of whatever width, and at whatever scale."""
    task = task_of(folder, **{"data.audio.feature_type": feature_type, "model.front_end.type": front_end})
    batch = batch_of(task)
    (total, unit), *_ = task.loss(model_of(task), batch, "main").values()
    assert 0.1 < total.item() / task.dataset("train").unit_counts(batch)[unit] < 3


@pytest.mark.parametrize("label_type", ["powerset", "multilabel"])
def test_sincnet_learns_from_samples(folder: Path, label_type: str) -> None:
    """All but its filters."""
    size = {"model.global_config.d_model": 16, "model.global_config.num_layers": 2, "model.network": "sincnet"}
    kind = {"data.audio.feature_type": "samples", "training.eval_knobs.label_type": label_type}
    task = task_of(folder, **size, **kind)
    model = task.model(torch.device("cpu")).train()
    sum(total for total, _ in task.loss(model, batch_of(task), "main").values()).backward()
    assert all(one.grad is not None and one.grad.any() for one in model.parameters())
    with pytest.raises(InputError, match=r"model\.network transformer does not fit"):
        task_of(folder, **kind)
    with pytest.raises(InputError, match=r"sincnet has no use for model\.front_end"):
        task_of(folder, **size, **kind, **{"model.upsampling": 2})


def test_of_a_binary_model_detection_is_scored(folder: Path) -> None:
    """Speech of several is speech of one."""
    task = task_of(folder, **{"training.eval_knobs.label_type": "binary"})
    model = model_of(task)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.fill_(0.0)
        sums = task.evaluate(model, task.dataset("validation"), [0])
    item = task.dataset("validation").get(0, np.random.default_rng(0))
    assert sums["miss"] == pytest.approx(((item.activity_TS.sum(axis=1) > 0).sum() / 100,) * 2)


def test_what_the_task_says_of_itself(folder: Path) -> None:
    """Metrics by which checkpoints can be chosen, couplings, and what makes a resume wrong."""
    task = task_of(folder)
    assert task.coupling is Coupling.NONE
    assert [one.name for one in task.metrics if one.better == "higher"] == ["accuracy"]
    names = {"bce_with_logits", "accuracy", "der", "miss", "false_alarm", "confusion"}
    assert {one.name for one in task.metrics} == names
    assert task_of(folder, **{"training.loss.auxiliary": {"contrastive": 0.1}}).coupling is Coupling.MICRO_BATCH
    exported = dict(task.inference_metadata(model_of(task)))
    assert json.loads(json.dumps(exported)) == exported
    assert exported.items() >= task.identity().items()  # by which checkpoints without it are compared
    named = task_of(folder, **{"training.eval_knobs.label_type": "speaker_id"})
    finer = task_of(folder, **{"data.audio.num_mel_bins": 40})
    differences = [{k for k, v in one.identity().items() if v != exported[k]} for one in (named, finer)]
    assert differences == [{"label_type", "speakers"}, {"features"}]
    assert named.identity()["speakers"] == ["ann", "ben"]


def test_too_many_speakers_are_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before training."""
    model_of(task_of(folder))
    assert "more than" not in caplog.text
    one = {"model.num_speakers": 1, "model.max_simultaneous": 1}
    model_of(task_of(folder, **one))
    assert "inspected training samples have more than 1 speakers" in caplog.text
    assert "raise model.num_speakers or lower" in caplog.text
    caplog.clear()
    model_of(task_of(folder, **one, **{"training.init_from": "base/diarizer"}))
    assert not caplog.text  # with more speakers the layer that tells them apart would begin anew


@pytest.mark.parametrize("label_type", LABEL_TYPES)
def test_half_precision_trains(folder: Path, label_type: str) -> None:
    """bf16, as on a GPU: finite gradients, and about the loss of fp32."""
    task = task_of(folder, **{"training.eval_knobs.label_type": label_type, "model.global_config.dropout": 0.0})
    model = model_of(task)
    batch = batch_of(task, 3)
    exact = task.loss(model, batch, "main")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = task.loss(model, batch, "main")
    for name, (total, _) in terms.items():
        assert total.item() == pytest.approx(exact[name][0].item(), rel=0.05)
    torch.stack([total for total, _ in terms.values()]).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_previews_show_a_chunk(folder: Path) -> None:
    """Its sound and features; the model's speakers under those of the reference."""
    task = task_of(folder)
    shown = task.previews(model_of(task))
    assert isinstance(shown["sound"], Sound)
    heard, seen = len(shown["sound"].waveform) / shown["sound"].sample_rate, shown["features"].values.shape[1] / 100
    assert (shown["sound"].sample_rate, heard) == (task.recipe.data.audio.sample_rate, pytest.approx(seen, abs=0.05))
    assert isinstance(shown["features"], Picture)
    assert isinstance(shown["activity"], Picture)
    assert shown["features"].values.shape[0] == 80
    picture = timelines(np.array([[1, 0], [1, 1]], np.float32), np.array([[0.2, 0.3], [0.4, 0.5]], np.float32))
    assert picture.shape == (6 + 6 + 1 + 6 + 6, 2)
    assert picture[[0, 6, 12, 13, 19]].tolist() == [
        pytest.approx(row) for row in ([0.3, 0.5], [0.2, 0.4], [1, 1], [0, 1], [1, 1])
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.loss.main": "cross_entropy"}, "cross_entropy "),
        ({"training.loss.auxiliary": {"stft": 1.0}}, "stft "),
        ({"model.global_config.num_classes": 7}, "num_classes is 7, .*label_type .* 2 "),
        ({"training.eval_knobs.label_type": "custom"}, "num_classes of the encoder or decoder"),
        ({"model.global_config.batch_size": 9}, r"batch_size is 9 .*training\.batch_size is 4"),
        ({"model.upsampling": 3}, r"upsampling 3 .*front_end\.subsampling 10"),
        ({"training.max_duration": 20.0, "training.eval_knobs.max_duration": 30.0}, "are the same option"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_prepared(
    folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """A wrong path would be reported later."""
    with pytest.raises(InputError, match=message) as error:
        train(folder / "recipe.yaml", settings(folder, **{**changes, "data.path": "nowhere"}), output=tmp_path / "run")
    assert "\n" not in str(error.value)


def test_knobs_are_the_trainers_options(folder: Path) -> None:
    """`eval_knobs.max_duration` and `batch_size`."""
    changes = {"training.eval_knobs": {"label_type": "binary", "max_duration": 12.0, "batch_size": 7}}
    training = task_of(folder, **changes).recipe.training
    assert (training.max_duration, training.validation.batch_size) == (12.0, 7)


class Overlap(DiarizationCollator):
    """A custom label: nobody, one or several speakers."""

    def __call__(self, cuts: list[Any]) -> Batch:
        """The batch, with `labels`."""
        batch = super().__call__(cuts)
        return {**batch, "labels": batch["activity"].sum(-1).clamp_max(2).long()}


def test_custom_labels_come_from_a_collator(folder: Path, tmp_path: Path) -> None:
    """A class of the document's name, subclassed and registered."""
    COLLATORS.register("overlap", Overlap)
    changes = {
        "data.collator": "overlap",
        "training.eval_knobs.label_type": "custom",
        "training.loss": {"main": "cross_entropy", "label_smoothing": 0.1, "auxiliary": {"norm_reg": 0.1}},
        "model.encoder.num_classes": 3,
    }
    trained = train(folder / "recipe.yaml", settings(folder, **changes), output=tmp_path / "run")
    assert trained.metrics.keys() == {"val_loss", "val_cross_entropy", "val_norm_reg", "val_accuracy"}
    COLLATORS.register("overlap again", Overlap)
    other = {**changes, "data.collator": "overlap again", "training.max_steps": 8}
    with pytest.raises(InputError, match=r'same collator \("overlap" there, "overlap again" here\)'):
        train(folder / "recipe.yaml", settings(folder, **other), output=tmp_path / "run", resume="auto")


@pytest.mark.slow
def test_a_resumed_run_is_the_undisturbed_one(folder: Path, tmp_path: Path) -> None:
    """Weights, random features and metrics, bit for bit, with a redraw and dropout on the way."""
    linear = {
        "model.global_config.attention_type": "linear",
        "model.global_config.nb_features": 16,
        "training.feature_redraw_interval": 2,
        "training.gradient_accumulation_steps": 2,
        "training.eval_knobs.label_type": "attractors",
    }
    whole, again = tmp_path / "whole", tmp_path / "again"
    train(folder / "recipe.yaml", settings(folder, **linear), output=whole)
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / "step-00000006")
    (again / "checkpoints" / "best.json").unlink()
    train(folder / "recipe.yaml", settings(folder, **linear), output=again, resume="auto")
    one, two = (load_file(path / "checkpoints" / "step-00000006" / "weights.safetensors") for path in (whole, again))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert [line["loss"] for line in lines(whole, "train")] == [line["loss"] for line in lines(again, "train")]
    early = load_file(whole / "checkpoints" / "step-00000002" / "weights.safetensors")
    fixed = dict(model_of(task_of(folder, **linear)).named_parameters())
    drawn = [name for name in one if name not in fixed and "normalisation" not in name]
    assert drawn
    assert not any(torch.equal(one[name], early[name]) for name in drawn)


@pytest.mark.slow
@pytest.mark.parametrize("label_type", ["powerset", "attractors"])
def test_two_ranks_learn_what_one_learns(folder: Path, tmp_path: Path, label_type: str) -> None:
    """The counts of the loss are those of all ranks."""
    changes = settings(
        folder,
        **{
            "training.eval_knobs.label_type": label_type,
            "model.global_config.dropout": 0.0,
            "training.logging": {"tensorboard": False, "interval": 1, "system": False},
            "data.chunk_seconds": 2.0,
        },
    )
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    runs = {}
    for ranks in (1, 2):
        run = tmp_path / str(ranks)
        command = ["train", folder / "recipe.yaml", *overrides, "--mode", "cpu", "--output", run]
        done = phonate_process.run_ranks(ranks, *command)
        assert done.returncode == 0, done.stdout + done.stderr
        runs[ranks] = run
    one, two = (lines(runs[ranks], "train") for ranks in (1, 2))
    shuffles = label_type == "attractors"  # the frames that the attractors read are in another random order
    for first, second in zip(one, two, strict=True):
        assert second["loss"] == pytest.approx(first["loss"], rel=0.05 if shuffles else 1e-4)
    first, second = (lines(runs[ranks], "validation")[0 if shuffles else -1] for ranks in (1, 2))
    assert second["loss"] == pytest.approx(first["loss"], rel=0.05 if shuffles else 1e-3)


@pytest.mark.slow
def test_real_meetings_are_learnt_by_heart(recordings: Path, tmp_path: Path) -> None:
    """Chunks of AMI, overlap included, from the command line."""
    overrides = {
        "data.path": str(recordings / "diar_en_ami"),
        "data.cache_dir": str(tmp_path / "cache"),
        "data.limit": 2,
        "data.validation": 0.0,
        "data.chunk_seconds": 30.0,
        "model.global_config.d_model": 64,
        "model.global_config.num_layers": 2,
        "model.global_config.dropout": 0.0,
        "model.global_config.positional_encoding": "rope",
        "training.batch_size": 2,
        "training.max_steps": 200,
        "training.optimizer.lr": 3e-3,
        "training.scheduler.warmup_steps": 10,
        "training.logging.tensorboard": False,
        "training.logging.interval": 50,
        "training.checkpoint.interval": 200,
    }
    options = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    recipe = tmp_path / "ami.yaml"
    recipe.write_text("task: diarization\nsize: tiny\n")
    assert main(["train", str(recipe), *options, "--mode", "cpu", "--output", str(tmp_path / "run")]) == 0
    assert lines(tmp_path / "run", "train")[-1]["loss"] < 0.08
    assert best_or_latest(tmp_path / "run")
