"""What one look at a recording tells, for all who ask, and which rows of a corpus can be used and why others can't."""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from phonate.audio.decoding import BLOCK_SECONDS, AudioInfo, FloatArray, Recording, joined, open_recording, regrouped
from phonate.audio.quality import AudioQuality, describe, describe_blocks
from phonate.audio.readers import holds_bytes
from phonate.compute.remote import is_remote
from phonate.compute.resources import cores
from phonate.config.errors import DataError
from phonate.config.randomness import derived_seed
from phonate.config.registry import looked_in, nearest_path
from phonate.config.words import that_many
from phonate.data.cluster import executor_of
from phonate.data.corpora.lists import read_lines
from phonate.data.corpora.rows import (
    LONG_SECONDS,
    LONGEST_UNLABELLED,
    OVERLAP_SECONDS,
    SLACK_SECONDS,
    Problem,
    Requirements,
    Row,
    Segment,
    blocks_of,
    official_split,
    printable,
    row_file,
)
from phonate.data.corpora.transcripts import text_of
from phonate.data.parallel import Progress as Progress
from phonate.data.parallel import Stage, Threads, report_progress

if TYPE_CHECKING:
    from phonate.data.settings import ExecutorName

logger = logging.getLogger("phonate")

Result = TypeVar("Result")

# ------------------------------------------------- Recordings excluded by `data.drop` and `data.limit`

_NAMED = 3


def listed_in(drop: str) -> Path:
    """The file that `data.drop` names. Raises DataError where it is not there."""
    path = Path(drop).expanduser()
    if not path.is_file():
        raise DataError(f"data.drop: {path}: no such file{looked_in(path)}{nearest_path(path)}")
    return path


def leave_out(rows: Sequence[Row | Problem], drop: str | None, report: Report) -> list[Row | Problem]:
    """The rows whose ids are not listed in the file `drop`. The report counts the others and warns of ids that no
    recording has."""
    if drop is None:
        return list(rows)
    path = listed_in(drop)
    unwanted = {id: number for number, line in enumerate(read_lines(path), start=1) if (id := line.strip())}
    remaining = [row for row in rows if row.id not in unwanted]
    report.dropped += len(rows) - len(remaining)
    listed = {row.id for row in rows}
    for id, number in unwanted.items():
        if id not in listed:
            report.warnings.append(Problem(id, f"{path}:{number}", "unknown id", f"no recording has the id {id!r}"))
    return remaining


def limit_rows(rows: Sequence[Row | Problem], limit: int | None, report: Report) -> list[Row | Problem]:
    """At most `limit` rows: those whose ids hash lowest, a sample that spans speakers and stays nearly the same when
    rows are added or removed. The report counts the others."""
    if limit is None or len(rows) <= limit:
        return list(rows)
    lowest = sorted(range(len(rows)), key=lambda i: derived_seed("limit", rows[i].id))[:limit]
    report.over_limit += len(rows) - limit
    return [rows[i] for i in sorted(lowest)]


def warn_left_out(reason: str, recordings: Sequence[str]) -> None:
    """Log how many recordings are left out for a `reason` ("are too short", say), and the first few of them."""
    if recordings:
        more = f" and {len(recordings) - _NAMED} more" if len(recordings) > _NAMED else ""
        listed = "; ".join(recordings[:_NAMED])
        many = that_many(len(recordings), "recording", f"{reason}, and are left out")
        logger.warning("%s: %s%s", many, listed, more)


def warn_refused(problems: Sequence[Mapping[str, Any]], listing: str) -> None:
    """Log which recordings can't be used: of a few what is wrong with each, of many how many have what, and the
    `listing`, a file or a command, that has all."""
    if len(problems) <= _NAMED:
        warn_left_out("can't be used", [f"{one['place']}: {one['detail']}" for one in problems])
        return
    counts = ", ".join(
        f"{count} {reason}" for reason, count in Counter(one["reason"] for one in problems).most_common()
    )
    reason = f"can't be used ({counts}; {listing} lists all)"
    warn_left_out(reason, [one["place"] for one in problems])


# --------------------------------------------------------------- Quality checks of a clip and its text

