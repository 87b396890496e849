"""The ASGI application, and the server that runs it until a signal comes."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from phonate.config.errors import InputError
from phonate.serving import guard, routes, transcriptions
from phonate.serving.guard import Gate, Guard
from phonate.serving.metrics import Metrics
from phonate.serving.routes import DECODERS, ServerState
from phonate.serving.settings import ServingSettings
from phonate.serving.speech import Speaker
from phonate.serving.transcriptions import Recogniser
from phonate.serving.uploads import Decoders
from phonate.serving.voices import VoiceStore
from phonate.training.inference import SpeechService

# -------------------------------------------------------------------------------- The ASGI application


def create_app(
    service: SpeechService,
    settings: ServingSettings,
    recogniser: Recogniser | None = None,
    wyoming: socket.socket | None = None,
) -> FastAPI:
    """The application that serves `service`, which the caller closes, and transcribes by `recogniser`. `wyoming`: where
    it listens for Home Assistant, too.

    Raises InputError where the folder of voices can't be used.
    """
    places = settings.max_batch + settings.max_queue
    metrics, gate = Metrics(service), Gate(places)
    decoders = Decoders(DECODERS)

    @asynccontextmanager
    async def closing(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if wyoming is not None:
                from phonate.serving.wyoming import listening  # which needs an extra

                await stack.enter_async_context(listening(app.state.server, wyoming))
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
        recogniser=recogniser,
    )
    guard.add_handlers(app)
    for router in (
        routes.openai_router,
        transcriptions.router,
        routes.document_router,
        routes.voices_router,
        routes.status_router,
    ):
        app.include_router(router)
    app.add_middleware(Guard, settings=settings, gate=gate, metrics=metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


_log = logging.getLogger(__name__)
# ------------------------ Runs the application until a signal comes, then lets running requests finish

_CUT_SECONDS = 1


def serve(
    service: SpeechService,
    settings: ServingSettings,
    host: str = "127.0.0.1",
    port: int = 8000,
    recogniser: Recogniser | None = None,
    wyoming: int | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then refuse new requests (503), finish running ones for at most
    `settings.stop_seconds`, and close the service. The signal is raised again at the end. A second one ends at once.
    `wyoming`: the port for Home Assistant.

    Raises InputError where the address can't be used.
    """
    listening = _listening(host, port)
    assistant = None if wyoming is None else _listening(host, wyoming, "--wyoming")
    app = create_app(service, settings, recogniser, assistant)
    warn_if_open(host, settings)
    shown = f"[{host}]" if ":" in host else host
    if assistant is not None:
        _log.info("Wyoming at tcp://%s:%d", shown, assistant.getsockname()[1])
        if settings.api_keys and not _is_loopback(host):
            _log.warning("anyone who reaches %s can use Wyoming, which knows no keys", host)
    _log.info("serving %s at http://%s:%d", settings.model_name, shown, listening.getsockname()[1])
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_CUT_SECONDS,
    )
    server = _Server(config, app.state.server.gate, settings.stop_seconds)
    try:
        server.run(sockets=[listening])
    finally:
        for one in (listening, assistant):
            if one is not None:
                one.close()
        service.close()
    if server.received is not None:
        signal.raise_signal(server.received)


def warn_if_open(host: str, settings: ServingSettings) -> None:
    """Warn where other machines can use the server without a key."""
    if not settings.api_keys and not _is_loopback(host):
        _log.warning("anyone who reaches %s can use this server: there is no key; set --api-key-file", host)


class _Server(uvicorn.Server):
    """Listens on while running requests finish, so that others are told why they are refused."""

    def __init__(self, config: uvicorn.Config, gate: Gate, stop_seconds: float) -> None:
        super().__init__(config)
        self._gate = gate
        self._stop_seconds = stop_seconds
        self._stop_by: float | None = None
        self.received: int | None = None
        """The signal that ended it."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On the first signal begin to drain, on the second stop at once."""
        if self._gate.draining:
            super().handle_exit(sig, frame)
            return
        self.received = sig
        self._gate.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; whether to stop."""
        if self._gate.draining and not self.should_exit:
            now = asyncio.get_running_loop().time()
            if self._stop_by is None:
                self._stop_by = now + self._stop_seconds
                _log.info("stopping when %d running requests are finished", self._gate.running)
            if self._gate.running and now >= self._stop_by:
                _log.warning("%d requests are cut off: not finished in %g s", self._gate.running, self._stop_seconds)
            self.should_exit = not self._gate.running or now >= self._stop_by
        return await super().on_tick(counter)


def _listening(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket that listens at the address. Raises InputError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--host {host} {option} {port}: can't listen there ({reason}); choose another") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
