"""Models that are loaded when they are asked for, and unloaded when nobody asked for a while."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from phonate.compute.system import return_freed_pages
from phonate.training.inference import SpeechRequest, SpeechResult, SpeechService, inference_device

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Lazy(Generic[T]):
    """A model that is loaded by its first use. Its methods may be called from any thread."""

    def __init__(
        self,
        name: str,
        load: Callable[[], T],
        busy: Callable[[T], bool] = lambda _: False,
        unload: Callable[[T], None] = lambda _: None,
    ) -> None:
        """`busy`: whether it works now, though nobody uses it; `unload`: what is done before it goes."""
        self.name = name
        self._load, self._busy, self._unload = load, busy, unload
        self._model: T | None = None
        self._users = 0
        self._used = time.monotonic()
        self._lock = threading.Lock()

    @property
    def loaded(self) -> T | None:
        """The model, where it is in memory."""
        return self._model

    @contextmanager
    def use(self) -> Iterator[T]:
        """The model, which stays loaded meanwhile. Raises the errors of loading."""
        with self._lock:
            if self._model is None:
                self._model = self._load()
                _log.info("loaded %s", self.name)
            model = self._model
            self._users += 1
        try:
            yield model
        finally:
            with self._lock:
                self._users -= 1
                self._used = time.monotonic()

    def unload_after(self, seconds: float, device: str | None = None) -> None:
        """Unload it where it was not used for so long, and give its memory on `device` back."""
        with self._lock:
            if self._model is None:
                return
            if self._users or self._busy(self._model):
                self._used = time.monotonic()
            if time.monotonic() - self._used < seconds:
                return
            model, self._model = self._model, None
            self._unload(model)
            del model  # whose memory goes back below
        _give_back(device)
        _log.info("unloaded %s, which nobody used for %g minutes", self.name, seconds / 60.0)

    def close(self) -> None:
        """Unload it."""
        with self._lock:
            if self._model is not None:
                self._unload(self._model)
            self._model = None


class LazyService(SpeechService):
    """A service that `prepare` or a request loads. What it is stays known when it is unloaded."""

    def __init__(self, name: str, load: Callable[[], SpeechService]) -> None:
        self.model: Lazy[SpeechService] = Lazy(
            name, load, lambda service: bool(service.active or service.waiting), lambda service: service.close()
        )
        self.prepared = False
        """Whether what it is is known: its voices, rate, and so on."""
        self._voices: Sequence[str] = ()

    def prepare(self) -> None:
        """Load it, unless it was loaded before. Raises the errors of loading."""
        if self.prepared:
            return
        with self.model.use() as service:
            self.sample_rate, self.needs_reference = service.sample_rate, service.needs_reference
            self.follows_ssml, self.tells_times = service.follows_ssml, service.tells_times
            self.language, self._voices = service.language, list(service.voices)
        self.prepared = True

    @property
    def voices(self) -> Sequence[str]:
        return self._voices

    def submit(self, request: SpeechRequest) -> SpeechResult:
        with self.model.use() as service:
            return service.submit(request)

    def left_out(self, request: SpeechRequest) -> str:
        with self.model.use() as service:
            return service.left_out(request)

    @property
    def active(self) -> int:
        return 0 if (service := self.model.loaded) is None else service.active

    @property
    def waiting(self) -> int:
        return 0 if (service := self.model.loaded) is None else service.waiting

    def close(self) -> None:
        self.model.close()


def _give_back(device: str | None) -> None:
    """Return memory that is not used any more to `device`."""
    if "torch" not in sys.modules:  # which no model needed
        gc.collect()
        return_freed_pages()
        return
    from phonate.compute.device import release

    release(inference_device(device))
