"""Codes -> sound while the codes are still being made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from phonate.audio.decoding import FloatArray


class CodecStream:
    """Decodes frames as they come. The pieces, joined, are what decoding all frames at once gives.

    The decoder is a stack of convolutions, so that the sound of a frame depends on a few frames before and after it: a
    piece is decoded with these, and is given out when the frames after it are there.
    """

    def __init__(self, decode: Callable[[NDArray[Any]], FloatArray], hop: int, before: int, after: int) -> None:
        """`decode`: (T, K) -> (T * hop,). `before`, `after`: frames that the sound of a frame depends on."""
        self._decode = decode
        self._hop, self._before, self._after = hop, before, after
        self._frames: NDArray[Any] | None = None  # those to come, and `_context` ones before them
        self._context = 0

    def push(self, codes: NDArray[Any]) -> FloatArray:
        """Add frames (n, K), n may be 0. Returns the samples (m,) that no later frame can change."""
        self._frames = codes if self._frames is None else np.concatenate([self._frames, codes])
        return self._give(len(self._frames) - self._context - self._after)

    def finish(self) -> FloatArray:
        """The samples (m,) of the last frames. A new stream may then begin."""
        rest = 0 if self._frames is None else len(self._frames) - self._context
        samples = self._give(rest)
        self._frames, self._context = None, 0
        return samples

    def _give(self, count: int) -> FloatArray:
        if count <= 0 or self._frames is None:
            return np.zeros(0, np.float32)
        start, stop = self._context, self._context + count
        samples = self._decode(self._frames)[start * self._hop : stop * self._hop]
        kept = max(0, stop - self._before)
        self._frames, self._context = self._frames[kept:], stop - kept
        return samples


def decoder_context(decoder: nn.Module) -> tuple[int, int]:
    """How many frames before and after a frame its samples depend on, for a decoder whose convolutions follow each
    other in the order they are registered in (the shortcuts around them see less)."""
    layers = list(_convolutions(decoder))
    hop = 1
    for layer in layers:
        hop *= layer.stride[0] if isinstance(layer, nn.ConvTranspose1d) else 1
    first, last = 0, hop - 1  # the samples of frame 0, followed back to the frames they are computed from
    for layer in reversed(layers):
        padding, stride = int(layer.padding[0]), layer.stride[0]
        reach = (layer.kernel_size[0] - 1) * layer.dilation[0]
        if isinstance(layer, nn.ConvTranspose1d):
            first, last = -((reach - first - padding) // stride), (last + padding) // stride
        else:
            first, last = first - padding, last - padding + reach
    return -first, last


def _convolutions(module: nn.Module) -> Iterator[nn.Conv1d | nn.ConvTranspose1d]:
    return (layer for layer in module.modules() if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d))
