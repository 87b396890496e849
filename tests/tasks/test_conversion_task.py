"""Voice conversion from a folder of recordings to a converted file, on small synthetic voices."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import phonate_process
from phonate.audio.decoding import read_audio, write_audio
from phonate.cli import main
from phonate.config.errors import CheckpointError, InputError, RecipeError
from phonate.config.resolve import resolve
from phonate.config.tasks import task_info
from phonate.tasks.conversion import evaluation
from phonate.tasks.conversion.inference import Converter
from phonate.tasks.conversion.model import network_of
from phonate.tasks.conversion.task import ConversionTask
from phonate.training.checkpoints import resolve_checkpoint
from phonate.workflows.evaluate import evaluate
from phonate.workflows.pages.report import write_report
from phonate.workflows.train import train

RATE = 22050
TINY = {
    "model.d_model": 32,
    "model.n_layers": 2,
    "model.n_heads": 2,
    "model.d_ff": 64,
    "training.batch_size": 8,
    "training.scheduler.warmup_steps": 2,
    "training.logging.tensorboard": False,
    "training.ema": None,
    "data.validation": 0.2,
    "data.target": "anna",
}


@pytest.fixture(scope="module")
def corpus(two_voices: Path, tone_corpus: Path) -> Path:
    """A folder with the voices of anna (210 Hz) and ben (110 Hz), and a recording of another's."""
    waveform, rate = read_audio(tone_corpus / "cleo" / "05.wav")
    write_audio(two_voices / "unseen.flac", np.tile(waveform, 2), rate)
    return two_voices


@pytest.fixture(scope="module")
def run(corpus: Path) -> Path:
    trained = train("conversion", settings(corpus, **{"training.max_steps": 30}), output=corpus / "run")
    assert trained.metrics["val_l1"] < 0.12
    return trained.run.path


def settings(corpus: Path, **more: Any) -> dict[str, Any]:
    paths = {"data.path": str(corpus / "voices"), "data.cache_dir": str(corpus / "cache")}
    intervals = {"training.validation.interval": 15, "training.checkpoint.interval": 15}
    intervals |= {"training.validation.previews": False}
    return {**TINY, **paths, **intervals, "training.optimizer.lr": 3e-3, **more}


def task(corpus: Path, **more: Any) -> ConversionTask:
    return ConversionTask(resolve("conversion", settings(corpus, **more)).recipe)


def test_a_misspelt_target_is_refused_before_the_first_step(corpus: Path) -> None:
    with pytest.raises(InputError, match=r"data\.target: the corpus has no 'ana'; did you mean anna\?"):
        train("conversion", settings(corpus, **{"data.target": "ana"}), output=corpus / "misspelt", mode="cpu")
    assert not list(corpus.glob("misspelt/metrics.jsonl"))


