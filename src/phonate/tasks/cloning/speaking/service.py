"""Voice cloning for several callers at once."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

from phonate.audio.decoding import FloatArray
from phonate.audio.higgs_codec import HiggsCodec
from phonate.config.errors import InputError, PhonateError
from phonate.config.registry import nearest
from phonate.tasks.cloning.decoding.engine import Engine, Generation
from phonate.tasks.cloning.decoding.loop import Decoder, Piece
from phonate.tasks.cloning.decoding.sampling import Sampling
from phonate.tasks.cloning.decoding.stream import sound
from phonate.tasks.cloning.speaking.lengths import check_text
from phonate.tasks.cloning.speaking.references import check_reference
from phonate.training.speech_service import Reference, SpeechRequest, SpeechResult, SpeechService

_log = logging.getLogger(__name__)
NOTHING_SAID = "the model ended before it said anything; try another seed, a longer text or another reference"
CUT_SHORT = "speech was cut short: the model did not end it within the time that the text should take"

Pieces = Callable[[Reference, str], list[Piece]]
"""What is to be generated for a text in the voice of a reference."""


class ClonedSpeech(SpeechResult):
    """Codes come from the engine; they become sound in the thread that asks for it."""

    def __init__(self, generation: Generation, codec: HiggsCodec) -> None:
        self._generation = generation
        self._codec = codec

    def chunks(self, timeout: float | None = None) -> Iterator[FloatArray]:
        """As `SpeechResult.chunks`."""
        empty = True
        for chunk in sound(self._generation.frames(timeout), self._codec.stream()):
            empty = False
            yield chunk
        if self._generation.cancelled.is_set():
            return
        if empty:
            raise PhonateError(NOTHING_SAID)
        if self._generation.cut_short:
            _log.warning(CUT_SHORT)

    def cancel(self) -> None:
        """Stop working on it."""
        self._generation.cancel()


class CloningService(SpeechService):
    """Requests join the batch of an engine between two frames."""

    needs_reference = True

    def __init__(
        self, decoder: Decoder[Generation], codec: HiggsCodec, voices: Mapping[str, Reference], pieces: Pieces
    ) -> None:
        self.sample_rate = codec.sample_rate
        self._decoder, self._codec, self._voices, self._pieces = decoder, codec, voices, pieces
        self._engine = Engine(decoder)

    @property
    def voices(self) -> Sequence[str]:
        """Names of the references that were loaded with the model."""
        return sorted(self._voices)

    def check(self, request: SpeechRequest) -> None:
        """Raise InputError for a text, voice or number that can't be met."""
        check_text(request.text)
        check_reference(self._reference(request))
        _sampling(request)
        if request.speed != 1.0:
            raise InputError(f"speed {request.speed:g}: a cloned voice speaks at its own speed; leave it at 1")

    def submit(self, request: SpeechRequest) -> ClonedSpeech:
        """Begin to work on `request`. The codes of its reference are made here, in the caller's thread."""
        self.check(request)
        seed = secrets.randbits(62) if request.seed is None else request.seed
        pieces = self._pieces(self._reference(request), request.text)
        generation = Generation(pieces, _sampling(request), seed)
        for job in generation.jobs:
            self._decoder.check(job)
        self._engine.submit(generation)
        return ClonedSpeech(generation, self._codec)

    @property
    def active(self) -> int:
        """Requests that are being worked on."""
        return self._engine.active

    @property
    def waiting(self) -> int:
        """Requests that have not been begun."""
        return self._engine.waiting

    def close(self) -> None:
        """Finish all requests and end the engine's thread."""
        self._engine.close()

    def _reference(self, request: SpeechRequest) -> Reference:
        """The request's own, or that of its voice. Raises InputError if there is none, or two."""
        if request.reference is not None:
            if request.voice is not None:
                raise InputError(f"voice {request.voice!r} and a reference are given; leave one of them out")
            return request.reference
        if request.voice is None:
            known = f", or one of the voices {', '.join(self.voices)}" if self._voices else ""
            raise InputError(f"no voice; give a reference{known}")
        if request.voice not in self._voices:
            known = nearest(request.voice, sorted(self._voices)) if self._voices else "give a reference"
            raise InputError(f"voice {request.voice!r} is not known; {known}")
        return self._voices[request.voice]


def _sampling(request: SpeechRequest) -> Sampling:
    return sampling(request.temperature, request.top_k, request.top_p)


def sampling(temperature: float | None = None, top_k: int | None = None, top_p: float | None = None) -> Sampling:
    """How codes are drawn; None: the default. Raises InputError for a number out of range."""
    default = Sampling()
    return Sampling(
        default.temperature if temperature is None else temperature,
        default.top_k if top_k is None else top_k,
        default.top_p if top_p is None else top_p,
    )
