"""`VoiceTrainer` as its documentation shows it, on real loaders."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from phonate import training
from phonate.audio.augmentation import DataAugmentation
from phonate.audio.settings import AudioConfig, AugmentationSettings
from phonate.config.errors import InputError
from phonate.data.voice_dataset import VoiceCollator, VoiceDataset, create_train_val_datasets, create_voice_dataloader
from phonate.models import VoiceTransformer
from phonate.training import TrainingConfig, VoiceTrainer, create_trainer, get_default_training_config
from phonate.training.callbacks import Callback
from phonate.training.checkpoints.listing import export
from phonate.training.run import system_info
from phonate.training.voice_trainer import LoaderSource
from phonate_process import run_python

SNIPPET = """
from phonate.training import VoiceTrainer, TrainingConfig
from phonate.models import VoiceTransformer
from phonate.data.voice_dataset import create_train_val_datasets, create_voice_dataloader

train_set, val_set = create_train_val_datasets({corpus!r}, val_split=0.25, cache_dir={cache!r})
train_dataloader = create_voice_dataloader(train_set, batch_size=4, num_workers=0)
val_dataloader = create_voice_dataloader(val_set, batch_size=4, num_workers=0)

# Create model
model = VoiceTransformer(input_dim=80, d_model=512, n_heads=8, n_layers=6)

# Configure training
config = TrainingConfig(
    batch_size=32,
    learning_rate=1e-4,
    num_epochs=1,
    use_amp=True,
    distributed=True,
    loss_type="mse"
)

# Create trainer
trainer = VoiceTrainer(model, config)

