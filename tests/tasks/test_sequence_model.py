"""Models of token sequences: padding, causality, step by step, windows and beam search."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[language]'", allow_module_level=True)

import torch
from sequence_rows import kind, pairs, settings, write_pairs
from torch import Tensor

from phonate.config.errors import InputError
from phonate.config.resolve import resolve
from phonate.data.dialogue_tokens import Tokens
from phonate.nn.losses import IGNORED
from phonate.tasks.sequence.data import SequenceDataset, SequenceItem, spans, windows
from phonate.tasks.sequence.inference import beam_search
from phonate.tasks.sequence.model import SequenceModel, build_model

VOCABULARY, CLASSES = 37, 5
ATTENTION = [("softmax", "softmax"), ("linear", "causal_linear"), ("causal_linear", "softmax")]


def model_of(model_type: str, encoder: str = "softmax", decoder: str = "softmax", **changes: Any) -> SequenceModel:
    layers = {"encoder": encoder, "decoder": decoder}
    model = kind(model_type)
    for part, attention in layers.items():
        if model[f"model.{part}"] is not None:
            model[f"model.{part}"] = {"attention_type": attention, **changes}
    recipe = resolve("sequence", settings(Path("nowhere"), **model)).recipe
    torch.manual_seed(0)
    return build_model(recipe.model, VOCABULARY, CLASSES).double().eval()


def tokens(length: int, seed: int) -> Tokens:
    ids = np.random.default_rng(seed).integers(3, VOCABULARY, length).astype(np.int32)
    return Tokens(ids, np.ones(length, bool), np.ones(length, np.int32))


def items(model_type: str, lengths: tuple[int, ...] = (9, 4, 17)) -> list[SequenceItem]:
    found = []
    for number, length in enumerate(lengths):
        source = () if model_type == "decoder" else (tokens(length, number).ids.astype(np.int64),)
        target = None if model_type == "encoder" else tokens(length + 3 * number, 10 + number)
        found.append(SequenceItem(f"{number}", source, target, label=number % CLASSES))
    return found


def logits_of(model: SequenceModel, chosen: list[SequenceItem]) -> list[Tensor]:
    """The logits of each item, without those of padding."""
    batch = SequenceDataset(chosen, pad=2).collate(chosen)
    logits, _ = model(batch)
    return [row[: len(item.target.ids) - 1] if item.target else row for row, item in zip(logits, chosen, strict=True)]


@pytest.mark.parametrize("attention", ATTENTION, ids="-".join)
@pytest.mark.parametrize("model_type", ["encoder", "decoder", "encoder_decoder"])
def test_padding_changes_nothing(model_type: str, attention: tuple[str, str]) -> None:
    encoder, decoder = attention
    model = model_of(model_type, encoder, decoder if decoder != "linear" else "softmax")
    chosen = items(model_type)
    for together, item in zip(logits_of(model, chosen), chosen, strict=True):
        (alone,) = logits_of(model, [item])
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_the_test_of_padding_sees_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose masks are all true is not padded without a change."""
    model = model_of("encoder_decoder", "linear", "causal_linear")
    chosen = items("encoder_decoder")
    monkeypatch.setattr(
        "phonate.tasks.sequence.model.frame_mask",
        lambda lengths, frames: torch.ones(len(lengths), frames, dtype=torch.bool),
    )
    (alone,) = logits_of(model, chosen[1:2])
    assert float((logits_of(model, chosen)[1] - alone).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("attention", ["softmax", "causal_linear"])
@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learnable", "none"])
@pytest.mark.parametrize("model_type", ["decoder", "encoder_decoder"])
def test_token_by_token_is_all_at_once(model_type: str, positions: str, attention: str) -> None:
    """From a prefix of several tokens on, and in single precision to 1e-5."""
    model = model_of(model_type, decoder=attention, positional_encoding=positions).float()
    chosen = items(model_type, (8, 8, 8))
    batch = SequenceDataset(chosen, pad=2).collate(chosen)
    length = int(batch["lengths"].min())
    with torch.no_grad():
        whole, _ = model(batch)
        memory = model.encode(batch["source"], batch["source_lengths"]) if model.encoder is not None else ()
        logits, state = model.begin(batch["input"][:, :3], *memory)
        steps = [logits]
        for position in range(3, length):
            logits, state = model.next(batch["input"][:, position], state)
            steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), whole[:, 2:length], rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ["softmax", "causal_linear"])
