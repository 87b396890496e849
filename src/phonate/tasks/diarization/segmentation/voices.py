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
from phonate.tasks.diarization.segmentation.reassignment import Segments
from phonate.tasks.diarization.segmentation.stitching import Assignment

_SHORTEST_SECONDS = 0.5
"""Speakers with less non-overlapped speech are embedded from all their speech."""


class Voices:
    """Collects an embedding of each active speaker of each window, and of each segment of a single speaker."""

    def __init__(self, sample_rate: int, segments: bool) -> None:
        """`sample_rate`: that of the waveforms, in Hz; `segments`: whether segments are wanted."""
        self._rate = sample_rate
        self._wants_segments = segments
        self._windows: list[int] = []
        self._columns: list[int] = []
        self._embeddings: list[FloatArray] = []
        self._seconds: list[float] = []
        self._segments: list[tuple[int, int, int, int, int]] = []
        self._segment_embeddings: list[FloatArray] = []

    @cached_property
    def _judge(self) -> SpeakerJudge:
        return SpeakerJudge()

    def add(self, window: int, start: int, active_UK: NDArray[np.uint8], waveform_N: FloatArray, frame: int) -> None:
        """Embed the speakers of a window.

        Args:
            window: Index of the window.
            start: Its first frame in the recording.
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
            if self._wants_segments:
                self._add_segments(window, start, column, clean_U, waveform_N, frame)

    def _add_segments(
        self, window: int, start: int, column: int, clean_U: NDArray[np.uint8], waveform_N: FloatArray, frame: int
    ) -> None:
        """Embed the segments in which a speaker of a window is active alone."""
        for first, end in np.flatnonzero(np.diff(clean_U, prepend=0, append=0)).reshape(-1, 2).tolist():
            if (end - first) * frame >= _SHORTEST_SECONDS * self._rate:
                self._segments.append((window, column, first, end, start + first))
                self._segment_embeddings.append(self._embedding(waveform_N[first * frame : end * frame]))

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

    def segments(self) -> Segments:
        """All segments of single speakers that are long enough to tell voices apart. Raises ValueError if they were not
        wanted."""
        if not self._wants_segments:
            raise ValueError("segments have no embeddings: the recording was analysed without reassignment_margin")
        table_S5 = np.array(self._segments, dtype=np.int64).reshape(-1, 5)
        embeddings_SD = np.array(self._segment_embeddings, dtype=np.float32).reshape(-1, EMBEDDING_WIDTH)
        return Segments(table_S5[:, 0], table_S5[:, 1], table_S5[:, 2:4], table_S5[:, 4], embeddings_SD)
