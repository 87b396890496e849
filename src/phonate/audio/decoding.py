"""The one door for sound: reading recordings whole, in blocks or in part, mixing channels down, and writing them.

Shapes: T frames, F features, N samples.
"""

from __future__ import annotations

import errno
import io
import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import soundfile
import soxr
from numpy.typing import NDArray

from phonate.audio.containers.kinds import AUDIO_SUFFIXES as AUDIO_SUFFIXES
from phonate.audio.containers.kinds import HEAD, recognised
from phonate.audio.containers.kinds import USUAL_SUFFIXES as USUAL_SUFFIXES
from phonate.audio.containers.kinds import VIDEO_SUFFIXES as VIDEO_SUFFIXES
from phonate.audio.readers import MADE as MADE
from phonate.audio.readers import Reader, cut_short, opened
from phonate.compute.system import unwritten, write_output
from phonate.config.errors import DataError, InputError, plain_file

logger = logging.getLogger("phonate")

# ----------------- Reading and writing recordings. What can't be read whole is an error, never silence

FloatArray = npt.NDArray[np.float32]

PEAK = 0.95
"""Of sound that is written or played."""
_WRITTEN: Mapping[str, Mapping[str, Any]] = {
    ".wav": {"format": "WAV", "subtype": "PCM_16"},
    ".flac": {"format": "FLAC", "subtype": "PCM_16"},
    ".mp3": {
        "format": "MP3",
        "subtype": "MPEG_LAYER_III",
        "bitrate_mode": "VARIABLE",
        "compression_level": 0.0,  # the best quality: speech takes about 90 kbit/s
    },
}
"""Suffix -> how soundfile writes it."""
_RATES_OF_MP3 = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_LARGEST = 2.0**31  # full scale is 1; only integers that were never scaled are larger, and squares stay finite
_WRITTEN_AT_ONCE = 2**20
_SLACK_SECONDS = 0.05  # a manifest's end may be rounded
BLOCK_SECONDS = 30.0
_SILENT_BLOCK = 2**18
_JUDGED_SECONDS, _JUDGED_SAMPLES = 10.0, 8192
_CANCELLED = 0.1
"""Share of the power that is left by the mean of channels that cancel each other: two of a correlation under -0.9."""


@dataclass(frozen=True)
class AudioInfo:
    """What a recording's header says. `duration` is in seconds; `format` is such as "WAV" or "AAC"."""

    duration: float
    sample_rate: int
    channels: int
    format: str
    remarks: tuple[str, ...] = ()
    """What is unusual about the file and was mended, one line each."""


class Recording:
    """An open recording. `open_recording` opens one."""

    def __init__(self, path: Path, reader: Reader) -> None:
        self._path, self._reader = path, reader
        self.sample_rate = reader.rate
        """Hz."""
        self.remarks = reader.remarks
        """What is unusual about the file and was mended, one line each. What is known only of the samples comes once
        the first are read."""

    @property
    def counted(self) -> bool:
        """Whether the header says how long it is; otherwise `info` decodes it."""
        return self._reader.frames is not None

    def info(self, samples: int | None = None) -> AudioInfo:
        """Length, rate, channels and format. Where its header gives no length, and the caller no number of `samples`,
        the recording is decoded, apart from what is read here."""
        reader = self._reader
        frames, remarks = samples if samples is not None else reader.frames, tuple(reader.remarks)
        if frames is None:
            frames, remarks = _counted(self._path)
        if not frames:
            raise DataError(f"{self._path}: holds no samples; export it again")
        return AudioInfo(frames / reader.rate, reader.rate, reader.channels, reader.format, remarks)

    def blocks(
        self, offset: float = 0.0, duration: float | None = None, channel: int | None = None
    ) -> Iterator[FloatArray]:
        """The waveform as blocks (samples,) at the recording's own rate. Arguments and errors as for `read_audio`."""
        return _checked_blocks(self._path, self._reader, offset, duration, channel)


@contextmanager
def open_recording(path: str | Path) -> Iterator[Recording]:
    """Open a recording, for those who want to know more of it than its samples.

    Raises DataError for a file that is missing, not audio, empty, or cut short.
    """
    path = Path(path)
    with opened(path) as reader:
        yield Recording(path, reader)