@pytest.mark.parametrize("model_type", ["decoder", "encoder_decoder"])
def test_no_token_sees_a_later_one(model_type: str, attention: str) -> None:
    model = model_of(model_type, decoder=attention)
    chosen = items(model_type)
    batch = dict(SequenceDataset(chosen, pad=2).collate(chosen))
    before, _ = model(batch)
    changed = batch["input"].clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCABULARY
    after, _ = model({**batch, "input": changed})
    assert float((before[2, :5] - after[2, :5]).detach().abs().max()) < 1e-12
    assert float((before[2, 5:16] - after[2, 5:16]).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("positions", ["rope", "sinusoidal", "learnable", "none"])
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_the_order_of_tokens_matters_but_without_positions(attention: str, positions: str) -> None:
    model = model_of("encoder", attention, positional_encoding=positions)
    (item,) = items("encoder", (9,))
    turned = SequenceItem("", (item.sources[0][::-1].copy(),))
    change = float((logits_of(model, [item])[0] - logits_of(model, [turned])[0]).detach().abs().max())
    assert (change > 1e-6) == (positions != "none")


def test_the_target_sees_the_source_and_gradients_reach_it() -> None:
    model = model_of("encoder_decoder", "linear", "causal_linear")
    chosen = items("encoder_decoder")
    batch = dict(SequenceDataset(chosen, pad=2).collate(chosen))
    other, _ = model({**batch, "source": (batch["source"] + 1) % VOCABULARY})
    logits, _ = model(batch)
    assert float((logits - other).detach().abs().max()) > 1e-3
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)
    loss.backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.isfinite().all())]
    assert not missing


def test_num_classes_is_what_the_rows_have() -> None:
    with pytest.raises(InputError, match=r"model\.encoder\.num_classes is 7.* 5 "):
        model_of("encoder", num_classes=7)
    with pytest.raises(InputError, match=r"model\.decoder\.num_classes is 7.* 37 "):
        model_of("decoder", num_classes=7)
    assert model_of("encoder", num_classes=5).output is not None


# ------------------------------------------------------------------ windows


@pytest.mark.parametrize(("length", "size", "overlap"), [(5, 8, 4), (8, 8, 4), (9, 8, 4), (100, 8, 4), (31, 6, 1)])
def test_every_token_is_learnt_once_after_enough_others(length: int, size: int, overlap: int) -> None:
    whole = tokens(length, 0)
    parts = windows(whole, size, overlap)
    learnt = [int(one) for part in parts for one in part.ids[part.learnt]]
    assert learnt == whole.ids.tolist()
    assert all(len(part.ids) <= size for part in parts)
    assert all(not part.learnt[:overlap].any() for part in parts[1:])
    assert spans(length, size, overlap)[-1][1] == length


def test_windows_of_a_classifier_count_as_one_item() -> None:
    """The mean over windows of one length is that of each; a batch holds items of one window beside."""
    model = model_of("encoder")
    ids = tokens(24, 3).ids.astype(np.int64)
    parts = tuple(ids[start:end] for start, end in spans(24, 8, 0))
    cut = SequenceItem("cut", parts, label=1)
    short = items("encoder", (5,))[0]
    together = logits_of(model, [cut, short])
    each = [logits_of(model, [SequenceItem("", (part,))])[0] for part in parts]
    torch.testing.assert_close(together[0], torch.stack(each).mean(0), rtol=0, atol=1e-9)
    torch.testing.assert_close(together[1], logits_of(model, [short])[0], rtol=0, atol=1e-9)


# -------------------------------------------------------------- beam search


