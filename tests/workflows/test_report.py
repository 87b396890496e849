"""The report of a run: whole, self-contained, and true to what the run's files say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from pages import Page, assert_self_contained
from phonate.audio.mel_filters import band_edges
from phonate.audio.processor import AudioProcessor
from phonate.config.errors import InputError
from phonate.config.metrics import Metric
from phonate.config.resolve import resolve
from phonate.config.tasks import task_info
from phonate.data.prepared import prepare
from phonate.evaluation.tables import Evaluation, legend
from phonate.training.checkpoints import CheckpointManager
from phonate.training.ledger import FILE, read, told
from phonate.training.settings import CheckpointConfig
from phonate.workflows.pages.plots import Series, line_chart, spectrogram_axes
from phonate.workflows.pages.report import write_report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder as training leaves it: two checkpoints, a resume at step 20, metrics, logs."""
    run = tmp_path / "my <voice>"
    (run / "logs").mkdir(parents=True)
    (run / "recipe.yaml").write_text(
        "task: conversion\nsize: tiny\ndata: {path: recordings}\ntraining: {init_from: old}\n"
    )
    lines = [
        {"step": step, "split": "train", "epoch": 0, "loss": 1 / step, "steps_per_second": 2.0, "learning_rate": 0.1}
        for step in range(2, 41, 2)
    ]
    lines += [{"step": 20, "split": "event", "event": "resumed", "epoch": 0, "checkpoint": "checkpoints/step-00000020"}]
    lines += [{"step": step, "split": "validation", "loss": 2 / step, "similarity": step / 50} for step in (20, 40)]
    write_lines(run / "metrics.jsonl", lines)
    write_lines(
        run / "time.jsonl",
        [
            {"began": 1000.0, "step": 20, "seconds": {"start": 30.0, "train": 60.0, "validate": 10.0}},
            {"began": 1500.0, "step": 40, "seconds": {"recover": 30.0, "train": 50.0, "data": 10.0, "validate": 10.0}},
        ],
    )
    manager = CheckpointManager(run / "checkpoints", CheckpointConfig())
    for step in (20, 40):
        manager.save_checkpoint(
            step=step,
            epoch=0,
            weights={"w": torch.zeros(1000)},
            state={},
            metrics={"val_loss": 2 / step},
            model_name="VoiceTransformer",
            best_metric=("val_loss", 2 / step),
            is_best=True,
            export={"voices": ["ada", "bert"]},
        )
    manager.close()
    return run


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def tone(path: Path, seconds: float = 0.5) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(int(22050 * seconds)) / 22050
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * 200 * time), 22050)


def test_the_page_of_an_unfinished_run_says_of_how_many_steps(run: Path) -> None:
    for steps, said in ((40, "for 40 steps"), (4500, "for 40 of 4,500 steps")):
        (run / "recipe.yaml").write_text(f"task: conversion\ntraining: {{max_steps: {steps}}}\n")
        assert said in page_of(run).text


def test_the_page_says_what_was_trained_how_long_and_where_it_was_resumed(run: Path) -> None:
    page = page_of(run)
    for said in (
        "my <voice>",
        "conversion",
        "recordings",
        "ada, bert",
        "for 40 steps in 3.3 min (not running for 6.7 min in between)",
        "It began from old.",
        f"Time {told(read(run / FILE))}",  # as training says it
        "0.333 steps a second while it trained",
        "resumed at step 20",
        "step-00000040",
        "best",
        "0.05",
    ):
        assert said in page.text, said
    lines = [one for one in page.all("path") if "stroke: var(--s" in str(one["style"])]
    assert len(lines) >= 5  # loss twice, similarity, learning rate, speed


def test_recordings_that_were_left_out_are_named_with_the_reasons(run: Path) -> None:
    voice = run.parent / "voice"
    for number in range(3):
        tone(voice / f"{number}.wav", seconds=1.0)
    for number in range(12):
        (voice / f"broken{number:02}.wav").write_text("no audio")
    resolved = resolve("vocoder", {"data.path": str(voice), "data.cache_dir": str(run.parent / "cache")})
    (run / "recipe.yaml").write_text(resolved.to_yaml())
    assert f"15, 3 s in all; phonate data check {voice} says which can't be used" in page_of(run).text
    prepare(resolved.recipe.data)
    text = page_of(run).text
    assert "says which can't be used" not in text
    assert f"12: {voice}/broken00.wav: not readable as audio (a text that begins with 'no audio')" in text
    assert "broken09.wav" in text
    assert "broken10.wav" not in text
    assert "; and 2 others" in text


