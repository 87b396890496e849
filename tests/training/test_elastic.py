"""Any number of ranks and workers, and any micro-batch: the same samples in every step, and the same losses."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from processes import HERE, finish, rows

pytestmark = pytest.mark.slow

STEPS = 7
SAME = [
    "training.random_seed=3",
    "training.batch_size=6",  # of 26 samples: the last batch of an epoch leaves ranks without items
    "training.gradient_accumulation_steps=2",
    "training.optimizer.lr=0.003",
    "training.ema=null",
    "training.scheduler.patience=100",  # each end of a run validates
    "training.logging.interval=1",
]


def train(run: Path, *overrides: str, steps: int = STEPS, **options) -> None:
    environment = {"SEEN": str(run.parent / "seen"), **options.pop("env", {})}
    plugin = HERE / "elastic_plugin.py"
    finish(run, *SAME, f"training.max_steps={steps}", *overrides, env=environment, plugin=plugin, **options)


def seen(run: Path) -> dict[int, list[str]]:
    """The samples of each step, of all ranks."""
    samples = defaultdict(list)
    for file in run.parent.glob("seen.*"):
        for line in file.read_text().splitlines():
            step, name = line.split()
            samples[int(step)].append(name)
    return {step: sorted(names) for step, names in sorted(samples.items())}


def losses(run: Path) -> list[dict[str, float]]:
    kept = ("step", "epoch", "split", "mse", "size", "contrastive", "grad_norm", "loss")
    last = [row for row in rows(run) if row["split"] == "train" or row["step"] == STEPS]
    return [{name: row[name] for name in kept if name in row} for row in last]


def assert_same(run: Path, reference: Path) -> None:
    assert seen(run) == seen(reference)
    ours, theirs = losses(run), losses(reference)
    assert [row.keys() for row in ours] == [row.keys() for row in theirs]
    for a, b in zip(ours, theirs, strict=True):
        numbers = [name for name in b if name != "split"]
        assert [a[name] for name in numbers] == pytest.approx([b[name] for name in numbers], rel=2e-4, abs=1e-6), b


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process, with a loss that compares items; and one without it."""
    folder = tmp_path_factory.mktemp("alone")
    train(folder / "coupled/run")
    train(folder / "plain/run", env={"PLAIN": "1"})
    assert all("contrastive" in row for row in losses(folder / "coupled/run"))
    return folder


@pytest.mark.parametrize(("ranks", "workers"), [(2, 0), (4, 1)])
def test_ranks_and_workers_change_nothing(ranks, workers, tmp_path, alone):
    train(tmp_path / "run", f"training.performance.num_workers={workers}", ranks=ranks)
    assert_same(tmp_path / "run", alone / "coupled/run")


def test_two_ranks_then_one_then_three_with_another_micro_batch_each(tmp_path, alone):
    """A run that is stopped within an epoch goes on with the sample that follows."""
    run, plain = tmp_path / "run", {"PLAIN": "1"}
    train(run, steps=2, ranks=2, env=plain)
    train(run, "training.batch_size=4", "training.gradient_accumulation_steps=3", steps=4, env=plain)
    train(run, "training.batch_size=12", "training.gradient_accumulation_steps=1", ranks=3, env=plain)
    assert_same(run, alone / "plain/run")
