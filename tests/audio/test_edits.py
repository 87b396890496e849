"""MP4 whose edit lists have several entries: what is read is what the lists say, to the sample."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np
import pytest

from phonate.audio.decoding import probe, read_audio, read_blocks
from phonate.config.errors import DataError

RATE = 48_000
KINDS = {"aac": "ipod", "alac": "ipod", "pcm_s16le": "mov", "libopus": "mp4"}
Entry = tuple[int, float | None]
"""Milliseconds, and the second of the sound at which it begins; None: nothing is shown."""
CUT: list[Entry] = [(1000, 0.5), (700, 2.3)]
PAUSED: list[Entry] = [(250, None), (1010, 0.7), (333, None), (500, 2.401)]
TURNED: list[Entry] = [(700, 2.3), (1000, 0.5), (100, 0.4), (300, 2.0)]


def _write(path: Path, codec: str, options: dict[str, str] | None = None) -> np.ndarray:
    """Three seconds that rise from 300 to 1500 Hz, as they are read without further edits."""
    time = np.arange(3 * RATE) / RATE
    samples = (0.4 * np.sin(2 * np.pi * (300 * time + 200 * time**2))).astype(np.float32)
    options = {"movie_timescale": "1000"} | (options or {})  # lists are in its units
    with av.open(str(path), "w", format=KINDS[codec], options=options) as file:
        stream = file.add_stream(codec, rate=RATE, layout="mono")
        size = stream.codec_context.frame_size or 1024
        resampler = av.AudioResampler(stream.format.name, "mono", RATE, size)
        frame = av.AudioFrame.from_ndarray(samples[None], "flt", "mono")
        frame.sample_rate, frame.pts = RATE, 0
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return read_audio(path)[0]


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and the whole of each."""
    while data:
        size = struct.unpack(">I", data[:4])[0]
        yield data[4:8], data[:size]
        data = data[size:]


def _with(data: bytes, within: Sequence[bytes], list_: bytes) -> bytes:
    """Boxes with another list."""
    if not within:
        return list_
    new = b""
    for name, box in _boxes(data):
        if name == within[0]:
            content = _with(box[8:], within[1:], list_)
            box = struct.pack(">I", 8 + len(content)) + name + content
        new += box
    return new


def _edit(path: Path, entries: Sequence[Entry], version: int = 0, speed: float = 1.0) -> None:
    """Replace the list; the sound begins behind the encoder's delay, as the list says that is there."""
    data = path.read_bytes()
    at = data.index(b"elst") + 16
    delay = struct.unpack(">i", data[at : at + 4])[0]
    rows = [
        struct.pack(
            ">QqI" if version else ">IiI",
            milliseconds,
            -1 if begins is None else delay + round(RATE * begins),
            round(0x10000 * speed),
        )
        for milliseconds, begins in entries
    ]
    content = struct.pack(">II", version << 24, len(rows)) + b"".join(rows)
    path.write_bytes(_with(data, [b"moov", b"trak", b"edts"], struct.pack(">I", 8 + len(content)) + b"elst" + content))


def _shown(whole: np.ndarray, entries: Sequence[Entry]) -> np.ndarray:
    pieces, first = [], 0
    for milliseconds, begins in entries:
        end = first + milliseconds
        count = round(RATE * end / 1000) - round(RATE * first / 1000)
        begin = round(RATE * (begins or 0.0))
        pieces.append(np.zeros(count, np.float32) if begins is None else whole[begin : begin + count])
        first = end
    return np.concatenate(pieces)


@pytest.mark.parametrize("codec", KINDS)
@pytest.mark.parametrize("entries", [CUT, PAUSED, TURNED], ids=["cut", "paused", "turned"])
def test_a_list_is_shown_to_the_sample(tmp_path: Path, codec: str, entries: list[Entry]) -> None:
    path = tmp_path / "a.m4a"
    whole = _write(path, codec)
    _edit(path, entries)
    samples, expected = read_audio(path)[0], _shown(whole, entries)
    assert len(samples) == len(expected) == probe(path).duration * RATE
    np.testing.assert_allclose(samples, expected, atol=1e-6)
    np.testing.assert_array_equal(read_audio(path, offset=0.9, duration=0.2)[0], samples[43_200:52_800])
    np.testing.assert_array_equal(np.concatenate(list(read_blocks(path, block_seconds=0.3))), samples)


def test_long_numbers_and_pieces(tmp_path: Path) -> None:
    """Version 1 of a list; and a file in pieces, of which the last edit without a length shows all that is left."""
    path = tmp_path / "a.m4a"
    whole = _write(path, "alac")
    _edit(path, CUT, version=1)
    np.testing.assert_array_equal(read_audio(path)[0], _shown(whole, CUT))
    pieces = tmp_path / "pieces.mov"
    whole = _write(
        pieces, "pcm_s16le", {"movflags": "frag_keyframe+delay_moov+default_base_moof", "frag_duration": "500000"}
    )
    _edit(pieces, [(500, 1.0), (0, 2.0)])
    np.testing.assert_array_equal(read_audio(pieces)[0], np.concatenate([whole[48_000:72_000], whole[96_000:]]))


def test_a_list_may_end_a_little_behind_the_sound(tmp_path: Path) -> None:
    """Its times are rounded."""
    path = tmp_path / "a.m4a"
    whole = _write(path, "alac")
    _edit(path, [(200, 2.81), (500, 1.0)])
    samples = read_audio(path)[0]
    np.testing.assert_array_equal(samples[: round(0.19 * RATE)], whole[round(2.81 * RATE) :])
    assert not samples[round(0.19 * RATE) : round(0.2 * RATE)].any()
    np.testing.assert_array_equal(samples[round(0.2 * RATE) :], whole[48_000:72_000])


@pytest.mark.parametrize(
    ("entries", "speed", "message"),
    [
        (CUT, 0.5, r"edit 1 of 2, from 0\.00 s on, is shown at 0\.5 times its speed; export it again as it sounds"),
        ([(500, 0.0), (4_000_000, None)], 1.0, r"edit 2 of 2, from 0\.50 s on, is 4000 s of nothing; convert it"),
        ([(500, 2.0), (1000, 2.5)], 1.0, r"cut short: the header says 1\.50 s, 1\.00 s are there"),
    ],
    ids=["slow", "nothing", "behind the end"],
)
def test_lists_that_nobody_can_read(tmp_path: Path, entries: list[Entry], speed: float, message: str) -> None:
    path = tmp_path / "a.m4a"
    _write(path, "alac")
    _edit(path, entries, speed=speed)
    with pytest.raises(DataError, match=rf"a\.m4a: {message}"):
        read_audio(path)


def test_a_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.m4a"
    _write(path, "pcm_s16le", {"movflags": "faststart"})
    data = path.read_bytes()
    _edit(path, CUT)
    added = len(path.read_bytes()) - len(data)
    moved = path.read_bytes()
    at = moved.index(b"stco") + 12
    place = struct.unpack(">I", moved[at : at + 4])[0] + added
    path.write_bytes(moved[:at] + struct.pack(">I", place) + moved[at + 4 : len(moved) - 60_000])
    with pytest.raises(DataError, match=r"a\.m4a: cut short: the header says 1\.70 s, 1\.\d\d s are there"):
        read_audio(path)
