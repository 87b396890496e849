"""Weights divided over ranks (FSDP2): the same training as on one, and checkpoints that any number of ranks reads."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from processes import HERE, finish, last_step, rows, start, wait_for
from safetensors.torch import load_file
from small_tasks import RegressionTask
from torch import nn

from phonate.compute.distributed import whole
from phonate.config.errors import CheckpointError, InputError
from phonate.training.callbacks import PruningCallback
from phonate.training.checkpoints import files, snapshot
from phonate.training.checkpoints.listing import export
from phonate.training.checkpoints.loading import load
from phonate.training.checks import check_settings
from phonate.training.ema import EMA
from phonate.training.optimizers import build_optimizer
from phonate.training.registries import OPTIMIZERS
from phonate.training.settings import EMASettings, OptimizerSettings, TrainingSettings
from phonate.training.state import Progress, Saver

pytestmark = pytest.mark.slow

SAME = [
    "training.max_steps=14",
    "training.random_seed=3",
    "training.ema.validate_with=better",
    "training.scheduler.patience=100",
]
FSDP = "training.distributed.strategy=fsdp"
OPTIONS = {"plugin": HERE / "fsdp_plugin.py"}


def train(run: Path, *overrides: str, **options) -> Path:
    finish(run, *SAME, *overrides, **OPTIONS, **options)
    return run


def newest(run: Path):
    """The newest checkpoint: its weights, and the tensors and numbers of its state."""
    checkpoint = load(run / "checkpoints" / f"step-{last_step(run):08d}")
    state = {name: checkpoint.state[name] for name in ("phases", "raw", "ema", "trainer", "meters")}
    document, tensors = snapshot.encode(state)
    return checkpoint.weights, tensors, json.dumps(document)


def assert_identical(run: Path, reference: Path) -> None:
    assert rows(run) == rows(reference)
    for ours, theirs in zip(newest(run)[:2], newest(reference)[:2], strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def assert_close(run: Path, reference: Path) -> None:
    for ours, theirs in zip(newest(run)[:2], newest(reference)[:2], strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=2e-5, msg=name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    return train(folder / "one/run"), train(folder / "two/run", FSDP, ranks=2)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, [FSDP]),
        (3, ["training.distributed.strategy=fsdp-offload", "training.checkpoint.compress=true"]),  # 16 rows on 3
    ],
)
def test_ranks_with_parts_of_the_weights_train_as_one_with_all(ranks, options, tmp_path, runs):
    assert_close(train(tmp_path / "run", *options, ranks=ranks), runs[0])


def test_the_checkpoint_is_that_of_torch_distributed_with_hashes(tmp_path, runs):
    from torch.distributed import checkpoint as dcp

    path = runs[1] / "checkpoints/step-00000014"
    listed = files.read_manifest(path)
    assert {"weights-00001-of-00002.safetensors", "state-00002-of-00002.safetensors"} <= listed.keys()
    parts = [load_file(path / f"weights-0000{rank}-of-00002.safetensors") for rank in (1, 2)]
    weights = load(path).weights
    assert torch.equal(torch.cat([part["last.weight"] for part in parts]), weights["last.weight"])
    target = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    dcp.load(target, storage_reader=dcp.HuggingFaceStorageReader(str(path)), no_dist=True)
    assert all(torch.equal(target[name], weights[name]) for name in weights)
    exported = load(export(path, tmp_path / "exported"), weights_only=True)
    assert all(torch.equal(exported.weights[name], weights[name]) for name in weights)
    assert not list((tmp_path / "exported").glob("state*"))


def test_damaged_and_missing_parts_are_named(tmp_path, runs):
    path = export(runs[1] / "checkpoints/step-00000014", tmp_path / "copy")
    part = path / "weights-00002-of-00002.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"weights-00002-of-00002\.safetensors: SHA-256 differs"):
        load(path, weights_only=True)
    document = json.loads((path / "manifest.json").read_text())
    del document["files"][part.name]
    (path / "manifest.json").write_bytes(files.render(document))
    with pytest.raises(CheckpointError, match="not in the manifest"):
        load(path, weights_only=True)


def test_killed_and_resumed_it_is_the_same_to_the_bit(tmp_path):
    random = {"DROPOUT": "0.2"}
    reference = train(tmp_path / "whole/run", FSDP, ranks=2, env=random)
    run = tmp_path / "killed/run"
    for step in (3, 8):
        process = start(run, *SAME, FSDP, ranks=2, env={**random, "SLOW_DATA": "0.05"}, **OPTIONS)
        assert wait_for(lambda step=step: last_step(run) >= step, process)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    train(run, FSDP, ranks=2, env=random)
    assert_identical(run, reference)


def test_undivided_checkpoints_are_divided_and_back(tmp_path, runs):
    run = tmp_path / "run"
    train(run, "training.max_steps=4")
    train(run, "training.max_steps=8", FSDP, ranks=3)
    train(run, "training.max_steps=10", ranks=2)
    train(run, FSDP, ranks=2)
    assert_close(run, runs[0])


@pytest.fixture(scope="module")
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_every_optimizer_steps_with_parts_of_weights(name, one_rank):
    from torch.distributed.fsdp import fully_shard

    weights = []
    for divided in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        if divided:
            fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
        optimizer = build_optimizer(OptimizerSettings(type=name), model.named_parameters(), torch.device("cpu"))
        for _ in range(2):
            model(torch.ones(3, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append(whole(model.weight.detach()))
    torch.testing.assert_close(*weights)


def test_averages_of_divided_weights_start_again(one_rank):
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(8, 8)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    average = EMA(model, EMASettings())
    with torch.no_grad():
        model.weight.fill_(3.0)
    average.reset()
    assert (whole(average.state()["weight"]) == 3.0).all()


def test_divided_weights_are_not_pruned(one_rank):
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(8, 8)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    with pytest.raises(InputError, match=r"can't prune weights that .* divides; choose ddp"):
        PruningCallback(amount=0.5, start=1).on_train_begin(SimpleNamespace(model=model))


def test_a_rank_waits_without_a_limit_for_the_save_before():
    called = []

    def note(name):
        return lambda *_: called.append(name)

    ranks = SimpleNamespace(sharded=True, is_main=False, wait=note("wait"), barrier=note("barrier"))
    step = SimpleNamespace(ranks=ranks, finite=SimpleNamespace(flush=note("flush")))
    checkpoints = SimpleNamespace(make_room=note("make room"), save_shard=note("save"))
    weights = SimpleNamespace(for_inference=lambda averaged: {})
    saver = Saver(checkpoints, {}, Progress(None, False), weights, None, step, "", "", {})
    assert saver.save()
    assert called == ["flush", "make room", "wait", "save"]


def test_what_can_not_be_divided_is_refused():
    settings = TrainingSettings.model_validate({"distributed": {"strategy": "fsdp"}})
    with pytest.raises(InputError, match="does not divide its weights"):
        check_settings(RegressionTask().traits, settings, 1)
