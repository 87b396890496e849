"""A synthesiser for several callers at once.

Shapes: N samples.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from phonate.audio.decoding import FloatArray
from phonate.compute.resources import cores
from phonate.config.errors import InputError, PhonateError
from phonate.tasks.speech.arrays import ArrayVoice
from phonate.text.captions import TimedWord
from phonate.text.characters import left_out
from phonate.text.phonemes import named
from phonate.text.ssml import check_delivery
from phonate.training.inference import SpeechRequest, SpeechResult, SpeechService

if TYPE_CHECKING:
    from phonate.tasks.speech.inference import Sentence, SynthesisedSentence, Synthesiser

# --------------------------------------------------- A synthesiser that serves several callers at once

_END = None
"""What follows the last chunk of a request in its queue."""


class Utterance(SpeechResult):
    """The speech of one request. Its methods may be called from any thread."""

    def __init__(self, request: SpeechRequest, sentences: Iterator[Sentence], before: float = 0.0) -> None:
        """`before`: seconds of silence before the first sentence."""
        self.request = request
        self.sentences = sentences
        self.before = before
        """Seconds of silence before the next sentence."""
        self.seconds = 0.0
        """Of sound, up to the end of the last sentence."""
        self.cancelled = False
        self._made: queue.SimpleQueue[FloatArray | Exception | None] = queue.SimpleQueue()
        self._words: queue.SimpleQueue[TimedWord] = queue.SimpleQueue()

    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        while True:
            try:
                chunk = self._made.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError(f"no sound within {timeout:g} s") from None
            if chunk is _END:
                return
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    @property
    def after(self) -> float:
        return self.before

    def words(self) -> list[TimedWord]:
        return [self._words.get() for _ in range(self._words.qsize())]

    def say(self, words: Iterable[TimedWord]) -> None:
        """Add words that will be heard next."""
        for word in words:
            self._words.put(word)

    def cancel(self) -> None:
        self.cancelled = True
        self._made.put(_END)

    def put(self, chunk: FloatArray) -> None:
        """Add a chunk (n,)."""
        self._made.put(chunk)

    def end(self, error: Exception | None = None) -> None:
        """Nothing more will come; `error`: why."""
        self._made.put(_END if error is None else error)


_Rendered = tuple[Utterance, Iterator[FloatArray]]
"""A request, and the pieces of its sentence."""
_Piece = FloatArray | Exception | None
"""A piece, or why there is none: an error, or the end."""


def _next_piece(rendered: _Rendered) -> _Piece:
    """The next piece, or why there is none; None at the end, or where nobody waits for it any more."""
    utterance, pieces = rendered
    try:
        return None if utterance.cancelled else next(pieces, None)
    except Exception as error:  # noqa: BLE001 - any error is that of one request, and others go on
        return error


@functools.cache
def _renderers() -> ThreadPoolExecutor:
    """The threads that render pieces, one a core: the voices of a process share them, and so the cores."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="pieces")