CLIPPED_SHARE = 0.001
LONGEST_EDGE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 2.0
NOISE_DB = -15.0
SLOWEST, FASTEST = 4.0, 35.0
"""Characters per second; speech is neither slower nor faster."""
DEVIATIONS = 5.0
"""Largest deviation from the corpus's median rate, in robust standard deviations of the log rate."""
_LEAST_DEVIATION = 0.08  # similar sentences hardly deviate: without a minimum some would be flagged
_FEWEST = 10  # rates needed for a meaningful median
TOO_SHORT = "too short for its text"
"""The reason for a recording in which its text can't have been said."""
_SHORT = 20  # characters; for shorter texts the pauses around them dominate the duration
_FORMATTING = {"\u200c", "\u200d"}  # (non-)joiners, needed in Persian, Hindi and others
_MOST_SCORE = 9.9


FAILURES = (DataError, OSError, ValueError, RuntimeError, MemoryError)
"""What decoders raise for damaged files, such as UnicodeDecodeError for a tag."""


@dataclass(unsafe_hash=True)
class Unusable(Exception):
    """Why a recording, a part of one, or a row can't be used."""

    reason: str
    """A short category, by which problems are counted."""
    detail: str
    place: str = ""
    """Where that is listed, if not where the row is."""

    def problem(self, id: str, place: str) -> Problem:
        """As a line of a report."""
        return Problem(id, self.place or place, self.reason, printable(self.detail))


@dataclass(frozen=True)
class Finding:
    """One problem of a clip."""

    reason: str
    detail: str
    score: float
    """1 or more is a warning."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What one look at all samples of a recording, or of a part of it, tells. Who asks decides what is required."""

    quality: AudioQuality
    digest: str = ""
    """Of the samples and their rate: the same for copies of a file; "" where nobody asked for it."""
    remarks: tuple[str, ...] = ()
    """What is unusual about the file and was mended."""

    @property
    def seconds(self) -> float:
        """Length of what was read."""
        return self.quality.duration

    def require_sound(self) -> None:
        """Raises Unusable for digital silence."""
        _require(self.quality.peak > 0.0, "silent", "every sample is 0")

    def clipping(self) -> Finding:
        """How much of it is clipped."""
        share = self.quality.clipping_share
        detail = f"{100 * share:.1f} % of the samples are clipped"
        return _finding("clipping", detail, share / CLIPPED_SHARE, share > CLIPPED_SHARE)

    def warnings(self) -> Iterator[Finding]:
        """What deserves a look, whatever the recording is for."""
        yield from unusual(self.remarks)
        if self.quality.silence_share > SILENT_SHARE:
            yield Finding("mostly silent", f"{100 * self.quality.silence_share:.0f} % of it is silence", 1.0)


@dataclass(frozen=True, kw_only=True)
class CheckedRow(Inspection):
    """A row that passed validation, with what was measured of the row: of the part, where it is one."""

    row: Row
    sample_rate: int
    channels: int
    """Of the file."""

    @property
    def content(self) -> Hashable:
        """The same for copies of a recording, and hardly for any other: what was measured of all samples."""
        return self.sample_rate, self.quality

    @property
    def is_clip(self) -> bool:
        """Whether one speaker speaks from beginning to end, so that silence is a fault. Others may be conversations,
        whose labels say where speech is."""
        spoken = sum(one.end - one.start for one in self.segments if one.end is not None)
        return len(self.segments) < 2 and (not self.segments or spoken >= self.seconds - LONGEST_EDGE_SECONDS)

    @property
    def place(self) -> str:
        """Where a fault of its sound is: that of a conversation is not in a line of its labels."""
        return self.row.place if self.is_clip else printable(str(self.row.path))

    @cached_property
    def segments(self) -> list[Segment]:
        """The row's segments with times in seconds from its beginning, cut off at its ends."""
        start, segments = self.row.start, []
        for one in self.row.segments:
            begin, end = max(one.start - start, 0.0), self.seconds
            if one.end is not None:
                end = min(one.end - start, self.seconds)
            segments.append(replace(one, start=begin, end=end))
        return segments


class decoding:  # in small letters as those of contextlib; a generator would take ten times as long, for each recording
    """Raises Unusable in place of what decoders raise for damaged files."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, FAILURES):
            raise Unusable("unreadable", reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """A decoder's error as one printable line."""
    message = " ".join(printable(str(error)).split()) or type(error).__name__
    return message if isinstance(error, DataError | OSError) else f"{type(error).__name__}: {message}; export it again"


def content_digest() -> hashlib.blake2b:
    """BLAKE2, by which a recording is known for good."""
    return hashlib.blake2b(digest_size=16)


