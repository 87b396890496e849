"""The delay pattern of one utterance as it is generated. Shapes: K codebooks.

Frame 0 is the begin of stream in all codebooks; codebook k lags k frames behind the first. Where the first codebook
ends, the others end one frame after another (Copet et al. 2023, https://arxiv.org/abs/2306.05284).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phonate.tasks.cloning.decoding.sampling import NO_CODE, REPETITION_WINDOW


class DelayedStream:
    """The frames of an utterance: the model's choices go in, frames for the model and complete frames of codes come
    out."""

    def __init__(self, codebooks: int, begin: int, end: int, limit: int) -> None:
        """`begin`, `end`: ids of begin and end of stream; `limit`: frames of codes, at most."""
        self.codebooks, self.begin, self.end, self.limit = codebooks, begin, end, limit
        self.cut_short = False
        """Whether the limit ended the utterance, not the model."""
        self._frames: list[NDArray[np.int64]] = []
        """From frame 1 on, (K,) each."""
        self._ended: int | None = None
        """The frame in which the first codebook ended."""

    @property
    def may_end(self) -> bool:
        """Whether the first codebook may end now."""
        return self._ended is None

    @property
    def done(self) -> bool:
        """Whether all codes are there; the frames that would follow only say so."""
        if self._ended is None:
            return False
        return self._ended == 1 or len(self._frames) >= self._ended + self.codebooks - 2

    def accept(self, chosen_K: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int16] | None]:
        """Take the model's choice for the next frame.

        Returns:
            The frame (K,) as the model reads it next, and the codes (K,) that are complete with it; None: there are
            none.
        """
        number = len(self._frames) + 1
        frame_K = chosen_K.copy()
        if self._ended is None and frame_K[0] == self.end:
            self._ended = number
        elif self._ended is None and number > self.limit:
            self._ended, self.cut_short = number, True
        frame_K[number:] = self.begin
        if self._ended is not None:
            frame_K[: number - self._ended + 1] = self.end
        self._frames.append(frame_K)
        first = len(self._frames) - self.codebooks
        if first < 0 or (self._ended is not None and first >= self._ended - 1):
            return frame_K, None
        codes = [self._frames[first + book][book] for book in range(self.codebooks)]
        return frame_K, np.array(codes, dtype=np.int16)

    def recent(self) -> NDArray[np.int64]:
        """The last codes (W, K) of each codebook, `NO_CODE` in place of begin, end and nothing."""
        window = np.full((REPETITION_WINDOW, self.codebooks), NO_CODE, dtype=np.int64)
        last = self._frames[-REPETITION_WINDOW:]
        if last:
            window[-len(last) :] = np.stack(last)
        window[(window == self.begin) | (window == self.end)] = NO_CODE
        return window