class Chain:
    """Logits from a table of each token by the two before it; the state is those two."""

    def __init__(self, seed: int, vocabulary: int = 4) -> None:
        self.table = torch.randn(
            vocabulary + 1, vocabulary + 1, vocabulary, generator=torch.Generator().manual_seed(seed)
        )
        self.none = vocabulary

    def first(self, starts: list[int]) -> tuple[Tensor, Tensor]:
        state = torch.tensor([[self.none, start] for start in starts])
        return self.table[state[:, 0], state[:, 1]], state

    def next(self, tokens_N: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.stack((state[:, 1], tokens_N), 1)
        return self.table[state[:, 0], state[:, 1]], state

    def select(self, state: Tensor, rows_M: Tensor) -> Tensor:
        return state[rows_M]

    def log_probability(self, start: int, ids: tuple[int, ...]) -> float:
        logits, state = self.first([start])
        total = 0.0
        for token in ids:
            total += float(logits.log_softmax(-1)[0, token])
            logits, state = self.next(torch.tensor([token]), state)
        return total


END = 0


def likeliest(chain: Chain, start: int, longest: int, penalty: float) -> list[int]:
    """Of all sequences that end, that of the highest score."""
    found: dict[tuple[int, ...], float] = {}
    for length in range(longest):
        for ids in itertools.product(range(1, 4), repeat=length):
            score = chain.log_probability(start, (*ids, END))
            found[ids] = score / ((5 + length + 1) / 6) ** penalty
    return list(max(found, key=found.__getitem__))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_beam_finds_the_likeliest_sequence(seed: int, penalty: float) -> None:
    chain = Chain(seed)
    logits, state = chain.first([1])
    (found,) = beam_search(chain, logits, state, width=400, end=END, max_tokens=5, length_penalty=penalty)
    assert found == likeliest(chain, 1, 5, penalty)


@pytest.mark.parametrize("seed", range(8))
def test_a_beam_of_one_is_greedy(seed: int) -> None:
    chain = Chain(seed)
    logits, state = chain.first([2])
    expected: list[int] = []
    while len(expected) < 12 and (token := int(logits[0].argmax())) != END:
        expected.append(token)
        logits, state = chain.next(torch.tensor([token]), state)
    logits, state = chain.first([2])
    assert beam_search(chain, logits, state, width=1, end=END, max_tokens=12) == [expected]


def test_a_batch_is_searched_as_each_alone_and_wider_is_likelier() -> None:
    gained = 0.0
    for seed in range(20):
        chain = Chain(seed)
        logits, state = chain.first([1, 2, 3])
        for width in (1, 2, 3):
            together = beam_search(chain, logits, state, width=width, end=END, max_tokens=9, length_penalty=0.0)
            for number, start in enumerate([1, 2, 3]):
                alone = beam_search(
                    chain, *chain.first([start]), width=width, end=END, max_tokens=9, length_penalty=0.0
                )
                assert alone == [together[number]]
            if width == 1:
                narrow = together
        for start, greedy, wide in zip([1, 2, 3], narrow, together, strict=True):
            ends = [(*ids, END)[:9] for ids in (greedy, wide)]
            gained += chain.log_probability(start, ends[1]) - chain.log_probability(start, ends[0])
    assert gained > 1.0


def test_a_sequence_that_does_not_end_is_cut() -> None:
    chain = Chain(0)
    chain.table[:, :, END] = -math.inf
    logits, state = chain.first([1, 2])
    assert [len(ids) for ids in beam_search(chain, logits, state, width=3, end=END, max_tokens=7)] == [7, 7]


def test_learnable_positions_end_somewhere(tmp_path: Path) -> None:
    from phonate.tasks.sequence.task import SequenceTask

    path = write_pairs(tmp_path / "pairs.tsv", pairs(1))
    changes = {"model.encoder.positional_encoding": "learnable", "model.encoder.max_seq_len": 32}
    with pytest.raises(InputError, match=r"data\.max_length: 64 .*32"):
        SequenceTask(resolve("sequence", settings(path, **changes)).recipe)