def inspect(
    row: Row, recording: Recording, info: AudioInfo, digest: hashlib.blake2b | None = None
) -> tuple[Inspection, FloatArray | None]:
    """Read all samples of a row whose recording is open, and described by `info`. They are returned, too, at their own
    rate, but for a row over LONG_SECONDS (None), which is read in blocks.

    Raises Unusable where they can't be decoded."""
    end = info.duration if row.end is None else row.end
    with decoding():
        blocks = blocks_of(row, recording)
        return inspected(joined(blocks) if end - row.start <= LONG_SECONDS else blocks, recording, digest)


def digested(blocks: Iterable[FloatArray], rate: int, digest: hashlib.blake2b) -> Iterator[FloatArray]:
    """The blocks, which `digest` takes, too."""
    digest.update(f"{rate}\n".encode())
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
        yield block


def inspected(
    samples: FloatArray | Iterator[FloatArray], recording: Recording, digest: hashlib.blake2b | None = None
) -> tuple[Inspection, FloatArray | None]:
    """What the samples of a recording tell: all of them (samples,), or blocks of them."""
    rate = recording.sample_rate
    waveform = samples if isinstance(samples, np.ndarray) else None
    blocks: Iterator[FloatArray] = iter([samples]) if isinstance(samples, np.ndarray) else samples
    if digest is not None:
        blocks = digested(blocks, rate, digest)
    if waveform is not None:
        quality = describe(next(blocks), rate)
    else:
        quality = describe_blocks(regrouped(blocks, round(BLOCK_SECONDS * rate)), rate)
    name = "" if digest is None else digest.hexdigest()
    return Inspection(digest=name, quality=quality, remarks=tuple(recording.remarks)), waveform


@contextmanager
def recording_of(path: Path) -> Iterator[Recording]:
    """A recording, open. Raises Unusable where there is no file or no recording."""
    with ExitStack() as stack:
        with decoding():
            if not holds_bytes(path):
                _require_file(path)
            recording = stack.enter_context(open_recording(path))
        yield recording


def _require_file(path: Path) -> None:
    odd = "" if printable(str(path)) == str(path) else ", and its name is not UTF-8: is the list saved as UTF-8?"
    below = "" if path.is_absolute() else f"; it is relative to {Path.cwd()}"
    # A pipe or a device would be read for ever.
    odd_kind = f"{path} is a folder, a pipe or a device; list a file"
    _require(path.is_file() or not path.exists(), "not a file", odd_kind)
    _require(path.is_file(), "missing file", f"{path} is not there{odd}{below}")
    _require(path.stat().st_size > 0, "empty file", f"{path} holds no bytes")


def require_part(start: float, end: float | None, duration: float, slack: float) -> float:
    """The end of the part from `start` to `end` (None: to the end) of a recording, `end` cut off at its `duration`.
    All in seconds. Raises Unusable where the recording has no such part; `end` may be `slack` behind it."""
    inside = 0.0 <= start < duration and (end is None or start < end <= duration + slack)
    if not inside:
        part = f"seconds {start:g} to {duration if end is None else end:g}"
        raise Unusable("no such part", f"{part} of a recording of {duration:.3f} s; correct the times")
    return duration if end is None else min(end, duration)


PIECE_SECONDS = 14.0
"""The longest piece that `phonate data prepare --split` makes."""


def to_cut(folder: str | Path, most: float | None, text: bool = False) -> str:
    """The advice to cut a recording of the corpus in `folder` to at most so many seconds, with the command where it
    can. `text`: its text is needed, and is of the whole."""
    if most is None or most < PIECE_SECONDS:
        return "cut it"
    named = shlex.quote(printable(str(folder))) if is_remote(str(folder)) or os.path.exists(folder) else "FOLDER"
    return f"cut it: phonate data prepare {named} --split{' --transcribe' if text else ''} -o NEW"


def require_length(
    seconds: float, settings: str, least: float = 0.0, most: float | None = None, mend: str = "cut it"
) -> None:
    """Raises Unusable for a recording shorter than the option min_seconds of `settings`, or longer than max_seconds.
    `mend`: what to do with one that is longer."""
    if most is not None and not seconds <= most:
        raise Unusable("too long", f"{seconds:.1f} s, longer than {settings}.max_seconds {most:g}; {mend}")
    if not seconds >= least:
        short = f"{seconds:.3f} s, shorter than {settings}.min_seconds {least:g}; record longer ones, or join them"
        raise Unusable("too short", short)


