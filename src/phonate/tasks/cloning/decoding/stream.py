"""Frames of codes to chunks of sound, while the frames are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from phonate.audio.codec_stream import CodecStream
from phonate.audio.decoding import FloatArray

_FIRST, _LONGEST = 4, 32
"""Frames of the first chunk, which is wanted soon, and of the later ones, which double up to here: each costs the codec
its context once more."""


def sound(frames: Iterable[NDArray[np.int16]], codec: CodecStream) -> Iterator[FloatArray]:
    """Chunks of samples (n,) of frames (K,), which may be none; joined they are what the codec makes of all frames."""
    held: list[NDArray[np.int16]] = []
    size, pushed = _FIRST, False
    for frame in frames:
        held.append(frame)
        if len(held) < size:
            continue
        chunk, pushed = codec.push(np.stack(held)), True
        held, size = [], min(_LONGEST, 2 * size)
        if len(chunk):
            yield chunk
    rest = [codec.push(np.stack(held))] if held else []
    if pushed or held:
        rest.append(codec.finish())
    if any(map(len, rest)):
        yield np.concatenate(rest)
