"""Pages that need nothing else, and the charts, spectrograms and sounds inside them.

The colours of a chart are CSS variables, so that it follows the page's light or dark theme.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.compute.system import write_output
from phonate.config.words import number_of
from phonate.training.trackers import grey, png

# ----------------------------------- Pages that need nothing else, from the templates beside this file


def render(template: str, page: Mapping[str, Any], package: str = "phonate.workflows.pages") -> str:
    """The HTML that a template makes of `page`, which it knows as `r`, with when and by which version it was made.

    Every text is escaped, but for what is Markup already. `package`: where the template is; the ones here are found
    from everywhere.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    packages = dict.fromkeys([package, "phonate.workflows.pages"])
    loader = ChoiceLoader([PackageLoader(name, "templates") for name in packages])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    footer = {"version": version("phonate"), "made": f"{datetime.now(UTC):%d %B %Y}"}
    return environment.get_template(template).render(r={**footer, **page})


def write_page(path: str | Path, text: str) -> Path:
    """Write a page, which appears whole or not at all; returns its path. Raises InputError if it can't be written."""
    return write_output(path, text.encode(), parents=True)


WIDTH, HEIGHT = 480, 230  # of a chart, in SVG units; so are the lengths below
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 24, 14, 32
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_MARK_WIDTH, _MARK_HEIGHT = 110, 14
# -------------------------------------------------------------------------------- Pictures for reports

_MIN_BAR = 1.5  # so that one recording among thousands is visible
_DOT = 3.5
_PAD, _TEXT = 8, 12

_MAX_POINTS = 400
_LOG_RATIO = 30.0
_MIN_BINS, _MAX_BINS = 5, 24
_X_TICKS, _Y_TICKS = 7, 6
_ROUND = (1, 2, 2.5, 5, 10)
_SERIES = 4
"""Number of the page's colours for series, `--s0` and so on."""

_MAGMA = bytes.fromhex(
    "000004 090720 1a1042 311165 4a1079 621980 792282 912b81 aa337d c23b75 d9466b ec5860 f7725c fc8e64 feaa74 fec68a "
    "fde2a3 fcfdbf"
)
"""Every fifteenth colour of matplotlib's magma, from dark to bright."""