class SynthesiserService(SpeechService):
    """Speaks the sentences of its requests in turn, of up to `max_batch` at once. With torch, those of one voice and
    speed are read in one batch. The waveforms of all are rendered piece by piece in turn, so that none waits for
    another's last piece. A request that comes meanwhile joins in, once fewer sentences are being rendered.

    What a request gets is what `Synthesiser.stream` gives for its text.
    """

    needs_reference = False

    def __init__(self, synthesiser: Synthesiser, max_batch: int) -> None:
        if max_batch < 1:
            raise InputError(f"max_batch {max_batch} must be at least 1")
        self.sample_rate = synthesiser.sample_rate
        self.follows_ssml = self.tells_times = synthesiser.model.keeps_durations
        self.language = synthesiser.phonemizer.language
        self._synthesiser = synthesiser
        self._max_batch = max_batch
        self._waiting: deque[Utterance] = deque()
        self._active: list[Utterance] = []
        self._changed = threading.Condition()
        self._closed = False
        self._reads_alone = isinstance(synthesiser.model, ArrayVoice)
        """Whether sentences are read one by one; torch reads them in batches: a place that one of them leaves waits for
        the next batch."""
        self._at_once = cores() if self._reads_alone else 1
        """Pieces that are rendered at the same time; torch uses all cores for one."""
        self._ahead = self._at_once + 1
        """Those that are handed out: a core that is done has the next one without asking for it."""
        # a daemon, so that a server that is told to stop at once need not wait for it
        self._thread = threading.Thread(target=self._work, name="synthesiser", daemon=True)
        self._thread.start()

    @property
    def voices(self) -> Sequence[str]:
        """The speakers of the run."""
        return self._synthesiser.speakers

    def left_out(self, request: SpeechRequest) -> str:
        spoken = (part.text for part in request.script if part.phones is None) if request.script else (request.text,)
        return named(left_out("\n".join(spoken), self._synthesiser.phonemizer))

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, request: SpeechRequest) -> Utterance:
        utterance = Utterance(request, *self._sentences(request))
        with self._changed:
            if self._closed:
                raise PhonateError("the service is closed; it takes no more requests")
            self._waiting.append(utterance)
            self._changed.notify()
        return utterance

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _sentences(self, request: SpeechRequest) -> tuple[Iterator[Sentence], float]:
        """The sentences of a request that can be met, and seconds of silence before them. Raises InputError for
        others."""
        if request.reference is not None:
            raise InputError(
                "this model speaks in the voices that it was trained on and clones none; leave the reference out"
            )
        for name in ("temperature", "top_k", "top_p"):
            if getattr(request, name) is not None:
                raise InputError(f"{name}: this model draws nothing at random; leave it out")
        if request.max_seconds is not None:
            raise InputError("max_seconds: this model's speech is as long as its text; leave it out")
        check_delivery(request.speed)
        self._synthesiser.speaker(request.voice)
        if request.script is not None:
            before, scripts = self._synthesiser.sentences_of_ssml(request.script)
            return iter(scripts), before
        sentences = self._synthesiser.sentences(request.text, request.continues)
        return itertools.chain([next(sentences)], sentences), 0.0

    def _work(self) -> None:
        while self._admit():
            self._render(deque(self._begun(self._active)))

    def _admit(self) -> bool:
        """Choose whose turn it is, after waiting for the first request; False once closed and done."""
        with self._changed:
            while not (self._active or self._waiting or self._closed):
                self._changed.wait()
            # who waits goes before those who just had a sentence, so that nobody waits for another's last
            turns = [one for one in (*self._waiting, *self._active) if not one.cancelled]
            self._active, self._waiting = turns[: self._max_batch], deque(turns[self._max_batch :])
            return bool(self._active or self._waiting or not self._closed)

    def _newcomers(self, places: int) -> list[Utterance]:
        """Requests that wait, as many as there are `places`, which are active from now on."""
        if places < 1 or not self._waiting:
            return []
        with self._changed:
            came = [self._waiting.popleft() for _ in range(min(places, len(self._waiting)))]
            self._active += came
            return came

    def _begun(self, utterances: Sequence[Utterance]) -> Iterator[_Rendered]:
        """The next sentence of each of active requests, about to be rendered."""
        read = self._read if self._reads_alone else self._speak
        for group, sentences in self._next_sentences(utterances):
            yield from read(group, sentences)

    def _next_sentences(self, active: Sequence[Utterance]) -> list[tuple[list[Utterance], list[Sentence]]]:
        """The next sentence of each active request, grouped by voice and speed. Requests without one are ended."""
        groups: dict[tuple[str | None, float], tuple[list[Utterance], list[Sentence]]] = {}
        for utterance in list(active):
            try:
                words = next(utterance.sentences, None)
            except Exception as error:  # noqa: BLE001 - any error is that of one request, and others go on
                self._end(utterance, error)
                continue
            if words is None:
                self._end(utterance)
                continue
            utterances, sentences = groups.setdefault((utterance.request.voice, utterance.request.speed), ([], []))
            utterances.append(utterance)
            sentences.append(words)
        return list(groups.values())

    def _speak(self, utterances: list[Utterance], sentences: list[Sentence]) -> Iterator[_Rendered]:
        """Read one sentence of each of `utterances`, which are of one voice and speed."""
        request = utterances[0].request
        try:
            spoken = self._synthesiser.synthesise(sentences, request.voice, request.speed)
        except Exception as error:  # noqa: BLE001 - as above
            if len(utterances) == 1:
                self._end(utterances[0], error)
                return
            for utterance, words in zip(utterances, sentences, strict=True):
                yield from self._speak([utterance], [words])
            return
        for utterance, words, one in zip(utterances, sentences, spoken, strict=True):
            yield utterance, self._pieces(utterance, words, one)

    def _read(self, utterances: list[Utterance], sentences: list[Sentence]) -> Iterator[_Rendered]:
        """As `_speak`, each sentence read when its first piece is asked for: what gains nothing by batches."""

        def pieces(utterance: Utterance, words: Sentence) -> Iterator[FloatArray]:
            request = utterance.request
            (one,) = self._synthesiser.synthesise([words], request.voice, request.speed)
            yield from self._pieces(utterance, words, one)

        for utterance, words in zip(utterances, sentences, strict=True):
            yield utterance, pieces(utterance, words)

    def _pieces(self, utterance: Utterance, words: Sentence, one: SynthesisedSentence) -> Iterator[FloatArray]:
        """The sound of the next sentence of a request, and of the silence before it."""
        if len(silence := self._synthesiser.silence(utterance.before)):
            yield silence
        begins = utterance.seconds + utterance.before
        if self.tells_times:
            utterance.say(self._synthesiser.times([words], [one], begins))
        utterance.seconds, utterance.before = begins + self._synthesiser.seconds(one), one.after
        yield from self._synthesiser.pieces(one)

    def _render(self, rendered: deque[_Rendered]) -> None:
        """Render a piece of each in turn, so that none waits for another's last; with NumPy, of as many at once as
        there are cores."""
        working: dict[Future[_Piece], _Rendered] = {}
        while rendered or working:
            rendered.extendleft(self._begun(self._newcomers(self._max_batch - len(self._active))))
            if self._at_once == 1:
                one = rendered.popleft()
                self._put(one, _next_piece(one), rendered)
                continue
            while rendered and len(working) < self._ahead:
                one = rendered.popleft()
                future = _renderers().submit(_next_piece, one)
                working[future] = one
                future.add_done_callback(self._notify)
            for future in self._done(working):
                self._put(working.pop(future), future.result(), rendered)

    def _done(self, working: Mapping[Future[_Piece], _Rendered]) -> list[Future[_Piece]]:
        """What is done of `working`, once there is some, or a request comes for which a place and a core are free."""
        idle = len(working) < self._ahead and len(self._active) < self._max_batch
        with self._changed:
            while not (done := [future for future in working if future.done()]) and not (idle and self._waiting):
                self._changed.wait()
        return done

    def _notify(self, _: object) -> None:
        with self._changed:
            self._changed.notify()

    def _put(self, one: _Rendered, result: _Piece, rendered: deque[_Rendered]) -> None:
        """Hand on the next piece of a sentence, which then waits for its next turn at the end of `rendered`, as the
        next sentence does after the last piece."""
        utterance, _ = one
        if isinstance(result, Exception):
            self._end(utterance, result)
        elif result is not None:
            utterance.put(result)
            rendered.append(one)
        elif self._reads_alone and not self._leaves(utterance):
            rendered.extend(self._begun([utterance]))

    def _leaves(self, utterance: Utterance) -> bool:
        """Whether a request whose sentence is over leaves its place: nobody waits for it, or others for a place."""
        with self._changed:
            leaves = utterance.cancelled or bool(self._waiting)
            if leaves:
                self._active.remove(utterance)
                if not utterance.cancelled:
                    self._waiting.append(utterance)
        return leaves

    def _end(self, utterance: Utterance, error: Exception | None = None) -> None:
        with self._changed:
            self._active.remove(utterance)
        utterance.end(error)
