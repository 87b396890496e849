"""What every request passes before its body is read: key, origin, size, time, and room; and the errors of all that
is refused, as OpenAI's clients know them: {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import secrets
import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from json import JSONDecodeError
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phonate.compute.system import is_full
from phonate.config.errors import InputError, PhonateError, json_mistake
from phonate.config.registry import UnknownVoiceError, listed, nearest
from phonate.config.settings import path_in, refused
from phonate.serving.metrics import Metrics
from phonate.serving.settings import ServingSettings

_log = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "server_error",
    507: "server_error",
}


class ApiError(HTTPException):
    """A request that is not met: HTTP status, what is wrong, the parameter at fault, and a code for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON that clients get."""
        return error_body(self.status_code, self.detail, self.param, self.code)


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error's JSON."""
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def input_error_body(error: InputError) -> dict[str, Any]:
    """The JSON of an error that a model finds in a request."""
    if isinstance(error, UnknownVoiceError):  # which names things as requests do not
        return no_voice(error.name, error.known).body
    return error_body(400, str(error))


def no_voice(name: str, known: list[str]) -> ApiError:
    """The error for a voice that is not among the `known` ones."""
    shown = name[:200]
    which = nearest(shown, known, "GET /v1/voices") if known else "send reference_audio"
    return ApiError(400, f"there is no voice {shown!r}; {which}", param="voice", code="voice_not_found")


def no_model(name: str, able: Iterable[str], task: str = "", others: Container[str] = ()) -> ApiError:
    """The error for a model that is not among the ones `able` to do a `task`, but may be among the `others`."""
    shown, names = name[:200], list(able)
    if shown in others:
        what = f"the model {shown!r} does not {task}; choose from {listed(sorted(names), 'GET /v1/models')}"
    else:
        what = f"there is no model {shown!r}; {nearest(shown, names, 'GET /v1/models')}"
    return ApiError(404, what, param="model", code="model_not_found")


def error_event(error: Exception) -> dict[str, Any]:
    """The event that tells of an error where the answer has begun."""
    if isinstance(error, ApiError):
        body = error.body
    elif isinstance(error, InputError):
        body = input_error_body(error)
    else:
        body = error_body(500, client_message(error))
    return {"type": "error", **body}


async def refuse_unknown_fields(request: Request, allowed: Sequence[str]) -> None:
    """Raise ApiError for a field of a request's form or query that is not `allowed`: frameworks ignore such fields."""
    for name in (*await request.form(), *request.query_params):
        if name not in allowed:
            shown = name[:100]
            raise ApiError(400, f"{shown!r} is not a field; {nearest(shown, list(allowed))}", param=shown)


def add_handlers(app: FastAPI) -> None:
    """Answer every error in this form."""

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        body = error.body if isinstance(error, ApiError) else error_body(error.status_code, _own_words(request, error))
        return JSONResponse(body, error.status_code, dict(error.headers or {}))

    @app.exception_handler(InputError)
    async def input_error(_: Request, error: InputError) -> JSONResponse:
        return JSONResponse(input_error_body(error), 400)

    @app.exception_handler(PhonateError)
    async def phonate_error(_: Request, error: PhonateError) -> JSONResponse:
        return JSONResponse(error_body(500, client_message(error)), 500)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        message, param = _first_mistake(error)
        return JSONResponse(error_body(400, message, param), 400)

    @app.exception_handler(OSError)
    async def os_error(_: Request, error: OSError) -> JSONResponse:
        if not is_full(error):
            return JSONResponse(error_body(500, client_message(error)), 500)
        _log.error("a request failed: %s", error)
        message = "the server's disk is full; nothing was stored. Tell whoever runs it"
        return JSONResponse(error_body(507, message, code="storage_full"), 507)

    @app.exception_handler(Exception)
    async def unexpected_error(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(500, client_message(error)), 500)


def _own_words(request: Request, error: HTTPException) -> str:
    """What a client is told where the framework refuses a request."""
    path = request.url.path[:200]
    if error.status_code == 404:
        return f"there is nothing at {path}; {_SHOWN}"
    if error.status_code == 405:
        taken = Headers(error.headers or {}).get("allow", "another method")
        return f"{path} takes {taken}, not {request.method}; {_SHOWN}"
    return f"the body can't be read ({error.detail}); {_SHOWN}"


def client_message(error: Exception) -> str:
    """What a client is told of an error within the server, which is logged; what is inside stays inside."""
    if isinstance(error, TimeoutError):
        return "the time for this request is over"
    _log.error("a request failed", exc_info=error)
    if isinstance(error, PhonateError):
        return str(error)
    return "the server failed; its log says why"


_SHOWN = "GET /docs shows requests, /openapi.json all fields"


def _first_mistake(error: RequestValidationError) -> tuple[str, str | None]:
    """The first mistake of a request as one line, and the parameter."""
    mistake, body = error.errors()[0], error.body
    if mistake["type"] == "json_invalid":
        reason = json_mistake(JSONDecodeError(mistake["ctx"]["error"], str(body), int(mistake["loc"][-1])))
        return f'the body is not JSON ({reason}); send an object such as {{"model": ..., "input": ...}}', None
    if mistake["loc"] == ("body",):
        return f"the body is {'empty' if body is None else 'no JSON object'}; {_SHOWN}", None
    values = dict(body) if isinstance(body, Mapping) else {}
    line, param = mistake_line([{**one, "loc": one["loc"][1:]} for one in error.errors()], values)
    return line, param


