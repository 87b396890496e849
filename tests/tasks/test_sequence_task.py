"""Sequences from rows to written targets: translation, continuation and labels; resumed, on two ranks, evaluated."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phonate_process
from installed import missing

if missing("transformers", "sacrebleu", "rouge_score"):
    pytest.skip(
        "needs transformers, sacrebleu, rouge_score: pip install 'phonate[language,eval]'", allow_module_level=True
    )

import torch
from safetensors.torch import load_file
from sequence_rows import WORDS, kind, pairs, settings, task_of, translation, write_lines, write_pairs
from torch.nn import functional as F

import phonate
from phonate.cli import main
from phonate.config.errors import DataError, InputError, MissingPackageError, RecipeError
from phonate.config.resolve import resolve
from phonate.data.loading import padded_to
from phonate.nn.losses import IGNORED
from phonate.tasks.sequence import inference
from phonate.tasks.sequence.inference import SequenceGenerator, beam_search
from phonate.training.task import counted
from phonate.workflows.train import train

SLOWLY = {"training.max_steps": 400, "training.validation.interval": 400, "training.checkpoint.interval": 400}
SLOWLY |= {"training.batch_size": 32, "training.scheduler.warmup_steps": 40, "training.logging.interval": 50}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pairs.tsv` and `run/`, a short run on it."""
    folder = tmp_path_factory.mktemp("sequence")
    write_pairs(folder / "pairs.tsv", pairs(2))
    changes = {"training.feature_redraw_interval": 2, "training.gradient_accumulation_steps": 2}
    train("sequence", settings(folder / "pairs.tsv", **changes), output=folder / "run")
    return folder


def lines(run: Path, split: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoints/step-{step:08d}/weights.safetensors")


# ------------------------------------------------------------------ learning


@pytest.mark.slow
def test_a_translation_is_learnt_and_holds_for_unseen_sentences(tmp_path: Path) -> None:
    """Linear attention throughout; the targets have their words in the opposite order."""
    path = write_pairs(tmp_path / "pairs.tsv", pairs(4)[::4])
    train("sequence", settings(path, **{**SLOWLY, "training.max_steps": 400}), output=tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    systems = json.loads((tmp_path / "run/evaluation.json").read_text())["systems"]
    assert systems["trained"]["exact_match"] >= 0.9
    assert systems["trained"]["bleu"] > 90
    assert systems["trained"]["perplexity"] < 1.5 < systems["untrained"]["perplexity"]
    for baseline in ("untrained", "copy of the source", "most frequent"):
        assert systems[baseline]["exact_match"] <= 0.1
    validated = lines(tmp_path / "run", "validation")[-1]
    assert validated["exact_match"] >= 0.9
    assert validated["exact_match"] == pytest.approx(systems["trained"]["exact_match"], abs=0.05)
    generator = phonate.load(tmp_path / "run", "sequence")
    assert isinstance(generator, SequenceGenerator)
    assert generator.generate("owl bee") == "abeille hibou"


@pytest.mark.parametrize("attention", ["softmax", "causal_linear"])
@pytest.mark.slow
def test_a_handful_of_pairs_is_memorised(tmp_path: Path, attention: str) -> None:
    rows = [(word, word[::-1]) for word in WORDS]
    path = write_pairs(tmp_path / "pairs.tsv", rows)
    changes = {**SLOWLY, "training.max_steps": 100, "training.batch_size": 8, "data.validation": 0.0}
    changes |= kind("encoder_decoder", attention_type=attention, dropout=0.0) | {"training.optimizer.lr": 1e-2}
    train("sequence", settings(path, **changes), output=tmp_path / "run")
    generator = SequenceGenerator.load(tmp_path / "run")
    assert generator.generate([word for word, _ in rows]) == [target for _, target in rows]


@pytest.mark.slow
def test_a_decoder_continues_and_answers(tmp_path: Path) -> None:
    sequences = [" ".join(one for one in [*WORDS][start:] + [*WORDS][:start]) for start in range(8)]
    write_lines(tmp_path / "lines.jsonl", sequences)
    changes = {**SLOWLY, "training.max_steps": 100, "training.batch_size": 8, "data.validation": 0.0}
    changes |= kind("decoder", attention_type="causal_linear", dropout=0.0) | {"training.optimizer.lr": 1e-2}
    train("sequence", settings(tmp_path / "lines.jsonl", **changes), output=tmp_path / "run")
    generator = SequenceGenerator.load(tmp_path / "run")
    assert generator.generate([one[:11] for one in sequences]) == [one[11:] for one in sequences]
    path = write_pairs(tmp_path / "pairs.tsv", [(f"Say {word}", word[::-1]) for word in WORDS])
    train("sequence", settings(path, **changes), output=tmp_path / "answers")
    generator = SequenceGenerator.load(tmp_path / "answers")
    assert generator.generate([f"Say {word}" for word in WORDS]) == [word[::-1] for word in WORDS]


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 8])
def test_an_encoder_tells_labels_of_unseen_sentences(tmp_path: Path, window: int | None) -> None:
    """Which of two words comes first; with windows, a decision about the whole of a longer text."""
    rows = [(f"{a} {b}", a) for a in WORDS for b in WORDS]
    if window:
        rows = [(f"{a} {a} {b} {a} {a}", a) for a in WORDS for b in WORDS]
    path = tmp_path / "labels.csv"
    path.write_text("sentence,class\n" + "".join(f"{text},{label}\n" for text, label in rows))
    changes = {
        **SLOWLY,
        "training.max_steps": 150,
        "training.batch_size": 16,
        "training.eval_knobs.sliding_window": window,
    }
    changes |= {"data.source": "sentence", "data.target": "class", "training.loss.auxiliary": {"contrastive": 0.1}}
    changes |= kind("encoder", attention_type="linear", num_classes=8)
    train("sequence", settings(path, **changes), output=tmp_path / "run")
    assert lines(tmp_path / "run", "validation")[-1]["accuracy"] >= 0.8
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    systems = json.loads((tmp_path / "run/evaluation.json").read_text())["systems"]
    assert systems["trained"]["accuracy"] >= 0.8 > 0.5 > systems["most frequent"]["accuracy"]
    generator = SequenceGenerator.load(tmp_path / "run")
    found = generator.classify([text for text, _ in rows])
    right = np.mean([max(one, key=one.__getitem__) == label for one, (_, label) in zip(found, rows, strict=True)])
    assert right >= 0.9
    assert sum(found[0].values()) == pytest.approx(1.0)
    assert generator.generate(rows[0][0]) == max(found[0], key=found[0].__getitem__)


