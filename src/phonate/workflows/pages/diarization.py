"""Diarizations as a picture, and as an HTML page with a coloured timeline and a player."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import soundfile

from phonate.audio.decoding import read_blocks
from phonate.config.errors import InputError
from phonate.data.annotations import SpeakerTurn
from phonate.data.manifests.rows import printable
from phonate.workflows.pages import plots
from phonate.workflows.pages.plots import render, write_page
from phonate.workflows.pages.report import duration

if TYPE_CHECKING:
    from phonate.tasks.diarization.inference import Diarization

_PLAYED_RATE = 16_000
_ROW_SECONDS = 300.0
"""Length of a row of the timeline in seconds; shorter recordings have one row."""
_GOLDEN_ANGLE = 137.508
"""Degrees between successive hues, which keeps any number of them distinct."""


def colour(number: int) -> tuple[float, float, float]:
    """Hue in degrees, saturation and lightness in per cent, of speaker number `number`."""
    return ((222.0 + number * _GOLDEN_ANGLE) % 360.0, 60.0, 52.0)


def write_picture(path: str | Path, found: Diarization) -> Path:
    """Draw the turns of each speaker over time, as PNG, SVG or PDF depending on the suffix.

    Raises InputError if the file can't be written.
    """
    from colorsys import hls_to_rgb

    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    path = Path(path)
    figure = Figure(figsize=(12.0, 1.2 + 0.45 * max(1, len(found.speakers))), layout="constrained")
    axes = figure.subplots()
    for row, speaker in enumerate(found.speakers):
        hue, saturation, lightness = colour(row)
        spans = [(turn.start, turn.duration) for turn in found.turns if turn.speaker == speaker]
        axes.broken_barh(spans, (row - 0.4, 0.8), color=hls_to_rgb(hue / 360, lightness / 100, saturation / 100))
    axes.set(xlim=(0.0, found.seconds), ylim=(max(1, len(found.speakers)) - 0.5, -0.5))
    axes.set_yticks(range(len(found.speakers)), found.speakers)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: clock(seconds)))
    axes.grid(axis="x", alpha=0.3)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror}); choose another path or free space") from error
    return path


def write_diarization_page(path: str | Path, recording: str | Path, found: Diarization) -> Path:
    """Write a self-contained page with a player and a timeline of the speakers.

    Raises InputError if it can't be written, DataError if the recording can't be read.
    """
    name = printable(Path(recording).name)
    speech = sum(turn.duration for turn in found.turns)
    count = len(found.speakers)
    page = {
        "kind": "phonate diarization",
        "name": name,
        "summary": f"{count} speaker{'s' * (count != 1)} in {len(found.turns):,} turns.",
        "figures": [
            {"value": str(count), "label": "speakers"},
            {"value": duration(found.seconds), "label": "length"},
            {"value": duration(speech), "label": "speech, summed over speakers"},
            {"value": f"{overlapped(found.turns):.1f} s", "label": "overlapping speech"},
        ],
        "speakers": [_speaker(number, found, speech) for number in range(count)],
        "rows": _rows(found),
        "turns": [
            {"start": turn.start, "from": clock(turn.start), "to": clock(turn.end), "speaker": printable(turn.speaker)}
            for turn in found.turns
        ],
        "sound": plots.data_url(_compressed(recording), "audio/mpeg"),
    }
    return write_page(path, render("diarization.html.jinja", page))


def clock(seconds: float) -> str:
    """83.21 -> 1:23.2, 3683.2 -> 1:01:23.2; zero tenths are omitted."""
    tenths = round(10 * seconds)
    minutes, rest = divmod(tenths, 600)
    text = f"{rest // 10:02d}" + (f".{rest % 10}" if rest % 10 else "")
    return f"{minutes // 60}:{minutes % 60:02d}:{text}" if minutes >= 60 else f"{minutes}:{text}"


def overlapped(turns: Sequence[SpeakerTurn]) -> float:
    """Seconds of overlapping speech."""
    changes = sorted([(turn.start, 1) for turn in turns] + [(turn.end, -1) for turn in turns])
    total, talking, before = 0.0, 0, 0.0
    for time, change in changes:
        total += (time - before) * (talking > 1)
        talking, before = talking + change, time
    return total


def _css(number: int) -> str:
    hue, saturation, lightness = colour(number)
    return f"hsl({hue:.0f} {saturation:.0f}% {lightness:.0f}%)"


def _speaker(number: int, found: Diarization, speech: float) -> dict[str, Any]:
    turns = [turn for turn in found.turns if turn.speaker == found.speakers[number]]
    seconds = sum(turn.duration for turn in turns)
    return {
        "name": printable(found.speakers[number]),
        "colour": _css(number),
        "seconds": f"{seconds:.1f} s",
        "share": f"{100 * seconds / speech:.0f} %",
        "turns": f"{len(turns):,}",
    }


def _rows(found: Diarization) -> list[dict[str, Any]]:
    """The rows of the timeline, with the parts of turns in each."""
    length = min(_ROW_SECONDS, found.seconds)
    rows = []
    for number in range(math.ceil(found.seconds / length)):
        start, end = number * length, (number + 1) * length
        bars = [
            {
                "lane": found.speakers.index(turn.speaker),
                "colour": _css(found.speakers.index(turn.speaker)),
                "x": round(max(turn.start, start) - start, 3),
                "width": round(min(turn.end, end) - max(turn.start, start), 3),
                "title": f"{printable(turn.speaker)}, {clock(turn.start)} to {clock(turn.end)}",
            }
            for turn in found.turns
            if turn.start < end and turn.end > start
        ]
        label = f"{clock(start)} to {clock(min(end, found.seconds))}"
        rows.append({"start": start, "seconds": length, "label": label, "bars": bars})
    return rows


def _compressed(recording: str | Path) -> bytes:
    """The recording as MP3, converted in blocks."""
    packed = io.BytesIO()
    kind = {"format": "MP3", "subtype": "MPEG_LAYER_III", "compression_level": 0.8}
    with soundfile.SoundFile(packed, "w", _PLAYED_RATE, 1, **kind) as file:
        for block in read_blocks(recording, _PLAYED_RATE):
            file.write(block.clip(-1.0, 1.0))
    return packed.getvalue()
