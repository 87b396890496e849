"""Answers of language models: judged beside baselines, given in batches, told what is missing before the work."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from installed import missing

if missing("transformers", "sacrebleu", "rouge_score"):
    pytest.skip(
        "needs transformers, sacrebleu, rouge_score: pip install 'phonate[language,eval]'", allow_module_level=True
    )

import torch
from language_texts import ANIMALS, sentences, settings, write_texts

from phonate.cli import main
from phonate.config import errors
from phonate.config.resolve import resolve
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.data.dialogues import Dialogue
from phonate.tasks.language import evaluation
from phonate.tasks.language.inference import Generator
from phonate.workflows.train import train

ANSWERS = {"bleu", "rouge1", "rouge2", "rougeL"}
OFTEN = "That is no word I know."


def rows() -> list[dict[str, str]]:
    """Eight prompts of different lengths that differ in a word, and two that have one response."""
    asked = [f"Say {word} {'please ' * (number % 3)}now." for number, word in enumerate(ANIMALS)]
    said = [f"{word[::-1]} is what {word} is backwards" for word in ANIMALS]
    pairs = [*zip(asked, said, strict=True), ("Say qqq.", OFTEN), ("Say zz zz.", OFTEN)]
    return [{"prompt": prompt, "response": response} for prompt, response in pairs]


def write(path: Path, documents: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows its ten pairs by heart."""
    folder = tmp_path_factory.mktemp("answers")
    changes = {"training.max_steps": 160, "training.checkpoint.interval": 160, "training.validation.interval": 160}
    changes |= {"data.validation": 0.0, "training.batch_size": 8}
    train("language", settings(write(folder / "pairs.jsonl", rows()), **changes), output=folder / "run")
    return folder / "run"


def judged(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["evaluate", str(run), "--data", str(data), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found == json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    return found


def test_what_was_learnt_by_heart_is_answered(learnt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = judged(learnt, learnt.parent / "pairs.jsonl", capsys)
    systems, items = found["systems"], found["items"]
    assert list(systems) == ["unigram", "most frequent response", "untrained", "trained"]
    assert all(systems["trained"][name] > 95 for name in ANSWERS)
    assert all(systems["untrained"][name] < 5 for name in ANSWERS)
    assert systems["most frequent response"].keys() == ANSWERS
    assert not ANSWERS & systems["unigram"].keys()
    assert {"perplexity", "bits_per_character"} < systems["trained"].keys()
    assert found["notes"]["most frequent response"] == f"{OFTEN!r}, 2 times"
    assert systems["most frequent response"]["rouge2"] == pytest.approx(20.0)  # two of ten
    assert found["notes"]["answers"] == 10
    assert found["notes"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert [{"prompt": one["prompt"], "response": one["response"]} for one in items.values()] == rows()
    assert next(iter(items)) == "pairs.jsonl:1"
    assert all(one["answer"] == one["response"] and one["bleu"] > 99 for one in list(items.values())[:8])
    assert "rougeL" in found["legend"]


def test_some_of_many_are_asked(learnt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """64, evenly spread, and not one of them that could not be judged by."""
    many = [{"prompt": f"Say {number}.", "response": f"It is {number}."} for number in range(200)]
    many[0]["response"] = "far too long " * 40
    found = judged(learnt, write(tmp_path / "many.jsonl", many), capsys)
    assert found["notes"]["answers"] == len(found["items"]) == evaluation.MAX_QUESTIONS
    lines = [int(name.rpartition(":")[2]) for name in found["items"]]
    assert lines[0] == 2
    assert max(after - before for before, after in itertools.pairwise(lines)) <= 4
    assert lines[-1] > 190


def test_plain_texts_are_not_answered(learnt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain.txt").write_text("The red fox saw 6 more.\n", encoding="utf-8")
    found = judged(learnt, tmp_path / "plain.txt", capsys)
    assert list(found["systems"]) == ["unigram", "untrained", "trained"]
    assert not any(ANSWERS & system.keys() for system in found["systems"].values())
    assert (found["items"], "bleu" in found["notes"], "bleu" in found["legend"]) == ({}, False, False)


@pytest.mark.slow
def test_a_model_of_plain_texts_is_asked_without_that_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, pairs = write_texts(tmp_path)
    train("language", settings(lines), output=tmp_path / "run")
    found = judged(tmp_path / "run", pairs, capsys)
    assert list(found["systems"]) == ["unigram", "untrained", "trained"]
    assert found["systems"]["trained"].keys() > ANSWERS


@pytest.mark.parametrize("name", ["sacrebleu", "rouge_score"])
def test_scores_that_are_missing_leave_their_columns_out(
    learnt: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = errors.importlib.util.find_spec
    monkeypatch.setattr(errors.importlib.util, "find_spec", lambda one: None if one == name else find(one))
    assert main(["evaluate", str(learnt), "--data", str(learnt.parent / "pairs.jsonl"), "--json"]) == 0
    said = capsys.readouterr()
    assert f"needs the package {name}, which is not installed; pip install 'phonate[eval]'" in said.err
    assert json.loads(said.out)["systems"]["trained"].keys().isdisjoint(ANSWERS)


def test_answers_in_a_batch_are_those_one_by_one(learnt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator.load(learnt)
    prompts = [row["prompt"] for row in rows()]
    alone = [generator.generate(prompt, max_tokens=30, temperature=0) for prompt in prompts]
    calls: list[int] = []
    run = generator._run
    monkeypatch.setattr(generator, "_run", lambda asked, **options: calls.append(len(asked)) or run(asked, **options))
    assert generator.generate(prompts, 30, 0) == alone
    assert calls[-2:] == [8, 2]


@pytest.mark.parametrize(("kind", "together"), [("gpt2", True), ("bloom", True), ("rwkv", False)])
def test_other_models_answer_the_same_in_batches(kind: str, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that are learnt, positions in the attention, and a model that takes no mask."""
    tokenizer = TextTokenizer.train([Dialogue.plain("", one) for one in sentences()], 300)
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64}
    from transformers import AutoConfig, AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=300, **sizes))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)  # else all of its answers would be alike
    recipe = resolve("language", settings(Path("unused.txt"), **{"training.batch_size": 8})).recipe
    generator = Generator(model, tokenizer, True, recipe)
    prompts = ["a", "The red fox", "saw", "The white bee saw 8 more."]
    alone = [generator.generate(prompt, max_tokens=12, temperature=0) for prompt in prompts]
    assert len(set(alone)) == len(prompts)
    assert generator.generate(prompts, 12, 0) == alone
    assert generator._masks_padding([generator._encoded(prompt) for prompt in prompts]) is together
    # it would be seen if padding were read
    run = generator._run
    monkeypatch.setattr(generator, "_masks_padding", lambda _: True)
    monkeypatch.setattr(generator, "_run", lambda asked, **options: run(asked, **{**options, "masked": False}))
    assert generator.generate(prompts, 12, 0) != alone


def test_answers_end_where_the_model_sees_no_further(learnt: Path) -> None:
    """A prompt that leaves room for few tokens among others that leave more."""
    generator = Generator.load(learnt)
    prompts = ["Say cat now.", "Say " + "cat " * 40 + "now."]
    free = [64 - len(generator._encoded(prompt)) for prompt in prompts]
    assert 0 < free[1] < 30 < free[0]
    alone = [generator.generate(prompt, max_tokens=30, temperature=0) for prompt in prompts]
    assert generator.generate(prompts, 30, 0) == alone
