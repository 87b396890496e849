"""Which rows of a corpus can be used, and why the others can't."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from phonate.audio.decoding import probe, read_audio
from phonate.audio.quality import describe
from phonate.audio.settings import AudioConfig
from phonate.config.errors import DataError
from phonate.data.manifests.rows import Checked, Problem, Row, printable
from phonate.data.manifests.text_checks import has_words, speech_warnings
from phonate.data.parallel import Progress as Progress
from phonate.data.progress import report_progress

THREADS = 4
SILENT_SHARE = 0.5


@dataclass
class Report:
    """The outcome of a validation."""

    path: str
    format: str
    listed: int = 0
    usable: int = 0
    seconds: float = 0.0
    speakers: dict[str, int] = field(default_factory=dict)
    """Usable recordings of each speaker."""
    refused: list[Problem] = field(default_factory=list)
    """Rows that are left out."""
    warnings: list[Problem] = field(default_factory=list)
    """Rows that are used, and deserve a look."""
    dropped: int = 0
    """Rows that `data.drop` names; they are not among the listed."""
    over_limit: int = 0
    """Rows that `data.limit` leaves out; they are not among the listed."""

    def reasons(self) -> dict[str, int]:
        """How many rows were refused for which reason, most frequent first."""
        return dict(Counter(problem.reason for problem in self.refused).most_common())

    def require_usable(self) -> None:
        """Raise DataError, with the first reason, when no recording can be used."""
        if self.usable:
            return
        counts = ", ".join(f"{count} {reason}" for reason, count in self.reasons().items()) or "none is listed"
        first = f"; the first: {self.refused[0].place}: {self.refused[0].detail}" if self.refused else ""
        raise DataError(f"{self.path}: none of {self.listed} recordings can be used ({counts}){first}")

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON document."""
        return {
            "path": self.path,
            "format": self.format,
            "listed": self.listed,
            "dropped": self.dropped,
            "over_limit": self.over_limit,
            "usable": self.usable,
            "seconds": round(self.seconds, 3),
            "speakers": self.speakers,
            "reasons": self.reasons(),
            "refused": [vars(problem) for problem in self.refused],
            "warnings": [vars(problem) for problem in self.warnings],
        }


def validate(
    rows: Iterable[Row | Problem],
    audio: AudioConfig,
    report: Report,
    progress: Progress | None = None,
    *,
    text_required: bool = False,
) -> list[Checked]:
    """Look at every recording, all samples of it, and fill in `report`; returns those that can be used. Those without
    text are refused if it is required."""
    listed = list(rows)
    report.listed = len(listed)
    unique = list(_unique(listed, report))
    usable: list[Checked] = []
    with ThreadPoolExecutor(THREADS) as pool:
        # In slices, so that a long corpus is not held in memory as futures.
        remaining, done = iter(unique), 0
        while chunk := list(islice(remaining, 256)):
            for found in pool.map(lambda row: check(row, audio, text_required), chunk):
                done += 1
                _count(found, usable, report)
                (progress or report_progress)("checking recordings", done, len(unique))
    report.warnings.extend(_duplicates(usable))
    report.warnings.extend(speech_warnings(usable))
    return usable


def _count(found: tuple[Checked | None, list[Problem]], usable: list[Checked], report: Report) -> None:
    checked, problems = found
    if checked is None:
        report.refused.extend(problems)
        return
    report.warnings.extend(problems)
    usable.append(checked)
    report.usable += 1
    report.seconds += checked.seconds
    speaker = str(checked.row.speaker)
    report.speakers[speaker] = report.speakers.get(speaker, 0) + 1


def _duplicates(usable: Iterable[Checked]) -> Iterator[Problem]:
    """A warning for each recording that holds the samples of an earlier one."""
    first: dict[bytes, Row] = {}
    for checked in usable:
        row = checked.row
        earlier = first.setdefault(checked.content, row)
        if earlier is not row:
            yield Problem(row.id, row.place, "duplicate content", f"the same samples as {earlier.id!r}")


def _unique(rows: Iterable[Row | Problem], report: Report) -> Iterator[Row]:
    """The first row of each id; later ones, and what is no row, are refused."""
    first: dict[str, str] = {}
    for row in rows:
        if isinstance(row, Problem):
            report.refused.append(row)
        elif row.id in first:
            detail = f"id {row.id!r} is already that of {first[row.id]}; give each recording its own"
            report.refused.append(Problem(row.id, row.place, "duplicate id", detail))
        else:
            first[row.id] = row.place
            yield row


def check(row: Row, audio: AudioConfig, text_required: bool = False) -> tuple[Checked | None, list[Problem]]:
    """The row with what its file holds, and warnings; or None and the one reason why it can't be used."""
    try:
        _require(row.speaker is not None, "no speaker", "no speaker is given; fill in speaker_id")
        said = has_words(row.text) or not text_required
        _require(said, "no text", "no text is given, or none with a letter or a digit in it; fill it in")
        _require(row.path.is_file(), "missing file", f"{row.path} is not there")
        _require(row.path.stat().st_size > 0, "empty file", f"{row.path} holds no bytes")
        info = probe(row.path)
        long = f"{info.duration:.1f} s, longer than data.audio.max_seconds {audio.max_seconds:g}"
        _require(info.duration <= audio.max_seconds, "too long", long)
        waveform, rate = read_audio(row.path)
        seconds = len(waveform) / rate
        short = f"{seconds:.3f} s, shorter than data.audio.min_seconds {audio.min_seconds:g}"
        _require(seconds >= audio.min_seconds, "too short", short)
        quality = describe(waveform, rate)
        _require(quality.peak > 0.0, "silent", "every sample is 0")
    except _Refusal as refusal:
        return None, [Problem(row.id, row.place, refusal.reason, printable(refusal.detail))]
    except (DataError, OSError) as error:
        return None, [Problem(row.id, row.place, "unreadable", printable(str(error)))]
    warnings = []
    if quality.silence_share > SILENT_SHARE:
        detail = f"{100 * quality.silence_share:.0f} % of it is silence"
        warnings.append(Problem(row.id, row.place, "mostly silent", detail))
    content = hashlib.blake2b(waveform.tobytes(), digest_size=16).digest()
    return Checked(row, seconds, info.sample_rate, info.channels, content, quality), warnings


class _Refusal(Exception):
    """A row can't be used."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def _require(condition: bool, reason: str, detail: str) -> None:
    if not condition:
        raise _Refusal(reason, detail)
