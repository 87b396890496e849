"""Language models from texts to generated text: new ones, adapters, frozen ones; resumed, judged and exported."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phonate_process
from installed import missing

if missing("transformers", "peft"):
    pytest.skip("needs transformers, peft: pip install 'phonate[language]'", allow_module_level=True)

import torch
from language_texts import ANIMALS, save_base, settings, task_of, write_texts
from safetensors.torch import load_file, save_file

from phonate.cli import main
from phonate.config.errors import CheckpointError, DataError, InputError, MissingPackageError
from phonate.config.resolve import resolve
from phonate.nn.pretrained import MergeRequest, load_pretrained, merge_adapters, require
from phonate.tasks.language import export
from phonate.tasks.language import model as models
from phonate.tasks.language.inference import Generator
from phonate.tasks.language.task import LanguageTask
from phonate.training.checkpoints import best_or_latest
from phonate.workflows.train import train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `lines.txt`, `pairs.jsonl` and `base/`, a small pretrained model."""
    folder = tmp_path_factory.mktemp("language")
    lines, _ = write_texts(folder)
    torch.manual_seed(1)
    save_base(lines, folder / "base")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train("language", settings(folder / "lines.txt"), output=folder / "run")
    return folder / "run"


def adapters(folder: Path, **changes: Any) -> dict[str, Any]:
    changes = {"model.name": str(folder / "base"), "training.optimizer.lr": 1e-2, **changes}
    return settings(folder / "pairs.jsonl", **changes)


@pytest.fixture(scope="module")
def adapted(folder: Path) -> Path:
    train("language-lora", adapters(folder), output=folder / "adapted")
    return folder / "adapted"


def lines(run: Path, split: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoints/step-{step:08d}/weights.safetensors")


def test_a_new_model_memorises_texts(folder: Path, tmp_path: Path) -> None:
    changes = {"training.max_steps": 150, "training.checkpoint.interval": 150, "training.validation.interval": 150}
    train("language", settings(folder / "lines.txt", **changes), output=tmp_path / "run")
    losses = [line["nll"] for line in lines(tmp_path / "run", "train")]
    assert np.mean(losses[-5:]) < 0.2 * losses[0]
    generator = Generator.load(tmp_path / "run")
    said = generator.generate("The red", temperature=0)
    assert any(said == f" {animal} saw {len(animal + 'red')} more." for animal in ANIMALS)


def test_a_new_model_memorises_responses(tmp_path: Path) -> None:
    """Eight prompts that differ in a word: their answers can only be told apart by looking at the prompt."""
    rows = [{"prompt": f"Say {word}.", "response": f"{word[::-1]} it is"} for word in ANIMALS]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    changes = {"training.max_steps": 120, "training.checkpoint.interval": 120, "training.validation.interval": 120}
    changes |= {"data.validation": 0.0, "training.batch_size": 8}
    train("language", settings(path, **changes), output=tmp_path / "run")
    generator = Generator.load(tmp_path / "run")
    said = [generator.generate(row["prompt"], temperature=0, max_tokens=20) for row in rows]
    assert said == [row["response"] for row in rows]


def test_every_answer_of_a_conversation_is_learnt(tmp_path: Path) -> None:
    """Half of the words are asked for in first questions only, half in second ones."""
    conversations = [
        [
            {"role": "user", "content": f"Say {first}."},
            {"role": "assistant", "content": f"{first[::-1]} it is"},
            {"role": "user", "content": f"Say {second}."},
            {"role": "assistant", "content": f"{second[::-1]} it is"},
        ]
        for first, second in zip(ANIMALS[:4], ANIMALS[4:], strict=True)
    ]
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([{"messages": one} for one in conversations]), encoding="utf-8")
    changes = {"training.max_steps": 120, "training.checkpoint.interval": 120, "training.validation.interval": 120}
    changes |= {"data.validation": 0.0, "training.batch_size": 8}
    train("language", settings(path, **changes), output=tmp_path / "run")
    generator = Generator.load(tmp_path / "run")
    firsts = generator.generate([f"Say {word}." for word in ANIMALS[:4]], max_tokens=20, temperature=0)
    assert firsts == [f"{word[::-1]} it is" for word in ANIMALS[:4]]
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(path)]) == 0
    items = json.loads((tmp_path / "run/evaluation.json").read_text(encoding="utf-8"))["items"]
    assert [one["answer"] for one in items.values()] == [f"{word[::-1]} it is" for word in ANIMALS[4:]]
    assert items["chats.json:1"]["prompt"] == f"Say {ANIMALS[4]}."