def test_the_page_says_how_much_of_the_model_was_trained_and_from_where(run: Path) -> None:
    (run / "recipe.yaml").write_text("task: speech\ntraining: {init_from: base/voice}\n")
    (run / "model_summary.txt").write_text("Speech: 3,230,470 parameters, 1,421,638 trainable\n\nmore  Linear  9\n")
    text = page_of(run).text
    assert "3.23 M parameters, 1.42 M of them trained" in text
    assert "began from base/voice, a model of the package" in text


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ("{max_steps: 4500}", "for 40 of 4,500 steps (unfinished)"),
        ("{epochs: 9}", "for 40 steps, 0 of 9 epochs (unfinished)"),
        ("{max_steps: 4500, early_stopping: {patience: 3}}", "for 40 of 4,500 steps (stopped early or unfinished)"),
        ("{max_steps: 40}", "for 40 steps in"),
    ],
)
def test_a_run_that_is_not_at_its_end_says_so(run: Path, training: str, said: str) -> None:
    (run / "recipe.yaml").write_text(f"task: conversion\ntraining: {training}\n")
    text, quoted = page_of(run).text, shlex.quote(str(run))
    assert said in text
    assert (f"To train it to its end: phonate train {quoted} --resume auto" in text) == ("of" in said)
    assert f"phonate checkpoints verify {quoted}" in text


def test_a_run_that_is_training_has_the_steps_of_its_times(run: Path) -> None:
    (run / "recipe.yaml").write_text("task: conversion\ntraining: {max_steps: 4500}\n")
    with (run / "time.jsonl").open("a") as file:
        seconds = {"recover": 30.0, "train": 90.0, "data": 10.0, "validate": 10.0}
        file.write(json.dumps({"began": 1500.0, "step": 47, "seconds": seconds}) + "\n")
    assert "for 47 of 4,500 steps (unfinished) in 4.0 min" in page_of(run).text


def test_a_run_that_was_at_its_end_was_not_resumed(run: Path) -> None:
    again = {"step": 40, "split": "event", "event": "resumed", "epoch": 0, "checkpoint": "checkpoints/step-00000040"}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    assert "resumed at step 20." in page_of(run).text
    with (run / "time.jsonl").open("a") as file:  # a line of time comes before one of metrics
        file.write(json.dumps({"began": 1700.0, "step": 41, "seconds": {"train": 5.0}}) + "\n")
    assert "resumed at step 20, 40." in page_of(run).text


def test_a_run_that_measured_once_has_a_table_and_says_why_there_are_no_curves(run: Path) -> None:
    (run / "recipe.yaml").write_text("task: diarization\ntraining: {max_steps: 9, logging: {interval: 50}}\n")
    found = {"loss": 0.69, "accuracy": 0.018, "der": 3.491, "miss": 0.036, "false_alarm": 3.3, "confusion": 0.1}
    write_lines(run / "metrics.jsonl", [{"step": 40, "split": "validation", "epoch": 0, **found}])
    page = page_of(run)
    text = " ".join(page.text.split())
    assert "Validation measured these once, at step 40. Loss ↓ 0.69 Accuracy, % ↑ 1.8 DER, % ↓ 349.1" in text
    assert "logged every 50 steps (training.logging.interval); this run has 40" in text
    assert "In validation at step 40 (the best checkpoint): accuracy 1.8 %; DER 349.1 %" in text
    assert page.all("svg") == []


