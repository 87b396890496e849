"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from phonate.serving import document_api, errors, openai_api, status_api, voices_api
from phonate.serving.guard import Gate, Guard
from phonate.serving.metrics import Metrics
from phonate.serving.server_state import DECODERS, ServerState
from phonate.serving.settings import ServingSettings
from phonate.serving.speech import Speaker
from phonate.serving.uploads import Decoders
from phonate.serving.voices import VoiceStore
from phonate.training.speech_service import SpeechService


def create_app(service: SpeechService, settings: ServingSettings) -> FastAPI:
    """The application that serves `service`, which the caller closes.

    Raises InputError where the folder of voices can't be used.
    """
    places = settings.max_batch + settings.max_queue
    metrics, gate = Metrics(service), Gate(places)
    decoders = Decoders(DECODERS)

    @asynccontextmanager
    async def closing(_: FastAPI) -> AsyncIterator[None]:
        yield
        decoders.close()

    # the pages that FastAPI has for its schema load scripts from elsewhere
    app = FastAPI(title="phonate", docs_url=None, redoc_url=None, lifespan=closing)
    app.state.server = ServerState(
        settings=settings,
        service=service,
        gate=gate,
        metrics=metrics,
        speaker=Speaker(service, metrics, settings.request_seconds, places),
        voices=None if settings.voices is None else VoiceStore(settings.voices, settings.max_voices),
        decoders=decoders,
    )
    errors.add_handlers(app)
    for module in (openai_api, document_api, voices_api, status_api):
        app.include_router(module.router)
    app.add_middleware(Guard, settings=settings, gate=gate, metrics=metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app
