"""Batches of voice cloning: packing, padding and what a loss sees of them, with a small model of Higgs Audio v2."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cloning_networks import INPUTS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import varlen
from torch.nn.attention.varlen import varlen_attn
from torch.utils._python_dispatch import TorchDispatchMode

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[cloning]'", allow_module_level=True)

from higgs import small_model, small_tokenizer
from phonate.data.dialogue_tokens import TextTokenizer
from phonate.nn import kernels
from phonate.nn.losses import IGNORED
from phonate.tasks.cloning import network as networks
from phonate.tasks.cloning.data import CloningDataset
from phonate.tasks.cloning.network import CloningNetwork, NetworkOutput
from phonate.tasks.cloning.sequences import EOS, CloningTokenizer, Example
from phonate.tasks.cloning.task import code_losses


@pytest.fixture(scope="module")
def tokenizer() -> CloningTokenizer:
    return CloningTokenizer(TextTokenizer(small_tokenizer()))


@pytest.fixture(scope="module")
def network() -> CloningNetwork:
    return CloningNetwork(small_model())


def examples(tokenizer: CloningTokenizer, lengths: list[tuple[int, int, int]], seed: int = 0) -> list[Example]:
    """One for each (reference frames, target frames, words)."""
    draw = np.random.default_rng(seed)
    return [
        Example(
            f"row {number}",
            f"speaker {number % 2}" if number % 3 else None,
            tokenizer.script("the fox " * (words % 3) or None, "it was night " * words, "Speak."),
            draw.integers(0, 1024, (reference, 8), dtype=np.int16),
            draw.integers(0, 1024, (target, 8), dtype=np.int16),
        )
        for number, (reference, target, words) in enumerate(lengths)
    ]


def batches(dataset: CloningDataset, size: int) -> list[Any]:
    rng = np.random.default_rng(0)
    rows = [dataset.get(index, rng) for index in range(len(dataset.ids))]
    return [dataset.collate(rows[start : start + size]) for start in range(0, len(rows), size)]


@torch.no_grad()
def run(network: CloningNetwork, batch: Any) -> NetworkOutput:
    output: NetworkOutput = network(
        *(batch[name] for name in (*INPUTS, "cu_seqlens")), text_labels=batch["text_labels"]
    )
    return output


def losses(network: CloningNetwork, batch: Any) -> tuple[float, float]:
    output = run(network, batch)
    assert output.text_loss is not None
    return float(output.text_loss), float(code_losses(output.audio_logits, batch["audio_labels"]).sum())


LENGTHS = [(5, 9, 2), (12, 3, 1), (1, 1, 4), (7, 20, 3), (30, 11, 1)]


def test_packed_samples_have_the_losses_of_samples_alone(tokenizer: CloningTokenizer, network: CloningNetwork) -> None:
    given = examples(tokenizer, LENGTHS)
    alone = CloningDataset(given, tokenizer, 1024, packing=False, learn_text=True)
    packed = CloningDataset(given, tokenizer, 250, packing=True, learn_text=True)
    assert len(alone.rows) == 5
    assert max(map(len, packed.rows)) > 1
    expected = np.sum([losses(network, batch) for batch in batches(alone, 1)], axis=0)
    for dataset, size in ((packed, 1), (packed, 3), (alone, 5)):
        found = np.sum([losses(network, batch) for batch in batches(dataset, size)], axis=0)
        assert found == pytest.approx(expected, rel=1e-5)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5)), min_size=1, max_size=6),
    st.booleans(),
    st.integers(1, 4),
)
def test_a_batch_says_where_everything_is(
    tokenizer: CloningTokenizer, lengths: list[tuple[int, int, int]], packing: bool, size: int
) -> None:
    given = examples(tokenizer, lengths)
    dataset = CloningDataset(given, tokenizer, max(map(len, given)) + 40, packing=packing, learn_text=True)
    assert sorted(index for row in dataset.rows for index in row) == list(range(len(given)))
    special = tokenizer.specials
    samples = 0
    for batch in batches(dataset, size):
        ids = batch["input_ids"].flatten()
        framed = torch.isin(ids, torch.tensor([special.frame, special.delay]))
        assert torch.equal(batch["frame_positions"].sort().values, framed.nonzero()[:, 0])
        everywhere = torch.cat([batch["frame_positions"], batch["other_positions"]]).sort().values
        assert torch.equal(everywhere, torch.arange(len(ids)))
        # labels are what comes next, in the same sequence
        following = ids[batch["text_positions"] + 1]
        assert torch.equal(batch["text_labels"], following)
        same = batch["position_ids"].flatten()
        assert torch.equal(same[batch["text_positions"] + 1], same[batch["text_positions"]] + 1)
        where = {
            int(position): frame for position, frame in zip(batch["frame_positions"], batch["frames"], strict=True)
        }
        for position, labels in zip(batch["audio_positions"].tolist(), batch["audio_labels"], strict=True):
            learnt = labels != IGNORED
            assert learnt.any()
            assert torch.equal(labels[learnt], where[position + 1][learnt])
        held = len(batch["target_lengths"])
        assert (batch["audio_labels"] == EOS).sum(0).tolist() == [held] * 8
        for sample, ((start, end), length) in enumerate(zip(batch["references"], batch["target_lengths"], strict=True)):
            assert int((batch["pools"] == 2 * sample).sum()) == end - start - 9
            assert int((batch["pools"] == 2 * sample + 1).sum()) == length
            assert (batch["frames"][start] == 1024).all()
            assert (batch["frames"][end - 1] == EOS).all()
        assert len(batch["speakers"]) == held
        samples += held
    assert samples == len(given)


def test_a_batch_has_no_padding(tokenizer: CloningTokenizer) -> None:
    dataset = CloningDataset(examples(tokenizer, LENGTHS), tokenizer, 1024, packing=False)
    (batch,) = batches(dataset, 5)
    assert batch["input_ids"].shape == (1, dataset.lengths.sum())
    assert batch["cu_seqlens"].diff().tolist() == dataset.lengths.tolist()
    assert int((batch["position_ids"] == 0).sum()) == 5


def plain_varlen(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None, max_q: int, max_k: int,
    *, scale: float, window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """What torch's operator documents, which no CPU has, by softmax."""
    assert cu_seq_q is cu_seq_k
    assert cu_seq_q.dtype == torch.int32
    assert query.dtype == key.dtype == value.dtype
    ends = cu_seq_q.tolist()
    assert ends[0] == 0
    assert ends[-1] == len(query) == len(key)
    assert max_q == max_k == int(cu_seq_q.diff().max())
    assert window_size == (-1, 0)
    groups = query.shape[1] // key.shape[1]
    assert enable_gqa == (groups > 1)
    parts = []
    for start, end in pairwise(ends):
        keys, values = (one[start:end].repeat_interleave(groups, 1) for one in (key, value))
        scores = torch.einsum("qhe,khe->hqk", query[start:end], keys) * scale
        later = torch.ones(end - start, end - start, dtype=torch.bool).triu(1)
        parts.append(torch.einsum("hqk,khe->qhe", scores.masked_fill(later, -torch.inf).softmax(-1), values))
    return torch.cat(parts)


