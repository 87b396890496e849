"""The cloning model with its weights divided over two ranks trains as on one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloning_runs import settings, write_all
from phonate_process import run, run_ranks

pytestmark = pytest.mark.slow


def losses(folder: Path, output: str, *overrides: str, ranks: int = 1) -> list[dict[str, float]]:
    changes = {"training.loss.weights.contrastive": 0.5, "model.gradient_checkpointing": True}
    changes |= {"training.batch_size": 4, "training.logging.interval": 1, "training.mixed_precision": "fp32"}
    options = [f"{name}={json.dumps(value)}" for name, value in settings(folder, **changes).items()]
    command = ["train", "voice-cloning", *options, *overrides, "--output", str(folder / output), "--mode", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = run_ranks(ranks, *command, env=environment) if ranks > 1 else run(*command, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    rows = [json.loads(line) for line in (folder / output / "metrics.jsonl").read_text().splitlines()]
    names = ("loss", "audio", "contrastive", "accuracy", "grad_norm")
    return [{name: row[name] for name in names} for row in rows if row["split"] == "train"]


def test_two_ranks_with_parts_train_as_one(tmp_path):
    folder = write_all(tmp_path)
    own = ["model.strategy=full"]
    alone = losses(folder, "one", *own)
    divided = losses(folder, "two", *own, "training.distributed.strategy=fsdp", ranks=2)
    assert [list(row.values()) for row in divided] == [pytest.approx(list(row.values()), rel=1e-3) for row in alone]
