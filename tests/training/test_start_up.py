"""What a run says, or refuses, before its first step."""

from __future__ import annotations

import pytest
import torch
from test_trainer import train

from phonate.compute import distributed
from phonate.config.errors import InputError


@pytest.mark.parametrize(
    ("backend", "there", "device", "said"),
    [
        ("nccl", True, "cpu", r"training\.distributed\.backend: nccl needs GPUs and this run is on cpu; say gloo"),
        ("mpi", False, "cpu", r"training\.distributed\.backend: this torch was built without mpi; say auto"),
        ("nccl", False, "cuda", r"training\.distributed\.backend: this torch was built without nccl; say auto"),
    ],
)
def test_a_backend_that_is_not_there_is_refused(backend, there, device, said, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: there)
    with pytest.raises(InputError, match=said):
        distributed.start(torch.device(device), backend=backend)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "effective batch 12 = 4 x 3 accumulation, over 1 rank(s)"),
        ({"max_duration": 2.5}, "effective batch at most 7.5 s = 2.5 s x 3 accumulation, over 1 rank(s)"),
    ],
)
def test_the_effective_batch_is_told_in_what_batches_are_made_by(changes, said, tmp_path, caplog):
    with caplog.at_level("INFO"):
        train(tmp_path / "run", max_steps=1, gradient_accumulation_steps=3, **changes)
    assert said in caplog.text


def test_a_loss_scale_without_fp16_is_told(tmp_path, caplog):
    for precision, expected in (("fp32", 1), ("bf16", 1), ("fp16", 0)):
        caplog.clear()
        train(tmp_path / precision, max_steps=1, mixed_precision=precision, amp_loss_scale=256.0)
        assert caplog.text.count("training.amp_loss_scale: only fp16") == expected
