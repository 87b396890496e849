"""Recordings excluded by `data.drop` and `data.limit`.

Quality checks of a clip and its text. Each finding has a score: 1 or more is a warning, and clips with higher scores
are more likely to be unusable.

Which rows of a corpus can be used, and why the others can't.
"""

from __future__ import annotations

import hashlib
import logging
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from phonate.audio.decoding import BLOCK_SECONDS, AudioInfo, FloatArray, joined, open_recording, probe, regrouped
from phonate.audio.quality import describe, describe_blocks
from phonate.config.errors import DataError
from phonate.config.randomness import derived_seed
from phonate.data.corpora._lists import read_lines
from phonate.data.manifests.rows import (
    LONG_SECONDS,
    LONGEST_UNLABELLED,
    SLACK_SECONDS,
    Checked,
    Problem,
    Requirements,
    Row,
    Segment,
    blocks_of,
    official_split,
    printable,
)
from phonate.data.parallel import Progress as Progress
from phonate.data.progress import report_progress

logger = logging.getLogger("phonate")

_NAMED = 5


def leave_out(rows: Sequence[Row | Problem], drop: str | None, report: Report) -> list[Row | Problem]:
    """The rows whose ids are not listed in the file `drop`. The report counts the others and warns of ids that no
    recording has."""
    if drop is None:
        return list(rows)
    path = Path(drop).expanduser()
    if not path.is_file():
        raise DataError(f"data.drop: {path}: no such file; it is relative to {Path.cwd()}")
    unwanted = {id: number for number, line in enumerate(read_lines(path), start=1) if (id := line.strip())}
    kept = [row for row in rows if row.id not in unwanted]
    report.dropped += len(rows) - len(kept)
    listed = {row.id for row in rows}
    for id, number in unwanted.items():
        if id not in listed:
            report.warnings.append(Problem(id, f"{path}:{number}", "unknown id", f"no recording has the id {id!r}"))
    return kept


def limited(rows: Sequence[Row | Problem], limit: int | None, report: Report) -> list[Row | Problem]:
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
        logger.warning("%d recordings %s, and are left out: %s%s", len(recordings), reason, listed, more)


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
_SHORT = 20  # characters; for shorter texts the pauses around them dominate the duration
_FORMATTING = {"\u200c", "\u200d"}  # (non-)joiners, needed in Persian, Hindi and others
_MOST_SCORE = 9.9


@dataclass(frozen=True)
class Finding:
    """One problem of a clip."""

    reason: str
    detail: str
    score: float


@dataclass(frozen=True)
class Rates:
    """Speaking rates of a corpus: median and spread of the log of characters per second."""

    median: float
    deviation: float

    @classmethod
    def of(cls, clips: Iterable[Checked]) -> Rates | None:
        """The rates of the clips with text; None if there are fewer than 10."""
        found = [rate for one in clips if characters(one) >= _SHORT and (rate := rate_of(one)) > 0.0]
        if len(found) < _FEWEST:
            return None
        logs = np.log(found)
        middle = float(np.median(logs))
        return cls(middle, max(_LEAST_DEVIATION, 1.4826 * float(np.median(np.abs(logs - middle)))))


def has_words(text: str | None) -> bool:
    """Whether a text contains a letter or a digit."""
    return any(letter.isalnum() for letter in text or "")


def characters(one: Checked) -> int:
    """Characters of a clip's text; a run of spaces counts as one."""
    return len(" ".join((one.row.text or "").split()))


def rate_of(one: Checked) -> float:
    """Characters per second, without leading and trailing silence."""
    return characters(one) / max(0.1, one.seconds - one.quality.leading_silence - one.quality.trailing_silence)


def findings(one: Checked, rates: Rates | None) -> list[Finding]:
    """All findings for a clip, including its speaking rate relative to the corpus.

    Pauses and rates are not judged for recordings of several segments, which may be conversations."""
    found = [*_sound(one), *_signs(one.row.text or "")]
    if len(one.row.segments) > 1:
        return [finding for finding in found if finding.reason != "long silence"]
    if has_words(one.row.text):
        found.append(_rate(one, rates))
    return found