def mistake_line(details: Sequence[Any], values: Mapping[str, Any]) -> tuple[str, str]:
    """The first of the mistakes that pydantic found in `values` as one line, and the path of the parameter."""
    paths = [path_in(one, dict(values)) for one in details]
    first = paths[0] or tuple(map(str, details[0]["loc"]))
    path = max((one for one in paths if one[: len(first)] == first), key=len, default=first)  # of what it may be
    own = [one for one, place in zip(details, paths, strict=True) if place == path] or [details[0]]
    param = ".".join(path)
    if own[0]["type"] == "missing":
        return f"{param}: is missing; add it ({_SHOWN})", param
    if own[0]["type"] == "extra_forbidden":
        return f"{param}: is not a field; leave it out", param
    if "UploadFile" in own[0]["msg"]:
        return f"{param}: is not a file; send one, such as curl -F {param}=@recording.wav", param
    return f"{param}: {refused(own)}" if param else refused(own), param


# ------------- A plain ASGI middleware: a body is counted while it arrives, a place is kept until the last byte is sent

OPEN = frozenset({"/", "/docs", "/health", "/ready"})
"""Paths that need no key."""
WORK = frozenset(
    {"/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/conversions", "/generate_speech", "/v1/voices"}
)
"""Paths whose POST requests need a place."""

_LEARNING_RATE = 0.1
_BUSY_SECONDS = 60


class Gate:
    """Counts the requests that have a place, and says when there is none. For one event loop."""

    def __init__(self, places: int) -> None:
        self.running = 0
        """Requests with a place."""
        self.draining = False
        """Whether the server is stopping, and so refuses requests."""
        self._places = places
        self._seconds = 1.0

    def enter(self) -> None:
        """Take a place. Raises ApiError 503 while stopping, 429 where all are taken."""
        if self.draining:
            raise ApiError(503, "the server is stopping", code="stopping", headers={"Retry-After": "5"})
        if self.running >= self._places:
            raise ApiError(
                429,
                f"{self.running} requests are running or queued, which is the limit; try again later",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(min(_BUSY_SECONDS, max(1, math.ceil(self._seconds))))},
            )
        self.running += 1

    def leave(self, seconds: float) -> None:
        """Give the place back after a request of `seconds`, of which clients are told a running mean to wait."""
        self.running -= 1
        self._seconds += _LEARNING_RATE * (seconds - self._seconds)


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp, settings: ServingSettings, gate: Gate, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._settings = settings
        self._gate = gate
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, send = Headers(scope=scope), _with_id(send)
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        try:
            _require_origin(headers, scope, self._settings.cors_origins)
            if scope["path"] not in OPEN:
                require_key(headers, self._keys)
            length = headers.get("content-length", "")
            if length.isdecimal() and int(length) > self._settings.max_body:
                raise too_large(self._settings.max_body)
            if scope["method"] != "POST" or scope["path"] not in WORK:
                await self._app(scope, _Body(receive, self._settings), send)
                return
            self._gate.enter()
        except ApiError as error:
            if error.status_code in (429, 503):
                self._metrics.count("busy")
            await JSONResponse(error.body, error.status_code, dict(error.headers or {}))(scope, receive, send)
            return
        began = time.monotonic()
        try:
            await self._app(scope, _Body(receive, self._settings), send)
        finally:
            self._gate.leave(time.monotonic() - began)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a WebSocket through that has a key; its messages take places by themselves."""
        headers = Headers(scope=scope)
        try:
            _require_origin(headers, scope, self._settings.cors_origins)
            require_key(headers, self._keys)
        except ApiError as error:
            await send({"type": "websocket.close", "code": 1008, "reason": error.detail})
            return
        await self._app(scope, receive, send)


def _with_id(send: Send) -> Send:
    """`send` with a header that OpenAI's clients show with what went wrong."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["x-request-id"] = f"req_{secrets.token_hex(16)}"
        await send(message)

    return sent


def _without_body(send: Send) -> Send:
    """`send` for the answer to a HEAD request, which is that to a GET request without its body."""

    async def sent(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return sent


class _Body:
    def __init__(self, receive: Receive, settings: ServingSettings) -> None:
        self._receive = receive
        self._left = settings.max_body
        self._limit = settings.max_body
        self._deadline: float | None = time.monotonic() + settings.request_seconds

    async def __call__(self) -> Message:
        if self._deadline is None:  # the body is read; what still comes is that the client goes away
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            raise ApiError(408, "the request took too long to arrive") from None
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise too_large(self._limit)
            if not message.get("more_body", False):
                self._deadline = None
        return message


def too_large(limit: int) -> ApiError:
    """The error for a body of over `limit` bytes."""
    return ApiError(413, f"the request is larger than {limit} bytes, which is the limit", code="request_too_large")


def require_key(headers: Headers, keys: Sequence[bytes]) -> None:
    """Raise ApiError for a request without one of `keys`, where there are any."""
    if not keys:
        return
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise ApiError(
            401,
            "this server needs a key; send it as 'Authorization: Bearer KEY'",
            code="missing_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    # every key is compared, each in the same time wherever it differs
    same = [hmac.compare_digest(token.strip().encode(), key) for key in keys]
    if not any(same):
        raise ApiError(
            401, "this key is not valid", code="invalid_api_key", headers={"WWW-Authenticate": 'Bearer error="invalid"'}
        )


def _require_origin(headers: Headers, scope: Scope, allowed: Collection[str]) -> None:
    """Refuse what a page of another site makes a browser send: it could use a server on its visitor's machine, which
    has no key."""
    origin = headers.get("origin")
    if origin is None or scope.get("method") in ("GET", "HEAD") or "*" in allowed or origin in allowed:
        return
    if urlsplit(origin).netloc != headers.get("host"):
        raise ApiError(
            403, f"pages of {origin[:200]} may not use this server; start it with --cors-origin", code="origin"
        )