def require_one_speaker(row: Row, text: bool = False) -> None:
    """Raises Unusable for a row of several speakers. `text`: whether each needs a text."""
    if len(row.segments) < 2:
        return
    names = ", ".join(row.speakers[:5]) + (", ..." if len(row.speakers) > 5 else "")
    mend = "data.unit: segment cuts it into segments"
    if text and not has_words(row.text):
        mend += "; its labels have no texts: add them, or transcribe the segments with data.transcribe=true, too"
    detail = f"{len(row.speakers)} speakers ({names}), the task takes one; {mend}"
    _require(len(row.speakers) <= 1, "several speakers", detail)


def unusual(remarks: Iterable[str]) -> Iterator[Finding]:
    """A warning for each remark on what is unusual about a file."""
    for remark in remarks:
        yield Finding("unusual file", printable(remark), 1.0)


@dataclass(frozen=True)
class Rates:
    """Speaking rates of a corpus: median and spread of the log of characters per second."""

    median: float
    deviation: float

    @classmethod
    def of(cls, clips: Iterable[CheckedRow]) -> Rates | None:
        """The rates of the clips with text; None if there are fewer than 10."""
        rates = [rate for one in clips if characters(one) >= _SHORT and (rate := rate_of(one)) > 0.0]
        if len(rates) < _FEWEST:
            return None
        logs = np.log(rates)
        middle = float(np.median(logs))
        return cls(middle, max(_LEAST_DEVIATION, 1.4826 * float(np.median(np.abs(logs - middle)))))


def has_words(text: str | None) -> bool:
    """Whether a text contains a letter or a digit."""
    return any(letter.isalnum() for letter in text or "")


def characters(one: CheckedRow) -> int:
    """Characters of a clip's text; a run of spaces counts as one."""
    return len(" ".join((one.row.text or "").split()))


def rate_of(one: CheckedRow) -> float:
    """Characters per second, without leading and trailing silence."""
    return characters(one) / max(0.1, one.seconds - one.quality.leading_silence - one.quality.trailing_silence)


def findings(one: CheckedRow, rates: Rates | None) -> list[Finding]:
    """All findings for a clip, including its speaking rate relative to the corpus.

    Pauses and rates are judged for clips alone."""
    all_findings = [*_sound(one), *_signs(one.row.text or "")]
    if not one.is_clip:
        return [finding for finding in all_findings if finding.reason != "long silence"]
    if has_words(one.row.text):
        rate = _rate(one, rates)
        if rate.reason == TOO_SHORT:  # of so short a piece of sound, noise can't be told
            all_findings = [finding for finding in all_findings if finding.reason != "noise"]
        all_findings.append(rate)
    return all_findings


def speech_warnings(usable: Sequence[CheckedRow]) -> Iterator[Problem]:
    """A warning for each finding with a score of at least 1, and for missing and duplicate texts."""
    rates = Rates.of(usable)
    any_text = any(has_words(one.row.text) for one in usable)
    first: dict[str, CheckedRow] = {}
    for one in usable:
        row = one.row
        for finding in findings(one, rates):
            if finding.score >= 1.0:
                yield Problem(row.id, one.place, finding.reason, finding.detail)
        if not has_words(row.text):
            if any_text:
                yield Problem(row.id, row.place, "no text", "other recordings have a text")
            continue
        earlier = first.setdefault(" ".join((row.text or "").split()).lower(), one)
        # Several speakers may well read the same sentence.
        if earlier is not one and earlier.row.speaker == row.speaker and earlier.content != one.content:
            yield Problem(row.id, row.place, "duplicate text", f"same text as {earlier.row.id!r}, but different audio")


def _sound(one: CheckedRow) -> Iterator[Finding]:
    quality = one.quality
    yield one.clipping()
    for where, seconds, most in (
        ("before the first sound", quality.leading_silence, LONGEST_EDGE_SECONDS),
        ("after the last sound", quality.trailing_silence, LONGEST_EDGE_SECONDS),
        ("in the middle", quality.longest_pause, LONGEST_PAUSE_SECONDS),
    ):
        yield _finding("long silence", f"{seconds:.1f} s of silence {where}", seconds / most, seconds > most)
    noise = f"the quietest parts are only {-quality.noise_db:.0f} dB below the loudest: noise or music"
    # 1 at the limit, and one more for each 3 dB
    yield _finding("noise", noise, 1.0 + (quality.noise_db - NOISE_DB) / 3.0, quality.noise_db > NOISE_DB)


