"""One of the files that were joined to make a recording, and what is unusual about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from phonate.audio.containers.kinds import Kind

EARLY_SECONDS, JITTER_SECONDS = 0.0005, 0.03
"""By which the times of the first and of later packets may differ from the samples before them: Matroska rounds to
milliseconds, and the clocks of recorders are not those of their microphones."""


@dataclass(frozen=True)
class Edit:
    """What is shown next, as a part of a track."""

    seconds: Fraction | None
    """How long. None: to the end."""
    begins: Fraction | None
    """Seconds of the track where it begins. None: nothing is shown meanwhile."""
    speed: float = 1.0


@dataclass(frozen=True)
class Part:
    """One of the files that a file consists of, end to end; nearly always there is one."""

    kind: Kind
    start: int
    """Its first byte."""
    end: int
    """The byte behind its last."""
    missing: float | None = None
    """Share of the audio that its header promises and that is not there, 1 where only that something is missing is
    known; None where nothing is."""
    counted: bool = True
    """Whether the header of an MP3 says how many samples there are; libsndfile guesses what it does not say."""
    unknown_length: bool = False
    """Whether its header has no length, as that of a file that was written into a pipe."""
    cut_frame: bool = False
    """Whether its last frame is not there as a whole."""
    junk: int = 0
    """Bytes behind its last frame that are none, nor tags."""
    least: int = 0
    """Samples of each channel that a damaged MP3 without a count must have."""
    no_last_page: bool = False
    """Whether no page of an Ogg is marked as the last."""
    length: tuple[int, bytes] | None = None
    """Where such a header says 0, which libsndfile takes for the length, and what it should say."""
    begins: float | None = None
    """Seconds of its first sample, where FFmpeg does not know them: it counts a packet of Vorbis that has no sound."""
    channels: int | None = None
    """The most that a frame has, where not all have as many; None where they have, or that is not known."""
    silences: tuple[tuple[int, float], ...] = ()
    """Of a VOC: each byte of the part before which FFmpeg leaves out silence, and its seconds."""
    edits: Mapping[int, tuple[Edit, ...]] = field(default_factory=dict)
    """Of an MP4: see `mp4`."""


Examined = tuple[Part, int | None]
"""A part of which `start` is behind its tags, and where the next one begins."""


def missing_share(start: int, promised: int, size: int) -> float | None:
    return None if promised <= size else 1.0 - (size - start) / (promised - start)