def test_a_resumed_run_is_the_undisturbed_one(run: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    (tmp_path / "run/checkpoints/best.json").unlink()
    train("language", settings(folder / "lines.txt"), output=tmp_path / "run", resume="auto")
    first, second = weights(run, 12), weights(tmp_path / "run", 12)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_resumed_adapters_are_the_undisturbed_ones(adapted: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(adapted, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    (tmp_path / "run/checkpoints/best.json").unlink()
    train("language-lora", adapters(folder), output=tmp_path / "run", resume="auto")
    first, second = weights(adapted, 12), weights(tmp_path / "run", 12)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_other_texts_do_not_go_on_with_a_tokenizer(run: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    with pytest.raises(InputError, match=r"tokenizer .*changed: data\.path"):
        train("language", settings(folder / "pairs.jsonl"), output=tmp_path / "run", resume="auto")


def test_a_grown_corpus_is_named_where_its_tokenizer_differs(run: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000012")
    more = "".join(f"Zigzags number {number} jump.\n" for number in range(40))
    (tmp_path / "lines.txt").write_text((folder / "lines.txt").read_text() + more)
    with pytest.raises(InputError, match=r"tokenizer .*its training data have changed: of \d+ training items, .*new"):
        train("language", settings(tmp_path / "lines.txt"), output=tmp_path / "run", resume="auto")


@pytest.mark.parametrize("strategy", ["lora", "freeze"])
def test_adapters_and_layers_do_not_go_on_with_another_base(
    folder: Path, tmp_path: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base of the same sizes and tokenizer, all weights of which are scaled."""
    shutil.copytree(folder / "base", tmp_path / "base")
    file = tmp_path / "base/model.safetensors"
    save_file({name: 1.5 * tensor for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    changes = {"model.strategy": strategy, "model.trained_layers": 1, "training.max_steps": 2}
    changes |= {"training.validation.interval": 2}
    changes |= {"training.checkpoint.interval": 2}
    train("language-lora", adapters(folder, **changes), output=tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    options = [f"{name}={json.dumps(value)}" for name, value in adapters(folder, **changes).items()]
    more = ["training.max_steps=4", f"model.name={tmp_path / 'base'}"]
    assert main(["train", "language-lora", *options, *more, "--resume", "auto", "--output", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "not trained with the same base weights" in error
    assert "changed: model.name" in error
    assert error.split(" -> ")[1].split('"')[1].endswith(str(tmp_path / "base")[-20:])
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    more[1] = f"model.name={folder / 'base'}"
    assert main(["train", "language-lora", *options, *more, "--resume", "auto", "--output", str(tmp_path / "run")]) == 0


def test_a_checkpoint_of_a_new_model_stands_alone(run: Path, tmp_path: Path) -> None:
    """Nothing else of the run is needed, and each weight is there once, though the head is the embedding."""
    names = weights(run, 12).keys()
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    shutil.copytree(best_or_latest(run), tmp_path / "alone")
    said = [Generator.load(one).generate("The", max_tokens=8, seed=3) for one in (run, tmp_path / "alone")]
    assert said[0] == said[1]


def test_plain_transformers_begins_texts_as_training_did(run: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    assert main(["checkpoints", "export", str(run), "--format", "transformers", "-o", str(tmp_path / "out")]) == 0
    own, theirs = Generator.load(run).tokenizer, AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs("The red cat")["input_ids"] == own.encode_prompt("The red cat", chat=False)
    assert theirs("The", add_special_tokens=False)["input_ids"] == own.encode_prompt("The", chat=False)[1:]


def test_the_average_of_a_tied_model_is_what_is_loaded(folder: Path, tmp_path: Path) -> None:
    changes = {"training.ema.decay": 0.5, "training.ema.warmup": False}
    train("language", settings(folder / "lines.txt", **changes), output=tmp_path / "run")
    loaded: Any = Generator.load(tmp_path / "run/checkpoints/step-00000012").model
    saved = weights(tmp_path / "run", 12)["model.embed_tokens.weight"]
    assert torch.equal(loaded.lm_head.weight, saved)
    assert torch.equal(loaded.model.embed_tokens.weight, saved)


def test_adapters_alone_are_trained_and_saved(adapted: Path, folder: Path) -> None:
    saved = weights(adapted, 12)
    assert saved
    assert all("lora_" in name for name in saved)
    base = sum(tensor.nbytes for tensor in load_file(folder / "base/model.safetensors").values())
    recipe = resolve("language-lora", adapters(folder)).recipe
    fresh = models.prepare(models.load_base(recipe.model, CPU), recipe.model)
    trained = {name for name, p in fresh.named_parameters() if p.requires_grad}
    assert trained == saved.keys()
    wanted = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {name.split(".")[-4] for name in saved if "lora_A" in name} == wanted
    assert base > 0
    loaded = dict(Generator.load(adapted).model.named_parameters())
    before = dict(fresh.named_parameters())
    assert all(torch.equal(loaded[name], before[name]) for name in loaded.keys() - saved.keys())
    assert any(bool(tensor.any()) for name, tensor in saved.items() if "lora_B" in name)


def test_fresh_adapters_change_nothing_and_trained_ones_merge(adapted: Path, folder: Path, tmp_path: Path) -> None:
    recipe = resolve("language-lora", adapters(folder)).recipe
    ids, positions = torch.arange(10)[None], torch.arange(10)[None]
    with torch.no_grad():
        base = models.logits(models.load_base(recipe.model, CPU).eval(), ids, positions)
        fresh = models.prepare(models.load_base(recipe.model, CPU), recipe.model).eval()
        assert torch.allclose(models.logits(fresh, ids, positions), base)
        generator = Generator.load(adapted)
        trained = models.logits(generator.model, ids, positions)
        assert not torch.allclose(trained, base, atol=1e-2)
        assert (
            main(["checkpoints", "export", str(adapted), "--format", "transformers", "-o", str(tmp_path / "out")]) == 0
        )
        from transformers import AutoModelForCausalLM, AutoTokenizer

        merged: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
        assert torch.allclose(models.logits(merged, ids, positions), trained, atol=1e-4)
    assert not any("lora" in name for name in merged.state_dict())
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again("The red cat")["input_ids"] == generator.tokenizer.tokenizer("The red cat")["input_ids"]
    assert again.chat_template == generator.tokenizer.tokenizer.chat_template
    assert main(["checkpoints", "export", str(adapted), "--format", "transformers", "-o", str(tmp_path / "out")]) == 2


def test_merging_measures_what_it_wrote(adapted: Path, folder: Path, tmp_path: Path, capsys: Any) -> None:
    merged = ["checkpoints", "merge", str(adapted), "--json", "-o"]
    assert main([*merged, str(tmp_path / "fp32")]) == 0
    exact = json.loads(capsys.readouterr().out)
    assert exact["merge_difference"] <= 1e-4 * max(1.0, exact["largest_logit"])
    assert (exact["dtype"], exact["quantization"], exact["stored_agreement"]) == ("float32", None, 1.0)
    assert exact["stored_error"] < 1e-4
    written = json.loads((tmp_path / "fp32" / "merge.json").read_text())
    assert written == {key: value for key, value in exact.items() if key != "target"}
    assert main([*merged, str(tmp_path / "bf16"), "--dtype", "bf16"]) == 0
    half = json.loads(capsys.readouterr().out)
    assert half["bytes"] < 0.6 * exact["bytes"]
    assert 1e-4 < half["stored_error"] < 0.05
    assert {tensor.dtype for tensor in load_file(tmp_path / "bf16" / "model.safetensors").values()} == {torch.bfloat16}
    assert main([*merged, str(tmp_path / "fp32")]) == 2  # it exists
    assert main(["checkpoints", "merge", str(folder / "nothing"), "-o", str(tmp_path / "x")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bf16", "fp32"]


def test_a_base_that_was_moved_is_named(folder: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(folder / "base", tmp_path / "gone")
    changes = {"training.max_steps": 2, "training.validation.interval": 2, "model.name": str(tmp_path / "gone")}
    train("language-lora", adapters(folder, **changes), output=tmp_path / "run")
    said = Generator.load(tmp_path / "run").generate("The red", temperature=0, max_tokens=8)
    (tmp_path / "gone").rename(tmp_path / "base")
    ask = ["generate", str(tmp_path / "run"), "The red", "--temperature", "0", "--max-tokens", "8"]
    assert main(ask) == 2
    assert f"was trained on the model {tmp_path / 'gone'}, which is not there" in capsys.readouterr().err
    assert main([*ask, "--base", str(tmp_path / "base")]) == 0
    assert capsys.readouterr().out == f"{said}\n"
    merge = ["checkpoints", "merge", str(tmp_path / "run"), "-o", str(tmp_path / "merged")]
    assert main([*merge, "--base", str(tmp_path / "base")]) == 0


def test_a_merge_that_changes_the_model_writes_nothing(adapted: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def wrong(model: Any) -> Any:
        found = merge_adapters(model)
        next(found.parameters()).data.mul_(1.01)
        return found

    monkeypatch.setattr("phonate.nn.pretrained.merge_adapters", wrong)
    with pytest.raises(CheckpointError, match="logits differ"):
        export.merge(MergeRequest(best_or_latest(adapted), tmp_path / "merged"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_models_load_in_transformers(kind: Any, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install 'phonate[qlora]'")
    save_base(folder / "lines.txt", tmp_path / "base", **{"model.width": 192, "model.heads": 4})
    changes = {"training.max_steps": 2, "training.validation.interval": 2, "model.name": str(tmp_path / "base")}
    train("language-lora", adapters(folder, **changes), output=tmp_path / "run")
    source = best_or_latest(tmp_path / "run")
    report = export.merge(MergeRequest(source, tmp_path / "merged", quantization=kind))
    plain = export.merge(MergeRequest(source, tmp_path / "plain"))
    assert report.bytes < 0.9 * plain.bytes  # most of this small model is its embedding, which is not quantised
    assert plain.stored_error < report.stored_error < 0.2
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    name = {"int8": "Linear8bitLt", "int4": "Linear4bit"}[kind]
    assert any(type(module).__name__ == name for module in loaded.modules())
    changes["model.name"] = str(tmp_path / "merged")
    train("language-lora", adapters(folder, **changes), output=tmp_path / "beside")
    with pytest.raises(InputError, match="adapters can't be merged into quantised weights"):
        export.merge(MergeRequest(best_or_latest(tmp_path / "beside"), tmp_path / "none"))


def test_adapters_load_in_plain_peft(adapted: Path, folder: Path, tmp_path: Path) -> None:
    command = ["checkpoints", "export", str(adapted), "--format", "peft", "-o", str(tmp_path / "adapter")]
    assert main(command) == 0
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    with pytest.raises(InputError, match="holds adapters to another model; merge them"):
        load_pretrained(str(tmp_path / "adapter"))
    base: Any = AutoModelForCausalLM.from_pretrained(folder / "base")
    plain = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    ids, positions = torch.arange(10)[None], torch.arange(10)[None]
    with torch.no_grad():
        ours = models.logits(Generator.load(adapted).model, ids, positions)
        assert torch.allclose(models.logits(plain, ids, positions), ours, atol=1e-5)


def test_adapters_load_and_answer_the_same_and_only_on_their_base(adapted: Path, folder: Path, tmp_path: Path) -> None:
    said = [Generator.load(adapted).generate("What?", max_tokens=12, seed=5) for _ in range(2)]
    assert said[0] == said[1]
    path = folder / "base" / "model.safetensors"
    before = path.read_bytes()
    tensors = load_file(path)
    save_file({**tensors, "model.norm.weight": tensors["model.norm.weight"] + 1.0}, path, metadata={"format": "pt"})
    try:
        with pytest.raises(CheckpointError, match="other weights"):
            Generator.load(adapted)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(("layers", "expected"), [(0, {"model.norm.weight"}), (1, {"model.norm.weight", "layers.1"})])
def test_freezing_trains_the_top_and_nothing_else(
    folder: Path, layers: int, expected: set[str], tmp_path: Path
) -> None:
    changes = {"model.strategy": "freeze", "model.trained_layers": layers, "training.optimizer.lr": 1e-2}
    changes |= {"training.validation.interval": 4, "training.max_steps": 4}
    train("language", adapters(folder, **changes), output=tmp_path / "run")
    saved, base = weights(tmp_path / "run", 4), load_file(folder / "base/model.safetensors")
    assert "model.embed_tokens.weight" in saved  # the head, which is the embedding
    others = saved.keys() - {"model.embed_tokens.weight"}
    assert all(any(part in name for part in expected) for name in others)
    assert all(any(part in name for name in others) for part in expected)
    assert not any(torch.equal(saved[name], base[name]) for name in saved)
    loaded = Generator.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(loaded[name], saved.get(name, base[name])) for name in base)


def test_a_pretrained_model_can_be_trained_whole(folder: Path, tmp_path: Path) -> None:
    changes = {"model.strategy": "full", "training.max_steps": 4, "training.validation.interval": 4}
    train("language", adapters(folder, **changes), output=tmp_path / "run")
    saved, base = weights(tmp_path / "run", 4), load_file(folder / "base/model.safetensors")
    assert saved.keys() == base.keys()
    assert not any(torch.equal(saved[name], base[name]) for name in saved)
    assert isinstance(Generator.load(tmp_path / "run").generate("What?", max_tokens=4), str)


def test_gradient_checkpointing_gives_the_same_gradient(folder: Path) -> None:
    gradients = []
    for on in (False, True):
        recipe = resolve(
            "language-lora", adapters(folder, **{"model.gradient_checkpointing": on, "model.lora.dropout": 0.0})
        ).recipe
        task = LanguageTask(recipe)
        torch.manual_seed(0)
        model = task.model(torch.device("cpu")).train()
        samples = task.dataset("train")
        task.loss(model, samples.collate([samples.get(0, np.random.default_rng(0))]), "main")["nll"][0].backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    assert all(torch.allclose(gradients[0][name], gradients[1][name], atol=1e-6) for name in gradients[0])
    assert any(bool(gradient.any()) for gradient in gradients[0].values())


def test_the_command_generates_the_same_text_from_the_same_seed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*options: str) -> str:
        assert main(["generate", str(run), "The red", "--max-tokens", "12", *options]) == 0
        return capsys.readouterr().out

    assert said("--seed", "1") == said("--seed", "1")
    assert len({said("--seed", str(seed), "--temperature", "1.5") for seed in range(4)}) > 1
    assert said("--temperature", "0") == said("--temperature", "0", "--seed", "9")
    document = json.loads(said("--json", "--temperature", "0"))
    assert (document["prompt"], document["text"] + "\n") == ("The red", said("--temperature", "0"))
    assert main(["generate", str(run), "The red", "--max-tokens", "0"]) == 2
    assert main(["generate", str(run), "The red", "--temperature", "-1"]) == 2
    assert main(["generate", str(run), "word " * 100]) == 2
    assert "tokens; the model takes fewer than 64" in capsys.readouterr().err
    assert main(["generate", str(run), "The red", "--temperature", "1e-40"]) == 2
    assert "0, or 0.001 or more" in capsys.readouterr().err
    assert main(["generate", str(run), "The \udcff"]) == 2


@pytest.mark.slow
def test_the_command_reads_its_standard_input(run: Path) -> None:
    command = ["generate", str(run), "-", "--max-tokens", "4", "--json"]
    strict: dict[str, Any] = {"env": {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}, "text": False}
    done = phonate_process.run(*command, input="Gr\u00fcn".encode(), **strict)
    assert json.loads(done.stdout)["prompt"] == "Gr\u00fcn"
    done = phonate_process.run(*command, input=b"Gr\xfcn", **strict)
    assert (done.returncode, done.stderr) == (2, b"error: the prompt is not UTF-8\n")


def test_generating_leaves_the_global_generator_alone(run: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    Generator.load(run).generate("The", max_tokens=4, temperature=1.0)
    # `load` draws fresh weights; generating itself draws from a generator of its own
    generator, before = Generator.load(run), torch.get_rng_state()
    generator.generate("The", max_tokens=4, temperature=1.0)
    assert torch.equal(before, torch.get_rng_state())


def test_evaluation_compares_with_the_untrained_model_and_a_unigram_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("language", settings(folder / "lines.txt", **{"training.max_steps": 60}), output=tmp_path / "run")
    run = tmp_path / "run"
    assert main(["evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    systems = found["systems"]
    assert systems["trained"]["perplexity"] < systems["unigram"]["perplexity"] < systems["untrained"]["perplexity"]
    assert systems["untrained"]["perplexity"] == pytest.approx(found["notes"]["vocabulary"], rel=0.2)
    for system in systems.values():
        assert system["bits_per_character"] == pytest.approx(np.log2(system["character_perplexity"]))
    # what training's own validation saw of the same checkpoint, to rounding
    last = lines(run, "validation")[-1]
    assert np.log(systems["trained"]["perplexity"]) == pytest.approx(last["nll"], rel=1e-4)
    assert systems["trained"]["bits_per_character"] == pytest.approx(last["bits_per_character"], rel=1e-4)
    (tmp_path / "other.txt").write_text("The red dog saw 6 more.\n", encoding="utf-8")
    assert main(["evaluate", str(run), "--data", str(tmp_path / "other.txt"), "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert (other["notes"]["documents"], other["notes"]["characters"]) == (1, 23)
    assert main(["evaluate", str(run), "--vocoder", "x"]) == 2
    checkpoint = best_or_latest(run)
    before = sorted(checkpoint.iterdir())
    capsys.readouterr()
    assert main(["evaluate", str(checkpoint)]) == 2
    assert "a checkpoint, to which nothing is added; give a folder" in capsys.readouterr().err
    assert main(["evaluate", str(checkpoint), "--json", "--output", str(tmp_path / "figures")]) == 0
    assert json.loads((tmp_path / "figures/evaluation.json").read_text())["systems"] == systems
    assert sorted(checkpoint.iterdir()) == before


def test_texts_without_predicted_characters_have_a_perplexity(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a begin token, only the end of a text of one token is predicted."""
    shutil.copytree(folder / "base", tmp_path / "base")
    (tmp_path / "base/chat_template.jinja").unlink()
    said = json.loads((tmp_path / "base/tokenizer_config.json").read_text(encoding="utf-8"))
    del said["bos_token"]
    (tmp_path / "base/tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    (tmp_path / "letters.txt").write_text("a\nb\nc\nd\n", encoding="utf-8")
    changes = {"data.path": str(tmp_path / "letters.txt"), "model.name": str(tmp_path / "base")}
    train("language-lora", adapters(folder, **changes), output=tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["notes"]["characters"] == 0
    assert all(system.keys() == {"perplexity"} for system in found["systems"].values())


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"model.strategy": "lora"}, "starts from a pretrained model; name it in model.name"),
    ({"model.name": "BASE", "model.lora.targets": ["q_prj"]}, "did you mean q_proj?"),
    ({"model.name": "BASE", "model.lora.targets": ["q_proj", "lm_head"]}, "lm_head shares its weight with the embed"),
    ({"model.name": "no/such-model"}, "model.name: no/such-model"),
    ({"model.name": "BASE", "data.max_length": 100}, "takes 64 at most"),
    ({"model.name": "BASE", "model.strategy": "freeze", "model.trained_layers": 9}, "this model has 2 layers"),
    ({"model.width": 30, "model.heads": 4}, "can't be split into an even width per head"),
    ({"model.name": "BASE", "model.strategy": "full", "model.dtype": "bf16"}, "trains in fp32"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_mistakes_are_reported_in_one_line(folder: Path, changes: dict[str, Any], message: str) -> None:
    changes = {name: str(folder / "base") if value == "BASE" else value for name, value in changes.items()}
    with pytest.raises(InputError, match=message.replace("?", r"\?")) as caught:
        task_of(folder / "lines.txt", **changes).model(torch.device("cpu"))
    assert "\n" not in str(caught.value)


def test_texts_are_refused_before_the_hub_is_asked_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(DataError, match="no document can be used"):
        train("language-lora", {"data.path": str(tmp_path), "model.name": "owner/model"}, output=tmp_path / "run")


def test_a_file_that_lacks_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    """transformers would start them at random, and say so in a warning."""
    shutil.copytree(folder / "base", tmp_path / "base")
    tensors = load_file(tmp_path / "base/model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "base/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 weights, such as model\.layers\.1\.mlp\.up_proj\.weight"):
        task_of(folder / "lines.txt", **{"model.name": str(tmp_path / "base")}).model(torch.device("cpu"))


def replaced(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut short": (lambda base: os.truncate(base / "model.safetensors", 20_000), "the model can't be loaded"),
    "no number": (
        lambda base: replaced(base / "config.json", '"hidden_size": 32', '"hidden_size": "wide"'),
        "the model can't be loaded",
    ),
    "another size": (
        lambda base: replaced(base / "config.json", '"hidden_size": 32', '"hidden_size": 64'),
        r"model\.embed_tokens\.weight is \(\d+, 32\) in its file, \(\d+, 64\) by its config\.json",
    ),
    "no tokenizer's file": (
        lambda base: (base / "tokenizer.json").write_text('{"a": 1}', encoding="utf-8"),
        "no tokenizer can be loaded",
    ),
    "no tokenizer": (lambda base: [file.unlink() for file in base.glob("token*")], "no tokenizer can be loaded"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_model_is_one_line(folder: Path, tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    shutil.copytree(folder / "base", tmp_path / "base")
    damage(tmp_path / "base")
    with pytest.raises(InputError, match=message) as caught:
        task_of(folder / "lines.txt", **{"model.name": str(tmp_path / "base")}).model(torch.device("cpu"))
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    """transformers makes a GPT-2 one of a single token, with which nothing of any text would be learnt."""
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=320, n_positions=64, bos_token_id=0, eos_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        task_of(folder / "lines.txt", **{"model.name": str(tmp_path / "base")}).model(torch.device("cpu"))


def test_pickled_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "base", tmp_path / "base")
    torch.save(load_file(tmp_path / "base/model.safetensors"), tmp_path / "base/pytorch_model.bin")
    (tmp_path / "base/model.safetensors").unlink()
    with pytest.raises(InputError, match="can't be loaded"):
        task_of(folder / "lines.txt", **{"model.name": str(tmp_path / "base")}).model(torch.device("cpu"))


def test_without_the_packages_there_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'phonate\[language\]'"):
        require("transformers")
    with pytest.raises(MissingPackageError, match=r"pip install 'phonate\[qlora\]'"):
        require("bitsandbytes")


@pytest.mark.slow
def test_four_bits_train_where_bitsandbytes_runs(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: pip install 'phonate[qlora]'")
    # rows of 64 numbers, which share a scale: bitsandbytes computes with no others on a processor
    save_base(folder / "lines.txt", tmp_path / "base", **{"model.width": 192, "model.heads": 4})
    changes = {"model.strategy": "qlora", "training.max_steps": 8, "training.validation.interval": 8}
    changes |= {"model.name": str(tmp_path / "base")}
    train("language-lora", adapters(folder, **changes), output=tmp_path / "run")
    losses = [line["nll"] for line in lines(tmp_path / "run", "train")]
    assert losses[-1] < losses[0]
    generator = Generator.load(tmp_path / "run")
    assert any(type(module).__name__ == "Linear4bit" for module in generator.model.modules())
    assert isinstance(generator.generate("What?", max_tokens=4), str)
    assert main(["checkpoints", "merge", str(tmp_path / "run"), "-o", str(tmp_path / "merged")]) == 2
    assert not (tmp_path / "merged").exists()