def gradients(network: CloningNetwork, batch: Any, **changes: Any) -> tuple[NetworkOutput, dict[str, Tensor]]:
    network.zero_grad()
    given = batch | changes
    names = (*INPUTS, "cu_seqlens")
    output = network(*(given[name] for name in names), **{name: given[name] for name in ("read_frames", "read_others")})
    assert output.text_logits is not None
    (output.audio_logits.float().logsumexp(-1).sum() + output.text_logits.float().logsumexp(-1).sum()).backward()
    return output, {name: one.grad.clone() for name, one in network.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("compiler", [True, False])
def test_sequences_in_turn_are_those_side_by_side(
    tokenizer: CloningTokenizer, network: CloningNetwork, monkeypatch: pytest.MonkeyPatch, compiler: bool
) -> None:
    """The first is how a CPU computes, by a kernel where there is a compiler; the second how a GPU does."""
    (batch,) = batches(CloningDataset(examples(tokenizer, LENGTHS), tokenizer, 1024, packing=False), 5)
    expected, side_by_side = gradients(network, batch, cu_seqlens=None)
    if not compiler:
        monkeypatch.setattr(kernels, "_kernels", lambda: None)
    found, in_turn = gradients(network, batch)
    torch.testing.assert_close(found.audio_logits, expected.audio_logits)
    assert in_turn.keys() == side_by_side.keys()
    for name, one in side_by_side.items():
        assert float((in_turn[name] - one).abs().max()) < 2e-5 * float(one.abs().max()), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sequences_where_they_stand_are_those_side_by_side(
    tokenizer: CloningTokenizer, network: CloningNetwork, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """The first is how a GPU computes in 16 bits; here an operator of this test stands in for its kernels."""
    dataset = CloningDataset(examples(tokenizer, LENGTHS), tokenizer, 1024, packing=False)
    (batch,) = batches(dataset, 5)
    calls: list[tuple[int, torch.dtype]] = []

    def watched(*given: Any, **more: Any) -> Tensor:
        inspect.signature(varlen_attn).bind(*given, **more)
        calls.append((len(given[0]), given[0].dtype))
        return plain_varlen(*given, **more)

    monkeypatch.setattr(varlen, "varlen_attn", watched)
    monkeypatch.setattr(networks, "causal_attention", lambda *given: None)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        expected, padded = gradients(network, batch, cu_seqlens=None)
        monkeypatch.setattr(networks, "_takes_varlen", lambda layer, queries: True)
        found, unpadded = gradients(network, batch)
    assert calls == [(batch["input_ids"].numel(), dtype)] * network.config.num_hidden_layers
    assert unpadded.keys() == padded.keys()
    rounding = 2e-5 if dtype is torch.float32 else 0.05
    torch.testing.assert_close(found.audio_logits, expected.audio_logits, rtol=rounding, atol=rounding)
    for name, one in padded.items():
        assert float((unpadded[name] - one).abs().max()) < rounding * float(one.abs().max()), name


class Operators(TorchDispatchMode):
    """The names of torch's operators that run within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_torchs_operator_takes_the_sequences(tokenizer: CloningTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Types and shapes, there and back, on a device that computes nothing."""
    network = CloningNetwork(small_model()).to("meta", torch.bfloat16)
    (batch,) = batches(CloningDataset(examples(tokenizer, LENGTHS), tokenizer, 1024, packing=False), 5)
    monkeypatch.setattr(networks, "_takes_varlen", lambda layer, queries: True)
    monkeypatch.setattr(networks, "query_dtype", lambda hidden: hidden.dtype)  # this device has no autocast
    with Operators() as ran:
        gradients(network, {name: one.to("meta") if isinstance(one, Tensor) else one for name, one in batch.items()})
    for name in ("torch_attn._varlen_attn.default", "torch_attn._varlen_attn_backward.default"):
        assert ran.names.count(name) == network.config.num_hidden_layers


@pytest.mark.slow  # imports the compiler
def test_more_or_fewer_samples_are_not_compiled_anew(tokenizer: CloningTokenizer) -> None:
    from torch._dynamo.testing import CompileCounter

    network, counter = CloningNetwork(small_model()), CompileCounter()
    network.compile(backend=counter)
    compiled = []
    try:
        for count in range(2, 8):
            given = examples(tokenizer, (2 * LENGTHS)[:count], seed=count)
            (batch,) = batches(CloningDataset(given, tokenizer, 4096, packing=False), count)
            gradients(network, batch)
            compiled.append(counter.frame_count)
    finally:
        torch._dynamo.reset()
    assert compiled[2] == compiled[-1]


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"dtype": torch.float32}, False),
        ({"device": torch.device("cpu")}, False),
        ({"shape": (5, 4, 12)}, False),
        ({"shape": (5, 4, 264)}, False),
    ],
)
def test_kernels_without_padding_are_for_16_bits_on_a_gpu(changes: dict[str, Any], taken: bool) -> None:
    queries = SimpleNamespace(
        **{"device": torch.device("cuda"), "dtype": torch.bfloat16, "shape": (5, 4, 64)} | changes
    )
    layer = SimpleNamespace(training=True, attention_dropout=0.0)
    assert networks._takes_varlen(layer, queries) is taken  # type: ignore[arg-type]
    layer.attention_dropout = 0.1
    assert not networks._takes_varlen(layer, queries)  # type: ignore[arg-type]
    layer.training = False
    assert networks._takes_varlen(layer, queries) is taken  # type: ignore[arg-type]


