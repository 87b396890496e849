"""Turns of real conversations, for simulated ones with other speakers.

Real speakers say "yes" and "mhm" into each other's turns, which random pauses and overlaps don't produce. Landini et
al. 2022, "From Simulated Mixtures to Simulated Conversations as Training Data for End-to-End Neural Diarization", draw
pauses and overlaps from real conversations; here whole parts of them are used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phonate.config.errors import DataError
from phonate.data.annotations import read_rttm
from phonate.data.conversations.turns import OWN_PAUSE, SHORTEST_TURN, Draw, Turn

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
