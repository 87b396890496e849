"""Who takes a turn when: the arrangement of a conversation, to chosen statistics.

Turns follow one another; each begins after a pause, or before the speech so far has ended. How often and how much turns
overlap is steered: whenever the conversation has less overlap than it should, the next turn makes up for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phonate.data.conversations.clips import Utterance
from phonate.data.conversations.settings import SimulationSettings

_FRAME_SECONDS = 0.01
_OWN_PAUSE = 0.1
"""Seconds between two turns of one speaker, at least."""
_SHORTEST_TURN = 0.3
_TURN_SHAPE = 1.3
"""Of the gamma distribution of turn lengths: many are short, as "yes" and "right" are."""
_PAUSE_SHAPE = 0.6
"""Of the gamma distribution of pauses: most are short, a few are long."""
_OVERLAP_SPREAD = 12.0
"""How little the overlap differs from conversation to conversation: the sum of the parameters of its beta
distribution."""
_MOST_OVERLAP = 0.85
_AHEAD = 0.8
"""Turns by which the overlap is ahead of its share right after an overlap, and behind right before the next."""
_EVENNESS = 3.0
"""Parameter of the Dirichlet distribution of the speakers' shares of the turns; with more they are more alike."""


@dataclass(frozen=True)
class Turn:
    """A turn of a speaker that begins at a sample, which may be before the conversation's first one."""

    speaker: int
    start: int
    utterance: Utterance

    @property
    def end(self) -> int:
        """The sample after its last one."""
        return self.start + len(self.utterance.waveform_N)


Draw = Callable[[int, int], Utterance]
"""`draw(speaker, samples)`: something that a speaker says, about so long."""


class _Overlap:
    """Frames of speech, and of the speech of several speakers, in the turns so far."""

    def __init__(self, frames: int, samples: int) -> None:
        self._talking = np.zeros(frames, dtype=np.int16)
        self._samples = samples
        self.speech = 0
        self.overlapped = 0

    def add(self, turn: Turn) -> None:
        """Count a turn's speech."""
        for begin, end in turn.utterance.stretches.tolist():
            first = max(0, (turn.start + begin) // self._samples)
            part = self._talking[first : max(first, (turn.start + end) // self._samples)]
            self.speech += int(np.count_nonzero(part == 0))
            self.overlapped += int(np.count_nonzero(part == 1))
            part += 1


def arrange(
    settings: SimulationSettings, speakers: int, samples: int, sample_rate: int, draw: Draw, rng: np.random.Generator
) -> list[Turn]:
    """The turns of a conversation of `speakers` speakers that lasts `samples` samples, in the order of their starts.

    The first turn may begin before the conversation and the last end after it, as in a piece of a longer one.
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
        seconds = max(_SHORTEST_TURN, rng.gamma(_TURN_SHAPE, settings.turn_seconds / _TURN_SHAPE))
        utterance = draw(speaker, round(seconds * sample_rate))
        length = len(utterance.waveform_N)
        # A turn ahead, for until the next overlap more speech will come.
        ahead = length / frame + _AHEAD * settings.turn_seconds / _FRAME_SECONDS
        missing = frame * (overlap * (counts.speech + ahead) - counts.overlapped) / (1.0 + overlap)
        if not turns:
            start = -int(rng.integers(length)) if rng.random() < 0.5 else pause()
        elif missing > 0.0 and (missing > 0.6 * length or rng.random() < often):
            earliest = max(own_end[speaker] + round(_OWN_PAUSE * sample_rate), turns[-1].start, -length // 2)
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
    """One who has not spoken yet while there is just time for them, else by the speakers' shares, but not the `holder`,
    who talks last of all so far."""
    if unheard and (holder is None or turns_left <= len(unheard) + 1.0):
        return int(unheard.pop())
    weights = share.copy()
    if holder is not None and len(share) > 1:
        weights[holder] = 0.0
    speaker = int(rng.choice(len(share), p=weights / weights.sum()))
    if speaker in unheard:
        unheard.remove(speaker)
    return speaker
