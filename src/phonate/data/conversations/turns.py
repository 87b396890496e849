"""The turns of a conversation: arranged to statistics, or taken from real conversations.

Each turn starts after a pause, or overlaps the previous speech. The amount of overlap is controlled by feedback: if the
conversation has less than its target so far, the next turn starts earlier.

Real speakers say "yes" and "mhm" into each other's turns, which random pauses and overlaps don't produce. Landini et
al. 2022, "From Simulated Mixtures to Simulated Conversations as Training Data for End-to-End Neural Diarization", draw
pauses and overlaps from real conversations; here whole parts of them are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phonate.config.errors import DataError
from phonate.data.annotations import read_rttm
from phonate.data.conversations.clips import Utterance
from phonate.data.conversations.settings import SimulationSettings

# ------------------------------------------------ Arrangement of the turns of a simulated conversation

_FRAME_SECONDS = 0.01
OWN_PAUSE = 0.1
"""Minimum pause between two turns of one speaker, in seconds."""
SHORTEST_TURN = 0.3
"""Seconds."""
_TURN_SHAPE = 1.3
"""Shape of the gamma distribution of turn lengths: many are short, such as "yes" and "right"."""
_PAUSE_SHAPE = 0.6
"""Shape of the gamma distribution of pauses: most are short, a few are long."""
_OVERLAP_SPREAD = 12.0
"""Sum of the parameters of the beta distribution of the overlap; larger values vary less between conversations."""
_MOST_OVERLAP = 0.85
_AHEAD = 0.8
"""Lookahead of the overlap control, in mean turn lengths."""
_EVENNESS = 3.0
"""Concentration of the Dirichlet distribution of the speakers' shares of turns; larger values are more even."""


@dataclass(frozen=True)
class Turn:
    """A turn of a speaker. `start` is a sample of the conversation, and may be negative."""

    speaker: int
    start: int
    utterance: Utterance

    @property
    def end(self) -> int:
        """The end sample (exclusive)."""
        return self.start + len(self.utterance.waveform_N)


Draw = Callable[[int, int], Utterance]
"""`draw(speaker, samples)`: an utterance of the speaker of about `samples` samples."""