def speech_warnings(usable: Sequence[Checked]) -> Iterator[Problem]:
    """A warning for each finding with a score of at least 1, and for missing and duplicate texts."""
    rates = Rates.of(usable)
    any_text = any(has_words(one.row.text) for one in usable)
    first: dict[str, Checked] = {}
    for one in usable:
        row = one.row
        for finding in findings(one, rates):
            if finding.score >= 1.0:
                yield Problem(row.id, row.place, finding.reason, finding.detail)
        if not has_words(row.text):
            if any_text:
                yield Problem(row.id, row.place, "no text", "other recordings have a text")
            continue
        earlier = first.setdefault(" ".join((row.text or "").split()).lower(), one)
        # Several speakers may well read the same sentence.
        if earlier is not one and earlier.row.speaker == row.speaker and earlier.content != one.content:
            yield Problem(row.id, row.place, "duplicate text", f"same text as {earlier.row.id!r}, but different audio")


def _sound(one: Checked) -> Iterator[Finding]:
    quality = one.quality
    clipped = f"{100 * quality.clipping_share:.1f} % of the samples are clipped"
    yield _finding("clipping", clipped, quality.clipping_share / CLIPPED_SHARE, quality.clipping_share > CLIPPED_SHARE)
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
    odd = sorted({letter for letter in text if _is_odd(letter)})
    if odd:
        named = ", ".join(f"U+{ord(letter):04X}" for letter in odd[:5])
        yield Finding("odd characters", f"the text contains unprintable characters: {named}", 1.0)


def _is_odd(letter: str) -> bool:
    if letter in _FORMATTING:
        return False
    # U+FFFD stands where another program could not decode a character.
    return letter == "\ufffd" or unicodedata.category(letter) in {"Cc", "Cf", "Co", "Cn", "Zl", "Zp"}


def _rate(one: Checked, rates: Rates | None) -> Finding:
    length, rate = characters(one), rate_of(one)
    short = length < _SHORT
    # Allow a second for the pauses around a short text.
    slowest = length / max(0.1, one.seconds - 1.0) if short else rate
    detail = f"{rate:.1f} characters a second"
    score = 0.0 if rates is None or short else abs(np.log(rate) - rates.median) / rates.deviation / DEVIATIONS
    if rates is not None and not short:
        detail += f", the corpus has {np.exp(rates.median):.1f}"
    slow = slowest < SLOWEST or (score > 1.0 and rates is not None and np.log(rate) < rates.median)
    fast = rate > FASTEST or (score > 1.0 and not slow)
    beyond = max(SLOWEST / max(slowest, 0.01), rate / FASTEST)
    reason = "too slow for its text" if slow else "too fast for its text" if fast else "speaking rate"
    return _finding(reason, detail, max(float(score), beyond if slow or fast else 0.0), slow or fast)


def _finding(reason: str, detail: str, score: float, warned: bool) -> Finding:
    """A finding with a score of at least 1 if `warned`, otherwise below 1."""
    bounded = min(max(score, 0.0), _MOST_SCORE)
    return Finding(reason, detail, max(1.0, bounded) if warned else min(bounded, 0.99))


THREADS = 4
SILENT_SHARE = 0.5
_OVERLAP_SECONDS = 0.1
_FAILURES = (DataError, OSError, ValueError, RuntimeError, MemoryError)
"""What decoders raise for damaged files, such as UnicodeDecodeError for a tag."""


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

    def recount(self, usable: Iterable[Checked]) -> None:
        """Count the usable recordings anew."""
        self.usable = self.segments = 0
        self.seconds = self.speech_seconds = self.overlap_seconds = 0.0
        self.speakers = {}
        for one in usable:
            _add(one, self)

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
) -> list[Checked]:
    """Read every recording, all samples of it, and fill in `report`; returns those that meet the requirements."""
    listed = list(rows)
    report.listed = len(listed)
    unique = list(_unique(listed, report))
    usable: list[Checked] = []
    with ThreadPoolExecutor(threads or THREADS) as pool:
        # In slices, so that a long corpus is not held in memory as futures.
        remaining, done = iter(unique), 0
        while chunk := list(islice(remaining, 256)):
            for found in pool.map(lambda row: check(row, requirements), chunk):
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
    _add(checked, report)


