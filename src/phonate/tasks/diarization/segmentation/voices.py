"""Voice embeddings of the speakers of all windows.

Shapes: N local speakers (or samples, of a waveform), U output frames, K speakers of the model, D embedding, P segments.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import FloatArray, resample
from phonate.evaluation.speaker_similarity import EMBEDDING_WIDTH, JUDGE_RATE, SpeakerJudge
from phonate.tasks.diarization.segmentation.clustering import LocalSpeakers
from phonate.tasks.diarization.segmentation.stitching import Assignment

_SHORTEST_SECONDS = 0.5
"""Speakers with less non-overlapped speech are embedded from all their speech."""


class Voices:
    """Collects an embedding of each active speaker of each window."""

    def __init__(self, sample_rate: int) -> None:
        """`sample_rate`: that of the waveforms, in Hz."""
        self._rate = sample_rate
        self._windows: list[int] = []
        self._columns: list[int] = []
        self._embeddings: list[FloatArray] = []
        self._seconds: list[float] = []

    @cached_property
    def _judge(self) -> SpeakerJudge:
        return SpeakerJudge()

    def add(self, window: int, active_UK: NDArray[np.uint8], waveform_N: FloatArray, frame: int) -> None:
        """Embed the speakers of a window.

        Args:
            window: Index of the window.
            active_UK: 1 where a speaker is active.
            waveform_N: The samples of the window.
            frame: Samples per output frame.
        """
        alone_U1 = active_UK.sum(axis=1, keepdims=True) == 1
        for column in np.flatnonzero(active_UK.any(axis=0)).tolist():
            clean_U = active_UK[:, column] * alone_U1[:, 0]
            seconds = float(clean_U.sum()) * frame / self._rate
            chosen_U = clean_U if seconds >= _SHORTEST_SECONDS else active_UK[:, column]
            chosen_N = np.repeat(chosen_U != 0, frame)[: len(waveform_N)]
            self._windows.append(window)
            self._columns.append(column)
            self._seconds.append(seconds)
            self._embeddings.append(self._embedding(waveform_N[: len(chosen_N)][chosen_N]))

    def _embedding(self, speech_N: FloatArray) -> FloatArray:
        """(D,) mean of the embeddings of segments of the speech; zeros for silence."""
        if self._rate != JUDGE_RATE:
            speech_N = resample(speech_N, self._rate, JUDGE_RATE)
        pieces_PD = self._judge.embed_pieces(speech_N)
        return pieces_PD.mean(axis=0) if len(pieces_PD) else np.zeros(EMBEDDING_WIDTH, dtype=np.float32)

    def found(self, tracks_WK: Assignment) -> tuple[LocalSpeakers, NDArray[np.int64]]:
        """All local speakers, with their tracks, and (N,) the column of each in its window."""
        windows_N, columns_N = np.array(self._windows, dtype=np.int64), np.array(self._columns, dtype=np.int64)
        embeddings_ND = np.stack(self._embeddings) if self._embeddings else np.zeros((0, EMBEDDING_WIDTH), np.float32)
        seconds_N = np.array(self._seconds, dtype=np.float32)
        return LocalSpeakers(windows_N, embeddings_ND, seconds_N, tracks_WK[windows_N, columns_N]), columns_N
