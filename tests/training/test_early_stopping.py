"""Early stopping in whole runs: which weights it ends with, and how a stopped run goes on."""

from __future__ import annotations

import pytest
from small_tasks import Nothing, RegressionTask
from test_trainer import same, settings, train, weights

from phonate.config.errors import InputError, RecipeError
from phonate.config.metrics import Metric, losses
from phonate.config.resolve import resolve
from phonate.config.tasks import TASKS, TaskEntry
from phonate.training.registries import CALLBACKS


class Judged(RegressionTask):
    """Its quality is best at the second validation, whatever the loss."""

    def __init__(self, recipe=None) -> None:
        super().__init__(recipe)
        self.found = iter([5.0, 9.0, *[1.0] * 50])

    def evaluate(self, model, dataset, positions):
        return {"quality": (next(self.found), 1)}


BY_QUALITY = {"metric": "val_quality", "mode": "max", "patience": 3}


def options(**changes):
    return {"max_steps": 40, "validation": {"interval": 2}, "checkpoint": {"interval": 2}, **changes}


def test_the_metric_that_chooses_the_best_must_be_the_watched_one(tmp_path):
    said = r"val_loss; set training\.validation\.metric_for_best_model=val_quality"
    listed = [{"type": "early_stopping", "options": BY_QUALITY}]
    for asked in ({"early_stopping": BY_QUALITY}, {"callbacks": listed}):
        with pytest.raises(InputError, match=said):
            settings(**asked)
    callback = CALLBACKS.get("early_stopping")(**BY_QUALITY)
    with pytest.raises(InputError, match=said):
        train(tmp_path / "given", Judged(), callbacks=[callback])


def test_the_option_to_set_is_the_one_that_chooses():
    with pytest.raises(InputError, match=r"val_mse; set training\.checkpoint\.monitor_metric=val_loss"):
        settings(early_stopping={}, checkpoint={"monitor_metric": "val_mse"})


def test_without_best_weights_any_metric_may_be_watched(tmp_path):
    stopping = {**BY_QUALITY, "restore_best_weights": False}
    assert train(tmp_path / "run", Judged(), **options(early_stopping=stopping)).step == 10


def test_the_weights_of_the_watched_metrics_best_come_back(tmp_path):
    best = {"interval": 2, "metric_for_best_model": "quality", "greater_is_better": True}
    trainer = train(tmp_path / "run", Judged(), **options(validation=best, early_stopping=BY_QUALITY))
    assert trainer.step == 10
    saved = trainer.checkpoints.load_checkpoint("step-00000004").weights
    assert same(weights(trainer), saved)


def test_where_the_newest_is_the_best_any_metric_may_stop_training(tmp_path):
    newest = {"interval": 2, "metric_for_best_model": "step", "greater_is_better": True}
    trainer = train(tmp_path / "run", Judged(), **options(validation=newest, early_stopping=BY_QUALITY))
    assert trainer.step == 10
    assert same(weights(trainer), trainer.checkpoints.load_checkpoint("step-00000010").weights)


def test_the_mistake_is_told_with_the_recipes_line(tmp_path, monkeypatch):
    monkeypatch.setattr(TASKS, "_registered", dict(TASKS._registered))
    TASKS.register("judged", TaskEntry(data=Nothing, model=Nothing, task=Judged))
    recipe = tmp_path / "judged.yaml"
    recipe.write_text("task: judged\ntraining:\n  early_stopping: {metric: val_quality}\n")
    with pytest.raises(RecipeError, match=r"judged\.yaml:\d+:\d+ training: .*val_quality"):
        resolve(recipe)


class Stale(RegressionTask):
    """Its weights hardly move, and its quality never does."""

    metrics = (*losses(["mse", "size"]), Metric("quality", "higher", "%"))

    def evaluate(self, model, dataset, positions):
        return {"quality": (1.0, 1)}


def stale(folder, patience, **changes):
    stopping = {"metric": "quality", "patience": patience, "restore_best_weights": False}
    return train(folder, Stale(), **options(early_stopping=stopping, **changes))


def test_more_patience_goes_on_with_a_stopped_run_as_if_it_had_had_it_before(tmp_path):
    assert stale(tmp_path / "run", 2).step == 6
    resumed = stale(tmp_path / "run", 5, resume="latest")
    straight = stale(tmp_path / "straight", 5)
    assert (resumed.step, straight.step) == (12, 12)
    assert same(weights(resumed), weights(straight))


def test_a_run_that_stays_stopped_says_why(tmp_path, caplog):
    stale(tmp_path / "run", 2)
    caplog.clear()
    with caplog.at_level("INFO"):
        assert stale(tmp_path / "run", 2, resume="latest").step == 6
    assert [record.message for record in caplog.records] == [
        "this run stopped early: quality has not improved on 100 % for 2 validations; add "
        "training.early_stopping.patience=4 to train on (any number above 2 does)"
    ]


def test_a_run_that_stays_stopped_by_a_listed_callback_says_whose_patience_to_raise(tmp_path, caplog):
    for resume in (None, "latest"):
        callback = CALLBACKS.get("early_stopping")(metric="quality", patience=2, restore_best_weights=False)
        with caplog.at_level("INFO"):
            assert train(tmp_path / "run", Stale(), resume=resume, callbacks=[callback], **options()).step == 6
    assert "; raise the patience of its callback to train on (any number above 2 does)" in caplog.text


def test_a_stopped_run_goes_on_without_early_stopping(tmp_path):
    stale(tmp_path / "run", 2)
    assert train(tmp_path / "run", Stale(), resume="latest", **options(max_steps=8)).step == 8
