"""The routes of the server: OpenAI's protocol, documents, voices, and what those who run it look at."""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import anyio
import anyio.to_thread
from fastapi import APIRouter, File, Form, Query, Request, UploadFile
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from starlette.types import Receive, Scope, Send

from phonate.config.errors import InputError
from phonate.config.registry import nearest
from phonate.serving.guard import ApiError, Gate, error_event, no_model, no_voice, refuse_unknown_fields, require_key
from phonate.serving.metrics import Metrics
from phonate.serving.models import LazyService
from phonate.serving.requests import examples
from phonate.serving.settings import ServingSettings
from phonate.serving.speech import FORMATS, Speaker, Speech
from phonate.serving.uploads import Decoders
from phonate.serving.voices import CONSENT, VoiceStore, new_voice
from phonate.text.language import tell_other
from phonate.text.ssml import Part, is_ssml, parse
from phonate.training.inference import Reference, SpeechRequest, SpeechResult, SpeechService
from phonate.workflows.pages.plots import render

if TYPE_CHECKING:
    from phonate.serving.conversions import Conversion
    from phonate.serving.transcriptions import Recogniser

# ------------------------------------------------------- What they share, and how what a client sends becomes a request

T = TypeVar("T")

DECODERS = 2
"""Recordings that are decoded at once."""
RECOGNISERS = 8
"""Threads that wait for the recogniser, which takes one recording at a time."""
MARKUP = 10
"""So many times as long as a text may be, SSML may be with its markup."""
LOWEST_RATE, HIGHEST_RATE = 8000, 192_000
"""Hz of samples that clients send."""


OPENAI_MODELS = re.compile(r"tts-\d.*|gpt-.*tts.*")
"""Names of its models that speak, dated and later ones included."""
OPENAI_RECOGNISERS = re.compile(r"whisper-\d.*|gpt-.*transcribe.*")
"""Names of those that transcribe."""
OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "nova"),
    *("onyx", "sage", "shimmer", "verse", "marin", "cedar"),
)
"""Names that its clients offer or send unasked."""


@dataclass(frozen=True)
class SpokenText:
    """What is to be spoken."""

    text: str
    characters: int
    """That are spoken: without markup."""
    script: Sequence[Part] | None = None
    """What it says as SSML."""


