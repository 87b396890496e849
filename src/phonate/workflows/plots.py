"""Pictures for reports: line charts as inline SVG, spectrograms as PNG, sounds, all inside one HTML file.

The charts take their colours from the page's CSS variables, so that they follow its light and dark theme.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 14, 32
_MOST_POINTS = 400
_LOG_FROM = 30.0


@dataclass(frozen=True)
class Series:
    """One line of a chart. `dots` marks each point (for a few values, such as validations)."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    dots: bool = False


@dataclass(frozen=True)
class _Axis:
    """Maps values to pixels; `ticks` lie within its bounds."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def pixel(self, value: float) -> float:
        position, low, high = value, self.low, self.high
        if self.log:
            position, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (position - low) / (high - low) * (self.end - self.start)


def line_chart(series: Sequence[Series], label: str, marks: Sequence[tuple[float, str]] = (), log: bool = False) -> str:
    """An SVG chart of values over optimizer steps; `label` is read out by screen readers.

    With `log` the vertical axis is logarithmic where positive values span more than a factor of 30. `marks` are
    labelled vertical lines. Values that are not finite are left out. Returns "" when nothing is left to draw.
    """
    drawn = [thinned for one in series if (thinned := _thinned(one)).xs]
    if not drawn:
        return ""
    x_axis, y_axis = _axes(drawn, log)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">',
        *_grid(x_axis, y_axis),
        *_mark_lines(marks, x_axis),
        *(_line(number, one, x_axis, y_axis) for number, one in enumerate(drawn)),
        "</svg>",
    ]
    return "".join(parts)


def _thinned(series: Series) -> Series:
    """Finite points only, and so few that the line still looks the same."""
    points = [(x, y) for x, y in zip(series.xs, series.ys, strict=True) if math.isfinite(y)]
    if len(points) > _MOST_POINTS:
        points = [points[i] for i in np.linspace(0, len(points) - 1, _MOST_POINTS).round().astype(int)]
    return Series(series.name, [x for x, _ in points], [y for _, y in points], series.dots)


def _axes(series: Sequence[Series], may_be_log: bool) -> tuple[_Axis, _Axis]:
    from matplotlib.ticker import LogLocator, MaxNLocator

    xs = [x for one in series for x in one.xs]
    ys = [y for one in series for y in one.ys]
    right = max(xs) if max(xs) > min(xs) else min(xs) + 1
    low, high = min(ys), max(ys)
    log = may_be_log and low > 0 and high / low > _LOG_FROM
    if high == low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    elif not log:
        margin = (high - low) * 0.06
        low, high = (0.0 if 0 <= low < margin * 3 else low - margin), high + margin
    locator = LogLocator(subs=(1.0, 3.0) if high / max(low, 1e-300) < 1e4 else (1.0,)) if log else MaxNLocator(5)
    y_ticks = tuple(float(t) for t in locator.tick_values(low, high) if low <= t <= high)
    x_ticks = MaxNLocator(6, integer=True).tick_values(min(xs), right)
    return (
        _Axis(min(xs), right, LEFT, WIDTH - RIGHT, tuple(float(t) for t in x_ticks if min(xs) <= t <= right)),
        _Axis(low, high, HEIGHT - BOTTOM, TOP, y_ticks, log),
    )


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.pixel(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    for tick in x_axis.ticks:
        x = x_axis.pixel(tick)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{floor + 20}" text-anchor="middle">{tick:,.0f}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    return parts


def _mark_lines(marks: Sequence[tuple[float, str]], x_axis: _Axis) -> list[str]:
    parts = []
    for step, text in marks:
        if x_axis.low <= step <= x_axis.high:
            x = x_axis.pixel(step)
            anchor, shift = ("end", -5) if x > WIDTH * 0.75 else ("start", 5)
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            parts.append(
                f'<text class="tick" x="{x + shift:.1f}" y="{TOP + 9}" text-anchor="{anchor}">{escape(text)}</text>'
            )
    return parts


def _line(number: int, series: Series, x_axis: _Axis, y_axis: _Axis) -> str:
    points = [(x_axis.pixel(x), y_axis.pixel(y)) for x, y in zip(series.xs, series.ys, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    line = f'<polyline class="line s{number}" points="{path}"/>'
    if not series.dots and len(points) > 1:
        return line
    dots = "".join(
        f'<circle class="dot s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
        f"<title>{escape(series.name)} at step {step:,.0f}: {value:.5g}</title></circle>"
        for (x, y), step, value in zip(points, series.xs, series.ys, strict=True)
    )
    return line + dots


def spectrogram_png(values: NDArray[np.floating]) -> bytes:
    """A picture of a (frequencies, frames) array, low frequencies at the bottom, dark to bright."""
    from matplotlib.image import imsave

    picture = io.BytesIO()
    imsave(picture, values, cmap="magma", origin="lower", format="png")
    return picture.getvalue()


def data_url(content: bytes, media_type: str) -> str:
    """`content` as a URL that a page can hold in itself."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"
