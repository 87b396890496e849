"""The trainer on a GPU. What only these tests show is unproven wherever they were skipped."""

from __future__ import annotations

import pytest
import torch
from small_tasks import RegressionTask
from test_trainer import lines, settings, weights

from phonate.training.run import Run
from phonate.training.trainer import Trainer

DEVICE = "cuda"
pytestmark = pytest.mark.gpu


def train_on_gpu(folder, resume=None, **changes) -> Trainer:
    run = Run(folder)
    run.create(resuming=resume is not None)
    trainer = Trainer(RegressionTask(), settings(**changes), run, device=torch.device(DEVICE))
    trainer.fit(trainer.checkpoints.load_checkpoint(resume) if resume else None)
    return trainer


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_learns(tmp_path, precision):
    train_on_gpu(
        tmp_path,
        max_steps=200,
        validation={"interval": 50},
        logging={"interval": 10},
        mixed_precision=precision,
        gradient_accumulation_steps=2,
    )
    rows = lines(tmp_path, "train")
    assert rows[-1]["mse"] < 0.4 * rows[0]["mse"]


def test_cuda_graphs_train_alike(tmp_path):
    compiled, plain = (
        train_on_gpu(tmp_path / str(how), max_steps=20, performance={"compile_model": how})
        for how in ("cuda_graphs", False)
    )
    assert all(torch.allclose(tensor, weights(plain)[name], atol=1e-4) for name, tensor in weights(compiled).items())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_resume_is_exact_to_the_bit(tmp_path, precision):
    options = {"ema": {"decay": 0.9}, "mixed_precision": precision}
    straight = weights(train_on_gpu(tmp_path, **options))
    resumed = weights(train_on_gpu(tmp_path, resume="step-00000008", **options))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())