def _signs(text: str) -> Iterator[Finding]:
    if text.strip().lower() in ("nan", "<na>"):
        yield Finding(
            "missing value", f"the text is {text.strip()!r}, as pandas writes what is missing; remove it", 1.0
        )
    odd = sorted({letter for letter in text if _is_odd(letter)})
    if odd:
        named = ", ".join(f"U+{ord(letter):04X}" for letter in odd[:5])
        yield Finding("odd characters", f"the text contains unprintable characters: {named}", 1.0)


def _is_odd(letter: str) -> bool:
    if letter in _FORMATTING:
        return False
    # U+FFFD stands where another program could not decode a character.
    return letter == "\ufffd" or unicodedata.category(letter) in {"Cc", "Cf", "Co", "Cn", "Zl", "Zp"}


def _rate(one: CheckedRow, rates: Rates | None) -> Finding:
    length, rate = characters(one), rate_of(one)
    short = length < _SHORT
    # Allow a second for the pauses around a short text.
    slowest = length / max(0.1, one.seconds - 1.0) if short else rate
    detail = f"{rate:.1f} characters of its text a second"
    score = 0.0 if rates is None or short else abs(np.log(rate) - rates.median) / rates.deviation / DEVIATIONS
    if rates is not None and not short:
        detail += f", where {np.exp(rates.median):.1f} are usual here"
    slow = slowest < SLOWEST or (score > 1.0 and rates is not None and np.log(rate) < rates.median)
    fast = rate > FASTEST or (score > 1.0 and not slow)
    beyond = max(SLOWEST / max(slowest, 0.01), rate / FASTEST)
    reason = "spoken slowly" if slow else "spoken fast" if fast else "speaking rate"
    if rate > FASTEST:
        reason = TOO_SHORT
        detail = (
            f"{one.seconds:.1f} s are too short for the {length} characters of its text: {rate:.0f} a second, and "
            f"nobody says more than {FASTEST:g}"
        )
    if slow or fast:
        slowly = reason == "spoken slowly"
        detail += "; is its text all that is said?" if slowly else "; was it cut, or is the text another's?"
    return _finding(reason, detail, max(float(score), beyond if slow or fast else 0.0), slow or fast)


def _finding(reason: str, detail: str, score: float, warned: bool) -> Finding:
    """A finding with a score of at least 1 if `warned`, otherwise below 1."""
    bounded = min(max(score, 0.0), _MOST_SCORE)
    return Finding(reason, detail, max(1.0, bounded) if warned else min(bounded, 0.99))


# ---------------------------------------- Which rows of a corpus can be used, and why the others can't

