"""Samples that are simulated conversations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phonate.config.randomness import generator
from phonate.data.conversations.simulator import ConversationSimulator
from phonate.tasks.diarization.corpus import Corpus
from phonate.tasks.diarization.samples.item import Item
from phonate.tasks.diarization.samples.waveforms import features_of, samples_of


class SimulatedConversations:
    """Simulated conversations: new ones in each training epoch, fixed ones in validation."""

    def __init__(self, corpus: Corpus, simulator: ConversationSimulator, count: int, training: bool) -> None:
        self._corpus = corpus
        self._simulator = simulator
        self.count = count
        self._training = training
        self._samples = samples_of(corpus, corpus.data.chunk_frames)

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the conversations."""
        return [f"simulated#{number}" for number in range(self.count)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Frames of each conversation: one chunk."""
        return np.full(self.count, self._corpus.data.chunk_frames, dtype=np.int64)

    @property
    def cached(self) -> bool:
        """Conversations are computed."""
        return False

    def get(self, number: int, rng: np.random.Generator) -> Item:
        """Conversation number `number`."""
        rng = rng if self._training else generator("validation conversation", number)
        conversation = self._simulator.conversation(self._samples, rng)
        features = features_of(self._corpus, conversation.waveform_N)
        activity = self._corpus.simulated_activity(conversation, self._simulator.bank, len(features))
        return Item(features, *activity)
