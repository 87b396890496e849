"""The ASGI application, and the server that runs it until a signal comes."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from phonate.config.errors import InputError
from phonate.config.tasks import referred, task_info
from phonate.data.transcripts import Diarizes
from phonate.pretrained import TRANSCRIPTION, require
from phonate.serving import conversions, guard, live, routes, transcriptions
from phonate.serving.conversions import Conversion, Converts
from phonate.serving.guard import Gate, Guard
from phonate.serving.metrics import Metrics
from phonate.serving.models import Lazy, LazyService
from phonate.serving.requests import examples
from phonate.serving.routes import DECODERS, ServerState
from phonate.serving.settings import ServingSettings
from phonate.serving.speech import Speaker
from phonate.serving.transcriptions import Recogniser, Recognises
from phonate.serving.uploads import Decoders
from phonate.serving.voices import VoiceStore
from phonate.training.checkpoints.files import RECORDINGS
from phonate.training.inference import Inference, SpeechService
from phonate.workflows.load import load, task_of

# ------------------------------------------------------------------------------------------- The models


@dataclass(frozen=True)
class Hosted:
    """The models of a server. OpenAI's names stand for the first of each kind."""

    services: Sequence[LazyService]
    recognisers: Sequence[Recogniser] = ()
    converters: Sequence[Conversion] = ()
    device: str | None = None
    """Where they compute."""

    @property
    def parts(self) -> Iterator[Lazy[Any]]:
        """All that can be loaded."""
        for service in self.services:
            yield service.model
        for one in self.recognisers:
            yield one.recogniser
            if one.diarizer is not None:
                yield one.diarizer
        for converter in self.converters:
            yield converter.model

    def prepare(self) -> None:
        """Load the first that speaks, or else the first that converts or transcribes. Raises the errors of loading."""
        if self.services:
            self.services[0].prepare()
        elif self.converters:
            self.converters[0].prepare()
        elif self.recognisers:
            self.recognisers[0].languages()

    def unload_after(self, seconds: float) -> None:
        """Unload what was not used for so long. What one fails at is logged, and the others go on."""
        for one in self.parts:
            try:
                one.unload_after(seconds, self.device)
            except Exception:  # noqa: BLE001 - it would end the server
                _log.exception("unloading %s failed", one.name)

    def close(self) -> None:
        """Unload all."""
        for one in self.parts:
            one.close()