THREADS = 4
"""At most. More than there are cores wait for each other; of two, one works while the other waits for the disk."""
SILENT_SHARE = 0.5
_OTHER_LENGTH = 0.5
"""Seconds. Lists are rounded, and ends may be trimmed."""


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
    segments: int = 0
    """Segments of the usable recordings."""
    speech_seconds: float = 0.0
    """Seconds of the usable recordings that are in at least one segment."""
    overlap_seconds: float = 0.0
    """Seconds that are in segments of two or more speakers."""
    refused: list[Problem] = field(default_factory=list)
    """Rows that are left out."""
    warnings: list[Problem] = field(default_factory=list)
    """Rows that are used, and deserve a look."""
    dropped: int = 0
    """Rows that `data.drop` names; they are not among the listed."""
    over_limit: int = 0
    """Rows that `data.limit` leaves out; they are not among the listed."""

    def recount(self, usable: Iterable[CheckedRow]) -> None:
        """Count the usable recordings anew."""
        self.usable = self.segments = 0
        self.seconds = self.speech_seconds = self.overlap_seconds = 0.0
        self.speakers = {}
        for one in usable:
            _add(one, self)

    def reasons(self) -> dict[str, int]:
        """How many rows were refused for which reason, most frequent first."""
        return dict(Counter(problem.reason for problem in self.refused).most_common())

    @property
    def recordings(self) -> int:
        """How many recordings the listed rows are: labels that name none are not counted beside one without labels,
        which may be theirs."""
        reasons = self.reasons()
        return self.listed - min(reasons.get("missing file", 0), reasons.get("no annotation", 0))

    def require_usable(self) -> None:
        """Raise DataError, with the first reason, when no recording can be used."""
        if self.usable:
            return
        counts = ", ".join(f"{count} {reason}" for reason, count in self.reasons().items()) or "none is listed"
        first = f"; the first: {self.refused[0].place}: {self.refused[0].detail}" if self.refused else ""
        raise DataError(f"{self.path}: none of {self.recordings} recordings can be used ({counts}){first}")

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON document."""
        return {
            "path": self.path,
            "format": self.format,
            "listed": self.listed,
            "recordings": self.recordings,
            "dropped": self.dropped,
            "over_limit": self.over_limit,
            "usable": self.usable,
            "seconds": round(self.seconds, 3),
            "speakers": self.speakers,
            "segments": self.segments,
            "speech_seconds": round(self.speech_seconds, 3),
            "overlap_seconds": round(self.overlap_seconds, 3),
            "reasons": self.reasons(),
            "refused": [vars(problem) for problem in self.refused],
            "warnings": [vars(problem) for problem in self.warnings],
        }


def validate(
    rows: Iterable[Row | Problem],
    requirements: Requirements,
    report: Report,
    progress: Progress | None = None,
    threads: int | None = None,
    executor: ExecutorName = "local",
    notes: Path | None = None,
) -> list[CheckedRow]:
    """Read every recording, all samples of it, and fill in `report`; returns those that meet the requirements.
    `notes`: see `usable_rows`."""
    results = usable_rows(rows, requirements, report, _nothing, Stage.CHECKING, progress, threads, executor, notes)
    return [checked for checked, _ in results]


def _nothing(checked: CheckedRow, waveform: FloatArray | None) -> None:
    """What is made of a recording that is only checked."""


def usable_rows(
    rows: Iterable[Row | Problem],
    requirements: Requirements,
    report: Report,
    then: Callable[[CheckedRow, FloatArray | None], Result],
    stage: Stage,
    progress: Progress | None = None,
    threads: int | None = None,
    executor: ExecutorName = "local",
    notes: Path | None = None,
) -> Iterator[tuple[CheckedRow, Result]]:
    """As `validate`, row by row, each with the result of `then` (picklable), which gets the samples that were read
    (None for a long recording) in the same place, so that nobody has to decode them again. `report` is complete at the
    end. `notes`: the folder in which recordings are noted at which a decoder may die."""
    listed = list(rows)
    report.listed = len(listed)
    unique = list(unique_rows(listed, report))
    usable: list[CheckedRow] = []
    one: Callable[[Row], _Outcome[Result]] = partial(_checked, requirements, report.path, then)
    local = Threads(threads or min(THREADS, max(2, cores())), source_of, notes)
    results = executor_of(executor, local).map(one, unique, _crashed, file_of)
    for done, (problems, result) in enumerate(results, start=1):
        if result is None:
            report.refused.extend(problems)
        else:
            report.warnings.extend(problems)
            usable.append(result[0])
            _add(result[0], report)
            yield result
        (progress or report_progress)(stage, done, len(unique))
    report.warnings.extend(_duplicates(usable))
    report.warnings.extend(speech_warnings(usable))


_Outcome = tuple[list[Problem], tuple[CheckedRow, Result] | None]
"""Warnings and the row; or why it can't be used, and None."""


def _checked(
    requirements: Requirements, corpus: str, then: Callable[[CheckedRow, FloatArray | None], Result], row: Row
) -> _Outcome[Result]:
    checked, problems, waveform = check(row, requirements, corpus)
    return problems, None if checked is None else (checked, then(checked, waveform))


def _crashed(row: Row) -> tuple[list[Problem], None]:
    return [Unusable("unreadable", CRASHED).problem(row.id, row.place)], None


CRASHED = "the decoder crashes on it, or does not come to its end; export it again"


def source_of(row: Row) -> str:
    """What a row is read from, as `phonate.data.journal` names it."""
    if row.member is None:
        return os.path.abspath(row.path)
    return f"{row.member.shard}\n{row.member.name}"


def file_of(row: Row) -> Path | None:
    """The file on a disk that a row is read from."""
    if row.member is None:
        return row.path
    return None if is_remote(row.member.shard) else Path(row.member.shard)