@dataclass
class ServerState:
    """The parts of one server."""

    settings: ServingSettings
    services: Mapping[str, LazyService]
    """What speaks, by name; the first is the one that OpenAI's names stand for."""
    gate: Gate
    metrics: Metrics
    speaker: Speaker
    voices: VoiceStore | None
    decoders: Decoders
    recognisers: Mapping[str, Recogniser] = field(default_factory=dict)
    """What transcribes, by name."""
    converters: Mapping[str, Conversion] = field(default_factory=dict)
    """What converts, by name."""
    recognising: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(RECOGNISERS))
    started: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""
    _decoding: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(DECODERS))

    @property
    def models(self) -> list[str]:
        """The names of all models."""
        return [*self.services, *self.recognisers, *self.converters]

    @property
    def all_models(self) -> list[str]:
        """The same, and what tells the speakers of transcripts apart, which no request names."""
        diarizers = [one.diarizer.name for one in self.recognisers.values() if one.diarizer is not None]
        return list(dict.fromkeys([*self.models, *diarizers]))

    def text(self, text: str, param: str) -> str:
        """A text of Unicode characters, of a length that is allowed. Raises ApiError."""
        if len(text) > self.settings.max_text:
            raise _too_long(f"{param}: {len(text)} characters; at most {self.settings.max_text} are allowed", param)
        self.characters_of(text, param)
        if not text.strip():
            raise ApiError(400, f"{param}: is empty", param=param, code="empty_string")
        return text

    @staticmethod
    def characters_of(text: str, param: str) -> None:
        """Raise ApiError for a text that has what is no character."""
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ApiError(400, f"{param}: has half of a surrogate pair, which is no character", param=param)

    def spoken_text(
        self, service: SpeechService, text: str, param: str, kind: Literal["text", "ssml"] | None = None
    ) -> SpokenText:
        """A text or an SSML document that `service` may speak. Raises ApiError.

        `kind`: what it is; None: SSML where it begins with <speak.
        """
        try:
            ssml = is_ssml(text) if kind is None else kind == "ssml"
        except InputError as error:
            raise ApiError(400, str(error), param=param, code="invalid_ssml") from error
        if not ssml:
            return SpokenText(self.text(text, param), len(text))
        if not service.follows_ssml:
            raise ApiError(400, f"{param}: this model can't read SSML; send plain text", param=param)
        most = self.settings.max_text
        if len(text) > MARKUP * most:
            raise _too_long(f"{param}: {len(text)} characters with markup; at most {MARKUP * most} are allowed", param)
        self.characters_of(text, param)
        try:
            parts = parse(text, service.language)
        except InputError as error:
            raise ApiError(400, str(error), param=param, code="invalid_ssml") from error
        characters, silence = sum(len(part.text) for part in parts), sum(part.seconds or 0.0 for part in parts)
        if characters > most:
            raise _too_long(f"{param}: {characters} characters to speak; at most {most} are allowed", param)
        if silence > self.settings.max_silence:
            raise _too_long(
                f"{param}: {silence:g} s of silence; at most {self.settings.max_silence:g} s are allowed", param
            )
        return SpokenText(text, characters, parts)

    def check_length(self, seconds: float | None) -> None:
        """Raise ApiError where a request asks for longer speech than is allowed."""
        most = self.settings.max_speech_seconds
        if seconds is not None and seconds > most:
            raise ApiError(400, f"max_seconds: {seconds:g} s; at most {most:g} s are allowed", param="max_seconds")

    async def reference(
        self, recording: bytes, text: str | None, name: str = "reference_audio", text_name: str = "reference_text"
    ) -> tuple[Reference, tuple[str, ...]]:
        """A recording that a client sent, decoded, and what is unusual about it. Raises InputError."""
        settings = self.settings
        if text is not None:
            text = self.text(text, text_name)
        upload = await self.in_thread(
            lambda: self.decoders.decoded(recording, settings.max_reference_seconds, settings.decode_seconds, name)
        )
        return Reference(upload.waveform, upload.sample_rate, text), upload.remarks

    def stands_for(self, alias: str) -> bool:
        """Whether a name of no model is one by which a request may ask for one."""
        if aliased := self.settings.aliases.get(alias):
            return aliased in self.models
        transcribes = bool(self.recognisers) and OPENAI_RECOGNISERS.fullmatch(alias) is not None
        return transcribes or bool(self.names(alias))

    def names(self, model: str) -> list[str]:
        """The names of the models that `model` may stand for, those of services first; none for an unknown name."""
        aliased = self.settings.aliases.get(model, "")
        if OPENAI_MODELS.fullmatch(model) and not aliased:
            return list(self.services)
        return [one for one in (model, aliased) if one in self.services]

    async def service(self, model: str | None = None, voice: str | None = None) -> LazyService:
        """The service of a model, loaded if it never was. None, and OpenAI's names, stand for the first that has the
        `voice`, or else for the first. Raises ApiError for a name that no service has."""
        if not self.services:
            raise ApiError(404, "this server speaks nothing; start it with a model that does", code="no_voice")
        names = list(self.services) if model is None else self.names(model)
        if not names:
            raise no_model(model or "", self.services, "speak", self.models)
        wanted = (voice, self.settings.aliases.get(voice or ""))
        known = (one for one in names if any(name in self.services[one].voices for name in wanted if name))
        service = self.services[next(known, names[0])]
        await anyio.to_thread.run_sync(service.prepare)
        return service

    async def voice(self, service: SpeechService, name: str | None) -> tuple[str | None, Reference | None]:
        """The voice of `service`, or the reference of the uploaded voice, that is called `name`, by its name or by an
        alias. Raises ApiError."""
        own, store = service.voices, self.voices
        for one in () if name is None else (name, self.settings.aliases.get(name)):
            if one in own:
                return one, None
            stored = None if one is None or store is None else await self.in_thread(partial(store.get, one))
            if stored is not None:
                return None, stored[1]
        if name in OPENAI_VOICES and own:
            return own[OPENAI_VOICES.index(name) % len(own)], None
        if name is not None and service.needs_reference:
            uploaded = [] if store is None else await self.in_thread(store.list)
            raise no_voice(name, [*own, *(one.name for one in uploaded)])
        if service.needs_reference:
            raise ApiError(400, "voice: name one of /v1/voices, or send reference_audio", param="voice")
        return name, None

    async def require_voices(self) -> VoiceStore:
        """The uploaded voices. Raises ApiError where none can be."""
        if await self.cloning() is None:
            raise ApiError(400, "this model clones no voices; it has its own, which GET /v1/voices lists")
        if self.voices is None:
            raise ApiError(403, "this server stores no voices; start it with --voices FOLDER", code="voices_disabled")
        return self.voices

    async def cloning(self) -> LazyService | None:
        """The first service that clones voices."""
        for name in self.services:
            if (service := await self.service(name)).needs_reference:
                return service
        return None

    async def in_thread(self, call: Callable[[], T]) -> T:
        """What `call` returns, which decodes or reads files; a few at a time."""
        return await anyio.to_thread.run_sync(call, limiter=self._decoding)


