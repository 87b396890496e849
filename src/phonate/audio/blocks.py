"""Recordings block by block, so that hours take no more memory than a minute.

The blocks of a recording, put together, are what `decoding.read_audio` returns for the whole (resampled within 1e-6).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soxr

from phonate.audio.decoding import (
    _AV_CONTAINERS,
    _SLACK_SECONDS,
    FloatArray,
    _checked,
    _cut_short,
    _opened,
    _opened_av,
    _require_sound,
    _span,
)
from phonate.config.errors import DataError

if TYPE_CHECKING:
    import av.container

BLOCK_SECONDS = 30.0


def read_blocks(
    path: str | Path,
    sample_rate: int | None = None,
    start: float = 0.0,
    stop: float | None = None,
    channel: int | None = None,
    block_seconds: float = BLOCK_SECONDS,
) -> Iterator[FloatArray]:
    """Decode a recording, or its seconds `start` to `stop`, as blocks (samples,) float32, one after the other.

    Args:
        sample_rate: resample to this rate (soxr, HQ, as one stream); by default the recording's own.
        start, stop: seconds. Formats without exact seeking (mp3, m4a, aac) are decoded from their beginning.
        channel: take this channel, counted from 0; by default all are mixed to mono.
        block_seconds: length of a block as it is decoded; the resampler's blocks differ by a few samples.

    Raises:
        DataError: as `read_audio` does, at the block where it is found; or there is no such channel.
    """
    path = _checked(path)
    if start < 0 or (stop is not None and stop <= start):
        raise DataError(f"{path}: seconds {start:g} to {stop:g} are no part of a recording; correct its row")
    is_av = path.suffix.lower() in _AV_CONTAINERS
    decoded = (_av_blocks if is_av else _soundfile_blocks)(path, start, stop, channel, block_seconds)
    resampler = None
    for rate, block, last in decoded:
        if sample_rate is None or sample_rate == rate:
            yield block
            continue
        if resampler is None:
            resampler = soxr.ResampleStream(rate, sample_rate, 1, dtype="float32", quality="HQ")
        resampled = resampler.resample_chunk(block, last=last)
        if len(resampled):
            yield np.asarray(resampled, dtype=np.float32)


def sample_rate_of(path: str | Path) -> int:
    """Samples a second of a recording, from its header. Raises DataError as `probe` does."""
    path = _checked(path)
    if path.suffix.lower() in _AV_CONTAINERS:
        with _opened_av(path) as container:
            return int(container.streams.audio[0].codec_context.sample_rate)
    with _opened(path) as file:
        return int(file.samplerate)


def _soundfile_blocks(
    path: Path, start: float, stop: float | None, channel: int | None, seconds: float
) -> Iterator[tuple[int, FloatArray, bool]]:
    """(rate, block, whether it is the last) of a file that libsndfile reads."""
    with _opened(path) as file:
        rate = file.samplerate
        first, count = _span(path, file.frames, rate, start, None if stop is None else stop - start)
        _require_channel(path, channel, file.channels)
        skipped = first if file.format == "MP3" else 0  # see decoding: a seek in MP3 garbles the first frame
        if first > skipped:
            file.seek(first)
        size = max(1, round(seconds * rate))
        while skipped > 0:
            skipped -= len(file.read(min(size, skipped), dtype="float32", always_2d=True))
        done = 0
        while done < count:
            wanted = min(size, count - done)
            samples = file.read(wanted, dtype="float32", always_2d=True)
            if len(samples) < wanted:
                raise _cut_short(path, file.frames / rate, (first + done + len(samples)) / rate)
            yield rate, _checked_block(path, samples.T, channel, rate, first + done), done + wanted == count
            done += wanted


def _av_blocks(
    path: Path, start: float, stop: float | None, channel: int | None, seconds: float
) -> Iterator[tuple[int, FloatArray, bool]]:
    """The same of a file that FFmpeg reads. One block is held back until it is known whether it is the last."""
    with _opened_av(path) as container:
        stream = container.streams.audio[0]
        rate = stream.codec_context.sample_rate
        promised = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else None
        if path.suffix.lower() == ".aac":  # FFmpeg guesses the length from the bit rate
            promised = None
        first = round(start * rate)
        # The last AAC frame is padded: what lies behind the promised end is no sound.
        ends = [round(end * rate) for end in (stop, promised) if end is not None]
        emitted, waiting = first, None
        for piece in _gathered(_av_frames(container, first, min(ends, default=None)), max(1, round(seconds * rate))):
            if waiting is not None:
                yield rate, waiting, False
            _require_channel(path, channel, len(piece))
            waiting = _checked_block(path, piece, channel, rate, emitted)
            emitted += len(waiting)
        if waiting is None:
            raise DataError(f"{path}: holds no samples from second {start:g} on; remove it or correct its row")
        wanted = promised if stop is None else stop
        if wanted is not None and emitted / rate < wanted - _SLACK_SECONDS:
            raise _cut_short(path, wanted, emitted / rate)
        yield rate, waiting, True


def _av_frames(container: av.container.InputContainer, first: int, end: int | None) -> Iterator[FloatArray]:
    """The decoded frames (channels, samples) of a file, from sample `first` to `end`."""
    import av

    stream = container.streams.audio[0]
    resampler = av.AudioResampler(format="fltp", rate=stream.codec_context.sample_rate)
    position = 0
    for frame in chain(container.decode(stream), [None]):
        for part in resampler.resample(frame):
            samples = part.to_ndarray().astype(np.float32, copy=False)
            high = samples.shape[1] if end is None else min(end - position, samples.shape[1])
            low = max(first - position, 0)
            position += samples.shape[1]
            if low < high:
                yield samples[:, low:high]
        if end is not None and position >= end:
            return


def _gathered(frames: Iterator[FloatArray], size: int) -> Iterator[FloatArray]:
    """Frames (channels, samples) put together to blocks of at least `size` samples; the last may be shorter."""
    held: list[FloatArray] = []
    for samples in frames:
        held.append(samples)
        if sum(piece.shape[1] for piece in held) >= size:
            yield np.concatenate(held, axis=1)
            held = []
    if held:
        yield np.concatenate(held, axis=1)


def _require_channel(path: Path, channel: int | None, channels: int) -> None:
    if channel is not None and not 0 <= channel < channels:
        raise DataError(f"{path}: no channel {channel}: it has {channels}, counted from 0; correct its row")


def _checked_block(path: Path, samples: FloatArray, channel: int | None, rate: int, at: int) -> FloatArray:
    """(channels, samples) -> (samples,), checked to be finite sound."""
    if channel is not None:
        block = np.ascontiguousarray(samples[channel])
    else:
        block = samples[0] if len(samples) == 1 else samples.mean(axis=0)
    _require_sound(path, block, rate, at / rate)
    return np.ascontiguousarray(block, dtype=np.float32)