def _add(checked: CheckedRow, report: Report) -> None:
    report.usable += 1
    report.seconds += checked.seconds
    segments = checked.segments
    report.segments += len(segments)
    speech, overlap = coverage(segments)
    report.speech_seconds += speech
    report.overlap_seconds += overlap
    for speaker in checked.row.speakers:
        report.speakers[speaker] = report.speakers.get(speaker, 0) + 1


def coverage(segments: Sequence[Segment]) -> tuple[float, float]:
    """Seconds in at least one segment, and seconds in segments of two or more speakers."""
    if len(segments) == 1 and segments[0].end is not None:
        return segments[0].end - segments[0].start, 0.0
    changes = sorted(
        change
        for one in segments
        if one.end is not None
        for change in ((one.start, 1, str(one.speaker)), (one.end, -1, str(one.speaker)))
    )
    active: Counter[str] = Counter()
    speech = overlap = earlier = 0.0
    for time, change, speaker in changes:
        talking = sum(count > 0 for count in active.values())
        speech += (time - earlier) * (talking >= 1)
        overlap += (time - earlier) * (talking >= 2)
        active[speaker] += change
        earlier = time
    return speech, overlap


def of_trained_speakers(usable: Sequence[CheckedRow], report: Report, held_out: Collection[str]) -> list[CheckedRow]:
    """The rows whose speakers are in training; the others, which are only in the splits `held_out`, are refused. All
    rows where nothing is in training."""
    trained = {
        speaker for one in usable for speaker in one.row.speakers if official_split(one.row.split) not in held_out
    }
    if not trained:
        return list(usable)
    rows: list[CheckedRow] = []
    for one in usable:
        unknown = [speaker for speaker in one.row.speakers if speaker not in trained]
        if not unknown:
            rows.append(one)
            continue
        detail = f"{unknown[0]} is only in the official split {one.row.split}, and this model learns single voices"
        report.refused.append(Problem(one.row.id, one.row.place, "speaker not in training", printable(detail)))
    if len(rows) < len(usable):
        report.recount(rows)
    return rows


def _duplicates(usable: Iterable[CheckedRow]) -> Iterator[Problem]:
    """A warning for each recording that holds the samples of an earlier one."""
    first: dict[Hashable, Row] = {}
    for checked in usable:
        row = checked.row
        earlier = first.setdefault(checked.content, row)
        if earlier is not row:
            yield Problem(row.id, row.place, "duplicate content", f"the same samples as {earlier.id!r}")


def unique_rows(rows: Iterable[Row | Problem], report: Report) -> Iterator[Row]:
    """The first row of each id; later ones, and problems, are refused."""
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


def check(
    row: Row, requirements: Requirements, corpus: str = ""
) -> tuple[CheckedRow | None, list[Problem], FloatArray | None]:
    """The row of `corpus`, a path, with what its file holds, warnings, and its samples as `inspect` returns them; or
    None and the one reason why it can't be used."""
    file = row.path
    least, most = requirements.min_seconds, requirements.max_seconds
    mend = to_cut(corpus, most if requirements.one_speaker else None, requirements.text)
    try:
        _require_labels(row, requirements)
        with ExitStack() as stack:
            with decoding():
                file = stack.enter_context(row_file(row))
            recording = stack.enter_context(recording_of(file))
            whole = _read_to_count(row, recording)
            with decoding():
                info = recording.info(None if whole is None else len(whole))
            row = row.of_file(info.duration)
            end = require_part(row.start, row.end, info.duration, SLACK_SECONDS)
            require_length(end - row.start, "data.audio", least, most, mend)
            _require_segments(row, end, info.duration, requirements)
            if row.end is not None and row.end > info.duration:
                row = replace(row, end=None)
            if whole is None or row.end is not None:
                if not recording.counted:  # it may be read already, and decoders of streams do not go back
                    recording = stack.enter_context(recording_of(file))
                inspection, waveform = inspect(row, recording, info)
            else:
                inspection, waveform = inspected(whole, recording)
        # Again, by the samples that are there: some headers only estimate the length.
        require_length(inspection.seconds, "data.audio", least, most, mend)
        inspection.require_sound()
    except Unusable as why:
        if row.member is not None:
            why.detail = why.detail.replace(str(file), row.source)
        return None, [why.problem(row.id, row.place)], None
    checked = CheckedRow(**vars(inspection), row=row, sample_rate=info.sample_rate, channels=info.channels)
    return checked, list(_warnings(checked)), waveform


