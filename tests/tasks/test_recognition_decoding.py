"""The search for the likeliest text, against trying out every alignment there is."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phonate.tasks.recognition.inference import END, LanguageModelFusion, SymbolModel, beam_search, frames_of, greedy

NONE = -math.inf
TEXTS = [[1, 2, 1], [1, 1, 2], [2, 1], [1]]


def random_frames(frames: int, symbols: int, seed: int) -> Any:
    logits = 3.0 * np.random.default_rng(seed).standard_normal((frames, symbols))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(symbol for symbol, _ in itertools.groupby(path) if symbol)


def all_scores(log_probs: Any, fusion: LanguageModelFusion) -> dict[tuple[int, ...], float]:
    """The score of every text that so many frames can say."""
    frames, symbols = log_probs.shape
    summed: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(symbols), repeat=frames):
        text = collapsed(path)
        log = float(log_probs[np.arange(frames), list(path)].sum())
        summed[text] = float(np.logaddexp(summed.get(text, NONE), log))
    return {text: log + wished(text, fusion) for text, log in summed.items()}


def wished(text: tuple[int, ...], fusion: LanguageModelFusion) -> float:
    said = 0.0 if fusion.model is None else fusion.weight * fusion.model.log_probability(text)
    return said + fusion.bonus * len(text)


@settings(max_examples=60)
@given(
    frames=st.integers(1, 5),
    symbols=st.integers(2, 4),
    seed=st.integers(0, 10_000),
    weight=st.floats(0.0, 2.0),
    bonus=st.floats(-1.0, 1.0),
    order=st.integers(0, 3),
)
def test_a_wide_beam_finds_what_trying_everything_finds(
    frames: int, symbols: int, seed: int, weight: float, bonus: float, order: int
) -> None:
    log_probs = random_frames(frames, symbols, seed)
    model = SymbolModel.of([text for text in TEXTS if max(text) < symbols], order, symbols - 1) if order else None
    fusion = LanguageModelFusion(model, weight, bonus)
    scores = all_scores(log_probs, fusion)
    found = beam_search(log_probs, 10_000, fusion, least=NONE)
    assert scores[tuple(found)] == pytest.approx(max(scores.values()), abs=1e-9)


def test_the_likeliest_text_is_not_the_likeliest_alignment() -> None:
    """Blank, blank is the likeliest pair; but all ways to say `a` together are likelier."""
    log_probs = np.log([[0.6, 0.4], [0.6, 0.4]])
    assert greedy(log_probs) == []
    assert beam_search(log_probs, 4) == [1]


def test_a_symbol_twice_needs_a_blank_between() -> None:
    sure = np.log(np.array([[0.01, 0.98, 0.01], [0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.98, 0.01]]))
    assert greedy(sure) == beam_search(sure, 8) == [1, 1]
    assert greedy(sure[2:]) == beam_search(sure[2:], 8) == [1]


def test_the_language_model_decides_where_the_sound_does_not() -> None:
    undecided = np.log(np.array([[0.01, 0.97, 0.01, 0.01], [0.02, 0.01, 0.48, 0.49]]))
    model = SymbolModel.of([[1, 2]] * 5, 3, 3)
    assert beam_search(undecided, 8) == [1, 3]
    assert beam_search(undecided, 8, LanguageModelFusion(model, 0.5)) == [1, 2]


@pytest.mark.parametrize("order", [1, 2, 4])
def test_probabilities_of_a_language_model_add_up(order: int) -> None:
    model = SymbolModel.of(TEXTS, order, 3)
    for text in [*TEXTS, [3, 3, 3], [2, 2]]:
        history = model.begin()
        for symbol in text:
            assert sum(model.probability(history, one) for one in (END, 1, 2, 3)) == pytest.approx(1.0)
            history = model.after(history, symbol)
    again = SymbolModel.read(model.document())
    assert again.log_probability([1, 2, 3]) == model.log_probability([1, 2, 3])
    assert model.log_probability([2, 1]) > model.log_probability([3, 3])


def test_a_long_recording_is_searched_without_keeping_what_was_given_up() -> None:
    """Prefixes that nothing holds any more are gone; else an hour would fill the memory."""
    import gc

    from phonate.tasks.recognition import inference

    beam_search(random_frames(400, 6, 0), 8)
    gc.collect()
    before = sum(type(thing) is inference._Prefix for thing in gc.get_objects())
    prefixes = inference._Prefixes(LanguageModelFusion())
    kept = {prefixes.root: (0.0, NONE)}
    for row in random_frames(400, 6, 0):
        kept = inference._best(inference._step(prefixes, kept, list(enumerate(row.tolist()))), 8)
    held = sum(type(thing) is inference._Prefix for thing in gc.get_objects()) - before
    assert prefixes._count > 5000
    assert held < 2000


def test_frames_of_symbols_are_those_of_the_best_alignment() -> None:
    rng = np.random.default_rng(0)
    for ids in ([1], [1, 1], [2, 1, 1], [1, 2, 3]):
        log_probs_US = np.log(rng.dirichlet(np.ones(4), size=6))
        best, frames = -np.inf, []
        for path in itertools.product(range(4), repeat=6):  # all alignments
            merged = [symbol for symbol, _ in itertools.groupby(path)]
            value = float(sum(log_probs_US[frame, symbol] for frame, symbol in enumerate(path)))
            if [symbol for symbol in merged if symbol] == ids and value > best:
                best = value
                runs = [(symbol, list(run)) for symbol, run in itertools.groupby(range(6), path.__getitem__) if symbol]
                frames = [max(run, key=log_probs_US[:, symbol].__getitem__) for symbol, run in runs]
        assert frames_of(log_probs_US, ids) == frames
    assert frames_of(log_probs_US, []) == []
