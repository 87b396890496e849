"""From dialogues to batches: what is refused, what the labels are, and that packing changes no loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[language]'", allow_module_level=True)

import torch
from language_texts import sentences, settings, task_of, write_texts

from phonate.config.errors import DataError, InputError
from phonate.config.resolve import resolve
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.data.dialogues import Dialogue
from phonate.nn.losses import IGNORED
from phonate.tasks.language import model as models
from phonate.tasks.language.data import encode_all
from phonate.tasks.language.task import negative_log_likelihood
from phonate.workflows.train import train


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train([Dialogue.plain("", one) for one in sentences()], 320)


def test_long_texts_are_cut_without_losing_a_token_and_long_pairs_refused(tokenizer: TextTokenizer) -> None:
    text = Dialogue.plain("t.txt:1", " ".join(sentences()[:6]))
    sequences, refused = encode_all(tokenizer, [text, Dialogue.pair("p.jsonl:2", "p", "word " * 40)], 16)
    assert [(row.place, "over data.max_length 16" in row.reason) for row in refused] == [("p.jsonl:2", True)]
    whole = tokenizer.encode(text)
    assert max(len(one.tokens.ids) for one in sequences) == 16
    assert [one.id for one in sequences[:2]] == ["t.txt:1#0", "t.txt:1#1"]
    predicted = np.concatenate([one.tokens.ids[1:] for one in sequences])
    assert np.array_equal(predicted, whole.ids[1:])
    characters = sum(one.tokens.characters[1:].sum() for one in sequences)
    assert characters == whole.characters[1:].sum() == len(text.turns[0].text)


def test_dialogues_with_audio_are_refused_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audio = {"type": "audio", "audio_url": "wavs/one.flac"}
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": [audio]}, {"role": "assistant", "content": "It is red."}]},
        {"prompt": "What is it?", "response": "It is red."},
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    with caplog.at_level("WARNING", logger="phonate"):
        dataset = task_of(path, **{"data.validation": 0.0}).dataset("train")
    assert dataset.ids == ["rows.json:2"]
    assert "1 row can't be used" in caplog.text
    assert "rows.json:1: message 1 holds audio (wavs/one.flac)" in caplog.text
    path.write_text(json.dumps(rows[:1]), encoding="utf-8")
    with pytest.raises(DataError, match=r"rows\.json:1: message 1 .*audio"):
        task_of(path, **{"data.validation": 0.0}).dataset("train")


def batch_of(task: Any, split: str = "train") -> Any:
    samples = task.dataset(split)
    return samples.collate([samples.get(i, np.random.default_rng(0)) for i in range(len(samples.ids))])


@pytest.mark.parametrize("kind", [0, 1], ids=["texts", "pairs"])
def test_packing_changes_no_loss_and_no_gradient(texts: tuple[Path, Path], kind: int) -> None:
    """Sum and count over the corpus, and the gradient, are those of the documents one by one."""
    task = task_of(texts[kind])
    alone = task_of(texts[kind], **{"data.packing": False})
    torch.manual_seed(0)
    model = task.model(torch.device("cpu")).eval()
    results = []
    for one in (task, alone):
        model.zero_grad()
        batch = batch_of(one)
        terms = one.loss(model, batch, "main")
        terms["nll"][0].backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((terms, gradient, batch))
    assert task.dataset("train").unit_counts(results[0][2]) == alone.dataset("train").unit_counts(results[1][2])
    (packed_terms, packed_gradient, packed_batch), (terms, gradient, batch) = results
    assert len(packed_batch["labels"]) < 0.7 * len(batch["labels"])
    for name in terms:
        assert packed_terms[name][0].item() == pytest.approx(terms[name][0].item(), rel=1e-5)
    assert torch.allclose(packed_gradient, gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()))
    # The faulty variant, positions that run on so that documents see each other, must show.
    crossed = {
        **packed_batch,
        "position_ids": torch.arange(packed_batch["labels"].shape[1]).expand_as(packed_batch["labels"]),
    }
    nll = negative_log_likelihood(model, crossed).sum().item()
    assert nll != pytest.approx(float(terms["nll"][0]), rel=1e-5)


def test_a_later_document_and_the_padding_are_seen_by_nobody(texts: tuple[Path, Path]) -> None:
    task = task_of(texts[0])
    model = task.model(torch.device("cpu")).eval()
    samples = task.dataset("train")
    index = next(i for i, row in enumerate(samples.rows) if len(row) > 1)
    items = [samples.get(index, np.random.default_rng(0)), samples.get(0, np.random.default_rng(0))[:1]]
    batch = samples.collate(items)
    before = negative_log_likelihood(model, batch)
    first = len(items[0][0].tokens.ids)
    changed = batch["input_ids"].clone()
    changed[0, :first] = (changed[0, :first] + 1) % 300
    changed[1, len(items[1][0].tokens.ids) :] = 7
    after = negative_log_likelihood(model, {**batch, "input_ids": changed})
    assert torch.allclose(after[0, first:], before[0, first:], atol=1e-5)
    assert torch.allclose(after[1], before[1], atol=1e-5)
    # and the last token of a document sees its first
    mine = batch["input_ids"].clone()
    mine[0, 0] = 299
    seen = negative_log_likelihood(model, {**batch, "input_ids": mine})
    assert float((seen - before)[0, first - 2].abs()) > 1e-4


def test_a_model_whose_documents_see_each_other_is_found_out(texts: tuple[Path, Path]) -> None:
    task = task_of(texts[0])
    model: Any = task.model(torch.device("cpu"))
    assert models.isolates_packed(model, 320)
    forward = model.forward
    model.forward = lambda position_ids=None, **others: forward(**others)  # deaf to positions
    assert not models.isolates_packed(model, 320)


def test_labels_are_the_next_tokens_and_counts_those_of_the_loss(texts: tuple[Path, Path]) -> None:
    task = task_of(texts[1], **{"data.packing": False})
    batch = batch_of(task)
    rows = [json.loads(line) for line in texts[1].read_text().splitlines()]
    responses = {row["response"] for row in rows}
    for labels in batch["labels"]:
        said = task.tokenizer.decode(labels[labels != IGNORED].tolist())
        assert said in responses
        assert int(labels[labels != IGNORED][-1]) == task.tokenizer.end
    units = task.dataset("train").unit_counts(batch)
    assert units == {"tokens": int((batch["labels"] != IGNORED).sum()), "characters": float(batch["characters"].sum())}
    terms = task.loss(task.model(torch.device("cpu")), batch, "main")
    assert {unit for _, unit in terms.values()} == units.keys()


def test_logits_are_computed_where_there_are_labels_and_nowhere_else(texts: tuple[Path, Path]) -> None:
    """The same loss and gradient as from the logits of every position."""
    task = task_of(texts[1])
    model: Any = task.model(torch.device("cpu")).eval()
    batch = batch_of(task)
    labels = batch["labels"]
    computed: list[torch.Size] = []
    model.lm_head.register_forward_hook(lambda *call: computed.append(call[-1].shape))

    def gradients(loss: torch.Tensor) -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    found = negative_log_likelihood(model, batch)
    assert computed.pop() == (1, int((labels != IGNORED).sum()), 320)
    scores = models.logits(model, batch["input_ids"], batch["position_ids"])
    expected = torch.nn.functional.cross_entropy(scores.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    assert (labels == IGNORED).float().mean() > 0.3
    assert torch.allclose(found, expected, atol=1e-5)
    first, second = gradients(found.sum()), gradients(expected.sum())
    assert torch.allclose(first, second, atol=1e-5 * float(second.abs().max()))


def test_batches_are_limited_in_tokens(texts: tuple[Path, Path], tmp_path: Path) -> None:
    changes = {"data.packing": False, "training.max_length": 80, "training.max_steps": 2}
    train("language", settings(texts[0], **changes), output=tmp_path / "run")
    with pytest.raises(InputError, match=r"training\.max_length: .*8 .*lines\.txt:\d+"):
        train("language", settings(texts[0], **{**changes, "training.max_length": 8}), output=tmp_path / "short")
    with pytest.raises(InputError, match=r"training\.max_duration: .*training\.max_length"):
        train("language", settings(texts[0], **{"training.max_duration": 80}), output=tmp_path / "seconds")
    both = {"training.max_duration": 80, "training.max_length": 80}
    with pytest.raises(InputError, match="both limit batches"):
        resolve("language", settings(texts[0], **both))


@pytest.mark.slow
def test_a_compiled_model_is_not_compiled_again_for_each_number_of_labels(texts: tuple[Path, Path]) -> None:
    from torch._dynamo.utils import counters

    task = task_of(texts[1], **{"data.packing": False})
    model: Any = task.model(torch.device("cpu")).eval()
    batch = batch_of(task)
    expected = negative_log_likelihood(model, batch)
    model.compile(backend="eager")
    torch._dynamo.reset()
    found, graphs = [], []
    for count in (40, 33, 29, 17, 11):
        fewer = {**batch, "labelled": batch["labelled"][-count:]}
        found.append(negative_log_likelihood(model, fewer))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[2]  # the second number makes it a dynamic dimension
    assert all(torch.allclose(one[one != 0], expected[one != 0], atol=1e-5) for one in found)
    assert [int((one != 0).sum()) for one in found] == [40, 33, 29, 17, 11]
