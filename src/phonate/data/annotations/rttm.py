"""RTTM: speaker turns (NIST, Rich Transcription 2009, appendix A)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phonate.config.errors import DataError, InputError
from phonate.data.annotations._lines import fields_of, require_field, seconds, write_lines, written_seconds


@dataclass(frozen=True, order=True)
class SpeakerTurn:
    """An interval of a recording in which one speaker is active. A diarization is a list of turns.

    Raises InputError unless 0 <= start < end.
    """

    start: float
    """Seconds from the beginning of the recording."""
    end: float
    """Seconds, exclusive."""
    speaker: str

    def __post_init__(self) -> None:
        if not 0.0 <= self.start < self.end:  # false for NaN, too
            raise InputError(
                f"invalid turn of {self.speaker}, {self.start:g} to {self.end:g} s: it must satisfy 0 <= start < end"
            )

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.end - self.start


FIELDS = 10
"""Of a line."""


def speaker_line(fields: Sequence[str]) -> tuple[str, SpeakerTurn] | None:
    """Channel and turn of a SPEAKER line; None for a turn of zero length.

    Raises ValueError with the expected fields.
    """
    if len(fields) > FIELDS:
        raise ValueError(f"{len(fields)} fields, RTTM has {FIELDS}: names can't hold spaces; write _ for them")
    try:
        start, duration, speaker = seconds(fields[3]), seconds(fields[4]), fields[7]
    except (IndexError, ValueError):
        raise ValueError("expected SPEAKER, recording, channel, start, duration, two fields and the speaker") from None
    end = start + duration
    return (fields[2], SpeakerTurn(start, end, speaker)) if end > start else None


def read_rttm(path: str | Path) -> dict[str, list[SpeakerTurn]]:
    """Recording -> its turns, sorted by start, from the SPEAKER lines of an RTTM file; other line types are ignored.

    Raises DataError with file and line for invalid lines, and for a recording with several channels.
    """
    found: dict[str, list[SpeakerTurn]] = {}
    channels: dict[str, str] = {}
    for place, fields in fields_of(path):
        if fields[0] != "SPEAKER":
            if not fields[0].isupper():
                raise DataError(f"{place}: not RTTM; a line begins with its type, such as SPEAKER")
            continue
        try:
            line = speaker_line(fields)
        except ValueError as error:
            raise DataError(f"{place}: {error}; correct it") from None
        turns = found.setdefault(fields[1], [])
        if line is None:
            continue
        channel, turn = line
        if channels.setdefault(fields[1], channel) != channel:
            raise DataError(
                f"{place}: {fields[1]} has turns in channels {channels[fields[1]]} and {channel}; give each channel "
                "its own recording name"
            )
        turns.append(turn)
    return {recording: sorted(turns) for recording, turns in found.items()}


def write_rttm(path: str | Path, recordings: Mapping[str, Iterable[SpeakerTurn]]) -> None:
    """Write the turns of recordings to an RTTM file, with channel 1 and times to the microsecond.

    Recordings without turns do not appear in the file, as RTTM can't express them.

    Raises InputError for a name with spaces, or if the file can't be written.
    """
    write_lines(path, (line for name, turns in recordings.items() for line in rttm_lines(name, turns)))


def rttm_lines(recording: str, turns: Iterable[SpeakerTurn]) -> list[str]:
    """The SPEAKER lines of one recording, sorted by start. Raises InputError for a name with spaces."""
    require_field(recording, "recording")
    return [
        f"SPEAKER {recording} 1 {written_seconds(turn.start)} {written_seconds(turn.duration)} <NA> <NA> "
        f"{require_field(turn.speaker, 'speaker')} <NA> <NA>"
        for turn in sorted(turns)
    ]
