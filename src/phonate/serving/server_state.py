"""What the routes share: the service, the limits, the voices, and how what a client sends becomes a request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

import anyio
import anyio.to_thread
from fastapi import Request

from phonate.config.errors import InputError
from phonate.serving.errors import ApiError
from phonate.serving.guard import Gate
from phonate.serving.metrics import Metrics
from phonate.serving.settings import ServingSettings
from phonate.serving.speech import Speaker
from phonate.serving.uploads import Decoders
from phonate.serving.voices import VoiceStore
from phonate.text.ssml import is_ssml, parse
from phonate.training.speech_service import Reference, SpeechService

T = TypeVar("T")

DECODERS = 2
"""Recordings that are decoded at once."""
MARKUP = 10
"""So many times as long as a text may be, SSML may be with its markup."""


@dataclass(frozen=True)
class Said:
    """What is to be spoken."""

    text: str
    characters: int
    """That are spoken: without markup."""
    ssml: bool


@dataclass
class ServerState:
    """The parts of one server."""

    settings: ServingSettings
    service: SpeechService
    gate: Gate
    metrics: Metrics
    speaker: Speaker
    voices: VoiceStore | None
    decoders: Decoders
    started: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""
    _decoding: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(DECODERS))

    def text(self, text: str, param: str) -> str:
        """A text of Unicode characters, of a length that is allowed. Raises ApiError."""
        if len(text) > self.settings.max_text:
            raise _too_long(f"{param}: {len(text)} characters; at most {self.settings.max_text} are allowed", param)
        self._characters(text, param)
        if not text.strip():
            raise ApiError(400, f"{param}: is empty", param=param, code="empty_string")
        return text

    @staticmethod
    def _characters(text: str, param: str) -> None:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ApiError(400, f"{param}: has half of a surrogate pair, which is no character", param=param)

    def said(self, text: str, param: str, kind: Literal["text", "ssml"] | None = None) -> Said:
        """A text or an SSML document that may be spoken. Raises ApiError.

        `kind`: what it is; None: SSML where it begins with <speak.
        """
        try:
            ssml = is_ssml(text) if kind is None else kind == "ssml"
        except InputError as error:
            raise ApiError(400, str(error), param=param, code="invalid_ssml") from error
        if not ssml:
            return Said(self.text(text, param), len(text), ssml=False)
        if not self.service.follows_ssml:
            raise ApiError(400, f"{param}: this model can't read SSML; send plain text", param=param)
        most = self.settings.max_text
        if len(text) > MARKUP * most:
            raise _too_long(f"{param}: {len(text)} characters with markup; at most {MARKUP * most} are allowed", param)
        self._characters(text, param)
        try:
            parts = parse(text)
        except InputError as error:
            raise ApiError(400, str(error), param=param, code="invalid_ssml") from error
        spoken, silence = sum(len(part.text) for part in parts), sum(part.seconds or 0.0 for part in parts)
        if spoken > most:
            raise _too_long(f"{param}: {spoken} characters to speak; at most {most} are allowed", param)
        if silence > self.settings.max_silence:
            raise _too_long(
                f"{param}: {silence:g} s of silence; at most {self.settings.max_silence:g} s are allowed", param
            )
        return Said(text, spoken, ssml=True)

    async def reference(
        self, recording: bytes, text: str | None, name: str = "reference_audio", text_name: str = "reference_text"
    ) -> Reference:
        """A recording that a client sent, decoded. Raises InputError."""
        settings = self.settings
        if text is not None:
            text = self.text(text, text_name)
        waveform, rate = await self.in_thread(
            lambda: self.decoders.decoded(recording, settings.max_reference_seconds, settings.decode_seconds, name)
        )
        return Reference(waveform, rate, text)

    async def voice(self, name: str | None) -> tuple[str | None, Reference | None]:
        """The voice of the model, or the reference of the uploaded voice, that is called `name`. Raises ApiError."""
        if name is not None and name in self.service.voices:
            return name, None
        store = self.voices
        found = None if name is None or store is None else await self.in_thread(lambda: store.get(name))
        if found is not None:
            return None, found[1]
        if name is not None and self.service.needs_reference:
            raise ApiError(
                400,
                f"there is no voice {name[:200]!r}; GET /v1/voices lists them",
                param="voice",
                code="voice_not_found",
            )
        if self.service.needs_reference:
            raise ApiError(400, "voice: name one of /v1/voices, or send reference_audio", param="voice")
        return name, None

    def require_voices(self) -> VoiceStore:
        """The uploaded voices. Raises ApiError where none can be."""
        if not self.service.needs_reference:
            raise ApiError(400, "this model clones no voices; it has its own, which GET /v1/voices lists")
        if self.voices is None:
            raise ApiError(403, "this server stores no voices; start it with --voices FOLDER", code="voices_disabled")
        return self.voices

    async def in_thread(self, call: Callable[[], T]) -> T:
        """What `call` returns, which decodes or reads files; a few at a time."""
        return await anyio.to_thread.run_sync(call, limiter=self._decoding)


def _too_long(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="string_above_max_length")


def state_of(request: Request) -> ServerState:
    """The state of the server that `request` came to."""
    return cast(ServerState, request.app.state.server)


def marks(sample_rate: int) -> dict[str, str]:
    """Headers of every answer with sound."""
    return {"X-AI-Generated": "true", "X-Sample-Rate": str(sample_rate), "Cache-Control": "no-store"}
