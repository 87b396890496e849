"""A live model that learns from the conversions of an offline one, on small synthetic voices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from phonate.config.errors import InputError, RecipeError
from phonate.config.resolve import resolve
from phonate.tasks.conversion.data import SHARE, ConversionDataset
from phonate.tasks.conversion.inference import Converter
from phonate.tasks.conversion.task import ConversionTask
from phonate.training.checkpoints import resolve_checkpoint
from phonate.workflows.train import train

TINY = {
    "model.d_model": 32,
    "model.n_layers": 2,
    "model.n_heads": 2,
    "model.d_ff": 64,
    "training.batch_size": 8,
    "training.max_steps": 30,
    "training.optimizer.lr": 3e-3,
    "training.scheduler.warmup_steps": 2,
    "training.logging.tensorboard": False,
    "training.validation.previews": False,
    "training.ema": None,
    "training.validation.interval": 15,
    "training.checkpoint.interval": 15,
    "data.validation": 0.2,
    "data.target": "anna",
}


@pytest.fixture(scope="module")
def teacher(two_voices: Path) -> Path:
    return train("conversion", settings(two_voices), output=two_voices / "teacher").run.path


def settings(two_voices: Path, **more: Any) -> dict[str, Any]:
    return {**TINY, "data.path": str(two_voices / "voices"), "data.cache_dir": str(two_voices / "cache"), **more}


def samples(two_voices: Path, split: str = "train", **more: Any) -> ConversionDataset:
    return ConversionTask(resolve("conversion-live", settings(two_voices, **more)).recipe).dataset(split)


def test_recordings_of_others_are_learnt_from_as_the_teacher_converts_them(two_voices: Path, teacher: Path) -> None:
    taught = samples(two_voices, **{"data.distil_from": str(teacher), "data.crop_frames": 1000})
    alone = samples(two_voices, **{"data.crop_frames": 1000})
    converter, names = Converter.load(teacher), taught.prepared.speakers
    anna = names.index("anna")
    converted = {"anna": 0, "ben": 0}
    for index in range(len(taught.ids)):
        speaker = names[taught.prepared.index.speaker[taught.position(index)]]
        for seed in range(10):
            made, own = taught.get(index, np.random.default_rng(seed)), alone.get(index, np.random.default_rng(seed))
            if made.speaker == own.speaker:
                np.testing.assert_array_equal(made.mel_TM, own.mel_TM)
                np.testing.assert_array_equal(made.prosody_TP, own.prosody_TP)
                continue
            converted[speaker] += 1
            assert made.speaker == anna
            recording = taught._corpus.recording(taught.position(index))
            np.testing.assert_allclose(made.mel_TM, converter.convert_mel(recording, "anna"), atol=1e-3)
            moved = taught._corpus.extractor.prosody(recording, converter.voices["anna"].register)
            np.testing.assert_array_equal(made.prosody_TP, moved)
            assert np.abs(made.prosody_TP[:, 0] - own.prosody_TP[:, 0]).max() > 0.5  # from ben's pitch to anna's
    assert converted["anna"] == 0
    bens = 10 * sum(names[taught.prepared.index.speaker[taught.position(i)]] == "ben" for i in range(len(taught.ids)))
    assert converted["ben"] == pytest.approx(SHARE * bens, abs=3 * (bens * SHARE * (1 - SHARE)) ** 0.5)


def test_a_sample_has_the_content_of_its_source(two_voices: Path, teacher: Path) -> None:
    """Were it the content of the conversion, nothing would be learnt about strangers."""
    plain = {"data.perturbation": None}
    taught = samples(two_voices, **plain, **{"data.distil_from": str(teacher)})
    for index in range(len(taught.ids)):
        recording = taught._corpus.recording(taught.position(index))
        made = taught.get(index, np.random.default_rng(0))
        if len(made.mel_TM) == len(recording.mel_TM):
            np.testing.assert_array_equal(made.content_TF, taught._corpus.extractor.content(recording))


def test_validation_is_on_recordings_as_they_are(two_voices: Path, teacher: Path) -> None:
    taught = samples(two_voices, "validation", **{"data.distil_from": str(teacher)})
    alone = samples(two_voices, "validation")
    for index in range(len(taught.ids)):
        made, own = (one.get(index, np.random.default_rng(0)) for one in (taught, alone))
        assert made.speaker == own.speaker
        np.testing.assert_array_equal(made.mel_TM, own.mel_TM)


def test_recordings_are_converted_once_and_again_for_another_teacher(
    two_voices: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"data.distil_from": str(teacher)}
    before = samples(two_voices, **more)
    convert, calls = Converter.convert_mel, list[int]()

    def counted(self: Converter, *args: Any) -> Any:
        calls.append(1)
        return convert(self, *args)

    monkeypatch.setattr(Converter, "convert_mel", counted)
    again = samples(two_voices, **more)
    assert not calls
    rng = np.random.default_rng
    for index in range(len(before.ids)):
        np.testing.assert_array_equal(before.get(index, rng(0)).mel_TM, again.get(index, rng(0)).mel_TM)
    samples(two_voices, **{"data.distil_from": str(teacher / "checkpoints" / "step-00000015")})
    bens = (again.prepared.index.speaker == again.prepared.speakers.index("ben")).sum()
    assert len(calls) == bens


def test_a_resumed_run_is_the_same_run(two_voices: Path, teacher: Path, tmp_path: Path) -> None:
    more = {"data.distil_from": str(teacher), "training.max_steps": 8, "training.checkpoint.interval": 4}
    train("conversion-live", settings(two_voices, **more), output=tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000008")
    train("conversion-live", settings(two_voices, **more), output=tmp_path / "parts", resume="auto")
    whole, parts = (
        load_file(resolve_checkpoint(tmp_path / name) / "weights.safetensors") for name in ("whole", "parts")
    )
    assert all(whole[name].equal(parts[name]) for name in whole)


def test_a_teacher_that_does_not_fit_is_refused(two_voices: Path, teacher: Path, tmp_path: Path) -> None:
    from_teacher = {"data.distil_from": str(teacher)}
    with pytest.raises(InputError, match=r"data\.distil_from: .*other mels"):
        samples(two_voices, **from_teacher, **{"data.audio.hop_length": 128})
    with pytest.raises(InputError, match=r"data\.distil_from: .*nowhere"):
        samples(two_voices, **{"data.distil_from": str(tmp_path / "nowhere")})
    (tmp_path / "others").mkdir()
    for name, source in (("carl", "anna"), ("ben", "ben")):
        (tmp_path / "others" / name).symlink_to(two_voices / "voices" / source)
    more = {"data.path": str(tmp_path / "others"), "data.target": "carl"}
    with pytest.raises(InputError, match=r"data\.distil_from: .*'carl'.*anna"):
        samples(two_voices, **from_teacher, **more)


@pytest.mark.parametrize(
    ("recipe", "more", "message"),
    [
        ("conversion", {"data.augmentation": {}}, "converted once"),
        ("conversion-any", {}, "teaches a voice of the corpus"),
    ],
)
def test_settings_that_contradict_it_are_refused(
    two_voices: Path, recipe: str, more: dict[str, Any], message: str
) -> None:
    given = {**settings(two_voices), "data.distil_from": "somewhere", "data.target": None, **more}
    with pytest.raises(RecipeError, match=message):
        resolve(recipe, given)