def test_curves_that_only_experts_read_are_folded_away(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        rate = line.pop("learning_rate", None)
        line |= {"learning_rate/acoustic": rate, "learning_rate/discriminator": rate} if rate else {}
    write_lines(run / "metrics.jsonl", lines)
    html = write_report(run).read_text(encoding="utf-8")
    shown, _, folded = html.partition("<summary>More curves")
    assert "<h3>Loss in training" in shown
    assert "<h3>Learning rate</h3>" not in shown
    folded, _, _ = folded.partition("</details>")
    assert "<h3>Learning rate</h3>" in folded
    assert "</i>acoustic</span>" in folded


def test_the_loss_of_epochs_stands_in_where_no_step_was_logged(run: Path) -> None:
    lines = [{"step": step, "split": "epoch", "epoch": step // 2, "loss": 1 / step} for step in (2, 4, 6)]
    write_lines(run / "metrics.jsonl", lines)
    page = page_of(run)
    assert len([one for one in page.all("path") if "stroke: var(--s0)" in str(one["style"])]) == 1


def test_losses_of_other_terms_are_not_drawn_over_each_other(run: Path) -> None:
    def titles(validated: dict[str, float]) -> list[str]:
        trained = [{"step": step, "split": "train", "loss": 0.1, "l1": 0.1} for step in (10, 20)]
        write_lines(
            run / "metrics.jsonl",
            trained + [{**one, "split": "validation", "loss": 1.1, **validated} for one in trained],
        )
        return [title for title in ("Loss in training", "Loss in validation") if title in page_of(run).text]

    assert titles({}) == []
    assert titles({"discriminator": 1.0}) == ["Loss in training", "Loss in validation"]


@pytest.mark.parametrize(
    ("recipe", "lines", "said"),
    [
        ("{validation: {interval: 500}, max_steps: 900}", [], "that comes every 500 steps .* and at the end"),
        ("{validation: {interval: 1 epochs}, epochs: 2}", [], r"that comes every epoch \("),
        ("{max_steps: 40}", [], "nothing was kept for it: set data.validation"),
        ("{validation: {previews: false}}", [], "training.validation.previews is false"),
        ("{}", [{"step": 40, "split": "validation", "loss": 1.0}], r"shows a validation recording of a speaker who"),
    ],
)
def test_a_report_without_sounds_says_why(run: Path, recipe: str, lines: list[dict[str, Any]], said: str) -> None:
    (run / "recipe.yaml").write_text(f"task: conversion\ntraining: {recipe}\n")
    write_lines(run / "metrics.jsonl", lines)
    assert re.search(said, " ".join(page_of(run).text.split()))


def test_a_task_without_sounds_says_so_and_how_its_model_is_used(run: Path) -> None:
    (run / "recipe.yaml").write_text("task: language\n")
    text = page_of(run).text
    assert "The training of the task language keeps no sounds or pictures." in text
    assert f"phonate generate {shlex.quote(str(run))} 'Once upon a time'" in text


def test_the_page_loads_nothing_from_elsewhere(run: Path) -> None:
    tone(run / "samples" / "a.wav")
    write_samples(run, "a.wav")
    text = write_report(run).read_text(encoding="utf-8")
    assert_self_contained(text)


def write_samples(run: Path, *paths: str) -> None:
    clips = [{"label": path, "path": path} for path in paths]
    (run / "samples" / "samples.json").write_text(json.dumps({"examples": [{"title": "One", "clips": clips}]}))


def test_samples_have_a_player_and_a_picture_each(run: Path) -> None:
    tone(run / "samples" / "source.wav")
    tone(run / "samples" / "converted.wav")
    write_samples(run, "source.wav", "converted.wav")
    page = page_of(run)
    assert [str(one["src"])[:16] for one in page.all("audio")] == ["data:audio/flac;"] * 2
    assert [str(one["src"])[:15] for one in page.all("img")] == ["data:image/png;"] * 2
    labels = page.text.split()
    assert all(labels.count(unit) >= 2 for unit in ("s", "Hz", "kHz")), "of both axes"


def test_axes_of_a_spectrogram_are_where_its_bands_are() -> None:
    processor = AudioProcessor()
    audio, time = processor.config, np.arange(44100) / 22050
    axes = spectrogram_axes(2.0, band_edges(audio.n_mels, audio.fmin, audio.fmax))
    assert axes["times"] == [(0.0, "0 s"), (25.0, "0.5 s"), (50.0, "1 s"), (75.0, "1.5 s"), (100.0, "2 s")]
    assert [text for _, text in axes["pitches"]] == ["500 Hz", "1 kHz", "2 kHz", "4 kHz", "8 kHz"]
    for place, text in axes["pitches"][:-1]:
        hertz = float(text.split()[0]) * (1000 if "kHz" in text else 1)
        mel_TM = processor.mel((0.3 * np.sin(2 * np.pi * hertz * time)).astype(np.float32))
        assert (mel_TM.mean(0).argmax() + 0.5) / audio.n_mels == pytest.approx(place / 100, abs=0.02)


def test_previews_are_shown_where_there_are_no_samples(run: Path) -> None:
    tone(run / "previews" / "converted_voice.wav")
    from matplotlib.image import imsave

    imsave(run / "previews" / "converted_voice.png", np.random.default_rng(0).random((8, 8)))
    tone(run / "previews" / "source.wav")
    (run / "previews" / "source_mel.png").write_bytes(b"not looked at: reports draw a spectrogram with axes")
    page = page_of(run)
    text = " ".join(page.text.split())
    assert text.index("source a validation recording of a speaker who") < text.index("converted voice")
    assert len(page.all("audio")) == len(page.all("img")) == 2


def test_figures_stand_beside_baseline_and_ceiling(run: Path) -> None:
    table: dict[str, Any] = {
        "task": "conversion",
        "systems": {"natural": {"pair": 0.5}, "this model": {"pair": 0.71, "f0": 210.4}, "ceiling": {}},
        "focus": "this model",
        "legend": "pair: how alike",
        "notes": {"clips": 4, "words": 82},
    }
    (run / "evaluation.json").write_text(json.dumps(table))
    text = " ".join(page_of(run).text.split())
    assert "similarity to target ↑ F0 error cents ↓" in text
    assert "natural 0.5 –" in text
    assert "this model 0.71 210" in text
    assert "0.71 similarity to target in the evaluation" in text
    assert "ceiling – –" in text
    assert "↑ higher is better, ↓ lower is better" in text
    assert (
        "Evaluated on 4 clips, which say little (82 words): similarity to target 0.71 (natural: 0.5; higher is better)."
        in text
    )
    table["systems"]["this model"] |= {"wer": 0.05, "rtf": 0.02}
    table["systems"]["natural"]["rtf"] = 0.04  # measured once, so not compared
    (run / "evaluation.json").write_text(json.dumps(table))
    text = " ".join(page_of(run).text.split())
    assert (
        "(82 words; one word is about 1.2 points of WER): similarity to target 0.71 (natural: 0.5; higher is better)."
        in text
    )
    assert "RTF F0 error" in text
    table["systems"] = {"this model": {"rtf": 0.02}}
    (run / "evaluation.json").write_text(json.dumps(table))
    assert "↑ higher is better" not in page_of(run).text, "no column has an arrow"


@pytest.mark.parametrize(
    ("recordings", "start", "sample"),
    [
        (12, 0.4, "12 recordings"),
        (9, 0.4, "9 recordings, which say little"),
        (1, 0.2, "a single recording, which says little"),
    ],
)
def test_a_diarization_opens_with_its_error_rate_its_parts_and_what_says_most_beside_it(
    run: Path, recordings: int, start: float, sample: str
) -> None:
    parts = {"miss": 0.1, "false_alarm": 0.05, "confusion": 0.15}
    evaluated = Evaluation(
        "diarization",
        {
            "one speaker": {"der": 0.9},
            "a, b": {"der": start, "jer": 0.6},
            "the model": {"der": 0.3, **parts, "jer": 0.5},
        },
        "the model",
        notes={"step": 20, "recordings": recordings},
        columns={one.name: one for one in (Metric("der", unit="%", label="DER"), Metric("jer", unit="%"))}
        | {name: Metric(name, unit="%") for name in parts},
        compared=("a, b",),
        start="a, b",
    )
    (run / "recipe.yaml").write_text("task: diarization\n")
    (run / "evaluation.json").write_text(json.dumps(evaluated.document()))
    text = " ".join(page_of(run).text.split())
    assert f"Evaluated the checkpoint of step 20 on {sample}: DER 30.0 % = miss 10.0 % + false alarm 5.0 % + " in text
    assert f"confusion 15.0 % (a, b: {100 * start:.1f} %; lower is better)." in text
    assert ("worse than a, b (DER 20.0 %)" in text) == (start < 0.3)
    assert "30.0 % DER in the evaluation, at step 20" in text  # not what validation measures otherwise
    assert "in validation, at step" not in text
    assert task_info("diarization").validation not in text  # it measured nothing
    write_lines(run / "metrics.jsonl", [{"step": 20, "split": "validation", "loss": 1.0, "der": 0.4}])
    assert task_info("diarization").validation in " ".join(page_of(run).text.split())


def test_what_validation_said_is_that_of_the_best_checkpoint(run: Path) -> None:
    (run / "recipe.yaml").write_text("task: language\n")
    measured = [{"step": step, "split": "validation", "loss": 4 / step} for step in (20, 40)]
    write_lines(run / "metrics.jsonl", [*measured, {"step": 50, "split": "validation", "loss": 3.0}])
    assert "its loss is 0.1 at step 40 (the best checkpoint)" in " ".join(page_of(run).text.split())


def test_a_legend_explains_what_was_measured_and_nothing_else() -> None:
    meanings = {"wer, cer": "errors", "mos": "naturalness", "f0": "in Hz"}
    own = {"f0": Metric("f0", "", "Hz", "median F0")}
    assert (
        legend(meanings, {"a": {"cer": 0.1, "mos": None}, "b": {"f0": 200.0}}, own) == "CER: errors; median F0: in Hz."
    )
    assert legend(meanings, {"a": {}}) == ""
    assert legend({}, {"own, vocoder copy": {}, "vocoder copy": {}}).startswith("vocoder copy: the recording, ")


def test_a_run_that_was_not_evaluated_says_how(run: Path) -> None:
    command = f"phonate evaluate {shlex.quote(str(run))}"
    text = page_of(run).text
    assert command in text
    assert f"{command} --data" not in text
    (run / "recipe.yaml").write_text("task: conversion\ntraining: {max_steps: 40}\n")
    write_lines(run / "metrics.jsonl", [{"step": 40, "split": "train", "loss": 1.0}])  # nothing was held out
    assert f"{command} --data PATH" in page_of(run).text


def test_shares_are_per_cent_and_a_task_names_its_own_columns(run: Path) -> None:
    found = Evaluation(
        "conversion",
        {"natural": {"wer": 0.0714, "f0": 120.0, "own_score": 3.0}},
        focus="natural",
        columns={"f0": Metric("f0", "", "Hz", "median F0")},
    )
    (run / "evaluation.json").write_text(json.dumps(found.document()))
    text = " ".join(page_of(run).text.split())
    assert "WER % ↓ median F0 Hz own score" in text
    assert "natural 7.1 120 3" in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("evaluation.json", "{", "not JSON"),
        ("evaluation.json", '{"focus": "a"}', "systems: Field required"),
        ("samples/samples.json", '{"examples": [{"clips": [{"label": "x"}]}]}', r"examples\.0\.clips\.0\.path"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(run: Path, name: str, content: str, said: str) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text(content)
    with pytest.raises(InputError, match=f"{name}: .*{said}" if said == "not JSON" else f"{name}: {said}"):
        write_report(run)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run"):
        write_report(tmp_path)


def test_a_run_that_was_killed_before_its_first_checkpoint_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("task: conversion\n")
    assert "for 0 steps" in page_of(tmp_path).text


@pytest.mark.parametrize("ys", [[1.0], [1.0, 1.0], [0.0, 0.0], [-1.0, 5.0], [1e-5, 10.0], [1.0, float("nan"), 2.0]])
def test_charts_of_odd_values_stay_within_their_frame(ys: list[float]) -> None:
    svg = line_chart([Series("x", range(len(ys)), ys, dots=True)], "odd")
    found = [float(number) for path in re.findall(r' d="([^"]+)"', svg) for number in re.findall(r"-?[\d.]+", path)]
    assert found
    assert all(0 <= number <= 480 for number in found)
    assert "nan" not in svg
    titles = re.findall(r"<title>x at step \d+: ([^<]+)</title>", svg)
    assert [float(one) for one in titles] == pytest.approx([y for y in ys if np.isfinite(y)])


def test_a_chart_has_the_same_bytes_each_time_and_the_page_s_colours() -> None:
    once, again = (
        line_chart([Series("<x> & y", [1, 2], [3, 4], dots=True)], "a <b>", [(1.5, "$x$ <c>")]) for _ in "ab"
    )
    assert once == again
    assert "&lt;x&gt; &amp; y at step 1: 3" in once
    assert "$x$ &lt;c&gt;" in once
    assert not re.search(r"#\w{6}| id=|xlink", once)


def test_a_chart_without_values_is_left_out() -> None:
    assert line_chart([Series("x", [], [])], "nothing") == ""
    assert line_chart([Series("x", [1], [float("inf")])], "nothing") == ""


def test_long_curves_are_thinned() -> None:
    svg = line_chart([Series("x", range(100_000), np.random.default_rng(0).random(100_000))], "long")
    assert len(svg) < 20_000
