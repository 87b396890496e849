"""Requests that come while others are spoken: the same codes, no harm done by one that fails, and an orderly end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from installed import missing

if missing("transformers"):
    pytest.skip("needs transformers: pip install 'phonate[cloning]'", allow_module_level=True)

from cloning_prompts import disciplined_model, generated, prompts

from phonate.config.errors import InputError, PhonateError
from phonate.tasks.cloning.decoding import Decoder, Engine, Generation, Piece, Sampling, Step, piece_seed

LIMIT = 16
WARM = Sampling(temperature=1.0)


@pytest.fixture(scope="module")
def model() -> Any:
    return disciplined_model()


@pytest.fixture
def decoder(model: Any) -> Decoder[Generation]:
    return Decoder(model, 2, 256)


@pytest.fixture
def engine(decoder: Decoder[Generation]) -> Iterator[Engine]:
    engine = Engine(decoder)
    yield engine
    engine.close()


def request(index: int, count: int = 1, limit: int = LIMIT) -> Generation:
    return Generation([Piece(prompts(5)[index], limit)] * count, WARM, index)


def alone(model: Any, index: int, number: int = 0) -> np.ndarray:
    return generated(model, [prompts(5)[index]], LIMIT, WARM, [piece_seed(index, number)])[0]


def test_requests_that_join_at_any_frame_get_the_codes_they_get_alone(model: Any, engine: Engine) -> None:
    """Five requests for two places, the later ones sent while the first is spoken."""
    sent = [request(0)]
    engine.submit(sent[0])
    first = sent[0].frames(60)
    made: list[list[np.ndarray]] = [[next(first), next(first)]]
    for index in range(1, 5):
        sent.append(request(index))
        engine.submit(sent[-1])
    made[0] += first
    made += [list(one.frames(60)) for one in sent[1:]]
    for index, codes in enumerate(made):
        np.testing.assert_array_equal(codes, alone(model, index))
        assert sent[index].cut_short
    assert engine.active == engine.waiting == 0


def test_pieces_of_a_text_follow_each_other(model: Any, engine: Engine) -> None:
    several = request(1, count=2)
    engine.submit(several)
    codes = np.array(list(several.frames(60)))
    np.testing.assert_array_equal(codes, np.concatenate([alone(model, 1), alone(model, 1, 1)]))


def test_one_that_does_not_fit_fails_and_the_others_do_not(model: Any, engine: Engine) -> None:
    fits, does_not = request(0), request(1, limit=1000)
    engine.submit(fits)
    engine.submit(does_not)
    with pytest.raises(InputError, match="together"):
        list(does_not.frames(60))
    np.testing.assert_array_equal(list(fits.frames(60)), alone(model, 0))


def test_a_step_that_fails_is_told_to_those_it_concerns_and_work_goes_on(
    model: Any, engine: Engine, decoder: Decoder[Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> list[Step[Generation]]:
        monkeypatch.undo()
        raise RuntimeError("out of memory")

    lost = request(0)
    monkeypatch.setattr(decoder, "_chosen", fails)
    engine.submit(lost)
    with pytest.raises(PhonateError, match="RuntimeError: out of memory"):
        list(lost.frames(60))
    later = request(1)
    engine.submit(later)
    np.testing.assert_array_equal(list(later.frames(60)), alone(model, 1))


def test_a_cancelled_request_makes_room(model: Any, engine: Engine) -> None:
    endless, other = [request(index, limit=150) for index in (0, 1)]
    for one in (endless, other):
        engine.submit(one)
    waiting = request(2)
    engine.submit(waiting)
    next(endless.frames(60))
    endless.cancel()
    assert list(endless.frames(60)) == []
    np.testing.assert_array_equal(list(waiting.frames(60)), alone(model, 2))
    other.cancel()


def test_no_frame_within_the_time_limit(engine: Engine, decoder: Decoder[Generation]) -> None:
    blocked = threading.Event()
    decoder.join = lambda job: blocked.wait() or None  # type: ignore[method-assign,assignment]
    slow = request(0)
    engine.submit(slow)
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        next(slow.frames(0.05))
    slow.cancel()
    blocked.set()


def test_closing_finishes_what_is_there_and_refuses_more(model: Any, decoder: Decoder[Generation]) -> None:
    engine = Engine(decoder)
    sent = [request(index) for index in range(3)]
    for one in sent:
        engine.submit(one)
    engine.close()
    for index, one in enumerate(sent):
        np.testing.assert_array_equal(list(one.frames(0.1)), alone(model, index))
    with pytest.raises(PhonateError, match="closed"):
        engine.submit(request(3))


def test_nobody_waits_for_an_engine_that_broke(
    engine: Engine, decoder: Decoder[Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(engine, "_next", lambda: 1 / 0)
    lost = request(0)
    engine.submit(lost)
    with pytest.raises(PhonateError, match="stopped"):
        list(lost.frames(60))
    with pytest.raises(PhonateError, match="closed"):
        engine.submit(request(1))