@dataclass(frozen=True)
class Series:
    """One line of a chart. `dots` marks each point (for a few values, such as validations)."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    dots: bool = False


class _Chart:
    """An SVG chart, drawn from back to front.

    Args:
        label: Read out by screen readers.
        xs: Limits of the horizontal axis.
        ys: Limits of the vertical axis.
        log: Whether the vertical axis is logarithmic.
    """

    def __init__(self, label: str, xs: tuple[float, float], ys: tuple[float, float], log: bool = False) -> None:
        self._parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
        self._xs, self._log = xs, log
        low, high = self._scaled(ys[0]), self._scaled(ys[1])
        self._low, self._span = low, high - low

    def _scaled(self, value: float) -> float:
        return math.log(value) if self._log else value

    def share(self, x: float) -> float:
        """Where `x` is between the axis's limits, from 0 to 1."""
        return (x - self._xs[0]) / (self._xs[1] - self._xs[0])

    def _x(self, value: float) -> float:
        return _LEFT + self.share(value) * _PLOT_WIDTH

    def _y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (self._scaled(value) - self._low) / self._span * _PLOT_HEIGHT

    def _path(self, points: Iterable[tuple[float, float]], style: str, end: str = "") -> None:
        d = " L ".join(f"{_short(x)} {_short(y)}" for x, y in points)
        self._parts.append(f'<path d="M {d} {end}" style="{style}"/>')

    def _text(self, x: float, y: float, text: str, anchor: str, style: str = "") -> None:
        style = f"fill: var(--soft); font-size: {_TEXT}px; text-anchor: {anchor}{style}"
        self._parts.append(f'<text style="{style}" x="{_short(x)}" y="{_short(y)}">{escape(text)}</text>')

    def axes(self, x_ticks: Iterable[tuple[float, str]], y_ticks: Iterable[float]) -> None:
        """The base line, a grid line for each of `y_ticks`, and the texts of both."""
        for value in y_ticks:
            y = self._y(value)
            self._path([(_LEFT, y), (WIDTH - _RIGHT, y)], "stroke: var(--faint); stroke-width: 1")
            self._text(_LEFT - _PAD, y + 0.35 * _TEXT, f"{value:.4g}", "end")
        for value, text in x_ticks:
            self._text(self._x(value), HEIGHT - _BOTTOM + _PAD + 0.8 * _TEXT, text, "middle")
        base = HEIGHT - _BOTTOM
        self._path([(_LEFT, base), (WIDTH - _RIGHT, base)], "stroke: var(--soft); stroke-width: 1")

    def area(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], colour: int, alpha: float) -> None:
        """The shaded area between two lines."""
        edge = [*zip(xs, low, strict=True), *reversed([*zip(xs, high, strict=True)])]
        points = [(self._x(x), self._y(y)) for x, y in edge]
        self._path(points, f"fill: var(--s{colour}); opacity: {alpha}", "z ")

    def bar(self, start: float, end: float, height: float, title: str) -> None:
        """A bar from 0 to `height`; `title` is shown when it is pointed at."""
        left, right, top, base = self._x(start), self._x(end), self._y(height), self._y(0.0)
        self._parts.append(f'<g class="pointed"><title>{escape(title)}</title> ')
        corners = [(left, base), (right, base), (right, top), (left, top)]
        self._path(corners, "fill: var(--s0); stroke: var(--card)", "z ")
        self._parts.append("</g>")

    def line(self, series: Series, colour: int) -> None:
        """A line through the points; where it has dots, each has a title."""
        points = [(self._x(x), self._y(y)) for x, y in zip(series.xs, series.ys, strict=True)]
        round_ends = "stroke-linecap: round; stroke-linejoin: round"
        self._path(points, f"fill: none; stroke: var(--s{colour}); stroke-width: 2; {round_ends}")
        if series.dots or len(points) == 1:
            for (x, y), step, value in zip(points, series.xs, series.ys, strict=True):
                title = escape(f"{series.name} at step {step:,.0f}: {value:.5g}")
                circle = f'<circle cx="{_short(x)}" cy="{_short(y)}" r="{_DOT}" style="fill: var(--s{colour})"/>'
                self._parts.append(f'<g class="pointed"><title>{title}</title> {circle}</g>')

    def marks(self, marks: Sequence[tuple[float, str]]) -> None:
        """Labelled vertical lines; labels of close neighbours go one below the other."""
        last, row = -math.inf, 0
        for value, text in sorted(marks):
            if not self._xs[0] <= value <= self._xs[1]:
                continue
            share, x = self.share(value), self._x(value)
            row = (row + 1) % 3 if (share - last) * _PLOT_WIDTH < _MARK_WIDTH else 0
            last = share
            top = _TOP + _MARK_HEIGHT * row
            self._path([(x, HEIGHT - _BOTTOM), (x, top)], "stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 4")
            anchor, shift = ("end", -5) if share > 0.75 else ("start", 5)
            halo = "; paint-order: stroke; stroke: var(--card); stroke-width: 4px"
            self._text(x + shift, top + 0.8 * _TEXT, text, anchor, halo)

    def svg(self) -> str:
        """The SVG element."""
        return "".join([*self._parts, "</svg>"])