def _too_long(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="string_above_max_length")


def state_of(request: Request) -> ServerState:
    """The state of the server that `request` came to."""
    return cast(ServerState, request.app.state.server)


def marks(
    sample_rate: int, ignored: Iterable[str] = (), left_out: str = "", remarks: Iterable[str] = ()
) -> dict[str, str]:
    """Headers of every answer with sound, at `sample_rate` Hz; the others as for `warned`."""
    headers = {"X-AI-Generated": "true", "X-Sample-Rate": str(sample_rate), "Cache-Control": "no-store"}
    return headers | warned(ignored, left_out, remarks)


def warned(ignored: Iterable[str], left_out: str = "", remarks: Iterable[str] = ()) -> dict[str, str]:
    """The header that names unknown fields of a request (`ignored`), characters of its text that are not read
    (`left_out`), and what is unusual about the recordings that came (`remarks`), where there are any."""
    names = ", ".join(_within_quotes(name[:50]) for name in ignored)[:500]
    told = [f"ignored, as this server knows no such field: {names}"] * bool(names)
    told += [not_read(left_out)] * bool(left_out)
    told += [_within_quotes(remark)[:500] for remark in remarks]  # some quote titles of sound tracks
    return {"Warning": ", ".join(f'299 phonate "{one}"' for one in told)} if told else {}


def _of_language(service: LazyService, content: SpokenText) -> tuple[str, ...]:
    """What is told of a text in another language than the voice's; cloning's voices have none."""
    text = content.text if content.script is None else " ".join(part.text for part in content.script)
    told = None if service.language is None else tell_other(text, service.language)
    return () if told is None else (told,)


def _within_quotes(text: str) -> str:
    """ASCII that may stand between quotation marks."""
    return json.dumps(text)[1:-1].replace("\\", "")


def not_read(left_out: str) -> str:
    """What is told of the characters `left_out`."""
    return f"left out or spelt, as this model can't read them: {left_out}"


# ---------------------------------------------- OpenAI's protocol: `/v1/audio/speech` and `/v1/models`


class JsonRoute(APIRoute):
    """Reads every body as JSON, whatever it is said to be: `curl -d` calls it a form. What other sites' pages send so
    is refused by `Guard`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function that answers a request."""
        answer = super().get_route_handler()

        async def as_json(request: Request) -> Response:
            headers = [one for one in request.scope["headers"] if one[0] != b"content-type"]
            headers.append((b"content-type", b"application/json"))
            return await answer(Request({**request.scope, "headers": headers}, request.receive))

        return as_json


openai_router = APIRouter(prefix="/v1", route_class=JsonRoute)


