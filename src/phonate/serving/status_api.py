"""What those who run the server look at: the page, health, readiness, metrics."""

from __future__ import annotations

import secrets
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from phonate.serving.errors import ApiError
from phonate.serving.server_state import MARKUP, state_of
from phonate.serving.voices import CONSENT
from phonate.workflows.pages.rendering import render

router = APIRouter()


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
async def page(request: Request) -> HTMLResponse:
    """A page to try the model with. It loads nothing from elsewhere, and no script but its own runs in it."""
    state, nonce = state_of(request), secrets.token_urlsafe(16)
    text = render(
        "server.html.jinja",
        {
            "name": state.settings.model_name,
            "kind": "Speech server",
            "summary": "Type a text, choose a voice and listen. All of it is made by a model.",
            "figures": [],
            "nonce": nonce,
            "clones": state.service.needs_reference,
            "uploads": state.service.needs_reference and state.voices is not None,
            "key": bool(state.settings.api_keys),
            "max_text": state.settings.max_text * (MARKUP if state.service.follows_ssml else 1),
            "ssml": state.service.follows_ssml,
            "max_reference_seconds": state.settings.max_reference_seconds,
            "consent": CONSENT,
        },
        package="phonate.serving",
    )
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


@router.get("/health")
async def health() -> dict[str, str]:
    """The process runs."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, Any]:
    """Requests are taken; 503 while the server is stopping."""
    state = state_of(request)
    if state.gate.draining:
        raise ApiError(503, "the server is stopping", code="stopping")
    return {"status": "ok", "model": state.settings.model_name}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """In Prometheus's text format."""
    return Response(state_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