def line_chart(series: Sequence[Series], label: str, marks: Sequence[tuple[float, str]] = (), log: bool = False) -> str:
    """An SVG chart of values over optimizer steps.

    Args:
        series: lines; values that are not finite are left out.
        label: read out by screen readers.
        marks: labelled vertical lines, as (step, text).
        log: use a logarithmic axis where positive values span more than a factor of 30.

    Returns:
        The SVG element; "" when there is nothing to draw.
    """
    drawn = [thinned for one in series if (thinned := _thinned(one)).xs]
    if not drawn:
        return ""
    xs = [x for one in drawn for x in one.xs]
    ys = [y for one in drawn for y in one.ys]
    first, last = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
    low, high, log = _limits(min(ys), max(ys), log)
    chart = _Chart(label, (first, last), (low, high), log)
    steps = [(x, _number(x)) for x in _ticks(first, last, _X_TICKS, whole=True)]
    chart.axes(steps, _log_ticks(low, high) if log else _ticks(low, high, _Y_TICKS))
    chart.marks(marks)
    for number, one in enumerate(drawn):
        chart.line(one, number % _SERIES)
    return chart.svg()


def bins(values: Sequence[float]) -> tuple[list[float], list[int]]:
    """Histogram bins at round numbers: edges (N + 1,), and the count (N,) of `values` between them."""
    low, high = min(values), max(values)
    if math.isclose(low, high, rel_tol=1e-3):
        low, high = low - (abs(low) * 0.05 or 0.5), high + (abs(high) * 0.05 or 0.5)
    most = min(_MAX_BINS, max(_MIN_BINS, round(2 * math.sqrt(len(values)))))
    step = _step(low, high, most)
    edges = [number * step for number in range(math.floor(low / step), math.ceil(high / step) + 1)]
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)  # the last edge may be a rounding too low
    return edges, counts.tolist()


def bar_chart(
    edges: Sequence[float],
    counts: Sequence[int],
    label: str,
    unit: str = "",
    marks: Sequence[tuple[float, str]] = (),
    span: tuple[float, float] | None = None,
) -> str:
    """An SVG histogram of recordings.

    Args:
        edges: of the bins (N + 1,), in `unit`.
        counts: recordings in each bin (N,).
        label: read out by screen readers.
        unit: of the edges.
        marks: labelled vertical lines, as (value, text).
        span: a shaded range of values.

    Returns:
        The SVG element; "" when all counts are zero.
    """
    if not sum(counts):
        return ""
    reached = [edges[0], edges[-1], *(value for value, _ in marks), *(span or ())]
    low, high = min(reached), max(reached)
    most = max(counts) * (1.2 if marks else 1.06)
    chart = _Chart(label, (low, high), (0.0, most))
    chart.axes([(x, _number(x)) for x in _ticks(low, high, _X_TICKS)], _ticks(0.0, most, _Y_TICKS, whole=True))
    if span:
        chart.area(span, (0.0, 0.0), (most, most), 1, 0.16)
    for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True):
        if count:
            title = f"{_number(start)} to {_number(end)}{unit and ' '}{unit}: {number_of(count, 'recording')}"
            chart.bar(start, end, max(count, most * _MIN_BAR / _PLOT_HEIGHT), title)
    chart.marks(marks)
    return chart.svg()


