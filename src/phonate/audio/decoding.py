"""Reading and writing recordings. What can't be read whole is an error, never silence."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from phonate.audio import containers
from phonate.config.errors import DataError, InputError

if TYPE_CHECKING:
    import av.container

FloatArray = npt.NDArray[np.float32]

AUDIO_SUFFIXES = frozenset({".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac"})
"""Suffixes, in lower case, of the files that are taken for recordings."""

# FFmpeg is told the container instead of guessing it: a text file that looks like a playlist would
# otherwise make it open other files and addresses.
_AV_CONTAINERS = {".m4a": "mov", ".aac": "aac"}
_SUBTYPES = {".wav": "PCM_16", ".flac": "PCM_16"}
_SLOWEST, _FASTEST = 1_000, 1_000_000  # Hz; a damaged header may say anything, and memory is taken by it
_LARGEST = 2.0**31  # full scale is 1; no integers that somebody forgot to scale are larger, and squares stay finite
_SLACK_SECONDS = 0.05  # codecs round a recording's length to their own frames


@dataclass(frozen=True)
class AudioInfo:
    """What a recording's header says. `duration` is in seconds; `format` is such as "WAV" or "AAC"."""

    duration: float
    sample_rate: int
    channels: int
    format: str


def probe(path: str | Path) -> AudioInfo:
    """The recording's length and kind without decoding it (.aac has no header and is decoded).

    Raises DataError for what is no recording, is empty, or is cut short.
    """
    path = _checked(path)
    if path.suffix.lower() in _AV_CONTAINERS:
        return _probe_av(path)
    with _opened(path) as file:
        return AudioInfo(file.frames / file.samplerate, file.samplerate, file.channels, str(file.format))


def read_audio(
    path: str | Path, sample_rate: int | None = None, offset: float = 0.0, duration: float | None = None
) -> tuple[FloatArray, int]:
    """Decode a recording, or `duration` seconds of it from `offset` on, and mix it to mono.

    Args:
        sample_rate: resample to this rate (soxr, HQ); by default the recording's own.
        offset, duration: seconds. Only this part is decoded; mp3, m4a and aac are decoded from their start.

    Returns:
        waveform (samples,), float32, and its sample rate.

    Raises:
        DataError: the file is missing, unreadable, empty, cut short, holds samples that are no sound (NaN, infinite,
            over 2^31 times full scale), or ends before the part asked for.
    """
    path = _checked(path)
    if offset < 0 or (duration is not None and duration <= 0):
        raise DataError(f"{path}: offset {offset} and duration {duration} must be at least 0 and over 0 seconds")
    if path.suffix.lower() in _AV_CONTAINERS:
        waveform, rate = _read_av(path, offset, duration)
    else:
        waveform, rate = _read_soundfile(path, offset, duration)
    _require_sound(path, waveform, rate, offset)
    if sample_rate is not None and sample_rate != rate:
        waveform, rate = resample(waveform, rate, sample_rate), sample_rate
    return waveform, rate


def read_start(path: str | Path, seconds: float, sample_rate: int | None = None) -> tuple[FloatArray, AudioInfo]:
    """The first `seconds` of a recording, mono and at `sample_rate` (its own by default), with what the header says of
    the whole.

    The file is opened once, and no more of it is decoded, so that hours cost as little as a minute.

    Raises:
        DataError: as `read_audio` does, but of what lies behind the part that is read.
    """
    path = _checked(path)
    if path.suffix.lower() in _AV_CONTAINERS:
        info = _probe_av(path)
        waveform, rate = _read_av(path, 0.0, seconds if info.duration > seconds else None)
    else:
        with _opened(path) as file:
            rate = file.samplerate
            info = AudioInfo(file.frames / rate, rate, file.channels, str(file.format))
            if not _SLOWEST <= rate <= _FASTEST:
                raise DataError(f"{path}: {rate} samples a second is no recording's rate; export it again")
            count = min(file.frames, round(seconds * rate))
            samples = file.read(count, dtype="float32", always_2d=True)
            if len(samples) < count:
                raise _cut_short(path, info.duration, len(samples) / rate)
            waveform = _mono(samples)
    _require_sound(path, waveform, rate, 0.0)
    return (waveform if sample_rate in (None, rate) else resample(waveform, rate, sample_rate)), info


def _require_sound(path: Path, waveform: FloatArray, rate: int, offset: float) -> None:
    # Without an array between: this is done to all recordings. NaN is no larger and no smaller than anything.
    if not (waveform.max(initial=0.0) <= _LARGEST and waveform.min(initial=0.0) >= -_LARGEST):
        bad = int(np.argmin(np.abs(waveform) <= _LARGEST))
        what = f"{waveform[bad]:.3g}, far over full scale" if np.isfinite(waveform[bad]) else "NaN or infinite"
        raise DataError(f"{path}: sample {bad} ({offset + bad / rate:.3f} s) is {what}; export it again")


def resample(waveform: FloatArray, rate: float, new_rate: float) -> FloatArray:
    """The waveform (samples,) at another rate, through soxr's HQ filter."""
    return np.asarray(soxr.resample(waveform, rate, new_rate, quality="HQ"), dtype=np.float32)


def writable(path: str | Path) -> Path:
    """`path`, if `write_audio` writes files with its suffix. Raises InputError."""
    path = Path(path)
    if path.suffix.lower() not in _SUBTYPES:
        raise InputError(f"{path}: writes {' and '.join(sorted(_SUBTYPES))} only; give the file such a suffix")
    return path


MADE = "AI-generated by phonate"
"""The comment that sound made by a model carries in its file."""


