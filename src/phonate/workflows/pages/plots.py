"""Pictures for reports: charts as inline SVG, spectrograms as PNG and sounds as FLAC, all inside one HTML file.

Matplotlib draws the charts. Their colours become CSS variables, so that a chart follows the page's light or dark theme.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 480, 230  # of a chart, in SVG units; so are the lengths below
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 24, 14, 32
_MARK_WIDTH, _MARK_HEIGHT = 110, 14
_MIN_BAR = 1.5  # so that one recording among thousands is visible
_DOT = 7.0
_PER_INCH = 72

_MAX_POINTS = 400
_LOG_RATIO = 30.0
_MIN_BINS, _MAX_BINS = 5, 24
_ROUND = (1, 2, 2.5, 5, 10)

_SERIES = ("#000001", "#000002", "#000003", "#000004")
_SOFT, _FAINT, _CARD = "#000005", "#000006", "#000007"
_VARIABLES = {
    **{colour: f"var(--s{number})" for number, colour in enumerate(_SERIES)},
    _SOFT: "var(--soft)",
    _FAINT: "var(--faint)",
    _CARD: "var(--card)",
}
"""Colours given to matplotlib, each unique, and the CSS variables that take their place in the SVG."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "phonate",  # the same chart gives the same bytes
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "path.simplify": False,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Series:
    """One line of a chart. `dots` marks each point (for a few values, such as validations)."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    dots: bool = False


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
    from matplotlib.ticker import LogLocator, MaxNLocator

    drawn = [thinned for one in series if (thinned := _thinned(one)).xs]
    if not drawn:
        return ""
    xs = [x for one in drawn for x in one.xs]
    ys = [y for one in drawn for y in one.ys]
    low, high, log = _limits(min(ys), max(ys), log)

    def draw(axes: Axes) -> None:
        axes.set_xlim(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high / low < 1e4 else (1.0,)))
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_ylim(low, high)
        _draw_marks(axes, marks)
        for number, one in enumerate(drawn):
            _draw_series(axes, one, _SERIES[number % len(_SERIES)])

    return _svg(label, draw)


def bins(values: Sequence[float]) -> tuple[list[float], list[int]]:
    """Histogram bins at round numbers: edges (N + 1,), and the count (N,) of `values` between them."""
    from matplotlib.ticker import MaxNLocator

    low, high = min(values), max(values)
    if math.isclose(low, high, rel_tol=1e-3):
        low, high = low - (abs(low) * 0.05 or 0.5), high + (abs(high) * 0.05 or 0.5)
    most = min(_MAX_BINS, max(_MIN_BINS, round(2 * math.sqrt(len(values)))))
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
    from matplotlib.ticker import MaxNLocator

    reached = [edges[0], edges[-1], *(value for value, _ in marks), *(span or ())]
    most = max(counts) * (1.2 if marks else 1.06)
    shortest = most * _MIN_BAR / (HEIGHT - _TOP - _BOTTOM)

    def draw(axes: Axes) -> None:
        axes.set_xlim(min(reached), max(reached))
        axes.set_ylim(0.0, most)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=_ROUND))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        if span:
            axes.axvspan(*span, facecolor=_SERIES[1], alpha=0.16, linewidth=0)
        for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True):
            if count:
                title = f"{_number(start)} to {_number(end)}{unit and ' '}{unit}: {count:,} recording"
                height = max(count, shortest)
                (bar,) = axes.bar(start, height, end - start, align="edge", color=_SERIES[0], edgecolor=_CARD)
                bar.set_gid(f"{title}{'s' if count != 1 else ''}")
        _draw_marks(axes, marks)

    return _svg(label, draw)


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
    from matplotlib.ticker import MaxNLocator

    values = [*middle, *(value for one in bounds or () for value in one)]
    margin = (max(values) - min(values)) * 0.06 or 0.5

    def draw(axes: Axes) -> None:
        axes.set_xlim(-1.0, len(middle))
        axes.set_ylim(min(values) - margin, max(values) + 3 * margin)  # with room for the marks' texts
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if bounds is not None:
            axes.fill_between(range(len(middle)), *bounds, color=_SERIES[0], alpha=0.18, linewidth=0)
        _draw_marks(axes, marks)
        _draw_series(axes, Series(label, range(len(middle)), middle), _SERIES[0])
        axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])

    return _svg(label, draw)


def _svg(label: str, draw: Callable[[Axes], None]) -> str:
    """What `draw` puts on axes as an SVG element; the `gid` of an artist becomes its title, shown when pointed at."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    with rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH / _PER_INCH, HEIGHT / _PER_INCH))
        size = ((WIDTH - _LEFT - _RIGHT) / WIDTH, (HEIGHT - _TOP - _BOTTOM) / HEIGHT)
        axes = figure.add_axes((_LEFT / WIDTH, _BOTTOM / HEIGHT, *size))
        _style(axes)
        draw(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        for artist in figure.findobj():
            artist.set_clip_on(False)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True)
    drawn = written.getvalue().partition('<g id="figure_1">')[2].rpartition("</g>")[0]  # without a style for the page
    drawn = re.sub(r'<g id="([^"]* [^"]*)">', r'<g class="pointed"><title>\1</title>', drawn)
    drawn = re.sub(r' id="[^"]*"', "", drawn)
    drawn = re.sub(r' transform="rotate\(-0 [^"]*"', "", re.sub(r"\s*\n\s*", " ", drawn))
    drawn = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), drawn)
    for colour, variable in _VARIABLES.items():
        drawn = drawn.replace(colour, variable)
    start = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    return f"{start}{drawn}</svg>"


def _style(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT)
    axes.grid(axis="y", color=_FAINT, linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(left=False, bottom=False, labelcolor=_SOFT, pad=8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _draw_series(axes: Axes, series: Series, colour: str) -> None:
    axes.plot(series.xs, series.ys, color=colour, linewidth=2, solid_capstyle="round", solid_joinstyle="round")
    if series.dots or len(series.xs) == 1:
        for x, y in zip(series.xs, series.ys, strict=True):
            # A line of no length with round ends, because matplotlib's markers can't have a title each.
            title = f"{series.name} at step {x:,.0f}: {y:.5g}"
            axes.plot([x, x], [y, y], color=colour, linewidth=_DOT, solid_capstyle="round", gid=title)


def _draw_marks(axes: Axes, marks: Sequence[tuple[float, str]]) -> None:
    """Labelled vertical lines; labels of close neighbours go one below the other."""
    low, high = axes.get_xlim()
    plot = WIDTH - _LEFT - _RIGHT
    last, row = -math.inf, 0
    for value, text in sorted(marks):
        if not low <= value <= high:
            continue
        x = (value - low) / (high - low)
        row = (row + 1) % 3 if (x - last) * plot < _MARK_WIDTH else 0
        last = x
        top = 1.0 - _MARK_HEIGHT * row / (HEIGHT - _TOP - _BOTTOM)
        axes.axvline(value, 0.0, top, color=_SOFT, linewidth=1, dashes=(4, 4))
        side, shift = ("right", -5) if x > 0.75 else ("left", 5)
        axes.annotate(
            text,
            (x, top),
            (shift, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            horizontalalignment=side,
            verticalalignment="top",
            color=_SOFT,
            bbox={"facecolor": _CARD, "edgecolor": "none", "pad": 1},
        )


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
