"""Pictures for reports: line and bar charts as inline SVG, spectrograms as PNG, sounds, all inside one HTML file.

The charts take their colours from the page's CSS variables, so that they follow its light and dark theme.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.ticker import Locator

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 14, 32
_MOST_POINTS = 400
_LOG_FROM = 30.0
_LEAST_BINS, _MOST_BINS = 5, 24
_ROUND = (1, 2, 2.5, 5, 10)
_MARK_WIDTH = 110  # of a mark's text
_LEAST_HEIGHT = 1.5  # of a bar, so that one recording of thousands is seen


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
    words: tuple[str, ...] = ()
    """Written at the ticks instead of their values."""

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
    lines = (_line(number, one, x_axis, y_axis) for number, one in enumerate(drawn))
    return _svg(label, *_grid(x_axis, y_axis), *_mark_lines(marks, x_axis), *lines)


def bins(values: Sequence[float]) -> tuple[list[float], list[int]]:
    """Edges of bins at round numbers, and how many of the values, at least one, lie between each two of them."""
    from matplotlib.ticker import MaxNLocator

    low, high = min(values), max(values)
    if math.isclose(low, high, rel_tol=1e-3):
        low, high = low - (abs(low) * 0.05 or 0.5), high + (abs(high) * 0.05 or 0.5)
    most = min(_MOST_BINS, max(_LEAST_BINS, round(2 * math.sqrt(len(values)))))
    edges = MaxNLocator(most, steps=_ROUND).tick_values(low, high)
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)  # the last edge may be a rounding too low
    return [float(edge) for edge in edges], counts.tolist()


def bar_chart(
    edges: Sequence[float],
    counts: Sequence[int],
    label: str,
    unit: str = "",
    marks: Sequence[tuple[float, str]] = (),
    span: tuple[float, float] | None = None,
) -> str:
    """An SVG histogram of recordings: a bar for each of `counts` from one of `edges` to the next.

    `unit` is that of the edges. `marks` are labelled vertical lines, `span` a shaded range; the axis reaches as far as
    they do. Returns "" when there is nothing to count.
    """
    if not sum(counts):
        return ""
    from matplotlib.ticker import MaxNLocator

    reached = [edges[0], edges[-1], *(value for value, _ in marks), *(span or ())]
    low, high, most = min(reached), max(reached), max(counts) * (1.2 if marks else 1.06)
    x_axis = _Axis(low, high, LEFT, WIDTH - RIGHT, _ticks(MaxNLocator(6, steps=_ROUND), low, high))
    y_axis = _Axis(0.0, most, HEIGHT - BOTTOM, TOP, _ticks(MaxNLocator(5, integer=True), 0.0, most))
    bars = zip(edges[:-1], edges[1:], counts, strict=True)
    return _svg(
        label,
        *([_rectangle("span", x_axis.pixel(span[0]), x_axis.pixel(span[1]), TOP)] if span else []),
        *_grid(x_axis, y_axis),
        *(_bar(start, end, count, unit, x_axis, y_axis) for start, end, count in bars if count),
        *_mark_lines(marks, x_axis),
    )


def band_chart(
    middle: Sequence[float],
    bounds: tuple[Sequence[float], Sequence[float]] | None,
    ticks: Sequence[tuple[float, str]],
    label: str,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """An SVG chart of one line in a shaded band from the lower to the upper of `bounds`.

    Values lie at 0, 1, 2, ...; the axis goes from -1 to one beyond the last and has `ticks` (place, text) and `marks`.
    """
    from matplotlib.ticker import MaxNLocator

    values = [*middle, *(value for one in bounds or () for value in one)]
    margin = (max(values) - min(values)) * 0.06 or 0.5
    low, high = min(values) - margin, max(values) + 3 * margin  # marks have their texts above
    places, words = tuple(place for place, _ in ticks), tuple(text for _, text in ticks)
    x_axis = _Axis(-1.0, float(len(middle)), LEFT, WIDTH - RIGHT, places, words=words)
    y_axis = _Axis(low, high, HEIGHT - BOTTOM, TOP, _ticks(MaxNLocator(5), low, high))
    shaded = []
    if bounds is not None:
        around = [*enumerate(bounds[0]), *reversed(list(enumerate(bounds[1])))]
        points = " ".join(f"{x_axis.pixel(x):.1f},{y_axis.pixel(y):.1f}" for x, y in around)
        shaded = [f'<polygon class="band" points="{points}"/>']
    line = _line(0, Series(label, range(len(middle)), middle), x_axis, y_axis)
    return _svg(label, *_grid(x_axis, y_axis), *shaded, line, *_mark_lines(marks, x_axis))


def _svg(label: str, *parts: str) -> str:
    start = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    return "".join([start, *parts, "</svg>"])


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
    return (
        _Axis(min(xs), right, LEFT, WIDTH - RIGHT, _ticks(MaxNLocator(6, integer=True), min(xs), right)),
        _Axis(low, high, HEIGHT - BOTTOM, TOP, _ticks(locator, low, high), log),
    )


def _ticks(locator: Locator, low: float, high: float) -> tuple[float, ...]:
    """Round values from `low` to `high`, with some slack for how floats are rounded."""
    slack = 1e-9 * (high - low)
    return tuple(float(tick) for tick in locator.tick_values(low, high) if low - slack <= tick <= high + slack)


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.pixel(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    words = x_axis.words or tuple(_words(tick) for tick in x_axis.ticks)
    for tick, said in zip(x_axis.ticks, words, strict=True):
        x = x_axis.pixel(tick)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{floor + 20}" text-anchor="middle">{escape(said)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    return parts


def _words(value: float) -> str:
    """A value as it is written at an axis; ticks are round, but for the last digits of a float."""
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-6 else f"{value:.4g}"


def _mark_lines(marks: Sequence[tuple[float, str]], x_axis: _Axis) -> list[str]:
    lines, texts = [], []  # texts over the lines of others
    last, row = -math.inf, 0
    for step, text in sorted(marks):
        if x_axis.low <= step <= x_axis.high:
            x = x_axis.pixel(step)
            row = (row + 1) % 3 if x - last < _MARK_WIDTH else 0  # one under the other rather than one over the other
            last = x
            top = TOP + 14 * row
            anchor, shift = ("end", -5) if x > WIDTH * 0.75 else ("start", 5)
            lines.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{HEIGHT - BOTTOM}"/>')
            place = f'x="{x + shift:.1f}" y="{top + 9}" text-anchor="{anchor}"'
            texts.append(f'<text class="tick said" {place}>{escape(text)}</text>')
    return lines + texts


def _bar(start: float, end: float, count: int, unit: str, x_axis: _Axis, y_axis: _Axis) -> str:
    top = min(y_axis.pixel(count), y_axis.start - _LEAST_HEIGHT)
    said = f"{_words(start)} to {_words(end)}{unit and ' '}{unit}: {count:,} recording{'s' if count != 1 else ''}"
    return _rectangle("bar", x_axis.pixel(start) + 0.5, x_axis.pixel(end) - 0.5, top, said)


def _rectangle(kind: str, left: float, right: float, top: float, title: str = "") -> str:
    """From the horizontal axis up."""
    size = f'width="{right - left:.1f}" height="{HEIGHT - BOTTOM - top:.1f}"'
    titled = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" {size}>{titled}</rect>'


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


def sound_url(waveform: NDArray[np.floating], sample_rate: int) -> str:
    """A waveform (samples,) as a URL in itself: FLAC, which every browser plays."""
    import soundfile

    packed = io.BytesIO()
    soundfile.write(packed, waveform.clip(-1.0, 1.0), sample_rate, format="FLAC", subtype="PCM_16")
    return data_url(packed.getvalue(), "audio/flac")


def data_url(content: bytes, media_type: str) -> str:
    """`content` as a URL that a page can hold in itself."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"
