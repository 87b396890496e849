"""OpenAI's protocol: `/v1/audio/speech` and `/v1/models`."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.types import Receive, Scope, Send

from phonate.serving.encoding import FORMATS
from phonate.serving.errors import ApiError, error_body, told
from phonate.serving.server_state import Said, ServerState, marks, state_of
from phonate.serving.speech import Speech
from phonate.text.captions import TimedWord
from phonate.training.speech_service import Reference, SpeechRequest

router = APIRouter(prefix="/v1")


class VoiceId(BaseModel):
    """A voice by its id."""

    model_config = ConfigDict(extra="forbid")
    id: str


class SpeechBody(BaseModel):
    """What `/v1/audio/speech` takes: OpenAI's fields, then ours."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str
    input: str
    voice: str | VoiceId | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: float = Field(default=1.0, ge=0.25, le=4.0)
    stream_format: Literal["audio", "sse"] = "audio"
    input_type: Literal["text", "ssml"] | None = None
    """What `input` is. Null: SSML where it begins with <speak."""
    timestamp_granularities: list[Literal["word"]] = []
    """Whether events tell when words are said."""
    reference_audio: str | None = None
    """Base64 of a recording of the voice, for models that clone."""
    reference_text: str | None = None
    """What is said in it."""
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)

    @field_validator("reference_audio")
    @classmethod
    def _no_url(cls, value: str | None) -> str | None:
        if value is not None and value.startswith(("http:", "https:", "file:", "data:")):
            raise ValueError("send the recording itself in base64; the server opens no address and no path")
        return value


class _Streamed(StreamingResponse):
    """Ends the work on its speech, however it ends itself."""

    def __init__(self, speech: Speech, content: AsyncIterator[bytes], media_type: str, headers: dict[str, str]) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._speech = speech

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._speech.close()


@router.post("/audio/speech", response_class=Response)
async def create_speech(request: Request, body: SpeechBody) -> Response:
    """Make speech of a text. It is sent while it is made."""
    state = state_of(request)
    if body.model != state.settings.model_name:
        raise _no_model(body.model)
    spoken = state.said(body.input, "input", body.input_type)
    if body.timestamp_granularities:
        _require_times(state, body)
    wanted = await _wanted(state, body, spoken)
    speech = await state.speaker.speak(request, wanted, body.response_format)
    headers = marks(state.service.sample_rate)
    if body.stream_format == "sse":
        return _Streamed(
            speech, _events(speech, spoken.characters, bool(body.timestamp_granularities)), "text/event-stream", headers
        )
    return _Streamed(speech, speech.parts(), FORMATS[body.response_format].media_type, headers)


def _require_times(state: ServerState, body: SpeechBody) -> None:
    """Raise ApiError where there is no room for times, or nobody who knows them."""
    name = "timestamp_granularities"
    if body.stream_format != "sse":
        raise ApiError(400, f"{name}: an audio stream can't carry times; set stream_format to sse", param=name)
    if not state.service.tells_times:
        raise ApiError(400, f"{name}: this model can't tell when each word is said; leave it out", param=name)


async def _wanted(state: ServerState, body: SpeechBody, spoken: Said) -> SpeechRequest:
    voice, reference = await _voice(state, body)
    return SpeechRequest(
        spoken.text,
        voice,
        reference,
        body.speed,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        seed=body.seed,
        ssml=spoken.ssml,
    )


async def _voice(state: ServerState, body: SpeechBody) -> tuple[str | None, Reference | None]:
    """The name of one of the model's voices, or a reference."""
    name = (body.voice.id if isinstance(body.voice, VoiceId) else body.voice) or None
    if body.reference_audio is None:
        if body.reference_text is not None:
            raise ApiError(400, "reference_text: there is no reference_audio", param="reference_text")
        return await state.voice(name)
    if name:
        raise ApiError(400, "give either voice or reference_audio", param="voice")
    return None, await state.reference(_bytes(body.reference_audio), body.reference_text)


def _bytes(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "reference_audio: not base64", param="reference_audio") from None


async def _events(speech: Speech, characters: int, times: bool) -> AsyncIterator[bytes]:
    """Server-sent events: a delta for each part, words before their sound, then done, or an error."""
    try:
        async for part in speech.parts():
            if times and (words := [_timed(word) for word in speech.words()]):
                yield _event({"type": "speech.audio.words", "words": words})
            yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})
    except Exception as error:  # noqa: BLE001 - the answer has begun, so only an event can tell
        yield _event({"type": "error", **error_body(500, told(error))})
        return
    usage = {"input_tokens": characters, "output_tokens": speech.samples, "total_tokens": characters + speech.samples}
    yield _event({"type": "speech.audio.done", "usage": usage})


def _timed(word: TimedWord) -> dict[str, Any]:
    """As in OpenAI's transcriptions."""
    return {"word": word.text, "start": word.start, "end": word.end}


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    """The model that is served."""
    return {"object": "list", "data": [_model(state_of(request))]}


@router.get("/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """The model that is served, by its name."""
    state = state_of(request)
    if name != state.settings.model_name:
        raise _no_model(name)
    return _model(state)


def _model(state: ServerState) -> dict[str, Any]:
    return {"id": state.settings.model_name, "object": "model", "created": state.started, "owned_by": "phonate"}


def _no_model(name: str) -> ApiError:
    return ApiError(
        404, f"there is no model {name[:200]!r}; GET /v1/models names it", param="model", code="model_not_found"
    )