def test_kernels_without_padding_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = networks.attends_unpadded.__wrapped__
    assert asked(torch.device("cpu"))
    assert not asked(torch.device("meta"))
    for flash, capability, there in ((True, (8, 0), True), (True, (7, 5), False), (False, (9, 0), False)):
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda flash=flash: flash)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, is_of=capability: is_of)
        assert asked(torch.device("cuda")) is there


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gpu_computes_attention_without_padding(
    tokenizer: CloningTokenizer, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Outputs and gradients are those of padded sequences, up to 16 bits' rounding."""
    device = torch.device("cuda")
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("flash attention's kernels need a GPU of compute capability 8.0")
    network = CloningNetwork(small_model()).to(device)
    dataset = CloningDataset(examples(tokenizer, LENGTHS), tokenizer, 1024, packing=False)
    (batch,) = batches(dataset, 5)
    batch = {name: one.to(device) if isinstance(one, Tensor) else one for name, one in batch.items()}
    calls: list[int] = []

    def counted(*given: Any, **more: Any) -> Any:
        calls.append(len(given[0]))
        return varlen_attn(*given, **more)

    monkeypatch.setattr(varlen, "varlen_attn", counted)
    exact, _ = gradients(network, batch)
    assert not calls
    with torch.autocast("cuda", dtype=dtype):
        expected, padded = gradients(network, batch, cu_seqlens=None)
        found, unpadded = gradients(network, batch)
    assert calls == [batch["input_ids"].numel()] * network.config.num_hidden_layers
    rounding = float((expected.audio_logits - exact.audio_logits).abs().max())
    assert float((found.audio_logits - exact.audio_logits).abs().max()) < 2 * rounding
    difference = sum(float((unpadded[name] - one).norm() ** 2) for name, one in padded.items())
    assert difference < (0.05**2) * sum(float(one.norm() ** 2) for one in padded.values())


def test_speakers_that_are_unknown_are_all_different(tokenizer: CloningTokenizer) -> None:
    given = examples(tokenizer, [(2, 2, 1)] * 7)
    dataset = CloningDataset(given, tokenizer, 10_000)
    (batch,) = batches(dataset, 1)
    numbers = {given[index].id: int(batch["speakers"][at]) for at, index in enumerate(dataset.rows[0])}
    assert numbers["row 1"] == numbers["row 5"] != numbers["row 2"] == numbers["row 4"]
    assert len({numbers["row 0"], numbers["row 3"], numbers["row 6"], numbers["row 1"], numbers["row 2"]}) == 5


def test_features_of_references_stand_at_their_frames(tokenizer: CloningTokenizer, tmp_path: Path) -> None:
    given = []
    for number, one in enumerate(examples(tokenizer, LENGTHS)):
        path = tmp_path / f"{number}.npy"
        np.save(path, np.full((len(one.reference_codes), 3), float(number), dtype=np.float32))
        given.append(replace(one, whisper=path))
    dataset = CloningDataset(given, tokenizer, 250)
    for batch in batches(dataset, 2):
        about = zip(batch["pools"], batch["frames"], strict=True)
        frames = dict(zip(batch["frame_positions"].tolist(), about, strict=True))
        assert len(batch["whisper_positions"]) == len(batch["whisper_features"])
        names: dict[int, set[float]] = {}
        for position, features in zip(batch["whisper_positions"].tolist(), batch["whisper_features"], strict=True):
            pool, codes = frames[position]
            assert int(pool) % 2 == 0
            assert int(codes[0]) < 1024
            names.setdefault(int(pool), set()).add(float(features[0]))
        assert len(names) == len(batch["target_lengths"])
        assert all(len(found) == 1 for found in names.values())
        assert len(batch["whisper_positions"]) == sum(end - start - 9 for start, end in batch["references"])
