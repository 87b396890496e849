"""A text-to-speech run as a server uses it: several requests at once get what `Synthesiser.stream` gives each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from phonate.config.errors import InputError, PhonateError
from phonate.tasks.speech import speaking
from phonate.tasks.speech.inference import SynthesisedSentence, Synthesiser
from phonate.tasks.speech.speaking import SynthesiserService, Utterance
from phonate.training.inference import Reference, SpeechRequest, SpeechResult

LONG = "The rain ends. Nobody knows when!"


@pytest.fixture(scope="module")
def synthesiser(small_voice: Path) -> Synthesiser:
    return Synthesiser.load(small_voice)


@pytest.fixture
def service(synthesiser: Synthesiser) -> Iterator[SynthesiserService]:
    service = synthesiser.speech_service(max_batch=3)
    assert isinstance(service, SynthesiserService)
    yield service
    service.close()


def spoken(result: SpeechResult) -> np.ndarray:
    return np.concatenate(list(result.chunks(60.0)))


def test_requests_that_are_spoken_together_get_what_each_would_alone(
    synthesiser: Synthesiser, service: SynthesiserService
) -> None:
    first, second = synthesiser.speakers
    requests = [
        SpeechRequest(LONG, first),
        SpeechRequest("Good morning.", second),
        SpeechRequest("It is late. Go home.", first, speed=1.5),
        SpeechRequest("Good morning.", first),
        SpeechRequest("The rain has ended.", None),
    ]
    results = [service.submit(request) for request in requests]
    for request, result in zip(requests, results, strict=True):
        alone = np.concatenate(list(synthesiser.stream(request.text, request.voice, request.speed)))
        together = spoken(result)
        assert len(together) == len(alone) > 0.5 * synthesiser.sample_rate
        assert np.abs(together - alone).max() < 1e-3
    assert len(spoken(service.submit(requests[2]))) < 0.8 * len(
        np.concatenate(list(synthesiser.stream(requests[2].text, first)))
    )


class Blocked(SynthesiserService):
    """Works only once it is let."""

    def __init__(self, synthesiser: Synthesiser, max_batch: int) -> None:
        self.let = threading.Event()
        super().__init__(synthesiser, max_batch)

    def _work(self) -> None:
        self.let.wait()
        super()._work()


@pytest.mark.parametrize("by_torch", [False, True])
def test_each_request_is_heard_before_another_is_done(
    small_voice: Path, monkeypatch: pytest.MonkeyPatch, by_torch: bool
) -> None:
    synthesiser = Synthesiser.load_torch(small_voice) if by_torch else Synthesiser.load(small_voice)
    batches: list[int] = []
    original = synthesiser.synthesise

    def counted(sentences: list, *rest: object) -> list:
        batches.append(len(sentences))
        return original(sentences, *rest)

    monkeypatch.setattr(synthesiser, "synthesise", counted)
    service = Blocked(synthesiser, max_batch=2)
    results = [service.submit(SpeechRequest(LONG)) for _ in range(3)]
    assert (service.active, service.waiting) == (0, 3)
    service.let.set()
    for result in results:
        spoken(result)
    assert batches == ([2, 2, 2] if by_torch else 6 * [1])  # two sentences each, in turn
    service.close()
    assert (service.active, service.waiting) == (0, 0)


def test_a_short_request_waits_for_one_sentence_of_long_ones(synthesiser: Synthesiser) -> None:
    sentence = len(np.concatenate(list(synthesiser.stream("It is late.")))) / synthesiser.sample_rate
    with closing(SynthesiserService(synthesiser, max_batch=2)) as service:
        long = [service.submit(SpeechRequest(30 * "It is late. ")) for _ in range(3)]
        next(long[0].chunks(60.0))
        short = service.submit(SpeechRequest("Go home."))
        before = [one.seconds for one in long]
        spoken(short)
        assert max(one.seconds - was for one, was in zip(long, before, strict=True)) < 5 * sentence
        assert len({len(spoken(one)) for one in long[1:]}) == 1


def test_a_short_request_joins_in_while_a_long_sentence_is_rendered(
    synthesiser: Synthesiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, came, next_piece = [], threading.Event(), speaking._next_piece

    def noted(rendered: tuple) -> object:
        if turns:
            assert came.wait(60)
        turns.append(rendered[0])
        return next_piece(rendered)

    monkeypatch.setattr(speaking, "_next_piece", noted)
    with closing(SynthesiserService(synthesiser, max_batch=2)) as service:
        long = service.submit(SpeechRequest(30 * "seven eight, "))
        next(long.chunks(60.0))
        short = service.submit(SpeechRequest("Go home."))
        came.set()
        spoken(short), spoken(long)
    assert turns.index(short) < turns.count(long) / 2


def test_a_request_does_not_wait_for_another_s_piece_or_sentence(
    synthesiser: Synthesiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speaking, "cores", lambda: 2)
    heard = threading.Event()
    original = synthesiser.pieces

    def pieces(one: SynthesisedSentence) -> Iterator[np.ndarray]:
        for piece in original(one):
            if len(one.mel_TM) == slow:
                assert heard.wait(60.0), "the other request was held up"
            yield piece

    (slow,) = (len(one.mel_TM) for one in synthesiser.synthesise(list(synthesiser.sentences("Who?"))))
    monkeypatch.setattr(synthesiser, "pieces", pieces)
    service = SynthesiserService(synthesiser, max_batch=2)
    waits, goes_on = service.submit(SpeechRequest("Who?")), service.submit(SpeechRequest("The rain has ended. " * 3))
    assert len(spoken(goes_on))
    heard.set()
    assert len(spoken(waits))
    service.close()


def test_a_sentence_of_numbers_is_cut_by_how_long_it_takes(synthesiser: Synthesiser) -> None:
    """Its digits are words."""
    (words,) = synthesiser.sentences(90 * "a")
    assert len(words) == 1
    parts = list(synthesiser.sentences(200 * "7"))
    assert len(parts) > 1
    assert max(sum(len(word.phones) for word in part) for part in parts) <= 400
    assert [word for part in parts for word in part][:-1] == synthesiser.phonemizer(200 * "7")[:-1]


def test_a_cancelled_request_makes_room(synthesiser: Synthesiser) -> None:
    service = Blocked(synthesiser, max_batch=1)
    gone, heard = service.submit(SpeechRequest(LONG * 50)), service.submit(SpeechRequest("Good morning."))
    gone.cancel()
    service.let.set()
    assert list(gone.chunks(60.0)) == []
    assert len(spoken(heard))
    service.close()


def test_an_error_is_that_of_one_request(
    synthesiser: Synthesiser, service: SynthesiserService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(synthesiser, "synthesise", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            spoken(service.submit(SpeechRequest("Good morning.")))
    assert len(spoken(service.submit(SpeechRequest("Good morning."))))


def test_an_error_of_one_sentence_of_a_batch_is_no_other_request_s(
    synthesiser: Synthesiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = synthesiser.synthesise

    def broken(sentences: list, *rest: object) -> list:
        if any(word.text == "morning" for words in sentences for word in words):
            raise RuntimeError("out of memory")
        return original(sentences, *rest)

    monkeypatch.setattr(synthesiser, "synthesise", broken)
    service = Blocked(synthesiser, max_batch=2)
    bad, good = (service.submit(SpeechRequest(text)) for text in ("Good morning.", "Good evening."))
    service.let.set()
    assert len(spoken(good))
    with pytest.raises(RuntimeError, match="out of memory"):
        spoken(bad)
    service.close()


def test_requests_at_other_speeds_are_rendered_in_turn(synthesiser: Synthesiser) -> None:
    """Not one after the other: each of two requests has a piece before either has all."""
    order: list[str] = []

    class Recorded(Utterance):
        def put(self, chunk: np.ndarray) -> None:
            order.append(self.request.text)
            super().put(chunk)

    service = Blocked(synthesiser, max_batch=2)
    long = "one and two and three and four and five and six and seven and eight and nine and ten and eleven"
    texts = [long, f"{long} and twelve"]
    for text, speed in zip(texts, (1.0, 1.1), strict=True):
        service.submit(SpeechRequest(text, speed=speed)).__class__ = Recorded
    service.let.set()
    service.close()
    first, second = (order.index(text) for text in texts)
    assert order.count(texts[0]) > 1
    last_first, last_second = (len(order) - 1 - order[::-1].index(text) for text in texts)
    assert second < last_first
    assert first < last_second


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (SpeechRequest("Hello.", "nobody"), "nobody"),
        (SpeechRequest("***"), "nothing"),
        (SpeechRequest("Hello.", speed=0.0), "speed"),
        (SpeechRequest("Hello.", temperature=1.0), "temperature"),
        (SpeechRequest("Hello.", max_seconds=9.0), "max_seconds"),
        (SpeechRequest("Hello.", reference=Reference(np.zeros(9, np.float32), 16_000)), "clones none"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(
    service: SynthesiserService, request_: SpeechRequest, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        service.submit(request_)


def test_waiting_for_sound_has_a_limit(synthesiser: Synthesiser) -> None:
    service = Blocked(synthesiser, max_batch=1)
    with pytest.raises(TimeoutError):
        list(service.submit(SpeechRequest("Hello.")).chunks(0.01))
    service.let.set()
    service.close()


def test_a_closed_service_finishes_and_takes_no_more(synthesiser: Synthesiser) -> None:
    service = SynthesiserService(synthesiser, 2)
    results = [service.submit(SpeechRequest("Good morning.")) for _ in range(3)]
    service.close()
    assert all(len(spoken(result)) for result in results)
    with pytest.raises(PhonateError, match="closed"):
        service.submit(SpeechRequest("Hello."))
    assert torch.is_grad_enabled()


def test_a_model_that_makes_no_speech_offers_no_service() -> None:
    from phonate.tasks.recognition.inference import Transcriber

    assert Transcriber.speech_service(Transcriber.__new__(Transcriber)) is None