def _add(checked: Checked, report: Report) -> None:
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


def of_trained_speakers(usable: Sequence[Checked], report: Report, held_out: Collection[str]) -> list[Checked]:
    """The rows whose speakers are in training; the others, which are only in the splits `held_out`, are refused. All
    rows where nothing is in training."""
    trained = {speaker for one in usable for speaker in one.row.speakers if _split(one) not in held_out}
    if not trained:
        return list(usable)
    kept: list[Checked] = []
    for one in usable:
        unknown = [speaker for speaker in one.row.speakers if speaker not in trained]
        if not unknown:
            kept.append(one)
            continue
        detail = f"{unknown[0]} is only in the official split {one.row.split}, and this model learns single voices"
        report.refused.append(Problem(one.row.id, one.row.place, "speaker not in training", printable(detail)))
    if len(kept) < len(usable):
        report.recount(kept)
    return kept


def _split(one: Checked) -> str | None:
    return official_split(one.row.split)


def _duplicates(usable: Iterable[Checked]) -> Iterator[Problem]:
    """A warning for each recording that holds the samples of an earlier one."""
    first: dict[bytes, Row] = {}
    for checked in usable:
        row = checked.row
        earlier = first.setdefault(checked.content, row)
        if earlier is not row:
            yield Problem(row.id, row.place, "duplicate content", f"the same samples as {earlier.id!r}")


def _unique(rows: Iterable[Row | Problem], report: Report) -> Iterator[Row]:
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


def check(row: Row, requirements: Requirements) -> tuple[Checked | None, list[Problem]]:
    """The row with what its file holds, and warnings; or None and the one reason why it can't be used."""
    try:
        _require_labels(row, requirements)
        row, info = _require_file(row)
        end = info.duration if row.end is None else min(row.end, info.duration)
        _require_length(end - row.start, requirements)
        _require_segments(row, end, info.duration, requirements)
        if row.end is not None and row.end > info.duration:
            row = replace(row, end=None)
        checked = _read(row, info, end - row.start)
        # Again, by the samples that are there: some headers only estimate the length.
        _require_length(checked.seconds, requirements)
        _require(checked.quality.peak > 0.0, "silent", "every sample is 0")
    except _Refusal as refusal:
        return None, [Problem(row.id, row.place, refusal.reason, printable(refusal.detail))]
    except _FAILURES as error:
        return None, [Problem(row.id, row.place, "unreadable", printable(" ".join(str(error).split())))]
    return checked, list(_warnings(checked))


def _require_labels(row: Row, requirements: Requirements) -> None:
    """What the list itself says: speakers and texts."""
    if requirements.one_speaker and len(row.speakers) > 1:
        names = ", ".join(row.speakers[:5]) + (", ..." if len(row.speakers) > 5 else "")
        detail = f"{len(row.speakers)} speakers ({names}), the task takes one; data.unit: segment cuts it into segments"
        raise _Refusal("several speakers", detail)
    if requirements.speaker:
        some = bool(row.segments) or requirements.may_be_empty
        named = some and all(one.speaker is not None for one in row.segments)
        _require(named, "no speaker", "no speaker is given; fill in speaker_id")
    if requirements.text:
        detail = "no text is given, or none with a letter or a digit in it; fill it in, or set data.transcribe=true"
        _require(has_words(row.text), "no text", detail)


def _require_file(row: Row) -> tuple[Row, AudioInfo]:
    """What the file is, and the row in a file of that length."""
    name = str(row.path)
    odd = "" if printable(name) == name else ", and its name is not UTF-8: is the list saved as UTF-8?"
    _require(row.path.is_file(), "missing file", f"{name} is not there{odd}")
    _require(row.path.stat().st_size > 0, "empty file", f"{row.path} holds no bytes")
    info = probe(row.path)
    row = row.of_file(info.duration)
    inside = 0.0 <= row.start < info.duration and (row.end is None or row.start < row.end)
    ends = row.end is None or row.end <= info.duration + SLACK_SECONDS
    part = f"seconds {row.start:g} to {row.end if row.end is not None else info.duration:g}"
    _require(inside and ends, "no such part", f"{part} of a recording of {info.duration:.3f} s; correct the times")
    return row, info


