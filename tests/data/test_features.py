"""Features are registered: a plug-in's are cached, read and trained on like the mel."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_corpora import RATE, corpus, tone

import phonate_process
from phonate.audio.decoding import write_audio
from phonate.config.errors import InputError
from phonate.config.registry import load_plugin
from phonate.data.features import FEATURES
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData

PLUGIN = '''
import numpy as np
import torch

from phonate.config.settings import Settings
from phonate.config.tasks import TASKS, TaskEntry
from phonate.data.prepared import WholeRecordings
from phonate.data.batches import padded
from phonate.data.features import FEATURES, Features
from phonate.data.settings import VoiceData
from phonate.data.prepared import prepare
from phonate.training.task import Task


class Codes(Features):
    """The loudest sample of each hop in 1000 steps, at the level of the file."""

    normalises_level = False
    dtype = np.dtype("<i2")
    width = 1
    fingerprint = "codes-1"

    def compute(self, waveform_N):
        hop = self.audio.hop_length
        padded_N = np.zeros(self.frames(len(waveform_N)) * hop, dtype=np.float32)
        padded_N[: len(waveform_N)] = waveform_N
        return np.rint(1000 * np.abs(padded_N.reshape(-1, hop)).max(axis=1, keepdims=True))


class CodeData(VoiceData):
    """Codes of recordings."""

    @property
    def feature_name(self):
        return "codes"


class CodeModel(Settings):
    """One number a code."""


class CodeSamples(WholeRecordings):
    def get(self, index, rng):
        return self.prepared.cache.features(self.positions[index])[:, 0].astype(np.int64)

    def collate(self, items):
        return {"codes": padded(items)}


class CodeTask(Task):
    def __init__(self, recipe):
        self.recipe = recipe
        self.prepared = prepare(recipe.data)
        assert self.prepared.cache.dtype == np.int16

    def model(self, *_):
        return torch.nn.Embedding(1001, 1)

    def dataset(self, split):
        return CodeSamples(self.prepared, getattr(self.prepared, split).tolist(), self.recipe.data.audio)

    def loss(self, model, batch, phase):
        error = model(batch["codes"])[..., 0] - batch["codes"] / 1000
        return {"codes": (error.square().sum(), float(error.numel()))}


FEATURES.register("codes", Codes)
TASKS.register("codes", TaskEntry(CodeData, CodeModel, CodeTask))
'''


@pytest.fixture
def quiet(tmp_path):
    for number in range(4):
        path = tmp_path / f"corpus/ann/{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_audio(path, 0.5 * tone(1.0, 200.0 + 50 * number), RATE)
    return tmp_path / "corpus"


@pytest.fixture
def plugin(tmp_path):
    (tmp_path / "codes.py").write_text(PLUGIN)
    yield tmp_path / "codes.py"
    FEATURES._registered.pop("codes", None)


def test_integer_codes_of_a_plug_in_keep_their_type_and_the_level_of_the_file(quiet, plugin):
    load_plugin(plugin)
    from phonate.config.tasks import TASKS

    data_class = TASKS.find("codes").data
    prepared = prepare(data_class(**corpus(quiet).model_dump()))
    codes = prepared.cache.features(0)
    assert (codes.dtype, codes.shape) == (np.int16, (1 + RATE // 256, 1))
    assert codes.max() == pytest.approx(150, abs=1), "0.5 x 0.3 of full scale"
    assert np.abs(prepared.cache.waveform(0)).max() == pytest.approx(0.15, abs=1e-3)
    mel = prepare(corpus(quiet))
    assert mel.folder != prepared.folder
    assert np.abs(mel.cache.waveform(0)).max() == pytest.approx(1.0)


def test_a_task_of_a_plug_in_trains_on_its_features(quiet, plugin, tmp_path):
    recipe = {
        "task": "codes",
        "data": {"path": str(quiet), "cache_dir": str(tmp_path / "cache"), "validation": 0.25},
        "training": {"max_steps": 2, "batch_size": 2, "validation": {"interval": 2}, "early_stopping": None},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    command = ["train", "recipe.yaml", "--plugin", "codes.py", "--output", "run", "--device", "cpu"]
    done = phonate_process.run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert losses[-1]["step"] == 2


def test_no_features_at_all(quiet):
    class Waveforms(VoiceData):
        """Settings of a task that reads waveforms only."""

        @property
        def feature_name(self):
            return "none"

    prepared = prepare(Waveforms(**corpus(quiet).model_dump()))
    assert prepared.cache.features(0).shape == (1 + RATE // 256, 0)
    assert prepared.index.frames.tolist() == [1 + RATE // 256] * 4
    assert len(prepared.cache.waveform(3)) == RATE


def test_an_unknown_feature_is_one_clear_error(quiet):
    class Mell(VoiceData):
        """Settings with a typo."""

        @property
        def feature_name(self):
            return "mell"

    with pytest.raises(InputError, match=r"'mell' .*did you mean mel\?"):
        prepare(Mell(**corpus(quiet).model_dump()))