# Train model
trainer.train(train_dataloader, val_dataloader)
"""


@pytest.fixture
def loaders(tone_corpus, tmp_path):
    train, validation = create_train_val_datasets(tone_corpus, val_split=0.25, cache_dir=str(tmp_path / "cache"))
    return (
        create_voice_dataloader(train, batch_size=3, num_workers=0),
        create_voice_dataloader(validation, batch_size=3, num_workers=0),
    )


def small():
    torch.manual_seed(0)
    return VoiceTransformer(input_dim=80, d_model=16, n_heads=2, n_layers=1, n_speakers=3, dropout=0.1)


def config(tmp_path, **changes):
    values = {
        "num_epochs": 3,
        "learning_rate": 1e-2,
        "warmup_steps": 0,
        "log_interval": 1,
        "save_interval": 2,
        "validate_interval": 2,
        "output_dir": str(tmp_path / "runs"),
        "verbosity": "quiet",
    }
    return TrainingConfig(**{**values, **changes})


@pytest.mark.slow
def test_the_documented_snippet(tone_corpus, tmp_path):
    """Word for word, but for the import root, the data and the number of epochs."""
    script = tmp_path / "snippet.py"
    script.write_text(SNIPPET.format(corpus=str(tone_corpus), cache=str(tmp_path / "cache")))
    environment = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE"}}
    done = run_python(script, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "distributed" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "runs/voice_training/metrics.jsonl").read_text().splitlines()]
    assert any(row["split"] == "validation" for row in rows)


def test_trains_and_resumes_exactly(loaders, tmp_path):
    straight = VoiceTrainer(small(), config(tmp_path), experiment_name="straight")
    straight.train(*loaders)
    half = VoiceTrainer(small(), config(tmp_path), experiment_name="straight")
    steps = sorted((tmp_path / "runs/straight/checkpoints").glob("step-*"))
    half.train(*loaders, checkpoint_path=steps[0])
    for a, b in zip(straight.model.parameters(), half.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_callback_of_ones_own(loaders, tmp_path):
    """As the documentation of callbacks shows one."""

    class MyCallback(Callback):
        def __init__(self):
            self.seen = []

        def on_epoch_end(self, trainer, epoch, metrics):
            self.seen.append((epoch, metrics["train_loss"]))

    callback = MyCallback()
    VoiceTrainer(small(), config(tmp_path), callbacks=[callback]).train(*loaders)
    assert [epoch for epoch, _ in callback.seen] == [0, 1, 2]
    assert all(isinstance(loss, float) for _, loss in callback.seen)


def test_loss_weights_and_types_matter(loaders, tmp_path):
    losses = {}
    for name, changes in {
        "mse": {},
        "l1": {"loss_type": "l1"},
        "weighted": {"loss_weights": {"reconstruction": 3.0}},
    }.items():
        trainer = VoiceTrainer(small(), config(tmp_path, num_epochs=1, **changes), experiment_name=name)
        losses[name] = trainer.train(*loaders)["val_loss"]
    assert len(set(losses.values())) == 3


def test_save_and_load(loaders, tmp_path):
    trainer = create_trainer(small(), config(tmp_path, num_epochs=1))
    with pytest.raises(InputError, match="call train first"):
        trainer.save_checkpoint()
    trainer.train(*loaders)
    folder = trainer.save_checkpoint()
    exported = export(folder, tmp_path / "exported")
    for number, saved in enumerate((folder, exported)):
        other = create_trainer(small(), config(tmp_path), experiment_name=f"other{number}")
        metadata = other.load_checkpoint(saved)
        assert metadata["global_step"] > 0
        for a, b in zip(trainer.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_default_config_is_the_documented_one():
    default = get_default_training_config()
    assert (default.batch_size, default.learning_rate, default.num_epochs) == (32, 1e-4, 100)
    assert (default.loss_type, default.optimizer_type, default.scheduler_type) == ("mse", "adamw", "cosine")
    assert (default.gradient_clip, default.warmup_steps, default.max_checkpoints) == (1.0, 1000, 5)


def test_augmentation_is_another_in_every_epoch(tone_corpus, tmp_path):
    augmentation = DataAugmentation(AugmentationSettings(noise_probability=1.0), AudioConfig().sample_rate)
    dataset = VoiceDataset(tone_corpus, cache_dir=str(tmp_path / "cache"), num_workers=0, transforms=augmentation)
    for loader in (create_voice_dataloader(dataset, 30), DataLoader(dataset, 30, collate_fn=VoiceCollator())):
        source = LoaderSource(loader, seed=1, split="train")
        first, second, again = (next(source.epoch(epoch)).batch for epoch in (0, 1, 0))
        assert first["ids"] != second["ids"] or not torch.equal(first["audio"][0], second["audio"][0])
        assert torch.equal(first["audio"], again["audio"])
        levels = [dict(zip(one["ids"], one["audio"].abs().sum(1).tolist(), strict=True)) for one in (first, second)]
        assert all(levels[0][name] != levels[1][name] for name in levels[0])


def test_auto_starts_a_run_that_has_no_checkpoint_and_continues_one_that_has(loaders, tmp_path):
    trainer = VoiceTrainer(small(), config(tmp_path, num_epochs=1))
    trainer.train(*loaders, checkpoint_path="auto")
    longer = VoiceTrainer(small(), config(tmp_path, num_epochs=2))
    longer.train(*loaders, checkpoint_path="auto")
    assert longer.trainer.step == 2 * trainer.trainer.step
    assert longer.trainer.epoch == 2


def test_a_second_run_in_the_same_place_says_what_to_do_in_python(loaders, tmp_path):
    VoiceTrainer(small(), config(tmp_path, num_epochs=1)).train(*loaders)
    with pytest.raises(InputError, match=r'train\(\.\.\., checkpoint_path="auto"\).*experiment_name') as caught:
        VoiceTrainer(small(), config(tmp_path, num_epochs=1)).train(*loaders)
    assert "--" not in str(caught.value)


def test_epoch_by_epoch_is_the_same_run(loaders, tmp_path):
    whole = VoiceTrainer(small(), config(tmp_path), experiment_name="whole")
    whole.train(*loaders)
    single = VoiceTrainer(small(), config(tmp_path), experiment_name="single")
    losses = [single.train_epoch(*loaders)["train_loss"] for _ in range(3)]
    assert losses[2] < losses[0]
    for a, b in zip(whole.model.parameters(), single.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match="3 epochs"):
        single.train_epoch(*loaders)
    rows = [
        [json.loads(line) for line in (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "single")
    ]
    losses = [[row["loss"] for row in one if row["split"] == "train"] for one in rows]
    assert losses[0] == losses[1]


def test_a_loop_of_ones_own_sees_epochs_that_are_worse_and_is_not_stopped(loaders, tmp_path):
    options = {"num_epochs": 6, "early_stopping_patience": 1, "early_stopping_min_delta": 1e6, "learning_rate": 0.1}
    trainer = VoiceTrainer(small(), config(tmp_path, validate_interval=1, **options))
    measured = []
    for _ in range(4):
        trainer.train_epoch(*loaders)
        assert trainer.trainer is not None
        last = trainer.trainer.progress.last_validation["val_loss"]
        assert trainer.validate(loaders[1])["val_loss"] == pytest.approx(last, rel=1e-5)
        measured.append(last)
    assert len(set(measured)) == 4


def test_validate_measures_the_model_as_it_is(loaders, tmp_path):
    trainer = VoiceTrainer(small(), config(tmp_path))
    before = trainer.validate(loaders[1])
    last = trainer.train(*loaders)
    after = trainer.validate(loaders[1])
    assert set(before) == {"val_loss", "val_reconstruction"}
    assert after["val_loss"] < before["val_loss"]
    assert after["val_loss"] == pytest.approx(last["val_loss"], rel=1e-5)
    assert trainer.model.training


def test_trackers_logs_and_wandb_are_those_of_a_recipe(loaders, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    VoiceTrainer(small(), config(tmp_path)).train(*loaders)
    run = tmp_path / "runs/voice_training"
    events = EventAccumulator(str(run / "events")).Reload()
    assert {"train/loss", "train/learning_rate", "epoch/train_loss", "epoch/val_loss"} <= set(events.Tags()["scalars"])
    assert "trainable parameters" in (run / "logs/training.log").read_text()
    logging = config(tmp_path, use_wandb=True, wandb_project="voices").settings(100).logging
    assert (logging.wandb, logging.wandb_project) == (True, "voices")


def test_one_cycle_has_no_warm_up_before_it_unless_asked(tmp_path):
    for changes, steps in ({}, 0), ({"warmup_steps": 5}, 5):
        asked = TrainingConfig(scheduler_type="onecycle", **changes)
        assert asked.settings(1000).scheduler.warmup_steps == steps
    assert TrainingConfig().settings(1000).scheduler.warmup_steps == 100


def test_every_public_name_of_training_can_be_imported():
    for name in training.__all__:
        assert getattr(training, name).__name__ == name


def test_slow_loaders_get_advice_that_a_loader_can_follow(loaders, tmp_path, caplog):
    class Slow(list):
        def __iter__(self):
            for batch in super().__iter__():
                time.sleep(0.05)
                yield batch

    VoiceTrainer(small(), config(tmp_path)).train(Slow(loaders[0]))
    (said,) = [record.getMessage() for record in caplog.records if "slow data" in record.getMessage()]
    assert "DataLoader num_workers" in said
    assert "training." not in said


def test_auto_starts_anew_where_a_run_ended_before_its_first_checkpoint(loaders, tmp_path):
    run = Path(config(tmp_path).output_dir) / "cut"
    (run / "logs").mkdir(parents=True)
    (run / "run_id").write_text("0123\n")
    (run / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1.0}\n')
    VoiceTrainer(small(), config(tmp_path, num_epochs=1), experiment_name="cut").train(*loaders, checkpoint_path="auto")
    assert not (run / "run_id").exists(), "its W&B run would go on in the curves of the one before"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local_rank": 1}, "local_rank .*distributed=True"),
        ({"world_size": 2}, "world_size .*distributed=True"),
        ({"loss_type": "nosuch", "loss_weights": {"l1": 1.0}}, "loss_type=nosuch .*reconstruction"),
    ],
)
def test_options_without_effect_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        TrainingConfig(**options)
    TrainingConfig(local_rank=1, world_size=2, distributed=True)
    TrainingConfig(loss_type="l1", loss_weights={"reconstruction": 1.0, "mse": 0.1})


def test_the_newer_switch_for_tf32_is_recorded(monkeypatch):
    """Torch refuses to read the older one once the newer one was used."""

    def refuse():
        raise RuntimeError("you have used mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert system_info()["matmul_precision"] == torch.backends.cuda.matmul.fp32_precision
