"""From text files to sequences of tokens: what is read, what is refused, what is learnt, and that packing is free."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'phonate[language]'")

import torch
from language_texts import sentences, task_of, write_texts

from phonate.config.errors import DataError, InputError
from phonate.tasks.language import model as models
from phonate.tasks.language.corpus import IGNORED, packed, pieces_of
from phonate.tasks.language.documents import Document, divided, read_texts
from phonate.tasks.language.task import negative_log_likelihood
from phonate.tasks.language.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.learn(sentences(), 320)


def test_a_folder_of_texts_and_what_a_document_is(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("one\n\ntwo\nand more\n\n\n  three\n", encoding="utf-8")
    (tmp_path / "sub" / "B.TXT").write_text("\ufefffirst\nsecond\n", encoding="utf-8")
    (tmp_path / "c.md").write_text("# Title\n\nText.\n", encoding="utf-8")
    (tmp_path / ".hidden.txt").write_text("no", encoding="utf-8")
    (tmp_path / "d.jsonl").write_text(
        '{"text": "plain"}\n\n{"prompt": "p", "response": "r\\u2028s"}\n', encoding="utf-8"
    )
    found = {one.id: (one.prompt, one.response) for one in read_texts(tmp_path).documents}
    assert found == {
        "a.txt:1": (None, "one"),
        "a.txt:3": (None, "two\nand more"),
        "a.txt:7": (None, "three"),
        "sub/B.TXT:1": (None, "first"),
        "sub/B.TXT:2": (None, "second"),
        "c.md:1": (None, "# Title"),
        "c.md:3": (None, "Text."),
        "d.jsonl:1": (None, "plain"),
        "d.jsonl:3": ("p", "r\u2028s"),
    }
    assert [one.response for one in read_texts(tmp_path / "a.txt", "file").documents] == [
        "one\n\ntwo\nand more\n\n\n  three"
    ]
    assert len(read_texts(tmp_path / "a.txt", "line").documents) == 4


def test_a_long_file_is_read_once_and_its_lines_are_numbered(tmp_path: Path) -> None:
    """200,000 lines; counting from the start for each would take a quarter of an hour."""
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{'  ' * (i % 2)}line {i}\r\n" for i in range(1, 200_001)), encoding="utf-8", newline="")
    found = read_texts(path).documents
    assert [one.id for one in found[::1000]] == [f"long.txt:{i}" for i in range(1, 200_001, 1000)]
    assert found[-1].response == "line 200000"


def test_names_that_are_no_utf_8_are_shown_and_trained_on(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    for name in (b"a\xff.txt", b"b\xfe.txt"):
        Path(os.fsdecode(bytes(tmp_path / "lines") + b"/" + name)).write_text("some words\n", encoding="utf-8")
    found = read_texts(tmp_path / "lines").documents
    assert [one.id for one in found] == ["a\\udcff.txt:1", "b\\udcfe.txt:1"]


BAD = {
    "{": "not JSON",
    "[1]": "not an object",
    '{"prompt": "p"}': "no 'response'",
    '{"response": "r"}': "no 'prompt'",
    '{"prompt": " ", "response": "r"}': "'prompt' is empty",
    '{"prompt": "p", "response": 3}': "'response' is int, not a text",
    '{"text": "\\ud800"}': "half a character",
}


def test_bad_rows_are_refused_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(['{"prompt": "p", "response": "r"}', *BAD]) + "\n", encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    with caplog.at_level("WARNING", logger="phonate"):
        found = read_texts(tmp_path)
    assert [one.id for one in found.documents] == ["pairs.jsonl:1"]
    said = {row.place: row.reason for row in found.refused}
    for number, why in enumerate(BAD.values(), start=2):
        assert why in said[f"pairs.jsonl:{number}"]
    assert "not UTF-8 (byte 3)" in said["latin.txt:1"]
    assert f"{len(BAD) + 1} rows can't be used" in caplog.text
    assert "and 3 more" in caplog.text
    path.write_text("{\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no document can be used .*pairs\.jsonl:1: not JSON"):
        read_texts(path)
    with pytest.raises(DataError, match="no such file"):
        read_texts(tmp_path / "nothing")


def test_copies_of_a_text_are_on_one_side() -> None:
    documents = [Document(f"x:{i}", f"text {i % 50}") for i in range(200)]
    train, validation = divided(documents, 0.3)
    assert not {one.response for one in train} & {one.response for one in validation}
    assert 0.1 < len(validation) / 200 < 0.5
    few = [Document("a", "one"), Document("b", "two")]
    for share in (0.001, 0.999):
        assert [len(side) for side in divided(few, share)] == [1, 1]
    assert [len(side) for side in divided(few[:1], 0.5)] == [1, 0]


def learnt(tokenizer: TextTokenizer, document: Document) -> str:
    tokens = tokenizer.tokens(document)
    return str(tokenizer.tokenizer.decode(tokens.ids[tokens.scored]))


def test_only_the_response_is_learnt_and_its_end(tokenizer: TextTokenizer) -> None:
    pair = Document("x", "It is red.", "What is it?")
    assert learnt(tokenizer, pair) == "It is red.<|end|>"
    tokens = tokenizer.tokens(pair)
    assert tokenizer.tokenizer.decode(tokens.ids) == "<|begin|><|user|>What is it?<|assistant|>It is red.<|end|>"
    assert tokenizer.prompt("What is it?", answered=True) == tokens.ids[~tokens.scored].tolist()
    plain = TextTokenizer.read({**tokenizer.export(), "chat_template": None})
    assert learnt(plain, pair) == "It is red.<|end|>"
    assert plain.tokenizer.decode(plain.tokens(pair).ids) == "<|begin|>What is it?\nIt is red.<|end|>"
    assert learnt(tokenizer, Document("x", "It is red.")) == "It is red.<|end|>"
    for one in (tokenizer, plain):
        assert one.tokens(pair).characters.sum() == len("It is red.")
        assert one.tokens(Document("x", "Grüße مرحبا 👍🏽")).characters.sum() == len("Grüße مرحبا 👍🏽")


def test_marks_in_a_text_are_text_and_in_a_pair_refused(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.tokens(Document("x", "<|end|> is a mark")).ids
    assert (ids == tokenizer.end).sum() == 1
    _, refused = pieces_of(tokenizer, [Document("p.jsonl:3", "yes", "is <|end|> one?")], 64)
    assert (refused[0].place, "<|end|>" in refused[0].reason) == ("p.jsonl:3", True)


def test_a_prompt_is_text_that_the_template_means_nothing_by(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InputError, match=r"holds '<\|end\|>', which the chat template means as a mark"):
        tokenizer.prompt("is <|end|> one?", answered=True)
    assert tokenizer.end not in tokenizer.prompt("is <|end|> one?", answered=False)
    for answered in (True, False):
        with pytest.raises(InputError, match="not UTF-8"):
            tokenizer.prompt("half \udcff", answered)


def test_a_template_that_rewrites_prompts_is_refused(tokenizer: TextTokenizer) -> None:
    template = "{% for m in messages %}{{ loop.length }}{{ m['content'] }}{% endfor %}"
    odd = TextTokenizer.read({**tokenizer.export(), "chat_template": template})
    with pytest.raises(InputError, match="writes a prompt otherwise"):
        odd.tokens(Document("x", "r", "p"))


def test_long_texts_are_cut_without_losing_a_token_and_long_pairs_refused(tokenizer: TextTokenizer) -> None:
    text = Document("t.txt:1", " ".join(sentences()[:6]))
    pieces, refused = pieces_of(tokenizer, [text, Document("p.jsonl:2", "word " * 40, "p")], 16)
    assert [(row.place, "over data.max_length 16" in row.reason) for row in refused] == [("p.jsonl:2", True)]
    whole = tokenizer.tokens(text)
    assert max(len(piece.tokens.ids) for piece in pieces) == 16
    assert [piece.id for piece in pieces[:2]] == ["t.txt:1#0", "t.txt:1#1"]
    predicted = np.concatenate([piece.tokens.ids[1:] for piece in pieces])
    assert np.array_equal(predicted, whole.ids[1:])
    characters = sum(piece.tokens.characters[1:].sum() for piece in pieces)
    assert characters == whole.characters[1:].sum() == len(text.response)


def test_packs_hold_every_piece_once_and_are_full() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 500).tolist()
    packs = packed(lengths, 64)
    assert sorted(i for pack in packs for i in pack) == list(range(500))
    sums = [sum(lengths[i] for i in pack) for pack in packs]
    assert max(sums) <= 64
    assert sum(lengths) / (64 * len(packs)) > 0.9


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
    (packed_terms, packed_gradient, packed_batch), (terms, gradient, batch) = results
    assert len(packed_batch["labels"]) < 0.7 * len(batch["labels"])
    for name in terms:
        assert packed_terms[name][0].item() == pytest.approx(terms[name][0].item(), rel=1e-5)
        assert float(packed_terms[name][1]) == float(terms[name][1])
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
    index = next(i for i, pack in enumerate(samples.packs) if len(pack) > 1)
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
    assert models.keeps_apart(model, 320)
    forward = model.forward
    model.forward = lambda position_ids=None, **others: forward(**others)  # deaf to positions
    assert not models.keeps_apart(model, 320)


def test_labels_are_the_next_tokens_and_counts_those_of_the_loss(texts: tuple[Path, Path]) -> None:
    task = task_of(texts[1], **{"data.packing": False})
    batch = batch_of(task)
    rows = [json.loads(line) for line in texts[1].read_text().splitlines()]
    responses = {row["response"] for row in rows}
    for labels in batch["labels"]:
        said = task.tokenizer.decode(labels[labels != IGNORED].tolist())
        assert said in responses
        assert int(labels[labels != IGNORED][-1]) == task.tokenizer.end
    terms = task.loss(task.model(torch.device("cpu")), batch, "main")
    assert task.counts(batch, "main") == {name: float(count) for name, (_, count) in terms.items()}


def test_files_in_which_nothing_is_written(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text(" \n\n")
    with pytest.raises(DataError, match="nothing is written there"):
        read_texts(tmp_path)
