"""`/v1/audio/transcriptions`: a recording in, what is said in it out, as OpenAI's clients ask for it."""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Annotated, Any, Protocol

import anyio
import anyio.to_thread
import numpy as np
from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from phonate.audio.decoding import FloatArray, resample
from phonate.config.language_codes import primary
from phonate.config.registry import listed
from phonate.data.transcripts import Diarizes, Transcription
from phonate.serving.guard import ApiError, no_model
from phonate.serving.models import Lazy
from phonate.serving.routes import OPENAI_RECOGNISERS, ServerState, event, state_of, warned
from phonate.text.captions import TimedWord, captions

router = APIRouter(prefix="/v1/audio")

FORMATS = ("json", "text", "srt", "vtt", "verbose_json", "diarized_json")
_KNOWN = ("file", "model", "language", "response_format", "stream", "timestamp_granularities[]")
RATE = 16_000


class Recognises(Protocol):
    """What the server needs of a recogniser, such as `phonate.load("whisper")`."""

    @property
    def languages(self) -> Sequence[str]:
        """Codes of the languages that it knows."""

    def timed(self, audio: FloatArray, *, sample_rate: int | None = None, language: str | None = None) -> Transcription:
        """The words of a recording."""


class Recogniser:
    """A recogniser and a diarizer, loaded when they are needed, which work on one recording at a time."""

    def __init__(
        self,
        name: str,
        recogniser: Callable[[], Recognises],
        diarizer: Callable[[], Diarizes] | None = None,
        diarizer_name: str = "the diarizer",
    ) -> None:
        """`name`: what requests may call it, besides OpenAI's names. Without `diarizer` nobody is told apart."""
        self.name = name
        self.tells_speakers = diarizer is not None
        self.recogniser = Lazy(name, recogniser)
        self.diarizer = None if diarizer is None else Lazy(diarizer_name, diarizer)
        self._languages: Sequence[str] | None = None
        self._lock = threading.Lock()

    def transcribe(self, waveform: FloatArray, language: str | None, with_speakers: bool) -> Transcription:
        """The words of a recording (N,) at 16 kHz. Raises the errors of both."""
        with self._lock:
            with self.recogniser.use() as recogniser:
                transcription = recogniser.timed(waveform, sample_rate=RATE, language=language)
            if not with_speakers or self.diarizer is None:
                return transcription
            with self.diarizer.use() as diarizer:
                return transcription.with_speakers(diarizer.diarize(waveform, sample_rate=RATE).turns)

    def languages(self) -> Sequence[str]:
        """Codes of the languages that the recogniser knows."""
        if self._languages is None:
            with self.recogniser.use() as recogniser:
                self._languages = list(recogniser.languages)
        return self._languages


@router.post("/transcriptions", response_class=Response)
async def transcriptions(
    request: Request,
    file: Annotated[UploadFile, File()],
    model: Annotated[str, Form()],
    language: Annotated[str | None, Form()] = None,
    response_format: Annotated[str, Form()] = "json",
    stream: Annotated[bool, Form()] = False,
    timestamp_granularities: Annotated[list[str] | None, Form(alias="timestamp_granularities[]")] = None,
) -> Response:
    """Transcribe a recording."""
    state = state_of(request)
    recogniser = recogniser_of(state, model)
    if response_format not in FORMATS:
        raise ApiError(400, f"response_format: must be one of {listed(FORMATS)}", param="response_format")
    with_speakers = response_format == "diarized_json"
    if with_speakers and not recogniser.tells_speakers:
        raise ApiError(
            400,
            "response_format: speakers are not told here; start the server with the model base/diarizer, too",
            param="response_format",
        )
    unknown = [name for name in await request.form() if name not in _KNOWN]
    waveform, remarks = await _samples(state, await file.read())
    transcription = await anyio.to_thread.run_sync(
        lambda: recogniser.transcribe(waveform, language or None, with_speakers), limiter=state.recognising
    )
    headers = warned(unknown, remarks=remarks)
    if stream:
        return StreamingResponse(_events(transcription, with_speakers), 200, headers, "text/event-stream")
    if response_format in ("srt", "vtt"):
        return PlainTextResponse(captions(transcription.words, f".{response_format}"), headers=headers)
    if response_format == "text":
        return PlainTextResponse(f"{transcription.text}\n", headers=headers)
    if response_format == "json":
        return JSONResponse({"text": transcription.text, "usage": _usage(transcription)}, headers=headers)
    if with_speakers:
        return JSONResponse(_diarized(transcription), headers=headers)
    return JSONResponse(_verbose(transcription, timestamp_granularities or ["segment"]), headers=headers)