class VoiceId(BaseModel):
    """A voice by its id."""

    model_config = ConfigDict(extra="forbid")
    id: str


class Delivery(BaseModel):
    """How a text is spoken, whole or while it is written. Null is the same as leaving a field out."""

    model_config = ConfigDict(allow_inf_nan=False)

    speed: float = Field(default=1.0, ge=0.25, le=4.0)
    timestamp_granularities: list[Literal["word"]] = []
    """Whether events tell when words are said."""
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    max_seconds: float | None = Field(default=None, gt=0.0)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value

    def request(
        self, text: str, voice: str | None, reference: Reference | None, script: Sequence[Part] | None = None
    ) -> SpeechRequest:
        """The request for a text in a voice, spoken so."""
        return SpeechRequest(
            text,
            voice,
            reference,
            self.speed,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            max_seconds=self.max_seconds,
            script=script,
        )


class SpeechBody(Delivery):
    """What `/v1/audio/speech` takes: OpenAI's fields, then ours."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: str
    voice: str | VoiceId | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    stream_format: Literal["audio", "sse"] = "audio"
    input_type: Literal["text", "ssml"] | None = None
    """What `input` is. Null: SSML where it begins with <speak."""
    reference_audio: str | None = None
    """Base64 of a recording of the voice, for models that clone."""
    reference_text: str | None = None
    """What is said in it."""

    @field_validator("reference_audio")
    @classmethod
    def _no_url(cls, value: str | None) -> str | None:
        if value is not None and value.startswith(("http:", "https:", "file:", "data:")):
            raise ValueError("send the recording itself in base64; the server opens no address and no path")
        return value


class StreamedSpeech(StreamingResponse):
    """Ends the work on its speech, however it ends itself."""

    def __init__(self, speech: Speech, content: AsyncIterator[bytes], media_type: str, headers: dict[str, str]) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._speech = speech

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._speech.close()


@openai_router.post("/audio/speech", response_class=Response)
async def create_speech(request: Request, body: SpeechBody) -> Response:
    """Make speech of a text. It is sent while it is made."""
    state = state_of(request)
    service = await state.service(body.model, _named(body))
    unknown = list(body.model_extra or ())
    if unknown and state.settings.strict:
        shown = unknown[0][:100]
        raise ApiError(400, f"{shown!r} is not a field; {nearest(shown, list(SpeechBody.model_fields))}", param=shown)
    content = state.spoken_text(service, body.input, "input", body.input_type)
    if body.timestamp_granularities:
        name = "timestamp_granularities"
        if body.stream_format != "sse":
            raise ApiError(400, f"{name}: an audio stream can't carry times; set stream_format to sse", param=name)
        if not service.tells_times:
            raise ApiError(400, f"{name}: this model can't tell when each word is said; leave it out", param=name)
    speech_request, remarks = await _speech_request(state, service, body, content)
    speech, left_out = await _synthesise(request, service, speech_request, body.response_format)
    remarks = (*remarks, *_of_language(service, content))
    headers = marks(FORMATS[body.response_format].rate or service.sample_rate, unknown, left_out, remarks)
    if body.stream_format == "sse":
        return StreamedSpeech(
            speech,
            _events(speech, content.characters, bool(body.timestamp_granularities)),
            "text/event-stream",
            headers,
        )
    return StreamedSpeech(speech, speech.parts(), FORMATS[body.response_format].media_type, headers)


async def _speech_request(
    state: ServerState, service: SpeechService, body: SpeechBody, content: SpokenText
) -> tuple[SpeechRequest, tuple[str, ...]]:
    """With what is unusual about the reference that came."""
    state.check_length(body.max_seconds)
    voice, reference, remarks = await _voice(state, service, body)
    return body.request(content.text, voice, reference, content.script), remarks


def _named(body: SpeechBody) -> str | None:
    return (body.voice.id if isinstance(body.voice, VoiceId) else body.voice) or None


async def _voice(
    state: ServerState, service: SpeechService, body: SpeechBody
) -> tuple[str | None, Reference | None, tuple[str, ...]]:
    """The name of one of the model's voices, or a reference, with what is unusual about one that came."""
    name = _named(body)
    if body.reference_audio is None:
        if body.reference_text is not None:
            raise ApiError(400, "reference_text: there is no reference_audio", param="reference_text")
        return *await state.voice(service, name), ()
    if name:
        raise ApiError(400, "give either voice or reference_audio", param="voice")
    return None, *await state.reference(_bytes(body.reference_audio), body.reference_text)