def band_chart(
    middle: Sequence[float],
    bounds: tuple[Sequence[float], Sequence[float]] | None,
    ticks: Sequence[tuple[float, str]],
    label: str,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """An SVG chart of one line within a shaded band.

    Args:
        middle: the line (N,), at 0, 1, ..., N - 1 of an axis from -1 to N.
        bounds: lower and upper edge of the band, (N,) each.
        ticks: of the horizontal axis, as (place, text).
        label: read out by screen readers.
        marks: labelled vertical lines, as (place, text).
    """
    values = [*middle, *(value for one in bounds or () for value in one)]
    margin = (max(values) - min(values)) * 0.06 or 0.5
    low, high = min(values) - margin, max(values) + 3 * margin  # with room for the marks' texts
    chart = _Chart(label, (-1.0, len(middle)), (low, high))
    chart.axes(ticks, _ticks(low, high, _Y_TICKS))
    if bounds is not None:
        chart.area(range(len(middle)), *bounds, 0, 0.18)
    chart.marks(marks)
    chart.line(Series(label, range(len(middle)), middle), 0)
    return chart.svg()


def _step(low: float, high: float, most: int, whole: bool = False) -> float:
    """A round number, at most `most` of which lie between two values."""
    least = max((high - low) / most, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        step for one in (*_ROUND, 20) if (step := one * power) >= least * (1 - 1e-9) and not (whole and step % 1)
    )


def _ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Multiples of a round number from `low` to `high`."""
    step = _step(low, high, most, whole)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`; over few of them, three times these as well."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1.0, 3.0) if high / low < 1e4 else (1.0,)
    return [tick for power in powers for one in factors if low <= (tick := one * 10.0**power) <= high]


def _short(length: float) -> str:
    """A length with at most two decimals."""
    return f"{length:.2f}".rstrip("0").rstrip(".")


def _thinned(series: Series) -> Series:
    """Finite points only, and so few that the line still looks the same."""
    points = [(x, y) for x, y in zip(series.xs, series.ys, strict=True) if math.isfinite(y)]
    if len(points) > _MAX_POINTS:
        points = [points[i] for i in np.linspace(0, len(points) - 1, _MAX_POINTS).round().astype(int)]
    return Series(series.name, [x for x, _ in points], [y for _, y in points], series.dots)


def _limits(low: float, high: float, may_be_log: bool) -> tuple[float, float, bool]:
    """Limits of the vertical axis around values from `low` to `high`, and whether it is logarithmic."""
    if high == low:
        return low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5), False
    if may_be_log and low > 0 and high / low > _LOG_RATIO:
        return low, high, True
    margin = (high - low) * 0.06
    return (0.0 if 0 <= low < margin * 3 else low - margin), high + margin, False


def _number(value: float) -> str:
    """A tick's label; ticks are round but for the last digits of a float."""
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-6 else f"{value:.4g}"


def spectrogram_png(values: NDArray[np.floating]) -> bytes:
    """A picture of a (frequencies, frames) array, low frequencies at the bottom, dark to bright."""
    colours = np.frombuffer(_MAGMA, dtype=np.uint8).reshape(-1, 3).T
    places = np.linspace(0, 255, colours.shape[1])
    palette = np.stack([np.interp(np.arange(256), places, one) for one in colours], axis=1).round().astype(np.uint8)
    return png(grey(values), palette)


_HERTZ = (500.0, 1000.0, 2000.0, 4000.0, 8000.0, 16000.0)
_SECONDS = 6


def spectrogram_axes(seconds: float, edges: Sequence[float]) -> dict[str, list[tuple[float, str]]]:
    """Labels of a spectrogram's axes, each with its place in per cent from the left and from the bottom.

    Args:
        seconds: Its length.
        edges: Of its bands in Hz, as `band_edges` gives them.
    """
    peaks, places = edges[1:-1], [100 * (band + 0.5) / (len(edges) - 2) for band in range(len(edges) - 2)]
    times = [(100 * at / seconds, f"{at:g} s") for at in _ticks(0.0, seconds, _SECONDS)] if seconds > 0 else []
    inside = [hertz for hertz in _HERTZ if edges[0] < hertz < 1.001 * edges[-1]]
    pitches = [(float(np.interp(hertz, peaks, places)), _frequency(hertz)) for hertz in inside]
    return {"times": times, "pitches": pitches}


def _frequency(hertz: float) -> str:
    return f"{hertz / 1000:g} kHz" if hertz >= 1000 else f"{hertz:g} Hz"


def sound_url(waveform: NDArray[np.floating], sample_rate: int) -> str:
    """A waveform (samples,) as a URL in itself: FLAC, which every browser plays."""
    import soundfile

    packed = io.BytesIO()
    soundfile.write(packed, waveform.clip(-1.0, 1.0), sample_rate, format="FLAC", subtype="PCM_16")
    return data_url(packed.getvalue(), "audio/flac")


def data_url(content: bytes, media_type: str) -> str:
    """`content` as a URL that a page can hold in itself."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"