# --------------------------------------------------------------------- loss


def test_the_loss_is_smoothed_cross_entropy_over_learnt_tokens(folder: Path) -> None:
    task = task_of(folder / "pairs.tsv", **{"training.loss.auxiliary": {"norm_reg": 0.1}})
    model = task.model(torch.device("cpu")).eval()
    dataset = task.dataset("train")
    batch = dataset.collate(dataset.items[:5])
    terms = counted(task.loss(model, batch, "main"), dataset.unit_counts(batch))
    logits, _ = model(batch)
    wanted = batch["labels"].flatten()
    smoothed = F.cross_entropy(logits.flatten(0, 1), wanted, ignore_index=IGNORED, label_smoothing=0.1)
    total, count = terms["cross_entropy"]
    assert float(total.detach() / count) == pytest.approx(smoothed.item(), rel=1e-5)
    plain = F.cross_entropy(logits.flatten(0, 1), wanted, ignore_index=IGNORED)
    assert float(terms["nll"][0]) / float(terms["nll"][1]) == pytest.approx(plain.item(), rel=1e-5)
    assert {"norm_reg", "accuracy"} <= terms.keys()
    assert task.loss_weights(0)["norm_reg"] == 0.1
    assert task.loss_weights(0)["accuracy"] == task.loss_weights(0)["nll"] == 0.0
    short, long = (
        sorted(dataset.items, key=lambda item: item.length)[:1],
        sorted(dataset.items, key=lambda i: i.length)[-1:],
    )
    alone, beside = (
        float(task.loss(model, dataset.collate(items), "main")["nll"][0]) for items in (short, [*short, *long])
    )
    longs = float(task.loss(model, dataset.collate(long), "main")["nll"][0])
    assert alone + longs == pytest.approx(beside, rel=1e-5)


@pytest.mark.parametrize("model_type", ["encoder_decoder", "decoder", "encoder"])
def test_batches_padded_to_few_shapes_have_the_same_loss(folder: Path, model_type: str) -> None:
    task = task_of(folder / "pairs.tsv", **kind(model_type, attention_type="causal_linear"))
    model = task.model(torch.device("cpu")).eval()
    dataset = task.dataset("train")
    batch = dataset.collate(dataset.items[:5])
    padded = padded_to(batch, 64)
    assert padded["source" if model_type == "encoder" else "labels"].shape[1] == 64
    ours, theirs = task.loss(model, batch, "main"), task.loss(model, padded, "main")
    for name, (total, _) in ours.items():
        assert theirs[name][0].item() == pytest.approx(total.item(), rel=1e-4)
    assert dataset.unit_counts(padded) == dataset.unit_counts(batch)