def _read_to_count(row: Row, recording: Recording) -> FloatArray | None:
    """The samples of a whole recording whose header does not say how many there are, which only then are known: so
    that they need not be decoded again. None where the header says, or the recording is long."""
    if recording.counted or row.start > 0 or row.end is not None:
        return None
    blocks, count = list[FloatArray](), 0
    with decoding():
        for block in blocks_of(row, recording):
            blocks.append(block)
            count += len(block)
            if count > LONG_SECONDS * recording.sample_rate:
                return None
        return joined(blocks)


def _require_labels(row: Row, requirements: Requirements) -> None:
    """What the list itself says: speakers and texts."""
    if requirements.one_speaker:
        require_one_speaker(row, requirements.text)
    if requirements.speaker:
        some = bool(row.segments) or requirements.may_be_empty
        named = some and all(one.speaker is not None for one in row.segments)
        _require(named, "no speaker", "no speaker is given; fill in speaker_id, or who speaks in each label")
    if requirements.text:
        left_out = next((one.no_text for one in row.segments if one.no_text), None)
        _require(left_out is None, "no text", f"its text is left out: {left_out}")
        where = f"{text_beside(row)}{' or into the list' if _is_file(row) else ''}"
        mend = f"write it into {where}, or set data.transcribe=true"
        _require(has_words(row.text), "no text", f"no text is given, or none with a letter or a digit in it; {mend}")


def _is_file(row: Row) -> bool:
    """Whether a row is a whole file of its own."""
    return row.member is None and row.start == 0.0 and row.end is None


def text_beside(row: Row) -> str:
    """Where the text of a recording may be written."""
    if not _is_file(row):
        return row.place
    if has_empty_text(row) and (file := text_of(row.path)) is not None:
        return f"the empty {file.name} beside {row.path.name}"
    return f"{row.path.stem}.txt beside {row.path.name}"


def has_empty_text(row: Row) -> bool:
    """Whether there is a text, such as a file of it, without anything in it."""
    return not row.text and any(one.text == "" for one in row.segments)


def _require_segments(row: Row, end: float, duration: float, requirements: Requirements) -> None:
    """Times that make sense; for clips, also that segments with texts are whole and no speech is unlabelled."""
    spans = [(one.start, end if one.end is None else one.end) for one in row.segments]
    for one, (start, stop) in zip(row.segments, spans, strict=True):
        if not (0.0 <= start < stop <= duration + SLACK_SECONDS and start < end and stop > row.start):
            span = f"from {start:g} to {stop:g} s, the recording has {row.start:g} to {end:g}"
            raise Unusable("bad segment", f"a segment {span}; correct its times", one.place)
        if requirements.text:
            whole = start >= row.start - SLACK_SECONDS and stop <= end + SLACK_SECONDS
            cut = f"the segment from {start:g} to {stop:g} s is cut off at {row.start:g} or {end:g} s, its text is not"
            _require(whole, "cut text", f"{cut}; cut between segments")
    if requirements.text:
        for (start, stop), (following, _) in pairwise(sorted(spans)):
            detail = f"segments from {start:g} and {following:g} s overlap, so the order of their texts is unclear"
            _require(following >= stop - OVERLAP_SECONDS, "overlapping texts", f"{detail}; cut them apart")
    if requirements.one_speaker and spans:
        reached = row.start
        for start, stop in [*sorted(spans), (end, end)]:
            detail = f"seconds {reached:g} to {start:g} are in no segment; cut the recording to its segments"
            _require(start - reached <= LONGEST_UNLABELLED, "unlabelled speech", detail)
            reached = max(reached, stop)


def _warnings(checked: CheckedRow) -> Iterator[Problem]:
    row = checked.row
    if row.listed_seconds is not None and row.end is None and row.listed_seconds > checked.seconds + _OTHER_LENGTH:
        detail = (
            f"the list says {row.listed_seconds:.2f} s, the file has {checked.seconds:.2f}; was it cut or replaced?"
        )
        yield Problem(row.id, row.place, "other length", detail)
    for finding in checked.warnings() if checked.is_clip else unusual(checked.remarks):
        yield Problem(row.id, checked.place, finding.reason, finding.detail)
    if row.split is not None and official_split(row.split) is None:
        detail = f"split {row.split!r} is none of train, validation and test; the row is assigned by its id"
        yield Problem(row.id, row.place, "unknown split", printable(detail))


def _require(condition: bool, reason: str, detail: str) -> None:
    if not condition:
        raise Unusable(reason, detail)
