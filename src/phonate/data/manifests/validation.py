"""Which rows of a corpus can be used, and why the others can't."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any

from phonate.audio.decoding import BLOCK_SECONDS, AudioInfo, FloatArray, joined, open_recording, probe, regrouped
from phonate.audio.quality.measures import describe, describe_blocks
from phonate.config.errors import DataError
from phonate.data.manifests.recording import LONG_SECONDS, blocks_of
from phonate.data.manifests.requirements import LONGEST_UNLABELLED, Requirements
from phonate.data.manifests.rows import (
    SLACK_SECONDS,
    Checked,
    Problem,
    Row,
    Segment,
    official_split,
    printable,
)
from phonate.data.manifests.text_checks import has_words, speech_warnings
from phonate.data.parallel import Progress as Progress
from phonate.data.progress import report_progress

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
