"""What every request passes before its body is read: key, origin, size, time, and room. A plain ASGI middleware, so
that a body is counted while it arrives and a place is kept until the last byte of an answer is sent."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phonate.serving.errors import ApiError
from phonate.serving.metrics import Metrics
from phonate.serving.settings import ServingSettings

OPEN = frozenset({"/", "/health", "/ready"})
"""Paths that need no key."""
WORK = frozenset({"/v1/audio/speech", "/generate_speech", "/v1/voices"})
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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            _require_origin(headers, scope, self._settings.cors_origins)
            if scope["path"] not in OPEN:
                _require_key(headers, self._keys)
            _require_length(headers, self._settings.max_body)
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


class _Body:
    """Receives a body of limited size in limited time."""

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


def _require_length(headers: Headers, limit: int) -> None:
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large(limit)


def _require_key(headers: Headers, keys: Sequence[bytes]) -> None:
    if not keys:
        return
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given:
        raise ApiError(
            401,
            "this server needs a key; send it as 'Authorization: Bearer KEY'",
            code="missing_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    # every key is compared, each in the same time wherever it differs
    same = [hmac.compare_digest(given.strip().encode(), key) for key in keys]
    if not any(same):
        raise ApiError(
            401, "this key is not valid", code="invalid_api_key", headers={"WWW-Authenticate": 'Bearer error="invalid"'}
        )


def _require_origin(headers: Headers, scope: Scope, allowed: Collection[str]) -> None:
    """Refuse what a page of another site makes a browser send: it could use a server on its visitor's machine, which
    has no key."""
    origin = headers.get("origin")
    if origin is None or scope["method"] in ("GET", "HEAD") or "*" in allowed or origin in allowed:
        return
    if urlsplit(origin).netloc != headers.get("host"):
        raise ApiError(
            403, f"pages of {origin[:200]} may not use this server; start it with --cors-origin", code="origin"
        )