def test_counts_are_known_from_the_batch(folder: Path) -> None:
    task = task_of(folder / "pairs.tsv")
    model = task.model(torch.device("cpu")).eval()
    dataset = task.dataset("train")
    batch = dataset.collate(dataset.items[:5])
    assert not task.own_counts
    units = dataset.unit_counts(batch)
    assert {units[unit] for _, unit in task.loss(model, batch, "main").values()} == {int((batch["labels"] >= 0).sum())}
    task.criterion.units = ()
    assert task.loss(model, batch, "main")["cross_entropy"][1] == units["targets"]
    assert task_of(folder / "pairs.tsv", **{"training.loss.auxiliary": {"norm_reg": 0.1}}).own_counts


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"training.loss.main": "mse", "training.loss.label_smoothing": 0.0},
            "training.loss.main: mse ",
        ),
        ({"training.loss.main": "nll"}, "training.loss.main: nll "),
        (
            {"training.validation": {"metric_for_best_model": "val_accuracy", "greater_is_better": False}},
            "greater_is_better=false contradicts",
        ),
    ],
)
def test_settings_that_make_no_sense(folder: Path, tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        train("sequence", settings(folder / "pairs.tsv", **changes), output=tmp_path / "run")


def test_packages_that_compare_texts_are_needed_where_texts_are_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    hidden = lambda name, *rest: None if name.startswith("sacrebleu") else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    with pytest.raises(MissingPackageError, match=r"sacrebleu.*pip install 'phonate\[eval\]'"):
        task_of(folder / "pairs.tsv")
    answering = task_of(folder / "pairs.tsv", **kind("decoder"))
    with pytest.raises(MissingPackageError, match="sacrebleu"):
        answering.dataset("train")
    assert task_of(folder / "pairs.tsv", **kind("encoder")).dataset("train").items
    assert (
        task_of(write_lines(tmp_path / "l.jsonl", ["one two", "three four"]), **kind("decoder")).dataset("train").items
    )


def test_a_contrastive_loss_needs_labels(folder: Path, tmp_path: Path) -> None:
    changes = {"training.loss.auxiliary": {"contrastive": 0.1}}
    with pytest.raises(InputError, match=r"training\.loss\.auxiliary\.contrastive: "):
        train("sequence", settings(folder / "pairs.tsv", **changes), output=tmp_path / "run")


# --------------------------------------------------------------------- rows


def test_what_a_model_cant_be_trained_on_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_pairs(tmp_path / "pairs.tsv", [*pairs(2), ("a " * 200, "b"), ("c", "d " * 200)])
    task = task_of(path, **{"data.validation": 0.0})
    assert len(task.dataset("train").items) == len(pairs(2))
    assert "the source has 2" in caplog.text
    assert "the target has 2" in caplog.text
    assert "more than data.max_length 64; raise that" in caplog.text
    write_lines(tmp_path / "lines.jsonl", ["one sequence", "another"])
    with pytest.raises(DataError, match="encoder_decoder"):
        task_of(tmp_path / "lines.jsonl").dataset("train")


@pytest.mark.parametrize(("width", "batch"), [(1, 3), (4, 2)])
def test_the_recipes_knobs_are_those_of_the_search(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, batch: int
) -> None:
    searched = []

    def spy(model: Any, logits_BV: Any, *arguments: Any, **options: Any) -> list[list[int]]:
        searched.append((options["width"], len(logits_BV)))
        return beam_search(model, logits_BV, *arguments, **options)

    monkeypatch.setattr(inference, "beam_search", spy)
    knobs = {"training.eval_knobs": {"beam_width": width, "batch_size": batch}, "training.max_steps": 1}
    train("sequence", settings(folder / "pairs.tsv", **knobs), output=tmp_path / "run")
    searched.clear()
    phonate.load(tmp_path / "run", "sequence").generate(["a b", "c d", "e f", "g"], max_tokens=3)
    assert searched == [(width, batch), (width, 4 - batch)]
    searched.clear()
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert {found for found, _ in searched} == {width}
    assert max(size for _, size in searched) == batch


def test_long_sequences_are_scored_in_windows(tmp_path: Path) -> None:
    """Rows over max_length: refused without windows, scored in whole with them; short ones score the same."""
    draw = np.random.default_rng(0)
    long = {"cat", "dog"}
    rows = [(f"{a} {b}", " ".join(draw.choice([*WORDS], 70 if a in long else 2))) for a in WORDS for b in WORDS]
    path = write_pairs(tmp_path / "pairs.tsv", rows)
    plain = task_of(path, **{"data.validation": 0.5})
    windowed = task_of(path, **{"data.validation": 0.5, "training.eval_knobs.sliding_window": 64})
    kept, cut = plain.dataset("validation"), windowed.dataset("validation")
    rows_of = [item.row for item in cut.items if item.row is not None]
    assert len(rows_of) > len(kept.items)
    assert len(cut.items) > len(rows_of)
    tokens = sum(len(windowed.corpus.tokenizer.encode(phonate_plain(row.response.text)).ids) - 1 for row in rows_of)
    batch = cut.collate(cut.items)
    assert cut.unit_counts(batch)["targets"] == tokens
    model = plain.model(torch.device("cpu")).eval()
    short = [item for item in cut.items if item.row is not None and item.id in set(kept.ids)]
    losses = [
        float(plain.loss(model, data.collate(items), "main")["nll"][0])
        for data, items in ((kept, kept.items), (cut, short))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_long_sources_are_scored_whole_with_windows(tmp_path: Path) -> None:
    rows = [(" ".join([a] * 70 + [b]), f"{b} {a}") for a in WORDS for b in WORDS]
    path = write_pairs(tmp_path / "pairs.tsv", [*rows, *pairs(2)])
    window = {"data.validation": 0.5, "training.eval_knobs.sliding_window": 64}
    found = task_of(path, **window).dataset("validation")
    assert max(len(item.sources[0]) for item in found.items) > 64
    learnable = task_of(
        path,
        **window,
        **{"model.global_config.positional_encoding": "learnable", "model.global_config.max_seq_len": 64},
    )
    assert max(len(item.sources[0]) for item in learnable.dataset("validation").items) <= 64


def phonate_plain(text: str) -> Any:
    from phonate.data.dialogues import Dialogue

    return Dialogue.plain("row", text)


def test_long_single_sequences_are_cut_and_every_token_is_learnt(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "lines.jsonl", [" ".join([word] * 200) for word in WORDS])
    task = task_of(path, **{"data.validation": 0.0}, **kind("decoder"))
    dataset = task.dataset("train")
    total = sum(len(task.corpus.tokenizer.encode(row).ids) - 1 for row in task.corpus.dialogues[0])
    assert dataset.unit_counts(dataset.collate(dataset.items))["targets"] == total
    assert dataset.lengths.max() <= 64


def test_a_recipe_without_a_task_is_recognised(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("data:\n  path: pairs.tsv\n  source: English\nmodel:\n  model_type: encoder_decoder\n")
    assert resolve(recipe).recipe.task == "sequence"
    recipe.write_text("data:\n  path: pairs.tsv\n")
    with pytest.raises(RecipeError, match="write task:"):
        resolve(recipe)


# ---------------------------------------------------------------------- runs


def test_a_resumed_run_is_the_undisturbed_one(folder: Path, tmp_path: Path) -> None:
    """Random features included, which were redrawn at every second step."""
    run = folder / "run"
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    (tmp_path / "run/checkpoints/best.json").unlink(missing_ok=True)
    changes = {"training.feature_redraw_interval": 2, "training.gradient_accumulation_steps": 2}
    train("sequence", settings(folder / "pairs.tsv", **changes), output=tmp_path / "run", resume="auto")
    first, second = weights(run, 12), weights(tmp_path / "run", 12)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    projections = [name for name in first if name.endswith("projection_ME")]
    assert projections
    assert not any(torch.equal(first[name], weights(run, 4)[name]) for name in projections)


def test_other_rows_do_not_go_on_with_a_tokenizer(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    path = write_pairs(tmp_path / "others.tsv", [("other words", "for it"), ("some more", "of them")])
    with pytest.raises(InputError, match=r"tokenizer .*changed: data\.path"):
        train("sequence", settings(path, **{"data.validation": 0.0}), output=tmp_path / "run", resume="auto")


@pytest.mark.slow
def test_two_ranks_train_as_one(folder: Path, tmp_path: Path) -> None:
    changes = {"training.mixed_precision": "fp32", "model.encoder.dropout": 0.0, "model.decoder.dropout": 0.0}
    arguments = [f"{key}={json.dumps(value)}" for key, value in settings(folder / "pairs.tsv", **changes).items()]
    for name, ranks in (("one", 1), ("two", 2)):
        command = ["train", "sequence", *arguments, "--mode", "cpu", "--output", tmp_path / name]
        done = phonate_process.run_ranks(ranks, *command)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (weights(tmp_path / name, 12) for name in ("one", "two"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)
    last = [lines(tmp_path / name, "validation")[-1] for name in ("one", "two")]
    for metric in ("nll", "accuracy", "perplexity", "exact_match", "bleu"):
        assert last[0][metric] == pytest.approx(last[1][metric], rel=1e-3, abs=1e-3)


# ----------------------------------------------------------------- inference


def test_a_batch_is_written_as_each_alone(folder: Path) -> None:
    generator = SequenceGenerator.load(folder / "run")
    sources = [source for source, _ in pairs(2)[:13]]
    assert generator.generate(sources, max_tokens=12) == [generator.generate(one, max_tokens=12) for one in sources]


def test_a_wider_beam_is_at_least_as_likely(folder: Path) -> None:
    from phonate.tasks.sequence.inference import beam_search

    generator = SequenceGenerator.load(folder / "run")
    model, tokenizer = generator.model, generator.tokenizer

    def total(width: int) -> float:
        found = 0.0
        for source, _ in pairs(2)[:10]:
            logits, state = generator._begin([generator._encoded(source)])
            (ids,) = beam_search(
                model, logits, state, width=width, end=tokenizer.end or 0, max_tokens=8, length_penalty=0.0
            )
            logits, state = generator._begin([generator._encoded(source)])
            for token in [*ids, tokenizer.end or 0][:8]:
                found += float(logits.detach().log_softmax(-1)[0, token])
                logits, state = model.next(torch.tensor([token]), state)
        return found

    assert total(5) >= total(1) - 1e-4


def test_the_command_writes_and_says_what_it_cant(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(folder / "run")
    assert main(["generate", run, "cat dog", "--json", "--max-tokens", "9", "--beam-width", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    generator = SequenceGenerator.load(run)
    assert document == {"prompt": "cat dog", "text": generator.generate("cat dog", max_tokens=9, beam_width=3)}
    assert main(["generate", run, "cat dog", "--max-tokens", "9", "--beam-width", "3"]) == 0
    assert capsys.readouterr().out == document["text"] + "\n"
    assert main(["generate", run, "cat", "--temperature", "1"]) == 2
    assert "--temperature: this model has no use for it" in capsys.readouterr().err
    assert main(["generate", run, " "]) == 2
    assert "is empty" in capsys.readouterr().err
    assert main(["generate", run, "cat", "--beam-width", "0"]) == 2
    with pytest.raises(InputError, match="encoder-only"):
        generator.classify("cat")


@pytest.mark.slow
def test_the_performer_translator_trains_at_its_full_size(folder: Path, tmp_path: Path) -> None:
    """The seed's model: 512 wide, six layers each, linear encoder, causal_linear decoder, vocabulary of 8192."""
    part = {"d_model": 512, "num_layers": 6, "num_heads": 8}
    changes = {
        "data.vocabulary": 8192,
        "size": "default",
        "model.global_config": {"dropout": 0.1, "d_ff": 4},
        "model.encoder": {**part, "attention_type": "linear"},
        "model.decoder": {**part, "attention_type": "causal_linear"},
        "training.max_steps": 3,
        "training.checkpoint.save_best_only": False,
    }
    given = {
        key: value for key, value in settings(folder / "pairs.tsv").items() if key != "model.global_config.d_model"
    }
    trained = train("sequence", {**given, **changes}, output=tmp_path / "run")
    first, last = (lines(tmp_path / "run", "train")[index]["nll"] for index in (0, -1))
    assert last < first
    summary = (tmp_path / "run/model_summary.txt").read_text()
    assert "SequenceModel" in summary
    recipe = resolve(tmp_path / "run/recipe.yaml").recipe.model
    assert recipe.encoder.features == recipe.decoder.features == 266  # 64 ln 64
    assert trained.step == 3


def test_translations_of_the_dictionary() -> None:
    assert translation(("cat", "dog")) == "chien chat"


@pytest.mark.slow
def test_linear_attention_is_compiled(folder: Path, tmp_path: Path) -> None:
    """The attention of the shipped recipe. Without dropout, whose random numbers are others in compiled models."""
    losses = {}
    common = {"training.max_steps": 2, "data.validation": 0, "model.global_config.dropout": 0.0}
    for compiled in (False, True):
        changes = {**common, "training.performance.compile_model": compiled}
        run = tmp_path / str(compiled)
        train("sequence", settings(folder / "pairs.tsv", **changes), output=run)
        losses[compiled] = [line["loss"] for line in lines(run, "train")]
    assert len(losses[True]) == 2
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)
