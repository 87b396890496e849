"""What Prometheus is told."""

from __future__ import annotations

import time
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from phonate.training.inference import SpeechService

_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)

OUTCOMES = ("ok", "refused", "busy", "timeout", "cancelled", "failed")
"""How a request for speech ends."""


class Metrics:
    """Counters of one server."""

    def __init__(self, services: Collection[SpeechService]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "phonate_requests", "Requests for speech, by how they ended", ["outcome"], registry=self._registry
        )
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        self.latency = Histogram(
            "phonate_request_seconds",
            "Time from a request to its last sound",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.first_sound = Histogram(
            "phonate_first_sound_seconds",
            "Time from a request to its first sound",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.audio = Counter("phonate_audio_seconds", "Seconds of sound that were made", registry=self._registry)
        active = Gauge("phonate_active_requests", "Requests that the model works on", registry=self._registry)
        active.set_function(lambda: sum(one.active for one in services))
        waiting = Gauge("phonate_waiting_requests", "Requests that wait for the model", registry=self._registry)
        waiting.set_function(lambda: sum(one.waiting for one in services))

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)

    def count(self, outcome: str) -> None:
        """Count a request that ended so."""
        self._requests.labels(outcome).inc()


class RequestMetrics:
    """One request for speech, from its beginning."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._began = time.monotonic()
        self._sounded = self._ended = False

    def sound(self, seconds: float) -> None:
        """`seconds` of sound were made."""
        self._metrics.audio.inc(seconds)
        if not self._sounded:
            self._sounded = True
            self._metrics.first_sound.observe(time.monotonic() - self._began)

    def end(self, outcome: str) -> None:
        """How it ended; what is said first counts."""
        if not self._ended:
            self._ended = True
            self._metrics.count(outcome)
            if outcome == "ok":
                self._metrics.latency.observe(time.monotonic() - self._began)
