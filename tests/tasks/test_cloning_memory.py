"""The memory that a training step of the cloning network takes, and what is made of it."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from installed import missing

if missing("transformers", "peft"):
    pytest.skip("needs transformers, peft: pip install 'phonate[cloning]'", allow_module_level=True)

import torch
from cloning_networks import make_batch, network_settings
from torch import Tensor

from higgs import small_model_folder
from phonate.compute.device import Usage
from phonate.tasks.cloning import model
from phonate.tasks.cloning.model import (
    Load,
    StepMemory,
    choose_checkpointing,
    load_network,
    measure,
)
from phonate.tasks.cloning.network import CloningNetwork
from phonate.tasks.cloning.settings import CloningLoRA

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model_folder(tmp_path_factory.mktemp("higgs") / "model", layers=3, width=96)


def kept_by(network: CloningNetwork, batch: dict[str, Tensor], autocast: torch.dtype | None) -> float:
    """Bytes that a forward pass really keeps for the backward pass, parameters left out."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None), hooks:
        output = network(**batch)
    parameters = {one.untyped_storage().data_ptr() for one in network.parameters()}
    found = float(sum(size for where, size in kept.items() if where not in parameters))
    del output
    return found


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "autocast"), [("fp32", None), ("bf16", torch.bfloat16)])
def test_activations_are_as_predicted_from_one_layer(
    folder: Path, dtype: str, autocast: torch.dtype | None, dropout: float
) -> None:
    settings = network_settings(folder, dtype=dtype, lora=CloningLoRA(rank=4, dropout=dropout))
    network = load_network(settings, CPU).train()
    step = measure(network, autocast)
    assert step.optimizer == 12 * sum(one.numel() for one in network.parameters() if one.requires_grad)
    batch = make_batch(network.config, (((60, (40, 50)), (30, (90,))),), side_by_side=True)
    tokens = batch["input_ids"].numel()
    plain = kept_by(network, batch, autocast)
    assert 0.95 < plain / (step.layers * tokens * step.layer_token) < 1.15
    network.checkpointing = True
    # beside hidden states the mask counts, which is as large as they are in a model as small as this one
    assert step.layers * tokens * step.hidden_token < kept_by(network, batch, autocast) < 0.3 * plain


def test_dropout_and_precision_are_noticed(folder: Path) -> None:
    plain, dropping = (
        load_network(network_settings(folder, lora=CloningLoRA(rank=4, dropout=dropout)), CPU) for dropout in (0.0, 0.1)
    )
    exact = measure(plain).layer_token
    assert measure(plain, torch.bfloat16).layer_token < 0.8 * exact
    assert exact < 0.95 * measure(dropping).layer_token


@pytest.mark.parametrize(
    ("wanted", "gigabytes", "expected", "said"),
    [
        ("auto", 100.0, False, r"^gradient checkpointing off: a micro-batch of 2048 tokens takes about \d"),
        ("auto", 0.03, True, "^gradient checkpointing on: a micro-batch of 2048 tokens"),
        (True, 100.0, True, "^gradient checkpointing on as set: "),
        (False, 0.01, False, "^gradient checkpointing off as set: .* That is too little: lower training.batch_size"),
    ],
)
def test_checkpointing_is_chosen_by_what_is_free(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wanted: Any,
    gigabytes: float,
    expected: bool,
    said: str,
) -> None:
    monkeypatch.setattr(model, "usage_of", lambda device: lambda: Usage(1e9, 1e9 + gigabytes * 1e9))
    network = load_network(network_settings(folder), CPU)
    with caplog.at_level(logging.INFO, logger="phonate"):
        line = choose_checkpointing(network, wanted, Load(tokens=2048, audio_positions=0, text_positions=0))
    assert network.checkpointing is expected
    assert "\n" not in line
    assert caplog.records[-1].message.startswith(line)
    assert re.search(said, caplog.records[-1].message)


def test_logits_and_optimizer_count() -> None:
    step = StepMemory(
        optimizer=100.0,
        layers=10,
        layer_token=7.0,
        hidden_token=1.0,
        audio_position=30.0,
        text_position=500.0,
        text_block=3,
    )
    load = Load(tokens=4, audio_positions=2, text_positions=1)
    assert step.needed(load, checkpointing=False) == 100 + 4 * (70 + 7) + 60 + 500
    assert step.needed(load, checkpointing=True) == 100 + 4 * (10 + 14) + 60 + 500
    assert step.needed(replace(load, text_positions=0), checkpointing=True) == 100 + 4 * 24 + 60
    assert step.needed(replace(load, text_positions=99), checkpointing=True) == 100 + 4 * 24 + 60 + 3 * 500
