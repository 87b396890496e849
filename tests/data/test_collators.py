"""A collator of a plug-in makes the batches of a shipped task."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from small_corpora import RATE, tone

import phonate_process
from phonate.audio.decoding import write_audio
from phonate.config.errors import InputError
from phonate.data.batches import COLLATORS, Collator, with_collator

PLUGIN = """
from phonate.data.batches import COLLATORS, Collator


class Louder(Collator):
    def __call__(self, items):
        batch = super().__call__(items)
        print("collated", len(items), sorted(batch), flush=True)
        return batch


COLLATORS.register("louder", Louder)
"""


def phonate_train(folder, *options):
    command = ["train", "vocoder", "size=tiny", "data.path=corpus", *options]
    limits = ["data.cache_dir=cache", "training.max_steps=2", "training.batch_size=2", "training.early_stopping=null"]
    command += [*limits, "training.validation.interval=2", "--device", "cpu", "--output", "run"]
    return phonate_process.run(*command, cwd=folder)


def test_a_collator_of_a_plug_in_makes_the_batches(tmp_path):
    for number in range(6):
        path = tmp_path / f"corpus/ann/{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_audio(path, tone(1.0, 200.0 + 50 * number), RATE)
    (tmp_path / "louder.py").write_text(PLUGIN)
    done = phonate_train(tmp_path, "data.collator=louder", "--plugin", "louder.py")
    assert done.returncode == 0, done.stderr
    assert "collated 2 [" in done.stdout + done.stderr
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])["step"] == 2


def test_an_unknown_collator_is_named_before_anything_is_read(tmp_path):
    done = phonate_train(tmp_path, "data.collator=lauder")
    assert (done.returncode, "data.collator" in done.stderr, "lauder" in done.stderr) == (2, True, True)


class Numbers:
    """A data set that makes arrays of its items."""

    def collate(self, items):
        return {"numbers": np.array(items)}


class Doubled(Collator):
    """Twice the numbers."""

    def __call__(self, items):
        return {"numbers": 2 * super().__call__(items)["numbers"]}


def test_a_data_set_with_another_collator_goes_to_worker_processes():
    COLLATORS.register("doubled", Doubled)
    try:
        dataset = with_collator(Numbers(), "doubled")
    finally:
        COLLATORS._registered.pop("doubled")
    assert dataset.collate([1, 2])["numbers"].tolist() == [2, 4]
    assert pickle.loads(pickle.dumps(dataset)).collate([1, 2])["numbers"].tolist() == [2, 4]
    assert with_collator(Numbers(), None).collate([1])["numbers"].tolist() == [1]
    with pytest.raises(InputError, match="'gone'"):
        with_collator(Numbers(), "gone")
