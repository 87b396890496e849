"""Writes simulated conversations as recordings with an RTTM file."""

from __future__ import annotations

from pathlib import Path

from phonate.audio.decoding import write_audio
from phonate.config.randomness import generator
from phonate.data.annotations import SpeakerTurn, write_rttm
from phonate.data.conversations.simulator import Conversation, ConversationSimulator

RTTM = "ref.rttm"


def write_conversations(
    folder: str | Path, simulator: ConversationSimulator, count: int, seconds: float, seed: int = 0
) -> dict[str, list[SpeakerTurn]]:
    """Write `folder`/NNNN.wav and `folder`/ref.rttm, a corpus for `data.path`, and return the turns of each recording.

    Args:
        count: Number of conversations.
        seconds: Length of each.
        seed: Equal seeds give equal conversations.
    """
    folder, rate = Path(folder), simulator.bank.sample_rate
    turns: dict[str, list[SpeakerTurn]] = {}
    for number in range(count):
        name = f"{number:04d}"
        conversation = simulator.conversation(round(seconds * rate), generator(seed, "written", number))
        write_audio(folder / f"{name}.wav", conversation.waveform_N, rate)
        turns[name] = turns_of(conversation, simulator)
    write_rttm(folder / RTTM, turns)
    return turns


def turns_of(conversation: Conversation, simulator: ConversationSimulator) -> list[SpeakerTurn]:
    """The turns of a conversation in seconds, sorted by start; pauses within turns separate them."""
    rate, speakers = simulator.bank.sample_rate, simulator.bank.speakers
    seconds_K2 = conversation.segments_K2.clip(0, len(conversation.waveform_N)) / rate
    return sorted(
        SpeakerTurn(float(start), float(end), speakers[int(speaker)])
        for (start, end), speaker in zip(seconds_K2, conversation.speaker_K, strict=True)
        if end > start
    )
