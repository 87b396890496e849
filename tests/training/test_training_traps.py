"""What goes wrong in trainers when two things come together: NaN and pruning, EMA and fine-tuning, a resume and a
changed recipe, loaders and validation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_tasks import RandomFeaturesTask, RegressionTask, Sequences
from test_trainer import same, settings, train, weights
from torch import nn
from torch.utils.data import DataLoader

from phonate.compute.distributed import Ranks
from phonate.config.errors import CheckpointError, InputError, TrainingError
from phonate.training import TrainingConfig, VoiceTrainer
from phonate.training.meters import Meter, Meters
from phonate.training.run import Run
from phonate.training.settings import TrainingSettings
from phonate.training.trainer import Trainer


class FiniteLossNaNGradient(RegressionTask):
    """From step 7 on the loss has a term whose value is 0 and whose gradient is NaN."""

    steps = 0

    def loss(self, model, batch, phase):
        terms = super().loss(model, batch, phase)
        if torch.is_grad_enabled():
            self.steps += 1
            if self.steps >= 7:
                total, count = terms["mse"]
                terms["mse"] = (total + (model[3].weight * 0.0).pow(2).sum().sqrt(), count)
        return terms


def test_weights_that_are_nan_are_not_saved_over_good_ones(tmp_path):
    with pytest.raises(TrainingError, match="gradient norm is nan"):
        train(tmp_path / "run", FiniteLossNaNGradient(), checkpoint={"interval": 1, "save_total_limit": 1})
    saved = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step-*"))
    assert saved[-1] == "step-00000006"
    train(tmp_path / "run", resume="latest")


def test_a_save_of_nan_weights_names_the_tensor(tmp_path):
    trainer = train(tmp_path / "run", max_steps=4)
    with torch.no_grad():
        trainer.model[0].bias[0] = torch.nan
    trainer.progress.step = 5
    trainer.save()
    with pytest.raises(CheckpointError, match=r"0\.bias holds NaN"):
        trainer.checkpoints.close()


def test_the_average_begins_with_the_weights_that_training_begins_with(tmp_path):
    first = train(tmp_path / "first", max_steps=40)
    ema = {"decay": 0.999, "warmup": False}
    tuned = train(tmp_path / "tuned", max_steps=2, init_from=str(tmp_path / "first"), ema=ema)
    for name, average in tuned.averages.items():
        assert torch.allclose(average, first.model.state_dict()[name], atol=1e-3), name


def test_an_average_switched_on_at_a_resume_begins_with_the_resumed_weights(tmp_path):
    before = weights(train(tmp_path / "run", max_steps=40))
    going_on = train(tmp_path / "run", resume="latest", max_steps=41, ema={"decay": 0.999, "warmup": False})
    for name, average in going_on.averages.items():
        assert torch.allclose(average, before[name], atol=1e-3), name


class Judged(RegressionTask):
    """Measures a quality that is always negative."""

    def evaluate(self, model, dataset, positions):
        return {"quality": (-2.0, 1)}


def test_another_metric_at_a_resume_chooses_the_best_anew(tmp_path, caplog):
    train(tmp_path / "run", Judged(), max_steps=8)
    better = {"metric_for_best_model": "quality", "greater_is_better": True}
    with caplog.at_level("INFO"):
        trainer = train(tmp_path / "run", Judged(), resume="latest", max_steps=12, validation=better)
    assert "it is now chosen by quality" in caplog.text
    assert (trainer.progress.best.value, trainer.progress.best.step) == (-2.0, 12)
    assert trainer.restore_best() is not None


def test_the_best_weights_come_back_without_saved_features(tmp_path):
    trainer = train(
        tmp_path / "run",
        RandomFeaturesTask(),
        checkpoint={"snapshot_features": False},
        callbacks=[],
    )
    assert trainer.restore_best() is not None


def test_options_of_the_optimizer_may_change_at_a_resume_and_its_type_may_not(tmp_path):
    train(tmp_path / "run", max_steps=4)
    changed = {"weight_decay": 0.5, "betas": [0.5, 0.6]}
    trainer = train(tmp_path / "run", resume="latest", max_steps=5, optimizer=changed)
    group = next(iter(trainer.optimizers.values())).param_groups[0]
    assert (group["weight_decay"], tuple(group["betas"])) == (0.5, (0.5, 0.6))
    with pytest.raises(InputError, match=r"training\.optimizer\.type: .* saved with AdamW.*init_from"):
        train(tmp_path / "run", resume="latest", max_steps=6, optimizer={"type": "sgd"})


class DeeperTask(RegressionTask):
    """With one layer more."""

    def model(self, device):
        return super().model(device).append(nn.Linear(4, 4, device=device))


@pytest.mark.parametrize(("before", "after"), [(RegressionTask, DeeperTask), (DeeperTask, RegressionTask)])
def test_a_resume_with_more_or_fewer_layers_is_refused_in_words(tmp_path, before, after):
    train(tmp_path / "run", before(), max_steps=4)
    with pytest.raises(InputError, match=r"does not fit this model: 4\.\w+ is not in "):
        train(tmp_path / "run", after(), resume="latest", max_steps=5)


def test_profiling_may_be_switched_at_a_resume(tmp_path, caplog):
    train(tmp_path / "run", max_steps=4, profiling=True)
    caplog.clear()
    train(tmp_path / "run", resume="latest", max_steps=8)
    assert "dropped" not in caplog.text
    train(tmp_path / "run", resume="latest", max_steps=16, profiling=True)
    assert any((tmp_path / "run/profile").iterdir())


class Normalised(RegressionTask):
    """Has statistics that move in every forward pass."""

    dropout = 0.0

    def model(self, device):
        class Network(nn.Sequential):
            def forward(self, x):
                return self[1](self[0](x.transpose(1, 2)).transpose(1, 2))

        return Network(nn.BatchNorm1d(4), nn.Linear(4, 4))

    def loss(self, model, batch, phase):
        error = (model(batch["x"]) - batch["y"]) ** 2
        return {"mse": ((error * batch["mask"][..., None]).sum(), float(batch["frames"] * 4))}


def test_counting_by_running_leaves_the_model_as_it_was(tmp_path):
    class Counting(Sequences):
        def unit_counts(self, batch):
            return {"elements": batch["frames"] * 4}

    class Counted(Normalised):
        def dataset(self, split):
            return Counting(self.count, 1)

        def loss(self, model, batch, phase):
            return {"mse": (super().loss(model, batch, phase)["mse"][0], "elements")}

    runs = [
        train(tmp_path / task.__name__, task(), max_steps=3, gradient_accumulation_steps=2)
        for task in (Normalised, Counted)
    ]
    assert same(*map(weights, runs))
    assert runs[0].model[0].num_batches_tracked == 6


def test_a_pruned_average_has_the_zeros_too(tmp_path):
    pruning = {"type": "pruning", "options": {"amount": 0.5, "start": 1, "end": 6, "interval": 1}}
    asked = {**settings(max_steps=8, ema={"decay": 0.99}).model_dump(), "callbacks": [pruning]}
    run = Run(tmp_path / "run")
    run.create(resuming=False)
    trainer = Trainer(RegressionTask(), TrainingSettings.model_validate(asked), run)
    trainer.fit()
    saved = trainer.checkpoints.load_checkpoint("latest").weights["0.weight"]
    assert float((saved == 0).float().mean()) == pytest.approx(0.5)


def test_meters_have_the_same_names_on_every_rank_after_a_resume_on_more_ranks():
    counted = [[{"mse": [3.0, 2.0]}, {"mse": [5.0, 4.0]}]]
    totals = []
    for rank in range(2):
        meters = Meters(Meter(), Ranks(rank, 2))
        meters.restore(counted)
        totals.append(meters.epoch.state())
    assert totals == [{"mse": [5.0, 4.0]}, {"mse": [0.0, 0.0]}]


class NoisyLoader:
    """Draws from numpy's global generator, as augmentation in a collate function often does."""

    def __init__(self, says: int, has: int) -> None:
        self.says, self.has = says, has

    def __len__(self) -> int:
        return self.says

    def __iter__(self):
        for _ in range(self.has):
            x = torch.from_numpy(np.random.standard_normal((2, 6, 4)).astype(np.float32))
            yield {"features": x, "target_features": x * 0.5}