def test_a_sample_depends_on_its_generator_alone(corpus: Path) -> None:
    samples = task(corpus).dataset("train")
    first, again, other = (samples.get(0, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.content_TF, again.content_TF)
    assert first.content_TF.shape != other.content_TF.shape or np.abs(first.content_TF - other.content_TF).mean() > 0.01
    validation = task(corpus).dataset("validation")
    one, two = (validation.get(0, np.random.default_rng(seed)) for seed in (1, 2))
    np.testing.assert_array_equal(one.content_TF, two.content_TF)
    assert set(samples.ids).isdisjoint(validation.ids)


def test_crops_of_one_clip_are_samples_of_their_own(corpus: Path) -> None:
    once, thrice = (task(corpus, **{"data.crops_per_clip": crops}).dataset("train") for crops in (1, 3))
    assert len(thrice.ids) == 3 * len(once.ids) == len(set(thrice.ids)) == len(thrice.lengths)
    assert max(task(corpus, **{"data.crop_frames": 50}).dataset("train").lengths) == 50


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_counts_are_those_of_the_loss_and_padding_counts_for_nothing(corpus: Path, reduction: str) -> None:
    conversion = task(corpus, **{"training.loss.reduction": reduction})
    torch.manual_seed(0)
    model = conversion.model(torch.device("cpu")).eval()
    samples = conversion.dataset("train")
    items = [samples.get(index, np.random.default_rng(index)) for index in range(6)]
    batch = dict(samples.collate(items))
    assert len(set(batch["lengths"].tolist())) > 1
    total, unit = conversion.loss(model, batch, "main")["l1"]
    assert not conversion.own_counts
    units = samples.unit_counts(batch)
    assert units["elements"] == sum(item.mel_TM.size for item in items)
    conversion.criterion.units = ()
    assert conversion.loss(model, batch, "main")["l1"][1] == units[unit]
    each = [conversion.loss(model, samples.collate([item]), "main")["l1"][0].item() for item in items]
    assert total.item() == pytest.approx(sum(each), rel=1e-3)
    for name in ("features", "target"):
        batch[name] = batch[name].clone()
        for row, length in zip(batch[name], batch["lengths"], strict=True):
            row[length:] = 1e3
    assert conversion.loss(model, batch, "main")["l1"][0].item() == pytest.approx(total.item(), rel=1e-5)


def test_a_model_that_ignores_the_speaker_is_seen_in_the_metrics(corpus: Path) -> None:
    conversion = task(corpus)
    torch.manual_seed(0)
    model = conversion.model(torch.device("cpu")).eval()
    samples = conversion.dataset("validation")
    everything = range(len(samples.ids))
    total, count = conversion.evaluate(model, samples, everything)["speaker_effect"]
    assert total / count > 0.1
    shares = [conversion.evaluate(model, samples, everything[start::2])["speaker_effect"] for start in (0, 1)]
    assert sum(share[0] for share in shares) == pytest.approx(total, rel=1e-5)
    assert sum(share[1] for share in shares) == count
    torch.nn.init.zeros_(network_of(model).speaker.weight)
    assert conversion.evaluate(model, samples, everything)["speaker_effect"][0] == 0.0


def test_the_packaged_vocoder_is_left_out_where_it_does_not_fit(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = settings(corpus, **{"training.max_steps": 1, "data.audio.n_mels": 64})
    assert task(corpus).recipe.data.vocoder == "base/vocoder"
    trained = train("conversion", changes, output=tmp_path / "run")
    assert resolve(trained.run.path).recipe.data.vocoder is None
    assert "base/vocoder has other features (data.audio), so Griffin-Lim is used" in caplog.text
    assert Converter.load(trained.run.path).render.name == "Griffin-Lim"
    with pytest.raises(InputError, match=r"data\.vocoder: base/vocoder: .*features"):
        train("conversion", {**changes, "data.vocoder": "base/vocoder"}, output=tmp_path / "asked")
    assert not (tmp_path / "asked").exists()


def test_the_perceptual_loss_weighs_the_bands_of_the_recipe(corpus: Path) -> None:
    changes = {
        "training.loss.main": "perceptual",
        "data.audio.fmin": 50.0,
        "data.audio.fmax": 7600.0,
        "data.vocoder": None,
    }
    loss = task(corpus, **changes).criterion.losses["perceptual"]
    assert (loss.fmin, loss.fmax) == (50.0, 7600.0)


@pytest.mark.parametrize(
    "change",
    [
        {"data.perturbation": None},
        {"data.cepstral_coefficients": 30},
        {"data.normalise": False},
        {"data.augmentation.noise_probability": 1.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_options_of_the_content_change_it(corpus: Path, change: dict[str, Any]) -> None:
    plain, changed = (task(corpus, **more).dataset("train").get(0, np.random.default_rng(0)) for more in ({}, change))
    assert plain.content_TF.shape != changed.content_TF.shape or not np.allclose(plain.content_TF, changed.content_TF)


def test_augmented_audio_changes_input_and_target_together(corpus: Path) -> None:
    quiet = {f"data.augmentation.{name}_probability": 0.0 for name in ("time_stretch", "noise", "spec_augment")}
    shifted = {**quiet, "data.augmentation.pitch_shift_probability": 1.0, "data.augmentation.pitch_shift": [4.0, 4.0]}
    samples, plain = task(corpus, **shifted).dataset("train"), task(corpus).dataset("train")
    assert plain.cached
    assert not samples.cached
    moved, still = (s.get(0, np.random.default_rng(0)) for s in (samples, plain))
    assert np.median(moved.prosody_TP[:, 0]) > np.median(still.prosody_TP[:, 0]) + 0.4
    assert moved.mel_TM.shape != still.mel_TM.shape or np.abs(moved.mel_TM - still.mel_TM).mean() > 0.01


def test_augmenting_whisper_features_is_refused(corpus: Path) -> None:
    with pytest.raises(RecipeError, match="set augmentation to null"):
        task(corpus, **{"data.content": "whisper", "data.augmentation.noise": 0.01})


def test_a_single_speaker_is_told(tone_corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cases: list[tuple[tuple[str, ...], str | None, str]] = [
        (("anna",), "anna", "of one speaker, anna: "),
        (("anna", "ben"), None, " has the most speech; "),
    ]
    for names, target, said in cases:
        for name in names:
            shutil.copytree(tone_corpus / name, tmp_path / said / "voices" / name)
        caplog.clear()
        with caplog.at_level("INFO"):
            task(tmp_path / said, **{"data.target": target}).dataset("train")
        assert [said in text for text in caplog.messages if "one speaker" in text or "most speech" in text] == [True]
        assert [
            text for text in caplog.messages if re.match(r"anna, the target, has 0\.\d minutes .*; collect 30", text)
        ]


def test_enough_of_the_target_is_not_told(
    corpus: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phonate.tasks.conversion.task.TARGET_MINUTES", 0.01)
    task(corpus, **{"data.target": "anna"}).dataset("train")
    assert "the target, has" not in caplog.text


@pytest.mark.parametrize(
    ("names", "minutes", "told"),
    [
        (("anna", "ben"), 0.01, "is 1 other speaker, with 0.1 minutes"),
        (("anna", "ben", "cleo"), 1, "are 2 other speakers, with 0.2 minutes"),
        (("anna", "ben", "cleo"), 0.01, None),
    ],
)
def test_too_little_of_others_is_told(
    tone_corpus: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    minutes: float,
    told: str | None,
) -> None:
    monkeypatch.setattr("phonate.tasks.conversion.task.OTHER_MINUTES", minutes)
    for name in names:
        shutil.copytree(tone_corpus / name, tmp_path / "voices" / name)
    task(tmp_path, **{"data.target": "anna"}).dataset("train")
    lines = [text for text in caplog.messages if "beside the target" in text]
    if told is None:
        assert not lines
    else:
        (line,) = lines
        assert f"beside the target there {told} of recordings; collect 2 or more" in line


def test_a_model_of_any_voice_has_no_target_to_tell_of(
    corpus: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    converter = task(corpus)
    monkeypatch.setattr(type(converter.extractor), "reference_dim", 80)
    with caplog.at_level("INFO"):
        converter.dataset("train")
    assert "target" not in caplog.text


def test_speakers_of_other_official_splits_have_no_voice(tone_corpus: Path, tmp_path: Path) -> None:
    voices = tmp_path / "voices"
    for place in ("train/anna", "train/ben", "dev/anna", "dev/cleo", "extra/cleo"):
        shutil.copytree(tone_corpus / Path(place).name, voices / place)
    assert task(tmp_path).corpus.speakers == ["anna", "ben", "cleo"], "cleo's recordings in extra/ are trained on"
    shutil.rmtree(voices / "extra")
    made = task(tmp_path)
    found = made.corpus.prepared
    assert made.corpus.speakers == list(made.corpus.voices) == ["anna", "ben"]
    assert found.report["reasons"] == {"speaker not in training": len(list((tone_corpus / "cleo").iterdir()))}
    assert found.report["usable"] == len(found.index) == sum(found.report["speakers"].values())
    assert {found.index.id[i].split("/")[0] for i in found.validation} == {"dev"}


def test_an_unknown_target_is_refused_before_training(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.target.*did you mean anna"):
        train("conversion", settings(corpus, **{"data.target": "ana"}), output=tmp_path / "run")
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_conversion_keeps_the_length_and_hears_the_speaker(run: Path, corpus: Path) -> None:
    converter = Converter.load(run)
    waveform, _ = read_audio(corpus / "unseen.flac", RATE)
    converted = converter.convert(waveform)
    assert abs(len(converted) - len(waveform)) <= 256
    assert np.abs(converted).max() == pytest.approx(0.95, abs=0.01)
    np.testing.assert_array_equal(converted, converter.convert(waveform, "anna"))  # the recipe's target
    recording = converter.extractor.recording(waveform)
    to_anna, to_ben = (converter.convert_mel(recording, name) for name in ("anna", "ben"))
    assert np.abs(to_anna - to_ben).mean() > 0.01


def test_a_converter_knows_where_each_voice_speaks(run: Path) -> None:
    registers = {name: voice.register for name, voice in Converter.load(run).voices.items()}
    assert registers["anna"].median == pytest.approx(210, rel=0.05)
    assert registers["ben"].median == pytest.approx(110, rel=0.05)


@pytest.mark.slow
def test_a_long_recording_is_converted_in_pieces(run: Path, corpus: Path) -> None:
    converter = Converter.load(run)
    waveform, _ = read_audio(corpus / "unseen.flac", RATE)
    long = np.tile(waveform, 9)  # 29 s: four windows, two pieces
    converted = converter.convert(long)
    assert abs(len(converted) - len(long)) <= 256
    loudness = np.abs(converted[: len(converted) // 100 * 100]).reshape(100, -1).max(axis=1)
    assert loudness.min() > 0.1 * loudness.max()


@pytest.mark.slow
def test_threads_change_what_is_converted_by_rounding_alone(corpus: Path, tmp_path: Path) -> None:
    whole = {name: value for name, value in settings(corpus).items() if not name.startswith("model.")}
    train("conversion", {**whole, "training.max_steps": 2}, output=tmp_path / "run")
    converter, before = Converter.load(tmp_path / "run"), torch.get_num_threads()
    waveform, _ = read_audio(corpus / "unseen.flac", RATE)
    made = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        recording = converter.extractor.recording(waveform)
        made.append([recording.mel_TM, recording.f0_T, converter.convert_mel(recording), converter.convert(waveform)])
    torch.set_num_threads(before)
    for other in made[1:]:
        for one, same in zip(made[0], other, strict=True):
            np.testing.assert_allclose(one, same, atol=1e-5)  # on the machine that it was written on, equal


def test_a_model_refuses_features_it_was_not_trained_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from phonate.audio import mel_filters

    monkeypatch.setattr(mel_filters, "_VERSION", 999)
    with pytest.raises(CheckpointError, match="features"):
        Converter.load(run)


def test_a_resumed_run_is_the_same_run(corpus: Path, tmp_path: Path) -> None:
    """With crops, perturbation, augmentation and dropout at random: the second half again, from the checkpoint."""
    changes = {
        "training.max_steps": 8,
        "training.checkpoint.interval": 4,
        "training.validation.interval": 4,
        "training.logging.interval": 1,
        "training.performance.num_workers": 0,
        "model.dropout": 0.1,
        "data.augmentation.time_stretch_probability": 0.3,
    }
    whole, again = tmp_path / "whole", tmp_path / "again"
    train("conversion", settings(corpus, **changes), output=whole)
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / "step-00000008")
    train("conversion", settings(corpus, **changes), output=again, resume="auto")
    weights = [load_file(path / "checkpoints" / "step-00000008" / "weights.safetensors") for path in (whole, again)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    first, second = ([line["loss"] for line in steps_of(path)] for path in (whole, again))
    assert first == second
    assert len(first) == 8


def steps_of(path: Path) -> list[dict[str, Any]]:
    """The metric lines of a run's training steps."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == "train"]


def test_previews_show_source_and_conversion(run: Path, corpus: Path) -> None:
    conversion = task(corpus)
    shown = conversion.previews(conversion.model(torch.device("cpu")).eval())
    assert task_info("conversion").previews.keys() <= shown.keys()
    assert set(shown) == {"source", "source_mel", "converted", "converted_mel"}


@pytest.mark.slow
def test_the_command_writes_a_file_or_one_line(run: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    command = ["convert", resolve_checkpoint(run), corpus / "unseen.flac", "-o", out]
    done = phonate_process.run(*command, "--speaker", "ben")
    assert done.returncode == 0, done.stderr
    assert read_audio(out)[1] == RATE
    wrong = phonate_process.run(*command, "--speaker", "bem")
    assert wrong.returncode == 2
    assert "did you mean ben?" in wrong.stderr
    assert wrong.stderr.count("\n") == 1


def test_a_suffix_that_is_not_written_is_refused_before_the_conversion(
    run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Converter, "load", lambda source: pytest.fail("the model was loaded"))
    out = tmp_path / "out.ogg"
    assert main(["convert", str(run), str(corpus / "unseen.flac"), "-o", str(out)]) == 2
    written = "only .wav, .flac and .mp3 can be written; give the file such a suffix"
    assert capsys.readouterr().err == f"error: {out}: {written}\n"


def test_a_recording_shorter_than_a_frame_is_one_line_with_its_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short, enough, out = tmp_path / "short.wav", tmp_path / "enough.wav", tmp_path / "out.wav"
    tone = 0.1 * np.sin(np.arange(256, dtype=np.float32))
    write_audio(short, tone[:255], RATE)
    write_audio(enough, tone, RATE)
    assert main(["convert", str(run), str(short), "-o", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {short}: 11.6 ms long, under the 256 samples of one frame")
    assert error.count("\n") == 1
    assert not out.exists()
    assert main(["convert", str(run), str(enough), "-o", str(out)]) == 0


def test_digital_silence_stays_silent(run: Path, corpus: Path) -> None:
    converter = Converter.load(run)
    assert not converter.convert(np.zeros(RATE, np.float32)).any()
    waveform, _ = read_audio(corpus / "unseen.flac", RATE)
    pause = np.zeros(RATE, np.float32)
    converted = np.abs(converter.convert(np.concatenate([waveform, pause, waveform])))
    middle = converted[len(waveform) + 4096 : len(waveform) + RATE - 4096]
    assert middle.max() < 0.01
    assert converted[: len(waveform)].max() > 0.5


@pytest.mark.skipif(find_spec("resemblyzer") is None, reason="needs phonate[eval]")
@pytest.mark.slow
def test_an_evaluated_run_has_figures_and_sounds_in_its_report(
    run: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recogniser:
        name, language = "no words", "en"

        def transcribe(self, waveform: np.ndarray, rate: int) -> str:
            return "words enough for a tone of a second or two"

    monkeypatch.setattr(evaluation, "independent_recogniser", lambda encoder, device: Recogniser())
    copy = corpus / "evaluated"
    shutil.copytree(run, copy)
    own = evaluate(copy)  # what training kept out
    assert own.notes["recordings_trained_on"] == 0
    assert own.notes["clips"] + own.notes["target_clips"] == 2
    monkeypatch.setattr(evaluation.MosPredictor, "score_synthesised", lambda *_: 3.0)  # judged are those above
    found = evaluate(copy, str(corpus / "voices"))
    assert found.notes["recordings_trained_on"] == 10
    assert list(found.systems)[:4] == ["natural", "vocoder copy", "pitch shift, no model", "converted"]
    assert found.systems["converted"]["cer"] == 0.0
    page = write_report(copy).read_text()
    assert page.count("<audio") == 4 * 5  # of four sources each system's sound, and the target's
    assert "anna, saying something else" in page


def test_a_run_does_not_go_on_with_other_speakers(run: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "voices").mkdir()
    for new, old in (("anna", "anna"), ("carl", "ben")):
        shutil.copytree(corpus / "voices" / old, tmp_path / "voices" / new)
    changed = settings(corpus, **{"data.path": str(tmp_path / "voices"), "training.max_steps": 31})
    with pytest.raises(InputError, match=r"new: carl, missing: ben.*data\.path .*init_from"):
        train("conversion", changed, output=tmp_path / "run", resume="auto")


def test_absolute_positions_are_used_as_far_as_they_were_trained(corpus: Path, tmp_path: Path) -> None:
    sinusoidal = {"model.positions": "sinusoidal", "model.max_seq_len": 40, "model.stride": 1}
    crops = {"data.crop_frames": 40, "training.max_steps": 1, "training.validation.previews": True}
    trained = train("conversion", settings(corpus, **sinusoidal, **crops), output=tmp_path / "run")
    converter = Converter.load(trained.run.path)
    converted = converter.convert(corpus / "unseen.flac")
    assert len(converted) > 5 * 40 * 256
    with pytest.raises(InputError, match=r"data\.crop_frames: 41 frames"):
        task(corpus, **{**sinusoidal, "data.crop_frames": 41})
