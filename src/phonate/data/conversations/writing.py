"""Simulated conversations as files: recordings, with an RTTM file of who speaks when in them."""

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
    """Write `folder`/NNNN.wav and `folder`/ref.rttm, a corpus that `data.path` may name; returns the turns of each
    recording. The same call writes the same conversations."""
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
    """Who speaks when in a conversation, pauses within turns left out; by start."""
    rate, last = simulator.bank.sample_rate, len(conversation.waveform_N)
    return sorted(
        SpeakerTurn(max(0, int(begin)) / rate, min(int(end), last) / rate, simulator.bank.speakers[int(speaker)])
        for (begin, end), speaker in zip(conversation.stretches_K2, conversation.speaker_K, strict=True)
        if begin < last and end > 0
    )
