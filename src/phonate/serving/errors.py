"""Errors as OpenAI's clients know them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from phonate.config.errors import InputError, PhonateError
from phonate.config.registry import nearest

_log = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "server_error",
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


async def refuse_unknown_fields(request: Request, known: Sequence[str]) -> None:
    """Raise ApiError for a field of a request's form or query that is not `known`: frameworks ignore such fields."""
    for name in (*await request.form(), *request.query_params):
        if name not in known:
            shown = name[:100]
            raise ApiError(400, f"{shown!r} is not a field; {nearest(shown, list(known))}", param=shown)


def add_handlers(app: FastAPI) -> None:
    """Answer every error in this form."""

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        body = error.body if isinstance(error, ApiError) else error_body(error.status_code, str(error.detail))
        return JSONResponse(body, error.status_code, dict(error.headers or {}))

    @app.exception_handler(InputError)
    async def refused(_: Request, error: InputError) -> JSONResponse:
        return JSONResponse(error_body(400, str(error)), 400)

    @app.exception_handler(PhonateError)
    async def known(_: Request, error: PhonateError) -> JSONResponse:
        return JSONResponse(error_body(500, told(error)), 500)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        message, param = _first_mistake(error)
        return JSONResponse(error_body(400, message, param), 400)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(500, told(error)), 500)


def told(error: Exception) -> str:
    """What a client is told of an error within the server, which is logged; what is inside stays inside."""
    if isinstance(error, TimeoutError):
        return "the time for this request is over"
    _log.error("a request failed", exc_info=error)
    if isinstance(error, PhonateError):
        return str(error)
    return "the server failed; its log says why"


def _first_mistake(error: RequestValidationError) -> tuple[str, str | None]:
    """The first mistake of a request as one line, and the parameter."""
    mistake = error.errors()[0]
    if mistake["type"] == "json_invalid":
        return f"the body is not valid JSON: {mistake['ctx']['error']}", None
    place = [str(part) for part in mistake["loc"] if part not in ("body", "query")]
    param = ".".join(place) or None
    message = mistake["msg"].removeprefix("Value error, ")
    return (f"{param}: {message}" if param else message), param