def voice_trainer(folder, **changes):
    torch.manual_seed(0)
    values = {"num_epochs": 1, "use_amp": False, "validate_interval": 4, "verbosity": "quiet", "warmup_steps": 0}
    config = TrainingConfig(**{**values, "output_dir": str(folder), **changes})
    return VoiceTrainer(nn.Linear(4, 4), config, experiment_name="run")


def test_a_loader_that_is_shorter_than_it_says_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"3 batches, .* 5"):
        voice_trainer(tmp_path).train(NoisyLoader(5, 3), NoisyLoader(1, 1))


def test_a_loader_that_is_longer_than_it_says_ends_there(tmp_path):
    trainer = voice_trainer(tmp_path)
    trainer.train(NoisyLoader(5, 9), NoisyLoader(1, 1))
    assert max(path.name for path in (tmp_path / "run/checkpoints").glob("step-*")) == "step-00000005"


def test_a_loader_that_draws_global_numbers_resumes_exactly_behind_a_validation(tmp_path):
    loaders = NoisyLoader(10, 10), NoisyLoader(2, 2)
    straight = voice_trainer(tmp_path / "a", save_interval=6)
    straight.train(*loaders)
    resumed = voice_trainer(tmp_path / "b")
    resumed.train(*loaders, checkpoint_path=tmp_path / "a/run/checkpoints/step-00000006")
    assert same(straight.model.state_dict(), resumed.model.state_dict())


@pytest.mark.parametrize("size", [1, 4, 3])
def test_a_loader_of_other_batches_goes_on_with_the_samples_not_yet_used(tmp_path, size):
    seen = []

    def loader(batch_size):
        def collate(items):
            seen.append(items)
            x = torch.tensor(items, dtype=torch.float32)[:, None].expand(-1, 4)
            return {"features": x, "target_features": x * 0.5}

        return DataLoader(range(12), batch_size, shuffle=True, collate_fn=collate)

    voice_trainer(tmp_path / "a", save_interval=4).train(loader(2))
    order = [one for batch in seen for one in batch]
    seen.clear()
    trained = []
    trainer = voice_trainer(tmp_path / "b")
    trainer.model.register_forward_pre_hook(lambda _, inputs: trained.extend(inputs[0][:, 0].tolist()))
    trainer.train(loader(size), checkpoint_path=tmp_path / "a/run/checkpoints/step-00000004")
    assert [one for batch in seen for one in batch] == order
    assert trained == order[8:]


def test_validation_leaves_the_draws_of_the_training_loader_alone(tmp_path):
    """Every batch of an epoch is another one."""
    seen = []

    class Watched(NoisyLoader):
        def __iter__(self):
            for batch in super().__iter__():
                seen.append(float(batch["features"].sum()))
                yield batch

    voice_trainer(tmp_path, validate_interval=2).train(Watched(8, 8), NoisyLoader(2, 2))
    assert len(set(seen)) == 8