def _require_length(seconds: float, requirements: Requirements) -> None:
    longest = requirements.max_seconds
    long = f"{seconds:.1f} s, longer than data.audio.max_seconds {longest or 0.0:g}"
    _require(longest is None or seconds <= longest, "too long", long)
    short = f"{seconds:.3f} s, shorter than data.audio.min_seconds {requirements.min_seconds:g}"
    _require(seconds >= requirements.min_seconds, "too short", short)


def _require_segments(row: Row, end: float, duration: float, requirements: Requirements) -> None:
    """Times that make sense; for clips, also that segments with texts are whole and no speech is unlabelled."""
    spans = [(one.start, end if one.end is None else one.end) for one in row.segments]
    for start, stop in spans:
        inside = 0.0 <= start < stop <= duration + SLACK_SECONDS and start < end and stop > row.start
        detail = (
            f"a segment from {start:g} to {stop:g} s, the recording has {row.start:g} to {end:g}; correct its times"
        )
        _require(inside, "bad segment", detail)
        if requirements.text:
            whole = start >= row.start - SLACK_SECONDS and stop <= end + SLACK_SECONDS
            cut = f"the segment from {start:g} to {stop:g} s is cut off at {row.start:g} or {end:g} s, its text is not"
            _require(whole, "cut text", f"{cut}; cut between segments")
    if requirements.text:
        for (start, stop), (following, _) in pairwise(sorted(spans)):
            detail = f"segments from {start:g} and {following:g} s overlap, so the order of their texts is unclear"
            _require(following >= stop - _OVERLAP_SECONDS, "overlapping texts", f"{detail}; cut them apart")
    if requirements.one_speaker and spans:
        reached = row.start
        for start, stop in [*sorted(spans), (end, end)]:
            detail = f"seconds {reached:g} to {start:g} are in no segment; cut the recording to its segments"
            _require(start - reached <= LONGEST_UNLABELLED, "unlabelled speech", detail)
            reached = max(reached, stop)


def _read(row: Row, info: AudioInfo, seconds: float) -> Checked:
    """The row with its length, quality and digest; a long one is read in blocks."""
    digest, samples, rate = hashlib.blake2b(digest_size=16), 0, info.sample_rate

    def counted(blocks: Iterator[FloatArray]) -> Iterator[FloatArray]:
        nonlocal samples
        for block in blocks:
            digest.update(block.tobytes())
            samples += len(block)
            yield block

    with open_recording(row.path) as recording:
        blocks = counted(blocks_of(row, recording))
        if seconds <= LONG_SECONDS:
            quality = describe(joined(blocks), rate)
        else:
            quality = describe_blocks(regrouped(blocks, round(BLOCK_SECONDS * rate)), rate)
    remarks = tuple(recording.remarks)
    return Checked(row, samples / rate, rate, info.channels, digest.digest(), quality, remarks)


def _warnings(checked: Checked) -> Iterator[Problem]:
    row = checked.row
    for remark in checked.remarks:
        yield Problem(row.id, row.place, "unusual file", printable(remark))
    if checked.quality.silence_share > SILENT_SHARE:
        detail = f"{100 * checked.quality.silence_share:.0f} % of it is silence"
        yield Problem(row.id, row.place, "mostly silent", detail)
    if row.split is not None and official_split(row.split) is None:
        detail = f"split {row.split!r} is none of train, validation and test; the row is assigned by its id"
        yield Problem(row.id, row.place, "unknown split", printable(detail))


class _Refusal(Exception):
    """A row can't be used."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def _require(condition: bool, reason: str, detail: str) -> None:
    if not condition:
        raise _Refusal(reason, detail)
