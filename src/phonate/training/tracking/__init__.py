"""Metric logging to several sinks. Sinks with heavy dependencies are imported on first use."""

from __future__ import annotations

from phonate.training.tracking.build import build_stream, check_trackers
from phonate.training.tracking.stream import MetricStream, Sink, read_events, read_metrics

__all__ = ["MetricStream", "Sink", "build_stream", "check_trackers", "read_events", "read_metrics"]