def hosted(
    models: Sequence[str],
    *,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    prosody_rules: bool = True,
    max_batch: int = 8,
) -> Hosted:
    """The models that `models` name, each as RUN or NAME=RUN, of which none is loaded.

    Args:
        models: What speaks, what transcribes, and what tells the speakers of transcripts.
        device: Where they compute.
        options: Of `phonate.load`, for the models whose task knows them.
        prosody_rules: Whether the rules of a language for questions and silences are applied.
        max_batch: Requests that a service works on at once.

    Raises InputError for names that are given twice, an option that no model knows, and a model that does none of
    these, CheckpointError for one that is not there.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    runs = _by_kind(models, set(given))
    diarizers = runs.get("diarization", [])

    def service(run: str) -> SpeechService:
        known = task_info(task_of(run)).options
        model: Inference = load(run, device=device, **{name: value for name, value in given.items() if name in known})
        if not prosody_rules and hasattr(model, "prosody_rules"):
            model.prosody_rules = False
        speaking = model.speech_service(max_batch)
        assert speaking is not None
        return speaking

    def diarizer() -> Diarizes:
        return load(diarizers[0][1], "diarization", device=device)

    def converter(run: str) -> Converts:
        return load(run, "conversion", device=device)

    def recogniser(run: str) -> Recognises:
        return load(run, "recognition", device=device)

    return Hosted(
        [LazyService(name, partial(service, run)) for name, run in runs.get("speech", [])],
        [
            Recogniser(name, partial(recogniser, run), *((diarizer, diarizers[0][0]) if diarizers else ()))
            for name, run in runs.get("recognition", [])
        ],
        [Conversion(name, partial(converter, run)) for name, run in runs.get("conversion", [])],
        device,
    )


def _by_kind(models: Sequence[str], unused: set[str]) -> dict[str, list[tuple[str, str]]]:
    """Names and runs of what speaks, by recognition, diarization, conversion and speech. `unused`: options that are
    given. Raises InputError."""
    names: set[str] = set()
    runs: dict[str, list[tuple[str, str]]] = {}
    for one in models:
        name, run, task = _named(one)
        if name in names:
            raise InputError(f"{one}: there is a model {name!r} already; name this one, as in other={run}")
        names.add(name)
        kind = task if task in ("recognition", "diarization", "conversion") else "speech"
        if kind == "speech":
            _require_speech(run, task)
        elif not Path(run).exists() and run.partition("/")[0] in (*task_info(task).pretrained, "base"):
            require(run, TRANSCRIPTION)  # of Whisper, and of what listens by it
        unused = unused - set(task_info(task).options)
        runs.setdefault(kind, []).append((name, run))
    if unused:
        raise InputError(f"--{min(unused).replace('_', '-')}: no model that is served has a use for it; leave it out")
    diarizers = [run for _, run in runs.get("diarization", [])]
    if len(diarizers) > 1 or (diarizers and "recognition" not in runs):
        raise InputError(f"{diarizers[-1]}: one diarizer tells the speakers of transcripts apart; add whisper")
    return runs


def _named(model: str) -> tuple[str, str, str]:
    """Name, run and task of RUN or NAME=RUN. A run is called as its folder."""
    name, equals, run = ("", "", model) if Path(model).exists() else model.partition("=")
    if not equals:
        run = model
    if (equals and not name) or not run:
        raise InputError(f"{model}: write NAME=RUN, such as anna={run or 'runs/speech'}")
    task = task_of(run)
    if not equals:
        name = run if run.partition("/")[0] in task_info(task).pretrained else Path(run).resolve().name
    return name, run, task


def _require_speech(run: str, task: str) -> None:
    """Raise InputError for a model that does not make speech of text."""
    inference = task_info(task).inference
    if inference is None or referred(inference).speech_service is Inference.speech_service:
        raise InputError(f"{run}: this model can't make speech from text, so there is nothing to serve")


# -------------------------------------------------------------------------------- The ASGI application


def create_app(models: Hosted, settings: ServingSettings, wyoming: socket.socket | None = None) -> FastAPI:
    """The application that serves `models`, which the caller closes. `wyoming`: where it listens for Home Assistant,
    too.

    Raises InputError where the folder of voices can't be used.
    """
    places = settings.max_batch + settings.max_queue
    metrics, gate = Metrics(models.services), Gate(places)
    decoders = Decoders(DECODERS)

    @asynccontextmanager
    async def closing(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            if settings.idle_minutes is not None:
                tasks.start_soon(_unload, models, settings.idle_minutes * 60.0)
            if wyoming is not None:
                from phonate.serving.wyoming import listening  # which needs an extra

                await stack.enter_async_context(listening(app.state.server, wyoming))
            yield
            tasks.cancel_scope.cancel()
        decoders.close()

    # the pages that FastAPI has for its schema load scripts from elsewhere
    app = FastAPI(title="phonate", docs_url=None, redoc_url=None, lifespan=closing)
    app.state.server = ServerState(
        settings=settings,
        services={one.model.name: one for one in models.services},
        gate=gate,
        metrics=metrics,
        speaker=Speaker(metrics, settings.request_seconds, places, settings.max_speech_seconds),
        voices=None if settings.voices is None else VoiceStore(settings.voices, settings.max_voices),
        decoders=decoders,
        recognisers={one.name: one for one in models.recognisers},
        converters={one.model.name: one for one in models.converters},
    )
    guard.add_handlers(app)
    for router in (
        routes.openai_router,
        transcriptions.router,
        live.router,
        conversions.router,
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


async def _unload(models: Hosted, seconds: float) -> None:
    """Unload, for ever, what was not used for so long."""
    while True:
        await anyio.sleep(min(_LOOK_SECONDS, seconds / 4))
        await anyio.to_thread.run_sync(models.unload_after, seconds)


_log = logging.getLogger(__name__)
_LOOK_SECONDS = 30.0
"""Between looks for models that nobody uses."""
# ------------------------ Runs the application until a signal comes, then lets running requests finish

_CUT_SECONDS = 1


def serve(
    models: Hosted,
    settings: ServingSettings,
    host: str = "127.0.0.1",
    port: int = 8000,
    wyoming: int | None = None,
) -> None:
    """Load the first model that speaks, or else the first that converts or transcribes, and serve until SIGTERM or
    Ctrl-C. Then refuse new requests (503), finish running ones for at most `settings.stop_seconds`, and close the
    models. The signal is raised again at the end. A second one ends at once. `wyoming`: the port for Home Assistant.

    Raises InputError where the address can't be used.
    """
    models.prepare()
    listening = _listening(host, port)
    assistant = None if wyoming is None else _listening(host, wyoming, "--wyoming")
    app = create_app(models, settings, assistant)
    warn_if_open(host, settings)
    shown = f"[{host}]" if ":" in host else host
    if assistant is not None:
        _log.info("Wyoming at tcp://%s:%d", shown, assistant.getsockname()[1])
        if settings.api_keys and not _is_loopback(host):
            _log.warning("anyone who reaches %s can use Wyoming, which knows no keys", host)
    _announce(app.state.server, shown, listening.getsockname()[1])
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_CUT_SECONDS,
        ws_max_size=settings.max_body,
    )
    server = _Server(config, app.state.server.gate, settings.stop_seconds)
    try:
        server.run(sockets=[listening])
    finally:
        for one in (listening, assistant):
            if one is not None:
                one.close()
        models.close()
    if server.received is not None:
        signal.raise_signal(server.received)


def _announce(state: ServerState, host: str, port: int) -> None:
    """Say where the server is, and how to try it."""
    _log.info("serving %s at http://%s:%d", ", ".join(state.all_models), host, port)
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # all addresses of this machine
    url = f"http://{here}:{port}"
    key = ", with a key in PHONATE_API_KEY" if state.settings.api_keys else ""
    _log.info("open %s in a browser, or paste into another shell%s:", url, key)
    for one in examples(state, url, str(RECORDINGS / "LJ001-0001.ogg")):
        _log.info("  %s", one.command)


def warn_if_open(host: str, settings: ServingSettings) -> None:
    """Warn where other machines can use the server without a key."""
    if not settings.api_keys and not _is_loopback(host):
        _log.warning("anyone who reaches %s can use this server: there is no key; set --api-key-file", host)


def _is_no_cut(record: logging.LogRecord) -> bool:
    """False for the traceback of a request that was cut off at the end, of which a line tells already."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class _Server(uvicorn.Server):
    """Listens on while running requests finish, so that others are told why they are refused."""

    def __init__(self, config: uvicorn.Config, gate: Gate, stop_seconds: float) -> None:
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
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
                if self._gate.running:
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
        number = getattr(error, "errno", None)  # those of names that can't be resolved are below zero
        reason = os.strerror(number) if number and number > 0 else getattr(error, "strerror", None) or str(error)
        where = f"--host {host} {option} {port}"
        raise InputError(f"{where}: can't listen there ({reason}); choose another {option}") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
