"""Names for the speakers of a diarization whose voices are known from other recordings."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from phonate.audio.decoding import FloatArray, read_audio
from phonate.config.errors import DataError
from phonate.data.annotations import SpeakerTurn
from phonate.pretrained import SPEAKER_RATE, SpeakerEncoder

logger = logging.getLogger("phonate")

LEAST_LIKENESS = 0.6
"""Mean cosine of pieces of 1.6 s from which two recordings are one person's. Of 104 speakers of LibriSpeech, 98 %
of the pairs of one speaker are above it and 2 % of those of two."""
_ENOUGH_SECONDS = 60.0
"""Of each speaker so much is compared, at most."""


def names_by_voice(
    turns: Sequence[SpeakerTurn],
    blocks: Iterable[FloatArray],
    known: Mapping[str, str | Path],
    encoder: SpeakerEncoder | None = None,
) -> dict[str, str]:
    """The name of each speaker of `turns` who sounds like a known one; one name for one speaker, the likest first.

    Args:
        turns: Of the recording.
        blocks: The recording (samples,) at 16 kHz, from its beginning.
        known: A recording of each person, by name.
        encoder: None: loaded here.

    Raises DataError for a recording without speech, MissingPackageError where resemblyzer is not installed.
    """
    encoder = encoder or SpeakerEncoder()
    speech = {name: encoder.speech(*read_audio(path), str(path)) for name, path in known.items()}
    voices = {name: _voice(speech[name], encoder, str(path)) for name, path in known.items()}
    likeness = {
        (speaker, name): float(_voice(speech, encoder, speaker) @ voice)
        for speaker, speech in _alone(turns, blocks).items()
        for name, voice in voices.items()
    }
    names: dict[str, str] = {}
    for (speaker, name), value in sorted(likeness.items(), key=lambda pair: -pair[1]):
        if value >= LEAST_LIKENESS and speaker not in names and name not in names.values():
            names[speaker] = name
    for name in (one for one in voices if one not in names.values()):
        _report_absent(name, {speaker: value for (speaker, one), value in likeness.items() if one == name}, names)
    return names


def _report_absent(name: str, likeness: Mapping[str, float], names: Mapping[str, str]) -> None:
    """Warn that a known speaker was not found. `likeness`: of each speaker; `names`: of those who were found."""
    if not likeness:
        logger.warning("%s was not found: nobody speaks", name)
        return
    closest = max(likeness, key=likeness.__getitem__)
    taken = f", and is already taken to be {names[closest]}'s" if closest in names else ""
    found = taken or f"; {LEAST_LIKENESS:g} or more is taken for the same voice"
    logger.warning("%s was not found: the closest voice has a similarity of %.2f%s", name, likeness[closest], found)


def _voice(speech: FloatArray, encoder: SpeakerEncoder, name: str) -> FloatArray:
    """(256,) mean of the embeddings of pieces."""
    (pieces_PD,) = encoder.embed_pieces([speech])
    if not len(pieces_PD):
        raise DataError(f"{name}: is silent; give a recording of the voice")
    return np.asarray(pieces_PD.mean(axis=0), dtype=np.float32)


def _alone(turns: Sequence[SpeakerTurn], blocks: Iterable[FloatArray]) -> dict[str, FloatArray]:
    """Up to a minute of each speaker, from where nobody else talks; of those who never talk alone, from all turns."""
    pieces: dict[str, list[FloatArray]] = {turn.speaker: [] for turn in turns}
    alone = _without_overlap(turns)
    alone += [turn for turn in turns if turn.speaker not in {one.speaker for one in alone}]
    position = 0
    for block in blocks:
        begin, end = position / SPEAKER_RATE, (position + len(block)) / SPEAKER_RATE
        for turn in alone:
            own = pieces[turn.speaker]
            if turn.start < end and turn.end > begin and sum(map(len, own)) < _ENOUGH_SECONDS * SPEAKER_RATE:
                first = max(0, round(turn.start * SPEAKER_RATE) - position)
                own.append(block[first : round(turn.end * SPEAKER_RATE) - position])
        position += len(block)
    return {speaker: np.concatenate(own) for speaker, own in pieces.items() if own and any(map(np.any, own))}


def _without_overlap(turns: Sequence[SpeakerTurn]) -> list[SpeakerTurn]:
    """The parts of turns in which one speaker talks."""
    edges = sorted([(turn.start, 1, turn.speaker) for turn in turns] + [(turn.end, -1, turn.speaker) for turn in turns])
    talking: Counter[str] = Counter()
    parts = []
    for (start, change, speaker), (end, _, _) in itertools.pairwise(edges):
        talking[speaker] += change
        own = [name for name, count in talking.items() if count > 0]
        if len(own) == 1 and end > start:
            parts.append(SpeakerTurn(start, end, own[0]))
    return parts
