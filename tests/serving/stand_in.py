"""A service that clones without a model: it hums at the pitch of the reference, a tenth of a second for each character.

As a program it serves itself, for tests that need a real server:

    python stand_in.py FOLDER [name=value ...]
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from phonate.audio.decoding import FloatArray
from phonate.config.errors import InputError, Interrupted
from phonate.config.registry import UnknownVoiceError
from phonate.data.annotations import SpeakerTurn
from phonate.data.transcripts import Transcription
from phonate.text.captions import TimedWord
from phonate.training.inference import SpeechRequest, SpeechResult, SpeechService

RATE = 24_000
CHUNK = RATE // 10


class _Result(SpeechResult):
    def __init__(self) -> None:
        self.made: queue.SimpleQueue[FloatArray | Exception | None] = queue.SimpleQueue()
        self.cancelled = False

    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        while True:
            try:
                made = self.made.get(timeout=timeout)
            except queue.Empty:
                raise TimeoutError("nothing came") from None
            if made is None:
                return
            if isinstance(made, Exception):
                raise made
            yield made

    def cancel(self) -> None:
        self.cancelled = True
        self.made.put(None)


class StandIn(SpeechService):
    """`seconds`: for each chunk; `voices`: of its own. A text with "fail" fails after its first chunk."""

    sample_rate = RATE
    needs_reference = True

    def __init__(self, seconds: float = 0.0, voices: Sequence[str] = ("own",)) -> None:
        self._voices = list(voices)
        self.requests: list[SpeechRequest] = []
        self.results: list[_Result] = []
        self._seconds = seconds
        self._threads: list[threading.Thread] = []
        self._active = 0

    @property
    def voices(self) -> list[str]:
        return self._voices

    @property
    def active(self) -> int:
        return self._active

    @property
    def waiting(self) -> int:
        return 0

    def check(self, request: SpeechRequest) -> None:
        if "\x00" in request.text:
            raise InputError("a text with a NUL can't be spoken")

    def submit(self, request: SpeechRequest) -> SpeechResult:
        self.check(request)
        self.requests.append(request)
        result = _Result()
        self.results.append(result)
        thread = threading.Thread(target=self._work, args=(request, result), daemon=True)
        self._threads.append(thread)
        thread.start()
        return result

    def close(self) -> None:
        for thread in self._threads:
            thread.join()

    def _work(self, request: SpeechRequest, result: _Result) -> None:
        self._active += 1
        pitch = 200.0
        if request.reference is not None:
            waveform = request.reference.waveform
            pitch = np.count_nonzero(np.diff(np.signbit(waveform))) / 2 / len(waveform) * request.reference.sample_rate
        hum = 0.3 * np.sin(2 * np.pi * pitch * np.arange(CHUNK * len(request.text)) / RATE)
        for chunk in np.split(hum.astype(np.float32), len(request.text)):
            time.sleep(self._seconds)
            if result.cancelled:
                break
            result.made.put(chunk)
            if "fail" in request.text:
                result.made.put(RuntimeError("the model broke"))
                break
        self._active -= 1
        result.made.put(None)


class OwnVoice(StandIn):
    """A stand-in that needs no reference."""

    needs_reference = False
    language = "en-us"

    @property
    def voices(self) -> list[str]:
        return ["anna", "ben"]

    def check(self, request: SpeechRequest) -> None:
        if request.voice not in (None, *self.voices):
            raise UnknownVoiceError(request.voice or "", self.voices)


WORDS = ["Good", "morning.", "Hello", "Ben."]


class Hears:
    """A recogniser and a diarizer without a model: a word each half second of sound; two speakers, who take a second
    each."""

    languages = ("de", "en")

    def __init__(self) -> None:
        self.asked: list[tuple[int, int | None, str | None]] = []

    def timed(self, audio: np.ndarray, *, sample_rate: int | None = None, language: str | None = None) -> Transcription:
        self.asked.append((len(audio), sample_rate, language))
        words = [TimedWord(word, 0.5 * at, 0.5 * at + 0.4, 0.9) for at, word in enumerate(WORDS)]
        return Transcription(words, len(audio) / 16000, language or "en-us")

    def diarize(self, audio: np.ndarray, *, sample_rate: int | None = None) -> Hears:
        return self

    @property
    def turns(self) -> list[SpeakerTurn]:
        return [SpeakerTurn(0.0, 1.0, "speaker1"), SpeakerTurn(1.0, 2.0, "speaker2")]


def main() -> None:
    """Serve a stand-in at a free port, which is printed."""
    from phonate.cli.output import log_to_console
    from phonate.serving.models import LazyService
    from phonate.serving.server import Hosted, serve
    from phonate.serving.settings import ServingSettings
    from phonate.serving.transcriptions import Recogniser
    from phonate.training.signals import interruptible

    log_to_console()
    values = dict(argument.split("=", 1) for argument in sys.argv[2:])
    seconds = float(values.pop("seconds", 0.0))
    voices = tuple(filter(None, [values.pop("own", "own")]))
    keys = tuple(filter(None, [values.pop("key", "")]))
    hears, diarizer = values.pop("hears", ""), values.pop("diarizer", "")
    recognisers = [Recogniser(hears, Hears, Hears if diarizer else None, diarizer)] if hears else []
    settings = ServingSettings(voices=Path(sys.argv[1]), api_keys=keys, **values)
    try:
        with interruptible():
            models = Hosted([LazyService("stand-in", lambda: StandIn(seconds, voices))], recognisers)
            serve(models, settings, port=0)
    except Interrupted as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.exit_code)


if __name__ == "__main__":
    main()