def probe(path: str | Path) -> AudioInfo:
    """Length, rate, channels and format of a recording.

    Nothing is decoded, except where the header gives no length (.aac, .webm, streamed FLAC): such a file is decoded
    block by block.

    Raises DataError for a file that is missing, not audio, empty, or cut short.
    """
    with open_recording(path) as recording:
        return recording.info()


def _counted(path: Path) -> tuple[int, tuple[str, ...]]:
    """Samples of a recording whose header does not say, and what is unusual about it."""
    status = path.stat()
    return _counted_once(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _counted_once(path: Path, inode: int, size: int, changed: int) -> tuple[int, tuple[str, ...]]:
    """By what tells one state of a file from another: a list may have a row for each part of it."""
    with opened(path) as reader:
        samples = sum(map(len, reader.blocks()))
        return samples, tuple(reader.remarks)


def read_audio(
    path: str | Path,
    sample_rate: int | None = None,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
) -> tuple[FloatArray, int]:
    """Decode a recording, or `duration` seconds of it from `offset` on, as one channel.

    Args:
        sample_rate: Resample to this rate in Hz (soxr, HQ); by default the recording's own.
        offset, duration: Seconds of the time that a player shows. Compressed formats but Ogg and FLAC are decoded from
            their start.
        channel: Number of the channel to read; by default the mean of all, or one of them where they cancel each
            other, with a warning.

    Returns:
        waveform (samples,), float32, and its sample rate.

    Raises:
        DataError: the file is missing, unreadable, empty or cut short, has no such channel, holds samples that are not
            sound (NaN, infinite, over 2^31 times full scale), or ends before the part asked for.
    """
    with open_recording(path) as recording:
        blocks = recording.blocks(offset, duration, channel)
        waveform, rate = joined(_remarking(path, recording, blocks)), recording.sample_rate
    if sample_rate is not None and sample_rate != rate:
        waveform, rate = resample(waveform, rate, sample_rate), sample_rate
    return waveform, rate


def is_recording(path: Path) -> bool:
    """Whether a file is called as recordings are, or its first bytes are those of one."""
    if not path.is_file():
        return False
    if path.suffix.lower() in AUDIO_SUFFIXES:
        return True
    with path.open("rb") as file:
        return recognised(file.read(HEAD))


def sample_rate_of(path: str | Path) -> int:
    """The recording's own sample rate in Hz. Raises DataError as `probe` does."""
    with open_recording(path) as recording:
        return recording.sample_rate


def read_blocks(
    path: str | Path,
    sample_rate: int | None = None,
    start: float = 0.0,
    stop: float | None = None,
    channel: int | None = None,
    block_seconds: float = BLOCK_SECONDS,
) -> Iterator[FloatArray]:
    """The waveform of a recording, or of its seconds `start` to `stop`, as blocks (samples,) of `block_seconds`, the
    last one shorter.

    Memory stays bounded however long the recording is. Joined, the blocks are what `read_audio` returns, up to rounding
    where the rate is changed. The other arguments and the errors are those of `read_audio`; an error may come after
    blocks were read.
    """
    if start < 0 or (stop is not None and stop <= start):
        end = "the end" if stop is None else f"{stop:g}"
        raise DataError(f"{path}: seconds {start:g} to {end} are not a part of a recording; correct its row")
    with open_recording(path) as recording:
        rate = recording.sample_rate if sample_rate is None else sample_rate
        blocks = recording.blocks(start, None if stop is None else stop - start, channel)
        blocks = resampled(_remarking(path, recording, blocks), recording.sample_rate, rate)
        yield from regrouped(blocks, max(1, round(block_seconds * rate)))


def read_start(path: str | Path, seconds: float, sample_rate: int | None = None) -> tuple[FloatArray, AudioInfo]:
    """The first `seconds` of a recording, mixed to mono and at `sample_rate` (its own by default), with what the header
    says of the whole.

    The file is opened once and only this part is decoded, so hours cost as little as a minute.

    Raises DataError as `read_audio` does, except for faults behind the part that is read.
    """
    path = Path(path)
    with opened(path) as reader:
        recording, rate = Recording(path, reader), reader.rate
        info = recording.info()
        whole = reader.frames is not None and info.duration <= seconds
        waveform = joined(recording.blocks(0.0, None if whole else min(seconds, info.duration)))
        info = replace(info, remarks=tuple(dict.fromkeys([*info.remarks, *reader.remarks])))
    return (waveform if sample_rate in (None, rate) else resample(waveform, rate, sample_rate)), info


def _remarking(path: str | Path, recording: Recording, blocks: Iterator[FloatArray]) -> Iterator[FloatArray]:
    """The blocks, with a line in the log for each remark."""
    reported = 0
    for block in chain(blocks, [None]):
        for remark in recording.remarks[reported:]:
            logger.warning("%s: %s", path, remark)
        reported = len(recording.remarks)
        if block is not None:
            yield block


def joined(blocks: Iterable[FloatArray]) -> FloatArray:
    """Blocks (samples,) as one waveform (samples,)."""
    parts = list(blocks)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _checked_blocks(
    path: Path, reader: Reader, offset: float, duration: float | None, channel: int | None
) -> Iterator[FloatArray]:
    """Blocks (samples,) of the part asked for, at the reader's rate; raises DataError as `read_audio` does."""
    if offset < 0 or (duration is not None and duration <= 0):
        raise DataError(f"{path}: offset {offset} and duration {duration} must be at least 0 and over 0 seconds")
    if channel is not None and not 0 <= channel < reader.channels:
        raise DataError(f"{path}: has no channel {channel}; it has {reader.channels}, counted from 0")
    rate = reader.rate
    if reader.frames is None:
        start, count = round(offset * rate), None if duration is None else round(duration * rate)
    else:
        start, count = _span(path, reader.frames, rate, offset, duration)
    held = 0
    for samples in _mono(path, reader, start, channel):
        part = samples if count is None else samples[: count - held]
        _require_sound(path, part, reader, start + held)
        held += len(part)
        yield part
        if count is not None and held >= count:
            return
    if reader.frames is None:  # only now is it known how long the recording is
        if start + held == 0:
            raise DataError(f"{path}: holds no samples; export it again")
        if not held or count is not None:
            _span(path, start + held, rate, offset, duration)
    elif held == 0 or (count is not None and held < count - reader.slack):
        raise cut_short(path, reader.frames / rate, (start + held) / rate)


def _require_sound(path: Path, waveform: FloatArray, reader: Reader, first: int) -> None:
    # max and min allocate nothing. NaN compares false with any bound.
    if not (reader.integers or (waveform.max(initial=0.0) <= _LARGEST and waveform.min(initial=0.0) >= -_LARGEST)):
        at = int(np.argmin(np.abs(waveform) <= _LARGEST))
        what = f"{waveform[at]:.3g}, far over full scale" if np.isfinite(waveform[at]) else "NaN or infinite"
        raise DataError(f"{path}: sample {first + at} ({(first + at) / reader.rate:.3f} s) is {what}; export it again")


def _span(path: Path, frames: int, rate: int, offset: float, duration: float | None) -> tuple[int, int]:
    """First sample and number of samples of the part asked for."""
    start = round(offset * rate)
    end = frames if duration is None else round((offset + duration) * rate)
    if start >= frames or end > frames + _SLACK_SECONDS * rate:
        raise DataError(
            f"{path}: seconds {offset:g} to {end / rate:g} were asked for, there are "
            f"{frames / rate:.3f}; mend its row in the manifest"
        )
    return start, min(end, frames) - start


def _mono(path: Path, reader: Reader, start: int, channel: int | None) -> Iterator[FloatArray]:
    """Blocks (samples,) from sample `start` on: one channel, or the mean of all unless they cancel each other."""
    blocks = reader.blocks(start)
    if reader.channels == 1 or channel is not None:
        for samples in blocks:
            yield samples[:, channel or 0]
        return
    # Told by the beginning of the recording, so that a part of it is mixed as the whole is.
    silent, first = 0, list[FloatArray]()
    if start:
        with opened(path) as another:
            choice = _cancelling(_first_sound(another.blocks(), reader.rate)[1])
    else:
        silent, first = _first_sound(blocks, reader.rate)
        choice = _cancelling(first)
    if choice is not None:
        reader.remarks.append(
            f"its channels cancel each other (correlation {choice[1]:.2f}); channel {choice[0]} alone is used"
        )
    for begin in range(0, silent, _SILENT_BLOCK):
        yield np.zeros(min(_SILENT_BLOCK, silent - begin), np.float32)
    for samples in chain(first, blocks):
        yield _mean(samples) if choice is None else samples[:, choice[0]]


def _mean(samples: FloatArray) -> FloatArray:
    """(samples, channels) -> (samples,)"""
    if samples.shape[1] == 2:  # the same to the bit, and several times faster
        return np.asarray((samples[:, 0] + samples[:, 1]) / np.float32(2.0))
    return np.asarray(samples.mean(axis=1))


def _first_sound(blocks: Iterator[FloatArray], rate: int) -> tuple[int, list[FloatArray]]:
    """Samples of digital silence at the beginning, and blocks (samples, channels) of about 10 s behind it."""
    silent, sounding, count = 0, list[FloatArray](), 0
    for samples in blocks:
        if not sounding and not samples[:_JUDGED_SAMPLES].any() and not samples.any():
            silent += len(samples)
            continue
        sounding.append(samples)
        count += len(samples)
        if count >= _JUDGED_SECONDS * rate:
            break
    return silent, sounding


def _cancelling(blocks: list[FloatArray]) -> tuple[int, float] | None:
    """The first loud channel, and its correlation with the others, where the mean of all is much quieter than channels
    that have nothing in common would leave it; None where it is not."""
    if not blocks:
        return None
    step = max(1, sum(map(len, blocks)) // _JUDGED_SAMPLES)
    samples = np.concatenate([block[::step] for block in blocks]).astype(np.float64)
    channels = samples.shape[1]
    mean, power = samples.mean(axis=1), samples.var(axis=0)
    if not channels**2 * mean.var() < _CANCELLED * power.sum():  # also where samples are NaN
        return None
    chosen = int(np.argmax(power >= 0.5 * power.max()))
    others = channels * mean - samples[:, chosen]
    return chosen, float(np.corrcoef(samples[:, chosen], others)[0, 1])


def resample(waveform: FloatArray, rate: float, new_rate: float) -> FloatArray:
    """The waveform (samples,) at another rate in Hz, through soxr's HQ filter."""
    return np.asarray(soxr.resample(waveform, rate, new_rate, quality="HQ"), dtype=np.float32)


def resampled(
    blocks: Iterable[FloatArray], rate: int, new_rate: int, quality: Literal["HQ", "LQ"] = "HQ"
) -> Iterator[FloatArray]:
    """`resample`, block by block. Of soxr's filters that suppress aliases, LQ has the least delay."""
    if rate == new_rate:
        yield from blocks
        return
    stream = soxr.ResampleStream(rate, new_rate, 1, dtype="float32", quality=quality)
    for block in blocks:
        yield stream.resample_chunk(np.ascontiguousarray(block))
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def regrouped(blocks: Iterator[FloatArray], size: int) -> Iterator[FloatArray]:
    """The same samples in blocks of `size`, the last one shorter."""
    held = np.zeros(0, np.float32)
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
    if len(held):
        yield held


def writable(path: str | Path) -> Path:
    """`path`, if `write_audio` writes files with its suffix and its folder exists. Raises InputError."""
    path = encodable(path)
    if not path.parent.is_dir():
        raise InputError(f"{path}: no folder {path.parent}; make it first")
    return path


def encodable(path: str | Path) -> Path:
    """`path`, if `write_audio` writes files with its suffix. Raises InputError."""
    path = Path(path)
    if path.suffix.lower() not in _WRITTEN:
        mend = f"name a file in it, such as {path / 'out.wav'}" if path.is_dir() else "give the file such a suffix"
        raise InputError(f"{path}: only .wav, .flac and .mp3 can be written; {mend}")
    return plain_file(path)


def sound_writer(path: str | Path, file: str | Path | IO[bytes], sample_rate: int) -> soundfile.SoundFile:
    """An open mono `file` of the format that the suffix of `path` says. Raises InputError where that can't be written
    here or has no such rate, and soundfile.LibsndfileError where the file can't be opened."""
    _require_writable(path, sample_rate)
    return soundfile.SoundFile(file, "w", sample_rate, 1, **_WRITTEN[Path(path).suffix.lower()])


def _require_writable(path: str | Path, sample_rate: int) -> None:
    if Path(path).suffix.lower() != ".mp3":
        return
    if not soundfile.check_format("MP3", "MPEG_LAYER_III"):  # a system's own, say
        raise InputError(
            f"{path}: libsndfile {soundfile.__libsndfile_version__} writes no MP3; name a .wav or .flac file"
        )
    if sample_rate not in _RATES_OF_MP3:
        raise InputError(f"{path}: an MP3 file can't have {sample_rate} Hz; name a .wav or .flac file")


def write_audio(path: str | Path, waveform: npt.ArrayLike, sample_rate: int, comment: str | None = None) -> None:
    """Write a waveform (samples,) as 16-bit WAV or FLAC, or as MP3, by suffix; the file appears whole or not at all.

    `comment` becomes the file's comment tag, where players and forensic tools look (`MADE` for what a model said).

    A waveform that peaks over 1 is scaled down as a whole to peak at 1, since clipping would distort it.
    """
    path = encodable(path)
    samples = np.asarray(waveform, dtype=np.float32)
    if samples.ndim != 1 or samples.size == 0 or not np.isfinite(samples).all():
        raise DataError(f"{path}: not written: a waveform is one row of finite samples, got shape {samples.shape}")
    samples = samples / max(1.0, float(np.abs(samples).max()))
    encoded = io.BytesIO()
    with sound_writer(path, encoded, sample_rate) as file:
        if comment is not None:
            file.comment = comment
        file.write(samples)
    write_output(path, encoded.getvalue(), parents=True)


def write_pieces(path: str | Path, pieces: Iterable[FloatArray], sample_rate: int, comment: str | None = None) -> int:
    """Write the pieces (n,) of a sound as `write_audio` does, with a peak of `PEAK` for all of it, and return the
    number of its samples. They wait in a file beside it, so memory does not grow with their number."""
    path = encodable(path)
    _require_writable(path, sample_rate)  # before the pieces are made
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    peak, samples = np.float32(0.0), 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent) as waiting:
            for piece in pieces:
                if not np.isfinite(piece).all():
                    raise DataError(f"{path}: not written: there are samples that are not finite")
                waiting.write(piece.astype(np.float32, copy=False).tobytes())
                peak, samples = max(peak, np.abs(piece).max(initial=0.0)), samples + len(piece)
            waiting.seek(0)
            try:
                _encode(path, temporary, waiting, peak, sample_rate, comment)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise unwritten(path, error) from error
    return samples


def _encode(
    path: Path, temporary: Path, waiting: IO[bytes], peak: np.float32, sample_rate: int, comment: str | None
) -> None:
    """Write the float32 samples in `waiting`, whose peak is `peak`, to `temporary` as `path` says. Raises OSError."""
    try:
        with sound_writer(path, temporary, sample_rate) as file:
            if comment is not None:
                file.comment = comment
            while block := waiting.read(4 * _WRITTEN_AT_ONCE):
                written = np.frombuffer(block, np.float32)
                file.write(PEAK * (written / peak) if peak else written)
    except (AssertionError, soundfile.SoundFileError) as error:  # what soundfile makes of a disk without room
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error


def normalised_peak(waveform: FloatArray) -> FloatArray:
    """The waveform (samples,) scaled to peak at 1; digital silence as it is."""
    peak = float(np.abs(waveform).max(initial=0.0))
    return waveform / np.float32(peak) if peak > 0.0 else waveform


# -------------------------------------------- Audio as callers have it: a file, or samples in an array

Audio = str | Path | NDArray[Any]
"""The path of a recording, or mono samples (N,) as floats in [-1, 1]."""
AudioT = TypeVar("AudioT", bound=Audio)
"""For lists of one kind of them."""


def as_waveform(audio: Audio, rate: int, sample_rate: int | None = None) -> FloatArray:
    """The samples (N,) float32 of a recording, at `rate` Hz.

    Args:
        audio: A file of any format and rate, or samples (N,).
        rate: Hz, wanted.
        sample_rate: Hz of an array; None: it is at `rate` already. A file says its own.

    Raises:
        DataError: a file that can't be read.
        InputError: an array that is not one row of finite floats, or a `sample_rate` given for a file.
    """
    if isinstance(audio, str | Path):
        if sample_rate is not None:
            raise InputError(f"{audio}: a file has its own sample rate; sample_rate is for arrays")
        return read_audio(audio, rate)[0]
    samples = np.asarray(audio)
    if samples.ndim != 1 or not len(samples) or not np.issubdtype(samples.dtype, np.floating):
        raise InputError(f"audio must be mono samples (N,) as floats in [-1, 1], not {samples.dtype} {samples.shape}")
    if not np.isfinite(samples).all():
        raise DataError("audio has samples that are NaN or infinite")
    waveform = samples.astype(np.float32, copy=False)
    return waveform if sample_rate in (None, rate) else resample(waveform, float(sample_rate or rate), rate)


# ---------------- Processing long recordings in pieces, so that memory does not grow with their length


def windows(frames: int, window: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Start and end of windows of at most `window` frames that cover `frames`, neighbours sharing `overlap`."""
    if not 0 <= overlap < window:
        raise ValueError(f"an overlap of {overlap} frames does not fit into windows of {window}")
    start = 0
    while True:
        end = min(start + window, frames)
        yield start, end
        if end >= frames:
            return
        start = end - overlap


def overlap_add(frames: int, window: int, overlap: int, predict: Callable[[int, int], FloatArray]) -> FloatArray:
    """(frames, F) put together from `predict(start, end)`, fading from each window to the next."""
    whole_TF: FloatArray | None = None
    for start, end in windows(frames, window, overlap):
        part_TF = predict(start, end)
        if whole_TF is None:
            whole_TF = np.empty((frames, part_TF.shape[1]), dtype=np.float32)
            whole_TF[start:end] = part_TF
            continue
        fade_T1 = ((np.arange(overlap, dtype=np.float32) + 1.0) / (overlap + 1.0))[:, None]
        joint = slice(start, start + overlap)
        whole_TF[joint] = whole_TF[joint] * (1.0 - fade_T1) + part_TF[:overlap] * fade_T1
        whole_TF[start + overlap : end] = part_TF[overlap:]
    assert whole_TF is not None
    return whole_TF


def quiet_cuts(mel_TF: FloatArray, piece: int, margin: int) -> list[int]:
    """Frames at which to cut features into pieces of at most `piece` frames, at the quietest of their last quarter.

    The ends are included, [0, ..., T]; every piece is longer than `margin`.
    """
    loudness_T = mel_TF.mean(axis=1)
    cuts = [0]
    while len(mel_TF) - cuts[-1] > piece:
        earliest, latest = cuts[-1] + piece - piece // 4, cuts[-1] + piece - margin
        cuts.append(earliest + int(np.argmin(loudness_T[earliest:latest])))
    return [*cuts, len(mel_TF)]


def rendered_in_pieces(
    mel_TF: FloatArray, render: Callable[[FloatArray], FloatArray], hop: int, piece: int, margin: int = 16
) -> FloatArray:
    """The waveform ((T - 1) * hop,) of a long spectrogram, rendered piece by piece between quiet frames.

    Pieces are rendered with `margin` more frames on both sides and faded into each other over them. `render`
    gives (frames - 1) * hop samples and must not change levels.
    """
    if piece // 4 <= margin:
        raise ValueError(f"pieces of {piece} frames are too short for margins of {margin}")
    cuts = quiet_cuts(mel_TF, piece, margin)
    # a spectrogram of n frames is n - 1 hops long: neighbours share so much
    fade_N = np.linspace(0.0, 1.0, (2 * margin - 1) * hop, dtype=np.float32)
    whole_N = np.zeros((len(mel_TF) - 1) * hop, dtype=np.float32)
    for begin, end in itertools.pairwise(cuts):
        first, last = max(0, begin - margin), min(len(mel_TF), end + margin)
        part_N = render(mel_TF[first:last]).copy()
        if begin > 0:
            part_N[: len(fade_N)] *= fade_N
        if end < len(mel_TF):
            part_N[-len(fade_N) :] *= 1.0 - fade_N
        whole_N[first * hop : first * hop + len(part_N)] += part_N
    return whole_N