def _bytes(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "reference_audio: not base64", param="reference_audio") from None


async def _events(speech: Speech, characters: int, times: bool) -> AsyncIterator[bytes]:
    """Server-sent events of speech, of which an error is one: the answer has begun."""
    try:
        async for one in speech_events(speech, lambda: characters, times):
            yield event(one)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
        yield event(error_event(error))


async def _synthesise(
    request: Request, service: LazyService, asked: SpeechRequest, name: str, whole: bool = False
) -> tuple[Speech, str]:
    """The speech that is `asked` for, see `Speaker.speak`, and the characters of its text that are not read."""
    left_out: list[str] = []

    def submit() -> SpeechResult:
        left_out.append(service.left_out(asked))
        return service.submit(asked)

    speech = await state_of(request).speaker.speak(request, service.sample_rate, submit, name, whole)
    return speech, left_out[0]


async def speech_events(speech: Speech, characters: Callable[[], int], times: bool) -> AsyncIterator[dict[str, Any]]:
    """A delta for each part, words before their sound, then done. `characters`: of the text, at last. Raises what goes
    wrong."""
    async for part in speech.parts():
        if times and (words := [{"word": word.text, "start": word.start, "end": word.end} for word in speech.words()]):
            yield {"type": "speech.audio.words", "words": words}
        yield {"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()}
    read, made = characters(), speech.samples
    usage = {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
    yield {"type": DONE, "usage": usage}


DONE = "speech.audio.done"
"""Type of the last event of a text."""


def event(value: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(value)}\n\n".encode()


@openai_router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    """The models that are served."""
    state = state_of(request)
    return {"object": "list", "data": [_model(state, name) for name in state.models]}


@openai_router.get("/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """A model that is served, by its name or an alias."""
    state = state_of(request)
    if name not in state.models and not state.stands_for(name):
        raise no_model(name, state.models)
    return _model(state, name)


def _model(state: ServerState, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": state.started, "owned_by": "phonate"}


@openai_router.get("/audio/models")
async def speech_models(request: Request) -> dict[str, Any]:
    """As Open WebUI asks for them."""
    return {"models": [{"id": name} for name in state_of(request).services]}


@openai_router.get("/audio/voices")
async def speech_voices(request: Request, model: str | None = None) -> dict[str, Any]:
    """As Open WebUI and others ask for them: those of a model, or of all that were loaded."""
    names = dict.fromkeys(one["id"] for one in await _voices(state_of(request), model))
    return {"voices": [{"id": name, "name": name} for name in names]}


async def _voices(state: ServerState, model: str | None) -> list[dict[str, Any]]:
    """The voices of a model, or of the first and all others that are known without loading, then those that were
    uploaded. Raises ApiError for a model that is not there."""
    first = await state.service(model)
    services = {first.model.name: first}
    if model is None:
        services |= {name: one for name, one in state.services.items() if one.prepared}
    store = state.voices
    stored = [] if store is None else await state.in_thread(store.list)
    data = [
        {"id": voice, "object": "voice", "model": name, "uploaded": False}
        for name, service in services.items()
        for voice in service.voices
    ]
    return data + [{"id": one.name, "object": "voice", "uploaded": True, "created": one.created} for one in stored]


# -------------------- `POST /generate_speech`: a reference and a text in, a whole WAV file in JSON out

document_router = APIRouter()


@document_router.post("/generate_speech")
async def generate_speech(
    request: Request,
    response: Response,
    reference_audio: Annotated[UploadFile | None, File()] = None,
    target_text: Annotated[str | None, Form()] = None,
    reference_text: Annotated[str | None, Form()] = None,
    query_target_text: Annotated[str | None, Query(alias="target_text")] = None,
    query_reference_text: Annotated[str | None, Query(alias="reference_text")] = None,
) -> dict[str, Any]:
    """Say `target_text`, a text or SSML, in the voice of `reference_audio`. Texts are fields of the form or of the
    query.

    Returns the speech as a WAV file in base64, `audio`, and its `sample_rate`.
    """
    await refuse_unknown_fields(request, ("reference_audio", "target_text", "reference_text"))
    state = state_of(request)
    service = await state.cloning() or await state.service()
    text = target_text if target_text is not None else query_target_text
    if text is None:
        raise ApiError(400, "target_text: is missing", param="target_text")
    reference_words = reference_text if reference_text is not None else query_reference_text
    reference, remarks = None, tuple[str, ...]()
    if reference_audio is not None:
        reference, remarks = await state.reference(await reference_audio.read(), reference_words)
    elif service.needs_reference:
        raise ApiError(400, "reference_audio: is missing; send a recording as a file", param="reference_audio")
    content = state.spoken_text(service, text, "target_text")
    speech_request = SpeechRequest(content.text, reference=reference, script=content.script)
    speech, left_out = await _synthesise(request, service, speech_request, "wav", whole=True)
    try:
        file = b"".join([part async for part in speech.parts()])
    finally:
        await speech.close()
    remarks = (*remarks, *_of_language(service, content))
    response.headers.update(marks(service.sample_rate, left_out=left_out, remarks=remarks))
    return {"audio": base64.b64encode(file).decode(), "sample_rate": service.sample_rate}


# ---------------------------------------------------------------------------------------- `/v1/voices`

voices_router = APIRouter(prefix="/v1/voices")

_FIELDS = ("name", "speaker", "consent", "consent_audio", "reference_audio", "reference_text")


@voices_router.get("")
async def voices(request: Request, model: str | None = None) -> dict[str, Any]:
    """All voices, and the sentence of consent that an upload needs."""
    state = state_of(request)
    return {
        "object": "list",
        "data": await _voices(state, model),
        "uploads": state.voices is not None and await state.cloning() is not None,
        "consent": CONSENT,
    }


@voices_router.post("", status_code=201)
async def add_voice(
    request: Request,
    response: Response,
    name: Annotated[str, Form()],
    speaker: Annotated[str, Form(max_length=200)],
    consent: Annotated[str, Form(max_length=1000)],
    reference_audio: Annotated[UploadFile, File()],
    consent_audio: Annotated[UploadFile, File()],
    reference_text: Annotated[str | None, Form()] = None,
) -> dict[str, Any]:
    """Store a voice: its name, a recording with its text, and the consent of `speaker`, as a sentence and spoken."""
    await refuse_unknown_fields(request, _FIELDS)
    state = state_of(request)
    store = await state.require_voices()
    voice = new_voice(name, reference_text, speaker, consent)
    if any(voice.name in one.voices for one in state.services.values()):
        raise ApiError(400, f"the model has a voice {voice.name!r}; choose another name", param="name")
    reference, remarks = await state.reference(await reference_audio.read(), reference_text)
    consent_recording, others = await state.reference(await consent_audio.read(), None, "consent_audio")
    await state.in_thread(
        lambda: store.add(voice, reference, (consent_recording.waveform, consent_recording.sample_rate))
    )
    response.headers.update(warned((), remarks=(*remarks, *others)))
    return {"id": voice.name, "object": "voice", "uploaded": True, "created": voice.created}


@voices_router.delete("/{name}")
async def remove_voice(request: Request, name: str) -> dict[str, Any]:
    """Delete an uploaded voice and its recordings."""
    state = state_of(request)
    store = await state.require_voices()
    if not await state.in_thread(lambda: store.remove(name)):
        raise ApiError(404, f"there is no uploaded voice {name[:100]!r}", param="name", code="voice_not_found")
    return {"id": name, "object": "voice", "deleted": True}


# ------------------------- What those who run the server look at: the page, health, readiness, metrics

status_router = APIRouter()


@status_router.get("/", response_class=HTMLResponse, include_in_schema=False)
async def page(request: Request) -> HTMLResponse:
    """A page that says what there is, to try the first model that speaks with; without the server's key one that asks
    for it. It loads nothing from elsewhere, and no script but its own runs in it."""
    state, nonce = state_of(request), secrets.token_urlsafe(16)
    if state.settings.api_keys and "authorization" not in request.headers:
        return _page_with(nonce, _LOCKED)
    require_key(request.headers, [key.encode() for key in state.settings.api_keys])
    service = await state.service() if state.services else None
    shown = {
        "name": ", ".join(state.all_models),
        "kind": "phonate server",
        "summary": _summary(service is not None, bool(state.recognisers)),
        "figures": (),
        "locked": False,
        "key": bool(state.settings.api_keys),
        "as_openai": bool(state.services or state.recognisers),
        "requests": list(examples(state, str(request.base_url).rstrip("/"))),
        "speaks": None if service is None else _speaking(state, service),
        "transcribes": next((_transcribing(state, one) for one in state.recognisers.values()), None),
    }
    return _page_with(nonce, shown)


_LOCKED = {
    "name": "This server needs a key",
    "kind": "phonate server",
    "summary": "",
    "figures": (),
    "locked": True,
    "key": False,
    "speaks": None,
    "transcribes": None,
}


def _page_with(nonce: str, shown: Mapping[str, Any]) -> HTMLResponse:
    """The page, in which only scripts with this `nonce` run."""
    text = render("server.html.jinja", {"nonce": nonce, **shown}, package="phonate.serving")
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "media-src 'self' blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(
        text,
        headers={
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        },
    )


def _summary(speaks: bool, transcribes: bool) -> str:
    """What can be done here, in a sentence or two."""
    if speaks and transcribes:
        return "Let a text be spoken, or a recording be transcribed. All that is said and read here is made by a model."
    if speaks:
        return "Type a text, choose a voice and listen. A model speaks, not a person."
    if transcribes:
        return "Choose a recording, or make one here, and read what a model hears in it."
    return "Send it recordings, as below. What it answers is made by a model."


def _transcribing(state: ServerState, recogniser: Recogniser) -> dict[str, Any]:
    """What the page needs to know of what transcribes there."""
    return {
        "model": recogniser.name,
        "form": "diarized_json" if recogniser.tells_speakers else "verbose_json",
        "max_minutes": state.settings.max_transcription_seconds / 60.0,
    }


def _speaking(state: ServerState, service: LazyService) -> dict[str, Any]:
    """What the page needs to know of what speaks there."""
    return {
        "model": service.model.name,
        "clones": service.needs_reference,
        "uploads": service.needs_reference and state.voices is not None,
        "max_text": state.settings.max_text * (MARKUP if service.follows_ssml else 1),
        "ssml": service.follows_ssml,
        "max_reference_seconds": state.settings.max_reference_seconds,
        "consent": CONSENT,
    }


@status_router.get("/docs", include_in_schema=False)
async def docs() -> RedirectResponse:
    """Where servers made with FastAPI describe themselves, with scripts from elsewhere: the page's requests."""
    return RedirectResponse("./#requests")


@status_router.get("/health")
async def health() -> dict[str, str]:
    """The process runs."""
    return {"status": "ok"}


@status_router.get("/ready")
async def ready(request: Request) -> dict[str, Any]:
    """Requests are taken; 503 while the server is stopping."""
    state = state_of(request)
    if state.gate.draining:
        raise ApiError(503, "the server is stopping", code="stopping")
    return {"status": "ok", **({} if state.settings.api_keys else {"model": next(iter(state.models))})}


@status_router.get("/metrics")
async def metrics(request: Request) -> Response:
    """In Prometheus's text format."""
    return Response(state_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