class _Overlap:
    """Counts the frames of speech and of overlapping speech in the turns so far."""

    def __init__(self, frames: int, samples: int) -> None:
        self._talking = np.zeros(frames, dtype=np.int16)
        self._samples = samples
        self.speech = 0
        self.overlapped = 0

    def add(self, turn: Turn) -> None:
        """Count the speech of a turn."""
        for begin, end in turn.utterance.segments.tolist():
            first = max(0, (turn.start + begin) // self._samples)
            part = self._talking[first : max(first, (turn.start + end) // self._samples)]
            self.speech += int(np.count_nonzero(part == 0))
            self.overlapped += int(np.count_nonzero(part == 1))
            part += 1


def arrange(
    settings: SimulationSettings, speakers: int, samples: int, sample_rate: int, draw: Draw, rng: np.random.Generator
) -> list[Turn]:
    """The turns of a conversation of `speakers` speakers and `samples` samples, sorted by start.

    The first turn may start before the conversation and the last one end after it, as in a part of a longer one.
    """
    overlap = _drawn_overlap(settings.overlap, speakers, rng)
    frame = round(_FRAME_SECONDS * sample_rate)

    def pause() -> int:
        return round(rng.gamma(_PAUSE_SHAPE, settings.pause_seconds * sample_rate / _PAUSE_SHAPE))

    often = max(0.5, min(2.0 * overlap, 0.95))
    counts = _Overlap(-(-samples // frame), frame)
    share = rng.dirichlet(np.full(speakers, _EVENNESS))
    unheard, turns = list(rng.permutation(speakers)), list[Turn]()
    own_end, latest = [-samples] * speakers, 0  # samples
    while latest < samples:
        turns_left = (samples - latest) / sample_rate / settings.turn_seconds
        holder = int(np.argmax(own_end)) if turns else None
        speaker = _next_speaker(holder, unheard, share, turns_left, rng)
        seconds = max(SHORTEST_TURN, rng.gamma(_TURN_SHAPE, settings.turn_seconds / _TURN_SHAPE))
        utterance = draw(speaker, round(seconds * sample_rate))
        length = len(utterance.waveform_N)
        # Look ahead, as more speech follows before the next overlap.
        ahead = length / frame + _AHEAD * settings.turn_seconds / _FRAME_SECONDS
        missing = frame * (overlap * (counts.speech + ahead) - counts.overlapped) / (1.0 + overlap)
        if not turns:
            start = -int(rng.integers(length)) if rng.random() < 0.5 else pause()
        elif missing > 0.0 and (missing > 0.6 * length or rng.random() < often):
            earliest = max(own_end[speaker] + round(OWN_PAUSE * sample_rate), turns[-1].start, -length // 2)
            start = max(latest - round(missing * rng.uniform(0.6, 1.4)), earliest)
        else:
            start = latest + pause()
        if start >= samples:
            break
        turn = Turn(speaker, start, utterance)
        turns.append(turn)
        counts.add(turn)
        own_end[speaker], latest = turn.end, max(latest, turn.end)
    return turns


def _drawn_overlap(mean: float, speakers: int, rng: np.random.Generator) -> float:
    if mean == 0.0 or speakers == 1:
        return 0.0
    return min(float(rng.beta(_OVERLAP_SPREAD * mean, _OVERLAP_SPREAD * (1.0 - mean))), _MOST_OVERLAP)


def _next_speaker(
    holder: int | None, unheard: list[int], share: np.ndarray, turns_left: float, rng: np.random.Generator
) -> int:
    """A speaker without turns so far if the remaining time is just enough for all of them; otherwise drawn from
    `share`, excluding the `holder`, whose speech ends last."""
    if unheard and (holder is None or turns_left <= len(unheard) + 1.0):
        return int(unheard.pop())
    weights = share.copy()
    if holder is not None and len(share) > 1:
        weights[holder] = 0.0
    speaker = int(rng.choice(len(share), p=weights / weights.sum()))
    if speaker in unheard:
        unheard.remove(speaker)
    return speaker


# --------------------------------- Turns of real conversations, for simulated ones with other speakers

_DRAWS = 1000
_BEYOND = 1.0
"""Seconds of a turn before the beginning and after the end of a part that are kept, so that words are cut there."""


@dataclass(frozen=True)
class PartTurn:
    """A turn in a part of a conversation."""

    start: float
    """Seconds from the beginning of the part; may be negative."""
    end: float
    """Seconds."""
    speaker: int
    """Index among the speakers of the part."""


class RecordedTurns:
    """The turns of the conversations in an RTTM file."""

    def __init__(self, path: str, speakers: tuple[int, int]) -> None:
        """`speakers`: minimum and maximum number of speakers of a part.

        Raises DataError if the file can't be read, or has no turns.
        """
        self._path, self._speakers = path, speakers
        self._conversations = [turns for turns in read_rttm(path).values() if turns]
        if not self._conversations:
            raise DataError(f"data.simulation.turns_from: {path} has no turns; name an RTTM file with some")
        self._seconds = np.array([max(turn.end for turn in turns) for turns in self._conversations])

    def part(self, seconds: float, rng: np.random.Generator) -> list[PartTurn]:
        """The turns of a random part of `seconds` seconds, sorted by start; longer conversations are drawn more often.

        Raises DataError if no part has a suitable number of speakers.
        """
        least, most = self._speakers
        for _ in range(_DRAWS):
            number = int(rng.choice(len(self._conversations), p=self._seconds / self._seconds.sum()))
            start = rng.uniform(0.0, max(0.0, float(self._seconds[number]) - seconds))
            inside = [one for one in self._conversations[number] if one.end > start and one.start < start + seconds]
            names = sorted({one.speaker for one in inside})
            if least <= len(names) <= most:
                return [
                    PartTurn(
                        max(one.start - start, -_BEYOND),
                        min(one.end - start, seconds + _BEYOND),
                        names.index(one.speaker),
                    )
                    for one in inside
                ]
        raise DataError(
            f"data.simulation.turns_from: of {_DRAWS} parts of {seconds:g} s of {self._path}, none has {least} to "
            f"{most} speakers; change data.simulation.speakers, or name another file"
        )


def arrange_as(part: list[PartTurn], samples: int, sample_rate: int, draw: Draw) -> list[Turn]:
    """The turns of a conversation of `samples` samples, with those of `part`; sorted by start.

    An utterance is only about as long as the turn that it stands for, so that the speaker's next turn may begin later
    than in `part`, and one that should reach into the conversation may end before it; it is left out.
    """
    turns, free = list[Turn](), dict[int, int]()
    for one in part:
        start = max(round(one.start * sample_rate), free.get(one.speaker, -samples))
        if start >= samples:
            continue
        wanted = round(max(one.end - one.start, SHORTEST_TURN) * sample_rate)
        turn = Turn(one.speaker, start, draw(one.speaker, wanted))
        if turn.end <= 0:
            continue
        turns.append(turn)
        free[one.speaker] = turn.end + round(OWN_PAUSE * sample_rate)
    return sorted(turns, key=lambda turn: turn.start)