def recogniser_of(state: ServerState, model: str | None) -> Recogniser:
    """The recogniser of that name; None: the first. Raises ApiError."""
    own = state.recognisers
    if not own:
        raise ApiError(
            404, "this server transcribes nothing; start it with the model whisper, too", code="no_recogniser"
        )
    if model is None:
        return next(iter(own.values()))
    aliased = state.settings.aliases.get(model, "")
    for name in (model, aliased):
        if name in own:
            return own[name]
    if aliased or not OPENAI_RECOGNISERS.fullmatch(model):
        raise no_model(model, own, "transcribe", state.models)
    return next(iter(own.values()))


async def _samples(state: ServerState, recording: bytes) -> tuple[FloatArray, tuple[str, ...]]:
    """The samples (N,) of an upload at 16 kHz, and what is unusual about the file."""
    settings = state.settings
    upload = await state.in_thread(
        lambda: state.decoders.decoded(recording, settings.max_transcription_seconds, settings.decode_seconds, "file")
    )
    waveform_N = await state.in_thread(
        lambda: np.asarray(resample(upload.waveform, upload.sample_rate, RATE), dtype=np.float32)
    )
    return waveform_N, upload.remarks


def _usage(transcription: Transcription) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(transcription.seconds)}


def _text(words: Iterable[TimedWord]) -> str:
    return " ".join(word.text for word in words)


def _verbose(transcription: Transcription, granularities: list[str]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "task": "transcribe",
        "language": primary(transcription.language or ""),
        "duration": round(transcription.seconds, 3),
        "text": transcription.text,
    }
    if "word" in granularities:
        document["words"] = [{"word": word.text, "start": word.start, "end": word.end} for word in transcription.words]
    if "segment" in granularities:
        document["segments"] = [
            {"id": number, **_verbose_segment(words)} for number, words in enumerate(transcription.segments())
        ]
    return document | {"usage": _usage(transcription)}


def _verbose_segment(words: list[TimedWord]) -> dict[str, Any]:
    """A segment with all fields of OpenAI's, without one of which the AI SDK refuses the answer."""
    text, start = _text(words), words[0].start
    certain = [max(word.confidence, _LEAST_CONFIDENCE) for word in words if word.confidence is not None]
    return {
        "seek": round(100 * start),  # in Whisper's frames
        "start": start,
        "end": words[-1].end,
        "text": text,
        "tokens": [],  # not every recogniser has Whisper's
        "temperature": 0.0,
        "avg_logprob": sum(map(math.log, certain)) / max(1, len(certain)),
        "compression_ratio": len(text.encode()) / len(zlib.compress(text.encode())),
        "no_speech_prob": 0.0,  # of what has words
    }


_LEAST_CONFIDENCE = 1e-6


def _diarized(transcription: Transcription) -> dict[str, Any]:
    return {
        "task": "transcribe",
        "duration": round(transcription.seconds, 3),
        "text": transcription.text,
        "segments": [_segment(number, words) for number, words in enumerate(transcription.segments())],
        "usage": _usage(transcription),
    }


def _segment(number: int, words: list[TimedWord]) -> dict[str, Any]:
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{number:03}",
        "start": words[0].start,
        "end": words[-1].end,
        "text": _text(words),
        "speaker": words[0].speaker or "",
    }


async def _events(transcription: Transcription, with_speakers: bool) -> AsyncIterator[bytes]:
    """Server-sent events: a delta for each sentence, the segment where speakers are told, then all."""
    for number, words in enumerate(transcription.segments()):
        space = " " if number else ""
        yield event({"type": "transcript.text.delta", "delta": space + _text(words)})
        if with_speakers:
            yield event(_segment(number, words))
    yield event({"type": "transcript.text.done", "text": transcription.text, "usage": _usage(transcription)})