def write_audio(path: str | Path, waveform: npt.ArrayLike, sample_rate: int, comment: str | None = None) -> None:
    """Write a waveform (samples,) as 16-bit WAV or FLAC, by suffix; the file appears whole or not at all.

    `comment` becomes the file's comment tag, where players and forensic tools look (`MADE` for what a model said).

    A waveform that peaks over 1 is scaled down as a whole to peak at 1, since clipping would distort it.
    """
    path = writable(path)
    samples = np.asarray(waveform, dtype=np.float32)
    if samples.ndim != 1 or samples.size == 0 or not np.isfinite(samples).all():
        raise DataError(f"{path}: not written: a waveform is one row of finite samples, got shape {samples.shape}")
    samples = samples / max(1.0, float(np.abs(samples).max()))
    encoded = io.BytesIO()
    suffix = path.suffix.lower()
    with soundfile.SoundFile(
        encoded, "w", sample_rate, 1, subtype=_SUBTYPES[suffix], format=suffix[1:].upper()
    ) as file:
        if comment is not None:
            file.comment = comment
        file.write(samples)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(encoded.getbuffer())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: can't be written ({error.strerror}); choose another place or make room") from error


def _checked(path: str | Path) -> Path:
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not path.is_file():  # a pipe would be waited for, and a device may have no end
        raise DataError(f"{path}: is a folder, a pipe or a device; give a file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; copy it again")
    return path


def _cut_short(path: Path, promised: float | None, held: float) -> DataError:
    whole = "its end is missing" if promised is None else f"{promised:.2f} s are promised"
    return DataError(f"{path}: cut short: {whole}, {held:.2f} s are there; copy or export it again")


@contextmanager
def _opened(path: Path) -> Iterator[soundfile.SoundFile]:
    try:
        with soundfile.SoundFile(os.fsencode(path)) as file:  # bytes: names need not be UTF-8
            missing = containers.missing_share(path)
            if missing is not None:
                length = file.frames / file.samplerate
                raise _cut_short(path, length / (1 - missing) if missing < 1 else None, length)
            if file.frames == 0:
                raise DataError(f"{path}: holds no samples; remove it or export it again")
            yield file
    except soundfile.LibsndfileError as error:
        raise DataError(
            f"{path}: not readable as audio ({error.error_string.rstrip('.')}); is it really "
            f"{path.suffix.lower() or 'audio'}? Convert it to WAV or FLAC"
        ) from error


def _read_soundfile(path: Path, offset: float, duration: float | None) -> tuple[FloatArray, int]:
    with _opened(path) as file:
        start, count = _span(path, file.frames, file.samplerate, offset, duration)
        # An MP3 frame needs bits of frames before it; after a seek libsndfile decodes the first ones wrongly.
        skipped = start if file.format == "MP3" else 0
        if start > skipped:
            file.seek(start)
        samples = file.read(skipped + count, dtype="float32", always_2d=True)
        if len(samples) < skipped + count:
            held = start - skipped + len(samples)
            raise _cut_short(path, file.frames / file.samplerate, held / file.samplerate)
        return _mono(samples[skipped:]), file.samplerate


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


def _mono(samples: FloatArray) -> FloatArray:
    """(samples, channels) -> (samples,)."""
    return samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)


@contextmanager
def _opened_av(path: Path) -> Iterator[av.container.InputContainer]:
    import av
    import av.error

    try:
        with av.open(
            str(path), format=_AV_CONTAINERS[path.suffix.lower()], options={"protocol_whitelist": "file"}
        ) as container:
            # A header cut in the middle lists streams that have no decoder or no rate.
            streams = [stream for stream in container.streams.audio if stream.codec_context]
            if not streams or not streams[0].codec_context.sample_rate:
                raise DataError(f"{path}: has no audio that can be decoded; remove it or export it again")
            yield container
    except av.error.FFmpegError as error:
        raise DataError(
            f"{path}: not readable as audio ({error.strerror}); copy it again, or convert it to WAV or FLAC"
        ) from error


def _probe_av(path: Path) -> AudioInfo:
    with _opened_av(path) as container:
        stream = container.streams.audio[0]
        context = stream.codec_context
        rate, channels, name = context.sample_rate, context.channels, context.name.upper()
        if path.suffix.lower() != ".aac" and stream.duration and stream.time_base:
            return AudioInfo(float(stream.duration * stream.time_base), rate, channels, name)
    waveform, rate = _read_av(path, 0.0, None)
    return AudioInfo(len(waveform) / rate, rate, channels, name)


def _read_av(path: Path, offset: float, duration: float | None) -> tuple[FloatArray, int]:
    import av

    with _opened_av(path) as container:
        stream = container.streams.audio[0]
        rate = stream.codec_context.sample_rate
        promised = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
        resampler = av.AudioResampler(format="fltp", rate=rate)
        needed = None if duration is None else round((offset + duration) * rate)
        parts, held = [], 0
        for frame in chain(container.decode(stream), [None]):
            for part in resampler.resample(frame):
                parts.append(part.to_ndarray())
                held += parts[-1].shape[1]
            if needed is not None and held >= needed:
                break
    if not parts:
        raise DataError(f"{path}: holds no samples; remove it or export it again")
    samples = _mono(np.concatenate(parts, axis=1).T.astype(np.float32, copy=False))
    # A bare AAC stream has no header: FFmpeg's length for it is a guess from the bit rate.
    if path.suffix.lower() != ".aac":
        if (needed is None or held < needed) and len(samples) / rate < promised - _SLACK_SECONDS:
            raise _cut_short(path, promised, len(samples) / rate)
        samples = samples[: round(promised * rate)]  # the last AAC frame is filled up
    start, count = _span(path, len(samples), rate, offset, duration)
    return np.ascontiguousarray(samples[start : start + count]), rate
