"""Encodes sound while it is made. Every file says in a comment that a model made it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phonate.audio.decoding import MADE, FloatArray

_FULL_SCALE = 32767.0


@dataclass(frozen=True)
class Format:
    """A format of sound that the server sends."""

    media_type: str
    container: str = ""
    """FFmpeg's name; "" for samples without a container."""
    codec: str = ""
    options: tuple[tuple[str, str], ...] = ()
    rate: int | None = None
    """Hz, where the codec has only one."""
    streamed: bool = True
    """Whether a part of a file can be sent before the rest is made."""


FORMATS = {
    "mp3": Format("audio/mpeg", "mp3", "libmp3lame"),
    "opus": Format("audio/ogg", "ogg", "libopus", (("page_duration", "100000"),), rate=48_000),
    "aac": Format("audio/aac", "adts", "aac", (("write_id3v2", "1"),)),
    # The header of a FLAC file has the number of samples; libsndfile reads no file without it.
    "flac": Format("audio/flac", "flac", "flac", streamed=False),
    "wav": Format("audio/wav", "wav", "pcm_s16le"),
    "pcm": Format("audio/pcm"),
}
"""As OpenAI names them. pcm: 16-bit little-endian samples, mono, at the model's rate."""


class _Pipe:
    """What an encoder writes into; without a way to go back, so that a file's parts come in order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def taken(self) -> bytes:
        """What was written since the last call."""
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken


def encoded(chunks: Iterable[FloatArray], sample_rate: int, name: str, whole: bool = False) -> Iterator[bytes]:
    """Chunks of samples (n,) in [-1, 1] as parts of a file of the format `name`, as soon as they are there.

    A WAV file that is sent in parts has no length in its header (0xFFFFFFFF). `whole`: as one part, with the length.
    """
    chosen = FORMATS[name]
    if not chosen.container:
        for chunk in chunks:
            yield _integers(chunk).tobytes()
    elif whole or not chosen.streamed:
        file = io.BytesIO()
        for _ in _written(chunks, sample_rate, chosen, file):
            pass
        yield file.getvalue()
    else:
        pipe = _Pipe()
        for _ in _written(chunks, sample_rate, chosen, pipe):
            if part := pipe.taken():
                yield part


def _written(chunks: Iterable[FloatArray], sample_rate: int, chosen: Format, file: Any) -> Iterator[None]:
    """Write a file; yields after each chunk and after the end."""
    container, stream = _opened(file, sample_rate, chosen)
    at = 0
    with container:
        for chunk in chunks:
            container.mux(stream.encode(_frame(chunk, sample_rate, at)))
            at += len(chunk)
            yield
        container.mux(stream.encode(None))
    yield


def _opened(file: Any, sample_rate: int, chosen: Format) -> tuple[Any, Any]:
    """A container that writes into `file`, and its stream of sound."""
    import av

    container = av.open(file, "w", format=chosen.container, options=dict(chosen.options))
    container.metadata["comment"] = MADE
    stream = container.add_stream(chosen.codec, rate=chosen.rate or sample_rate, layout="mono")
    stream.metadata["comment"] = MADE  # Ogg keeps comments with the stream
    return container, stream


def _frame(chunk: FloatArray, sample_rate: int, at: int) -> Any:
    """A frame that begins at sample `at`: without a time Opus would begin late by what its encoder puts before it."""
    import av

    frame = av.AudioFrame.from_ndarray(_integers(chunk)[None], format="s16", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = sample_rate, at, Fraction(1, sample_rate)
    return frame


def _integers(chunk: FloatArray) -> NDArray[np.int16]:
    return np.asarray(np.rint(_FULL_SCALE * np.clip(chunk, -1.0, 1.0)).astype("<i2"))
