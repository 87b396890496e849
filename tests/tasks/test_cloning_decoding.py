"""The decoding loop against transformers' `generate`, its end, its sampling, and rows that come and go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[cloning]'", allow_module_level=True)

from cloning_prompts import (
    BEGIN,
    END,
    GREEDY,
    cloning_tokenizer,
    collected,
    disciplined_model,
    end_after,
    generated,
    prompts,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from phonate.compute.resources import CompileModel
from phonate.config.errors import InputError
from phonate.tasks.cloning import decoding
from phonate.tasks.cloning.decoding import (
    NO_CODE,
    Decoder,
    DelayedStream,
    Engine,
    Generation,
    Job,
    Piece,
    Sampling,
    allowed,
    choose,
)
from phonate.tasks.cloning.network import CloningNetwork, WhisperProjector
from phonate.tasks.cloning.sequences import Prompt, delayed

LIMIT = 24


@pytest.fixture(scope="module")
def model() -> Any:
    return disciplined_model()


def reference(model: Any, prompt: Prompt, frames: int) -> np.ndarray:
    """Frames (frames, K) that transformers' `generate` gives after the prompt, which begin with the begin of stream.

    transformers makes a codebook end one frame later than in training if the model does not end it in time, as this one
    does not; the processor sets that right.
    """
    from transformers import InfNanRemoveLogitsProcessor, LogitsProcessorList

    class EndsAsTrained(InfNanRemoveLogitsProcessor):  # generate accepts few types
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            ended = int((input_ids[0] == model.config.audio_delay_token_id).flip(0).cumprod(0).sum())
            if ended:
                scores = scores.clone()
                scores[: ended + 1] = -torch.inf
                scores[: ended + 1, END] = 0.0
            return scores

    model.generation_config.ras_win_len = None
    made = model.generate(
        input_ids=torch.from_numpy(prompt.input_ids)[None],
        attention_mask=torch.ones(1, len(prompt.input_ids), dtype=torch.long),
        audio_input_ids=torch.from_numpy(prompt.frames)[None],
        audio_input_ids_mask=torch.ones(1, len(prompt.frames), dtype=torch.bool),
        logits_processor=LogitsProcessorList([EndsAsTrained()]),
        do_sample=False,
        max_new_tokens=frames,
    )
    return np.asarray(made[0, len(prompt.frames) :].numpy())


def test_greedy_codes_are_those_of_generate_for_prompts_of_different_lengths(model: Any) -> None:
    given = prompts(3)
    for prompt, codes in zip(given, generated(model, given, LIMIT), strict=True):
        assert len(codes) == LIMIT
        np.testing.assert_array_equal(delayed(codes)[: LIMIT + 1], reference(model, prompt, LIMIT + 1))


def test_generation_stops_where_generate_stops(model: Any) -> None:
    prompt = prompts(1)[0]
    first = generated(model, [prompt], LIMIT)[0][:, 0]
    wanted = next(at for at in range(9, LIMIT) if first[at] not in first[:at])
    ends = disciplined_model()
    end_after(ends, int(first[wanted]))
    codes = generated(ends, [prompt], LIMIT)[0]
    assert len(codes) == wanted
    np.testing.assert_array_equal(delayed(codes), reference(ends, prompt, 4 * LIMIT))


def test_a_row_that_joins_late_gets_the_codes_it_gets_alone(model: Any) -> None:
    given, sampling = prompts(4), Sampling(temperature=1.0)
    limits = [4, LIMIT, LIMIT, LIMIT]
    alone = [generated(model, [given[index]], limits[index], sampling, [index])[0] for index in range(4)]
    decoder: Decoder[int] = Decoder(model, 3, 256)
    made: list[list[np.ndarray]] = [[] for _ in given]
    waiting = [0, 1, 2, 3]
    while waiting or decoder.owners:
        if waiting and decoder.free:
            index = waiting.pop(0)
            decoder.join(Job(Piece(given[index], limits[index]), sampling, index, index))
        for step in decoder.step():
            made[step.owner] += [] if step.codes is None else [step.codes]
    for index, codes in enumerate(made):
        np.testing.assert_array_equal(codes, alone[index])


def test_a_row_that_leaves_changes_nothing_for_the_others(model: Any) -> None:
    given = prompts(3)
    expected = generated(model, given, LIMIT)
    decoder: Decoder[int] = Decoder(model, 3, 256)
    for index, prompt in enumerate(given):
        decoder.join(Job(Piece(prompt, LIMIT), GREEDY, 0, index))
    for _ in range(3):
        decoder.step()
    decoder.leave(0)
    assert decoder.owners == [2, 1]
    made = collected(decoder, 3)
    assert not len(made[0])
    for index in (1, 2):
        np.testing.assert_array_equal(made[index], expected[index])


def speeches(voices: int, texts: int) -> list[Prompt]:
    """Prompts that share the reference with others, and with one of which others begin."""
    tokenizer, numbers = cloning_tokenizer(), np.random.default_rng(0)
    references = [numbers.integers(0, 1024, (6 + voice, 8)) for voice in range(voices)]
    return [tokenizer.prompt("abc", one, "the fox " * (1 + text)) for one in references for text in range(texts)]


@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8), st.integers(0, 6)), min_size=3, max_size=10))
def test_requests_for_the_same_voice_get_the_codes_they_get_alone(
    model: Any, requests: list[tuple[int, int, int]]
) -> None:
    """Whoever joined and left before, in whatever order; each request is a prompt, a limit, and steps to wait."""
    spoken = speeches(2, 3)
    decoder: Decoder[int] = Decoder(model, 3, 128)
    made: list[list[np.ndarray]] = [[] for _ in requests]

    def step() -> None:
        for one in decoder.step():
            made[one.owner] += [] if one.codes is None else [one.codes]

    for owner, (number, limit, wait) in enumerate(requests):
        while not decoder.free:
            step()
        decoder.join(Job(Piece(spoken[number], limit), GREEDY, 0, owner))
        for _ in range(wait):
            step()
    while decoder.owners:
        step()
    for codes, (number, limit, _) in zip(made, requests, strict=True):
        np.testing.assert_array_equal(codes, generated(model, [spoken[number]], limit)[0])


def test_a_reference_is_read_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, other = *speeches(1, 2), prompts(1)[0]
    read: list[int] = []
    turn = model.model.rotary_emb.forward

    def counted(hidden: torch.Tensor, position_ids: torch.Tensor) -> Any:
        read.append(position_ids.shape[1])
        return turn(hidden, position_ids)

    monkeypatch.setattr(model.model.rotary_emb, "forward", counted)
    decoder: Decoder[int] = Decoder(model, 4, 128)
    for owner, prompt in enumerate([first, second, other, first]):
        decoder.join(Job(Piece(prompt, 4), GREEDY, 0, owner))
    whole, text, _, again = read
    assert whole == len(first.input_ids) + 1
    assert text < len(second.input_ids) - first.frame_positions[-1]
    assert again == 1


def test_whispers_features_are_heard_as_in_training(model: Any) -> None:
    projector = WhisperProjector(24, model.config.hidden_size)
    with torch.no_grad():
        projector.gate.fill_(0.5)
    plain, other = speeches(1, 2)
    heard = np.random.default_rng(0).normal(size=(6, 24)).astype(np.float32)
    ids = np.append(plain.input_ids, model.config.audio_token_id)
    frames = np.concatenate([plain.frames, np.full((1, 8), BEGIN)])
    audio = np.append(plain.frame_positions, len(ids) - 1)
    with torch.no_grad():
        expected = CloningNetwork(model, projector)(
            torch.from_numpy(ids)[None],
            torch.arange(len(ids))[None],
            torch.from_numpy(frames),
            torch.from_numpy(audio),
            torch.from_numpy(np.setdiff1d(np.arange(len(ids)), audio)),
            torch.tensor([0]),
            torch.tensor([len(ids) - 1]),
            whisper_positions=torch.from_numpy(plain.frame_positions[1:7]),
            whisper_features=torch.from_numpy(heard),
        ).audio_logits
    decoder: Decoder[int] = Decoder(model, 4, 128, projector)
    # the voice without features, and with other ones, is another voice
    for owner, prompt in enumerate([plain, replace(other, whisper=-heard), replace(plain, whisper=heard)]):
        decoder.join(Job(Piece(prompt, 8), GREEDY, 0, owner))
    torch.testing.assert_close(decoder._logits[2], expected[0])
    assert not torch.allclose(decoder._logits[0], expected[0])


def test_a_prompt_that_could_not_be_read_is_not_reused(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = speeches(1, 1)[0]
    expected = generated(model, [prompt], 8)[0]
    decoder: Decoder[int] = Decoder(model, 2, 128)
    layer = model.model.layers[-1]
    with monkeypatch.context() as patch:
        patch.setattr(layer.self_attn, "forward", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            decoder.join(Job(Piece(prompt, 8), GREEDY, 0, 0))
    decoder.join(Job(Piece(prompt, 8), GREEDY, 0, 0))
    np.testing.assert_array_equal(collected(decoder, 1)[0], expected)


def test_seeds(model: Any) -> None:
    prompt, sampling = prompts(1)[0], Sampling(temperature=1.0)
    one, other, again = generated(model, [prompt] * 3, 12, sampling, [1, 2, 1])
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


@settings(max_examples=60)
@given(st.integers(0, 12), st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**31))
def test_a_stream_ends_by_the_delay_pattern_or_at_its_limit(length: int, limit: int, books: int, seed: int) -> None:
    """A model that follows the pattern of `length` frames, for any length, 0 too, and any limit."""
    codes = np.random.default_rng(seed).integers(0, 1024, (length, books))
    stream = DelayedStream(books, BEGIN, END, limit)
    made: list[np.ndarray] = []
    for written in delayed(codes)[1:]:
        frame, complete = stream.accept(written)
        if length <= limit:
            np.testing.assert_array_equal(frame, written)
        made += [] if complete is None else [complete]
        if stream.done:
            break
    assert stream.done
    assert stream.cut_short == (length > limit)
    assert len(made) == min(length, limit)
    if made:
        np.testing.assert_array_equal(np.array(made), codes[:limit])


def sampled(logits: torch.Tensor, sampling: Sampling, recent: torch.Tensor | None = None) -> torch.Tensor:
    """2000 draws for logits (V,)."""
    rows, size = 250, len(logits)
    logits_RKV = logits.expand(rows, 8, size)
    window = torch.full((rows, 7, 8), NO_CODE) if recent is None else recent.expand(rows, 7, 8)
    draws = torch.rand(rows, 8, 2, generator=torch.Generator().manual_seed(0))
    return choose(logits_RKV, [sampling] * rows, draws, window, size - 1)


def test_draws_follow_the_distribution_in_each_codebook() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    found = sampled(probabilities.log(), Sampling(1.0, 0, 1.0)).flatten().bincount(minlength=5) / 2000
    assert (found - probabilities).abs().max() < 0.03
    colder = sampled(probabilities.log(), Sampling(0.5, 0, 1.0)).flatten().bincount(minlength=5) / 2000
    expected = probabilities**2 / (probabilities**2).sum()
    assert (colder - expected).abs().max() < 0.03


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [(Sampling(1.0, 2, 1.0), {0, 1}), (Sampling(1.0, 0, 0.7), {0, 1}), (Sampling(1.0, 0, 0.8), {0, 1, 2})],
)
def test_top_k_and_top_p(sampling: Sampling, kept: set[int]) -> None:
    logits = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]).log()
    assert set(sampled(logits, sampling).flatten().tolist()) == kept


def test_repeated_codes_are_drawn_again_and_never_end_the_stream() -> None:
    """transformers draws again from all of the raw logits, and so ends sentences in the middle."""
    narrow = Sampling(1.0, 1, 1.0)
    speaking = torch.tensor([0.0, 1.0, 3.0, 0.5, 2.9])  # the last one is the end of stream
    repeated = torch.full((7, 8), NO_CODE)
    repeated[2:4] = 2
    found = sampled(speaking, narrow, repeated).flatten()
    assert (found == 4).sum() == 0
    assert len(found.unique()) == 4
    once = torch.full((7, 8), NO_CODE)
    once[2] = 2
    assert (sampled(speaking, narrow, once) == 2).all()
    assert (torch.multinomial(speaking.softmax(-1), 2000, replacement=True) == 4).any()  # as transformers draws


def test_begin_and_end_of_stream_are_allowed_where_they_belong() -> None:
    logits = torch.zeros(2, 8, 1026)
    found = allowed(logits, torch.tensor([True, False]), BEGIN, END)
    assert (found[:, :, BEGIN] == -torch.inf).all()
    assert found[0, 0, END] == 0.0
    assert (found[0, 1:, END] == -torch.inf).all()
    assert (found[1, :, END] == -torch.inf).all()
    assert (found[:, :, :BEGIN] == 0.0).all()


def test_what_does_not_fit_is_refused(model: Any) -> None:
    decoder: Decoder[int] = Decoder(model, 1, 64)
    with pytest.raises(InputError, match=r"\d+ tokens .*at most 56"):
        decoder.join(Job(Piece(prompts(1)[0], 60), GREEDY, 0, 0))
    assert decoder.free == 1


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"temperature": 1e-4}, {"top_k": -1}, {"top_p": 0.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong)).replace("_", " ")):
        Sampling(**wrong)


# ------------------------------------------------------------------------------ The compiled step


@dataclass(frozen=True)
class Compiled:
    """What `torch.compile` was asked, with a backend that takes less time than inductor, and adds fewer guards."""

    options: list[dict[str, Any]]
    graphs: CompileCounterWithBackend


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    seen, compile_step = Compiled([], CompileCounterWithBackend("eager")), torch.compile

    def compile_with_backend(function: Any, *, mode: str | None, **options: Any) -> Any:
        seen.options.append(options | {"mode": mode})
        return compile_step(function, backend=seen.graphs, **options)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compile_with_backend)
    return seen


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_the_compiled_step_gives_the_same_codes_and_is_compiled_few_times(
    model: Any, compiled: Compiled, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    """All slots are computed, whoever comes and goes, with keys of few lengths; a prompt that a slot has read stays."""
    monkeypatch.setattr(decoding, "_FEWEST_KEYS", 32)
    given, limits = prompts(3), [6, 12, 18]
    alone = [generated(model, [one], limit, sampling, [0])[0] for one, limit in zip(given, limits, strict=True)]
    decoder: Decoder[int] = Decoder(model, 2, 160, compile_model=True)
    step, shapes = decoder._next_logits, set()

    def seen(model: Any, cache: Any, frames_RK: Tensor, positions_R: Tensor, length: int) -> Tensor:
        shapes.add((*frames_RK.shape, *positions_R.shape, length))
        return step(model, cache, frames_RK, positions_R, length)

    monkeypatch.setattr(decoder, "_next_logits", seen)
    for indices in ((0, 1), (2, 0), (1, 2), (2,)):
        for owner, index in enumerate(indices):
            decoder.join(Job(Piece(given[index], limits[index]), sampling, 0, owner))
        for index, codes in zip(indices, collected(decoder, len(indices)), strict=True):
            np.testing.assert_array_equal(codes, alone[index])
    assert shapes <= {(2, 8, 2, length) for length in (64, 128, 160)}
    assert len(shapes) > 1
    assert compiled.options == [{"fullgraph": True, "dynamic": True, "mode": None}]
    assert compiled.graphs.frame_count <= len(shapes)


def test_cuda_graphs_need_cuda(model: Any) -> None:
    with pytest.raises(InputError, match="compile_model: cuda_graphs needs an NVIDIA GPU"):
        Decoder(model, 1, 96, compile_model="cuda_graphs")


@pytest.mark.slow
def test_inductor_gives_the_same_codes(model: Any) -> None:
    """It compiles once, not for each frame."""
    torch._dynamo.reset()
    counters.clear()
    given = prompts(2)
    expected = generated(model, given, LIMIT)
    decoder: Decoder[int] = Decoder(model, 2, 160, compile_model=True)
    for index, prompt in enumerate(given):
        decoder.join(Job(Piece(prompt, LIMIT), GREEDY, 0, index))
    for codes, codes_expected in zip(collected(decoder, 2), expected, strict=True):
        np.testing.assert_array_equal(codes, codes_expected)
    assert counters["stats"]["unique_graphs"] == 1  # all frames read 160 keys


@pytest.mark.gpu
@pytest.mark.parametrize("compile_model", [True, "cuda_graphs"])
def test_a_gpu_gives_the_same_codes_compiled(compile_model: CompileModel) -> None:
    """In a thread, as a server decodes."""
    model, given = disciplined_model().cuda(), prompts(3)
    expected = generated(model, given, LIMIT)
    decoder: Decoder[Generation] = Decoder(model, 3, 512, compile_model=compile_model)
    engine = Engine(decoder)
    requests = [Generation([Piece(prompt, LIMIT)], GREEDY, 0) for prompt in given]
    for request in requests:
        engine.submit(request)
    for request, codes in zip(requests, expected, strict=True):
        np.testing.assert_array_equal(np.stack(list(request.frames(300.0))), codes)
    engine.close()
