"""A metric's direction is declared once; selection, schedules, callbacks, searches and rankings ask it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from small_tasks import RegressionTask
from test_trainer import settings, train

from phonate.config.errors import InputError
from phonate.config.metrics import Metric
from phonate.training.checkpoints import listing
from phonate.training.metrics import direction_of
from phonate.training.registries import CALLBACKS
from phonate.training.task import losses


class Undeclared(RegressionTask):
    """Its `hits` rise at every validation, as an accuracy does in a run that improves."""

    def __init__(self, recipe=None) -> None:
        super().__init__(recipe)
        self.validations = 0

    def evaluate(self, model, dataset, positions):
        self.validations += 1
        return {"hits": (float(self.validations), 1.0)}


class Declared(Undeclared):
    metrics = (*losses(["mse", "size"]), Metric("hits", "higher"))


EACH = {"interval": 2, "previews": False}


def test_early_stopping_goes_on_while_the_metric_rises(tmp_path):
    stopping = {"metric": "val_hits", "patience": 1, "restore_best_weights": False}
    assert train(tmp_path / "run", Declared(), max_steps=8, validation=EACH, early_stopping=stopping).step == 8


def test_plateau_keeps_the_rate_while_the_metric_rises(tmp_path):
    plateau = {"type": "plateau", "metric": "hits", "patience": 0, "gamma": 0.1}
    trainer = train(tmp_path / "run", Declared(), max_steps=8, validation=EACH, scheduler=plateau)
    assert trainer.schedules["main"].reductions == 0


def test_dynamic_lr_keeps_the_rate_while_the_metric_rises(tmp_path):
    callback = CALLBACKS.get("dynamic_lr")(metric="hits", patience=1)
    trainer = train(tmp_path / "run", Declared(), max_steps=8, validation=EACH, callbacks=[callback])
    assert trainer.schedules["main"].scale == 1.0


def test_the_best_checkpoint_has_the_highest(tmp_path):
    validation = {**EACH, "metric_for_best_model": "val_hits"}
    trainer = train(tmp_path / "run", Declared(), max_steps=8, validation=validation, checkpoint={"interval": 2})
    infos = listing.scan(tmp_path / "run" / "checkpoints")
    best = listing.best_of(infos)
    assert (trainer.progress.best.step, best.name, best.mode) == (8, "step-00000008", "max")
    assert listing.rank_by(infos, "val_hits")[0][0].step == 8
    assert listing.rank_by(infos, "val_mse")[0][1] == min(one.metadata.metrics["val_mse"] for one in infos)
    with pytest.raises(InputError, match="higher_is_better=True: val_mse "):
        listing.rank_by(infos, "val_mse", higher_is_better=True)
    with pytest.raises(InputError, match="higher_is_better=False: hits "):
        listing.rank_by(infos, "hits", higher_is_better=False)


def test_the_newest_needs_no_direction(tmp_path):
    validation = {**EACH, "metric_for_best_model": "step"}
    assert train(tmp_path / "run", Declared(), max_steps=4, validation=validation).progress.best.step == 4


@pytest.mark.parametrize(("metric", "step"), [("step", 5), ("hits", 4)])
def test_the_newest_is_used_between_validations_where_it_is_the_best(tmp_path, metric, step):
    validation = {**EACH, "metric_for_best_model": metric}
    train(
        tmp_path / "run",
        Declared(),
        max_steps=6,
        validation=validation,
        checkpoint={"interval": 1, "save_total_limit": 9},
    )
    folder = tmp_path / "run" / "checkpoints"
    listing.remove(listing.scan(folder)[-1])
    listing.refresh(folder)
    infos, used = listing.scan(folder), f"step-{step:08d}"
    assert listing.best_of(infos).name == listing.best_of(listing.newest_first(infos)).name == used
    assert listing.best_or_latest(tmp_path / "run").name == used


STOP = {"metric": "hits", "restore_best_weights": False}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"validation": {"metric_for_best_model": "hits", "greater_is_better": False}},
            r"training\.validation\.greater_is_better=false .*=hits, .*higher",
        ),
        ({"validation": {"greater_is_better": True}}, r"greater_is_better=true .*val_loss, .*lower"),
        ({"validation": {"metric_for_best_model": "step", "greater_is_better": False}}, "step, "),
        ({"early_stopping": {**STOP, "mode": "min"}}, r"training\.early_stopping\.mode=min .*leave .* out"),
        ({"scheduler": {"type": "plateau", "metric": "hits", "mode": "min"}}, r"training\.scheduler\.mode=min"),
        (
            {"callbacks": [CALLBACKS.get("dynamic_lr")(metric="val_hits", mode="min")]},
            r"training\.callbacks\.mode=min",
        ),
    ],
)
def test_an_option_that_contradicts_the_direction_is_refused(tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        train(tmp_path / "run", Declared(), **changes)


def test_one_option_says_the_direction_of_an_undeclared_metric_for_all(tmp_path):
    best = {**EACH, "metric_for_best_model": "val_hits", "greater_is_better": True}
    plateau = {"type": "plateau", "metric": "hits", "patience": 0}
    stopping = {"metric": "hits", "patience": 1}
    trainer = train(
        tmp_path / "run", Undeclared(), max_steps=8, validation=best, scheduler=plateau, early_stopping=stopping
    )
    assert (trainer.step, trainer.progress.best.step, trainer.schedules["main"].reductions) == (8, 8, 0)
    with pytest.raises(InputError, match=r"early_stopping\.mode=min .*greater_is_better=true.* hits"):
        train(tmp_path / "b", Undeclared(), validation=best, early_stopping={**stopping, "mode": "min"})


def test_an_undeclared_metric_without_a_direction_is_asked_for_and_losses_are_not(tmp_path):
    with pytest.raises(InputError, match=r"training\.early_stopping\.metric.*hits.*set training\.early_stopping\.mode"):
        train(tmp_path / "run", Undeclared(), validation=EACH, early_stopping=STOP)
    validation = {**EACH, "metric_for_best_model": "val_mse"}
    trainer = train(tmp_path / "loss", Undeclared(), max_steps=4, validation=validation)
    assert trainer.progress.best.greater_is_better is False


def test_what_recipes_of_earlier_runs_spell_out_is_no_contradiction(tmp_path):
    old = {"scheduler": {"type": "cosine", "mode": "min"}, "early_stopping": {"mode": "min"}}
    train(tmp_path / "run", Declared(), max_steps=2, validation={**EACH, "greater_is_better": False}, **old)


@pytest.mark.parametrize(
    ("tuning", "declared", "direction"),
    [
        ({"metric": "val_hits"}, [Metric("hits", "higher")], "maximize"),
        ({"metric": "val_nll"}, [Metric("hits", "higher")], "minimize"),
        ({}, None, "minimize"),
        ({"metric": "hits", "direction": "maximize"}, None, "maximize"),
        ({"metric": "hits", "direction": "minimize"}, [Metric("hits", "higher")], r"direction=minimize contradicts"),
        ({"metric": "hits"}, None, r"set training\.tuning\.direction to minimize or maximize"),
    ],
)
def test_a_search_knows_its_direction_before_its_first_run(tuning, declared, direction):
    asked = settings(tuning=tuning)
    if direction in {"maximize", "minimize"}:
        assert direction_of(asked, declared) == direction
    else:
        with pytest.raises(InputError, match=direction):
            direction_of(asked, declared)


def test_of_two_networks_that_play_against_each_other_neither_loss_is_better_when_lower():
    terms = losses(["mel", "adversarial", "discriminator"])
    assert [one.better for one in terms] == ["lower", "", ""]
    assert all(one.is_term for one in terms)


def test_directions_of_old_checkpoints():
    """Those without `directions`: of the metric that chose the best, and of losses, it is known."""

    def info(step, **metrics):
        own = {"best_metric_name": "quality", "best_metric_mode": "max", "directions": {}, "metrics": metrics}
        return SimpleNamespace(step=step, metadata=SimpleNamespace(**own))

    infos = [info(1, val_loss=2.0, val_quality=1.0, val_hits=3.0), info(2, val_loss=1.0, val_quality=2.0, val_hits=1.0)]
    assert [one.step for one, _ in listing.rank_by(infos, "loss")] == [2, 1]
    assert [one.step for one, _ in listing.rank_by(infos, "quality")] == [2, 1]
    assert [one.step for one, _ in listing.rank_by(infos, "hits", declared=[Metric("hits", "higher")])] == [1, 2]
    with pytest.raises(InputError, match="higher_is_better=True or higher_is_better=False"):
        listing.rank_by(infos, "hits")
