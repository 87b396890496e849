"""WebSockets, for what arrives and is answered piece by piece: the text of a language model, spoken by sentences.

A message is a JSON object with a `type`. What can't be met is answered by `error`, in the form of all errors, and ends
the connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, TypeVar

import anyio
import anyio.to_thread
from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from phonate.config.errors import InputError
from phonate.serving.guard import ApiError, error_event, mistake_line
from phonate.serving.models import LazyService
from phonate.serving.routes import DONE, Delivery, ServerState, not_read, speech_events
from phonate.serving.speech import FORMATS, Pieces
from phonate.training.inference import SpeechRequest

T = TypeVar("T")
Settings = TypeVar("Settings", bound=BaseModel)

router = APIRouter()

_MOST_TEXTS = 8
"""Texts of one connection that are spoken or wait for it."""
_POLICY, _INTERNAL = 1008, 1011
"""Codes that close a WebSocket: the client's mistake, the server's."""


async def arrived(socket: WebSocket, seconds: float) -> Message:
    """The next message of a client. Raises ApiError where none comes in time, and WebSocketDisconnect."""
    try:
        message = await asyncio.wait_for(socket.receive(), seconds)
    except TimeoutError:
        raise ApiError(408, f"nothing came for {seconds:g} s") from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    return message


async def received(socket: WebSocket, seconds: float) -> dict[str, Any]:
    """The object that `arrived`. Raises its errors, and InputError for what is none."""
    return json_of((await arrived(socket, seconds)).get("text") or "")


async def unless_failed(call: Coroutine[Any, Any, T], beside: asyncio.Task[None] | None) -> T:
    """What `call` returns. Raises what ends the task `beside` meanwhile."""
    if beside is None:
        return await call
    result = asyncio.ensure_future(call)
    try:
        await asyncio.wait({result, beside}, return_when=asyncio.FIRST_COMPLETED)
        if beside.done():
            beside.result()
        return await result
    finally:
        result.cancel()


def json_of(text: str) -> dict[str, Any]:
    """The object of a message. Raises InputError for what is none."""
    try:
        message = json.loads(text)
    except ValueError:
        raise InputError("a message is not valid JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise InputError("a message is a JSON object with a type, such as input_text.append")
    return message


def validated(kind: type[Settings], session: Any) -> Settings:
    """The settings of a session. Raises InputError with the first mistake."""
    try:
        return kind.model_validate(session)
    except ValidationError as error:
        values = session if isinstance(session, dict) else {}
        line, param = mistake_line(error.errors(), values)
        raise InputError(f"session{'.' if param else ': '}{line}") from None


@asynccontextmanager
async def answering(socket: WebSocket) -> AsyncIterator[None]:
    """Close a WebSocket at the end, after an error has been told."""
    try:
        yield
        await socket.close()
    except WebSocketDisconnect:
        pass  # the client went away
    except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
        with suppress(WebSocketDisconnect):  # unless it went away meanwhile
            await socket.send_json(error_event(error))
            await socket.close(_POLICY if isinstance(error, ApiError | InputError) else _INTERNAL)


class SpeechSession(Delivery):
    """How the text of a session is spoken; fields are those of `/v1/audio/speech`."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    """Null: the first that speaks."""
    voice: str | None = None
    response_format: Literal["mp3", "opus", "aac", "wav", "pcm"] = "pcm"


@router.websocket("/v1/audio/speech/stream")
async def speech_stream(socket: WebSocket) -> None:
    """Speak text while it is written. Takes session.update, input_text.append, input_text.flush (the text is whole),
    input_text.cancel and input_text.end; sends session.updated and the events of streamed speech."""
    await socket.accept()
    talk = _Talk(socket)
    async with answering(socket):
        try:
            await talk.answer()
        finally:
            await talk.cancel()


class _Talk:
    """One connection: texts that are spoken one after the other."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._state: ServerState = socket.app.state.server
        self._session = SpeechSession()
        self._service: LazyService | None = None
        self._request = SpeechRequest("")
        self._pieces: list[Pieces] = []
        """What is spoken and waits to be spoken; the last may take more text."""
        self._open = False
        """Whether it does."""
        self._sending: asyncio.Task[None] | None = None
        self._characters = 0

    async def answer(self) -> None:
        """Answer the messages of the client up to its last. Raises what can't be met."""
        message: dict[str, Any] = {"type": "session.begin"}
        while message["type"] != "input_text.end":
            message = await unless_failed(received(self._socket, self._state.settings.request_seconds), self._sending)
            await self._take(message)
        if self._sending is not None:
            await self._sending

    async def _take(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "session.update":
            await self._update(message.get("session", {}))
        elif kind == "input_text.append":
            await self._append(message.get("text"))
        elif kind in ("input_text.flush", "input_text.end"):
            await self._flush()
        elif kind == "input_text.cancel":
            await self.cancel()
        else:
            raise InputError(
                f"type: {kind[:50]!r} is not known; send session.update, input_text.append, input_text.flush, "
                "input_text.cancel or input_text.end"
            )

    async def _update(self, session: Any) -> None:
        if self._open:
            raise InputError("session.update: the text is not whole yet; send input_text.flush first")
        chosen = validated(SpeechSession, session)
        await self._begin(chosen)
        assert self._service is not None
        rate = FORMATS[chosen.response_format].rate or self._service.sample_rate
        shown = {**chosen.model_dump(), "model": self._service.model.name, "sample_rate": rate}
        await self._socket.send_json({"type": "session.updated", "session": shown})

    async def _begin(self, session: SpeechSession) -> None:
        state = self._state
        service = await state.service(session.model, session.voice)
        if session.timestamp_granularities and not service.tells_times:
            raise InputError("session.timestamp_granularities: this model can't tell when each word is said")
        state.check_length(session.max_seconds)
        voice, reference = await state.voice(service, session.voice)
        self._request = session.request("", voice, reference)
        self._session, self._service = session, service

    async def _append(self, text: Any) -> None:
        if not isinstance(text, str):
            raise InputError("input_text.append: text is missing")
        if self._service is None:
            await self._begin(self._session)
        assert self._service is not None
        if not self._open:
            if len(self._pieces) >= _MOST_TEXTS:
                raise InputError(f"input_text.append: {_MOST_TEXTS} texts are waiting to be spoken, which is the limit")
            pieces, self._characters, self._open = Pieces(self._service, self._request), 0, True
            self._pieces.append(pieces)
            self._sending = asyncio.ensure_future(self._send(self._sending, pieces, self._service, self._session))
        self._characters += len(text)
        if self._characters > (most := self._state.settings.max_text):
            raise InputError(f"input_text.append: more than {most} characters, which is the limit; flush before")
        self._state.characters_of(text, "text")
        await anyio.to_thread.run_sync(self._pieces[-1].add, text)

    async def _flush(self) -> None:
        """The text is whole."""
        if self._open:
            self._open = False
            await anyio.to_thread.run_sync(self._pieces[-1].finish)

    async def _send(
        self, before: asyncio.Task[None] | None, pieces: Pieces, service: LazyService, session: SpeechSession
    ) -> None:
        """Send the speech of a text, after that of the text `before`, as the `session` was when it began."""
        if before is not None:
            await before
        state, began = self._state, time.monotonic()
        state.gate.enter()
        try:
            speech = await state.speaker.begin(service.sample_rate, lambda: pieces, session.response_format)
            try:
                async for event in speech_events(
                    speech, lambda: pieces.characters, bool(session.timestamp_granularities)
                ):
                    if event["type"] == DONE and (left_out := await anyio.to_thread.run_sync(pieces.left_out)):
                        event["warning"] = not_read(left_out)
                    await self._socket.send_json(event)
            finally:
                await speech.close()
        finally:
            if pieces in self._pieces:
                self._pieces.remove(pieces)
            state.gate.leave(time.monotonic() - began)

    async def cancel(self) -> None:
        """Speak no more of what came."""
        self._open = False
        for pieces in self._pieces:
            pieces.cancel()
        if self._sending is not None:
            self._sending.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(self._sending, return_exceptions=True)
        self._sending = None
        self._pieces.clear()
