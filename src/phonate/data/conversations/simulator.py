"""Simulation of conversations: random speakers and turns, mixed with simulated acoustics.

Shapes: N samples, K segments of speech, P speakers of a conversation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray
from phonate.config.errors import DataError
from phonate.data.conversations.acoustics import Acoustics
from phonate.data.conversations.clips import ClipBank, Utterance
from phonate.data.conversations.recorded_turns import RecordedTurns, arrange_as
from phonate.data.conversations.settings import SimulationSettings
from phonate.data.conversations.speech import joined
from phonate.data.conversations.turns import Turn, arrange

_GAP_SECONDS = 0.3
"""Mean pause between two clips of one turn."""
_ENOUGH = 0.7
"""Clips are added to a turn until they fill this fraction of its length."""

_SHORTEST_SECONDS = 0.4
"""Minimum length of an added clip, about one word."""


@dataclass(frozen=True)
class Conversation:
    """A simulated conversation."""

    waveform_N: FloatArray
    segments_K2: NDArray[np.int64]
    """First and end samples of the segments of speech; they may extend beyond the waveform."""
    speaker_K: NDArray[np.int64]
    """The speaker of each segment, a number in the bank."""
    turns: list[Turn]
    """Turns, whose speakers are indices into `speakers`."""
    speakers: NDArray[np.int64]
    """(P,) numbers of the speakers in the bank."""


class ConversationSimulator:
    """Simulates conversations from the clips of a bank."""

    def __init__(self, settings: SimulationSettings, bank: ClipBank, acoustics: Acoustics) -> None:
        """Raises DataError if the bank has fewer speakers than a conversation may have, or for an invalid file
        `settings.turns_from`."""
        most = settings.speakers[1]
        if len(bank.speakers) < most:
            raise DataError(
                f"conversations of {most} speakers can't be simulated from clips of {len(bank.speakers)}; lower "
                "data.simulation.speakers, or add corpora to data.simulation.path"
            )
        self.settings = settings
        self.bank = bank
        self._acoustics = acoustics
        self._recorded = RecordedTurns(settings.turns_from, settings.speakers) if settings.turns_from else None

    def conversation(self, samples: int, rng: np.random.Generator) -> Conversation:
        """A conversation of `samples` samples. Equal generators give equal conversations."""
        settings, rate = self.settings, self.bank.sample_rate
        given = None if self._recorded is None else self._recorded.part(samples / rate, rng)
        least, most = settings.speakers
        count = int(rng.integers(least, most + 1)) if given is None else max(one.speaker for one in given) + 1
        speakers = rng.choice(len(self.bank.speakers), count, replace=False)
        gain = 10.0 ** (rng.normal(0.0, settings.gain_db, count) / 20.0)
        speed = np.ones(count) if settings.speed is None else rng.uniform(*settings.speed, count)

        def draw(speaker: int, wanted: int) -> Utterance:
            return self._turn(int(speakers[speaker]), wanted, float(speed[speaker]), rng)

        if given is None:
            turns = arrange(settings, count, samples, rate, draw, rng)
        else:
            turns = arrange_as(given, samples, rate, draw)
        sources_PN = np.zeros((count, samples), dtype=np.float32)
        for turn in turns:
            begin, end = max(0, turn.start), min(samples, turn.end)
            part = turn.utterance.waveform_N[begin - turn.start : end - turn.start]
            sources_PN[turn.speaker, begin:end] += np.float32(gain[turn.speaker]) * part
        segments_K2 = np.concatenate([turn.utterance.segments + turn.start for turn in turns])
        of_turn = np.repeat(np.arange(len(turns)), [len(turn.utterance.segments) for turn in turns])
        speaker_K = speakers[np.array([turn.speaker for turn in turns])[of_turn]]
        mixed_N = self._acoustics(sources_PN, _covered(segments_K2, samples), rng)
        return Conversation(mixed_N, segments_K2, speaker_K.astype(np.int64), turns, speakers)

    def _turn(self, speaker: int, wanted: int, speed: float, rng: np.random.Generator) -> Utterance:
        """About `wanted` samples of a speaker: a clip or a part of one, or several clips with pauses in between."""
        utterance = self._utterance(speaker, wanted, speed, rng)
        while len(utterance.waveform_N) < _ENOUGH * wanted:
            gap = round(rng.exponential(_GAP_SECONDS) * self.bank.sample_rate)
            missing = max(wanted - len(utterance.waveform_N), round(_SHORTEST_SECONDS * self.bank.sample_rate))
            more = self._utterance(speaker, missing, speed, rng)
            silence = np.zeros(gap, dtype=np.float32)
            shift = len(utterance.waveform_N) + gap
            utterance = Utterance(
                np.concatenate([utterance.waveform_N, silence, more.waveform_N]),
                np.concatenate([utterance.segments, more.segments + shift]),
            )
        pause = round(self.settings.label_pauses_from * self.bank.sample_rate)
        return Utterance(utterance.waveform_N, joined(utterance.segments, pause))

    def _utterance(self, speaker: int, wanted: int, speed: float, rng: np.random.Generator) -> Utterance:
        utterance = self.bank.utterance(speaker, round(wanted * speed), rng)
        if speed == 1.0:
            return utterance
        rate = self.bank.sample_rate
        waveform = soxr.resample(utterance.waveform_N, rate * speed, rate, quality="LQ")
        segments = np.minimum(np.round(utterance.segments / speed).astype(np.int64), len(waveform))
        return Utterance(np.asarray(waveform, dtype=np.float32), segments)


def _covered(segments_K2: NDArray[np.int64], samples: int) -> int:
    """The number of samples in [0, samples) that lie in at least one segment."""
    inside = np.clip(segments_K2[np.argsort(segments_K2[:, 0])], 0, samples)
    reached = np.concatenate([[0], np.maximum.accumulate(inside[:, 1])[:-1]])
    return int(np.maximum(0, inside[:, 1] - np.maximum(inside[:, 0], reached)).sum())
