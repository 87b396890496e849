"""Live conversion from a microphone, a pipe or a file to a loudspeaker, a pipe or a file."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from phonate.audio.decoding import FloatArray, read_blocks, resampled
from phonate.audio.live import PIPE, Sink, microphone, opened_sink, raw_blocks
from phonate.config.errors import DataError, InputError, option
from phonate.tasks.conversion.inference import Converter, LiveConversion

logger = logging.getLogger("phonate")

MICROPHONE = "microphone"
_LOWEST_RATE, _HIGHEST_RATE = 8000, 192000


@dataclass(frozen=True)
class LiveResult:
    """What was converted."""

    seconds: float
    """Length of the sound."""
    latency: float
    """Seconds from a sample to its conversion, the length of a block included, computation not."""
    busy: float
    """Seconds of computation for each second of sound."""
    late: float
    """Share of the blocks whose computation took longer than their sound; sound breaks off there in live playback."""


def convert_live(
    converter: Converter,
    source: str,
    sink: str,
    speaker: str | None = None,
    rate: int | None = None,
    semitones: float = 0.0,
) -> LiveResult:
    """Convert `source` to the voice of `speaker`, each block as soon as it is there, until it ends.

    Args:
        source: A recording, "microphone" (until Ctrl-C), or "-": raw 16-bit samples from standard input.
        sink: A .wav, .flac or .mp3 file, "loudspeaker", or "-": raw 16-bit samples to standard output.
        rate: Hz of raw samples that come in; None: the model's.
        semitones: Added to the pitch.

    Raises InputError for a model that is not causal, an unknown speaker, or a source or sink that can't be opened,
    DataError where no sound comes in.
    """
    if rate is not None and source != PIPE:
        raise InputError(f"{option('rate')}: only for raw samples from standard input (-); leave it out")
    if rate is not None and not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
        raise InputError(f"{option('rate')}: {rate}; must be from {_LOWEST_RATE} to {_HIGHEST_RATE} Hz")
    live = converter.live(speaker, semitones)
    with _source(source, live, rate) as blocks, opened_sink(sink, live.sample_rate, live.block) as output:
        logger.info(
            "live conversion to %s: %.1f ms behind the input (%d samples at %d Hz, of which a block is %d), "
            "plus computing",
            speaker or converter.target,
            1000 * live.latency / live.sample_rate,
            live.latency,
            live.sample_rate,
            live.block,
        )
        return _run(source, live, blocks, output)


def _run(source: str, live: LiveConversion, blocks: Iterator[FloatArray], output: Sink) -> LiveResult:
    rate, written, busy, late = live.sample_rate, 0, list[float](), 0
    for block in blocks:
        start = time.perf_counter()
        samples = live.push(block)
        busy.append(time.perf_counter() - start)
        late += busy[-1] > len(block) / rate
        output.write(samples)
        written += len(samples)
    rest = live.finish()
    output.write(rest)
    if not (total := written + len(rest)):
        raise DataError(f"{source}: no sound came in, or less than a frame of it")
    seconds = total / rate
    return LiveResult(seconds, live.latency / rate, sum(busy) / max(seconds, 1 / rate), late / max(len(busy), 1))


@contextlib.contextmanager
def _source(source: str, live: LiveConversion, rate: int | None) -> Iterator[Iterator[FloatArray]]:
    if source == MICROPHONE:
        with microphone(live.sample_rate, live.block) as blocks, _until_interrupted(blocks) as until_stopped:
            yield until_stopped
    elif source == PIPE:
        if sys.stdin.isatty():
            raise InputError("standard input is a terminal; pipe raw 16-bit samples into it, or give a recording")
        rate = rate or live.sample_rate
        size = max(1, round(live.block * rate / live.sample_rate))
        with _until_interrupted(
            resampled(raw_blocks(sys.stdin.buffer, size), rate, live.sample_rate, "LQ")
        ) as until_stopped:
            yield until_stopped
    else:
        yield read_blocks(source, live.sample_rate, block_seconds=live.block / live.sample_rate)


@contextlib.contextmanager
def _until_interrupted(blocks: Iterator[FloatArray]) -> Iterator[Iterator[FloatArray]]:
    """The blocks until Ctrl-C, which ends the recording, not the command; a second one does, where no block comes."""
    ended = False

    def end(_number: int, _frame: object) -> None:
        nonlocal ended
        if ended:
            raise KeyboardInterrupt
        ended = True

    def until_stopped() -> Iterator[FloatArray]:
        for block in blocks:
            if ended:
                return
            yield block

    before = signal.signal(signal.SIGINT, end)
    try:
        yield until_stopped()
    finally:
        signal.signal(signal.SIGINT, before)
