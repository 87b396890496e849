"""Over forty kinds of files, written by FFmpeg's own muxers and encoders: samples are where a player shows them."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest

from phonate.audio.containers.kinds import HEAD, recognised
from phonate.audio.decoding import probe, read_audio

RATE = 48_000
SECONDS = 3.0
TONES = ((1.0, 1.4, 440.0), (2.2, 2.5, 880.0))
"""Start, end and Hz. A decoder that is late, or loses what is before, moves them."""
CLOSE = 0.001
"""Seconds."""


def sound(rate: int = RATE) -> np.ndarray:
    """(N,) two tones in silence."""
    time = np.arange(round(SECONDS * rate)) / rate
    return sum(0.4 * np.sin(2 * np.pi * hz * time) * ((time >= start) & (time < end)) for start, end, hz in TONES)


@dataclass(frozen=True)
class Kind:
    """How a file is made."""

    suffix: str
    container: str
    codec: str
    rate: int = RATE
    options: dict[str, str] = field(default_factory=dict)
    codec_options: dict[str, str] = field(default_factory=dict)
    streamed: bool = False
    """Written to a pipe, so that lengths in headers stay unknown."""
    late: float = 0.0
    """Seconds after which the sound begins."""
    hole: tuple[float, float] | None = None
    """Seconds between which no packets are written, as by a recorder that pauses."""


KINDS = {
    "wav": Kind("wav", "wav", "pcm_s16le"),
    "wav, 24 bits": Kind("wav", "wav", "pcm_s24le"),
    "wav, float": Kind("wav", "wav", "pcm_f32le"),
    "wav, mu-law": Kind("wav", "wav", "pcm_mulaw", 8000),
    "wav, ADPCM": Kind("wav", "wav", "adpcm_ima_wav", 22_050),
    "wav, streamed": Kind("wav", "wav", "pcm_s16le", streamed=True),
    "rf64": Kind("wav", "wav", "pcm_s16le", options={"rf64": "always"}),
    "w64": Kind("w64", "w64", "pcm_s16le"),
    "aiff": Kind("aiff", "aiff", "pcm_s16be"),
    "au": Kind("au", "au", "pcm_s16be"),
    "caf": Kind("caf", "caf", "pcm_s16le"),
    "caf, ALAC": Kind("caf", "caf", "alac"),
    "flac": Kind("flac", "flac", "flac"),
    "wavpack": Kind("wv", "wv", "wavpack"),
    "true audio": Kind("tta", "tta", "tta"),
    "mp3": Kind("mp3", "mp3", "libmp3lame"),
    "mp3 without a header": Kind("mp3", "mp3", "libmp3lame", options={"write_xing": "0"}),
    "mp3, 22,050 Hz": Kind("mp3", "mp3", "libmp3lame", 22_050),
    "mp2": Kind("mp2", "mp2", "mp2"),
    "ac3": Kind("ac3", "ac3", "ac3"),
    "eac3": Kind("eac3", "eac3", "eac3"),
    "aac, ADTS": Kind("aac", "adts", "aac"),
    "m4a": Kind("m4a", "ipod", "aac"),
    "m4a, ALAC": Kind("m4a", "ipod", "alac"),
    "m4b": Kind("m4b", "ipod", "aac", 44_100),
    "mp4, fragmented": Kind("mp4", "mp4", "aac", options={"movflags": "frag_keyframe+empty_moov+default_base_moof"}),
    "mp4, fragmented Opus": Kind("mp4", "mp4", "libopus", options={"movflags": "frag_keyframe+empty_moov"}),
    "mp4, header first": Kind("mp4", "mp4", "aac", options={"movflags": "faststart"}),
    "mp4 without an edit list": Kind("mp4", "mp4", "aac", options={"use_editlist": "0"}),
    "m4a, late": Kind("m4a", "ipod", "aac", late=1.5),
    "m4a, paused": Kind("m4a", "ipod", "aac", hole=(1.6, 2.1)),
    "mov": Kind("mov", "mov", "pcm_s16le"),
    "opus": Kind("opus", "ogg", "libopus"),
    "opus, late": Kind("opus", "ogg", "libopus", late=1.5),
    "opus, trimmed": Kind("opus", "ogg", "libopus", late=0.01),
    "ogg flac": Kind("oga", "ogg", "flac"),
    "webm": Kind("webm", "webm", "libopus"),
    "webm, streamed": Kind("webm", "webm", "libopus", streamed=True),
    "webm, paused": Kind("webm", "webm", "libopus", hole=(1.6, 2.1)),
    "mka": Kind("mka", "matroska", "flac"),
    "mka, late": Kind("mka", "matroska", "pcm_s16le", late=0.75),
    "mkv, aac": Kind("mkv", "matroska", "aac"),
    "mkv, aac, trimmed": Kind("mkv", "matroska", "aac", late=0.002),
    "mpeg-ts": Kind("ts", "mpegts", "aac"),
    "mpeg-ts, mp2": Kind("ts", "mpegts", "mp2"),
    "mpeg-ts, paused": Kind("ts", "mpegts", "mp2", hole=(1.6, 2.1)),
    "mpeg-ts of a camcorder": Kind("mts", "mpegts", "ac3", options={"mpegts_m2ts_mode": "1"}),
    "mpeg-ps": Kind("mpg", "mpeg", "mp2"),
    "realmedia": Kind("rm", "rm", "ac3"),
    "amr": Kind("amr", "amr", "libopencore_amrnb", 8000),
    "3gp": Kind("3gp", "3gp", "libopencore_amrnb", 8000),
    "flv": Kind("flv", "flv", "libmp3lame", 44_100),
    "flv, paused": Kind("flv", "flv", "aac", 44_100, hole=(1.6, 2.1)),
    "avi": Kind("avi", "avi", "pcm_s16le"),
}


class _Pipe(io.RawIOBase):
    """Cannot go back."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return self._file.write(data)


def written(folder: Path, kind: Kind) -> Path:
    """The file."""
    path = folder / f"sound.{kind.suffix}"
    with path.open("wb") as file:
        target = _Pipe(file) if kind.streamed else file
        with av.open(target, "w", format=kind.container, options=kind.options) as container:
            stream = container.add_stream(kind.codec, rate=kind.rate, layout="mono", options=kind.codec_options)
            resampler = av.AudioResampler(
                stream.format.name, "mono", kind.rate, stream.codec_context.frame_size or 1024
            )
            for packet in _packets(stream, resampler, kind):
                container.mux(packet)
    return path


def _packets(stream: av.AudioStream, resampler: av.AudioResampler, kind: Kind) -> Iterator[av.Packet]:
    samples = sound(kind.rate).astype(np.float32)
    frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = kind.rate, 0, Fraction(1, kind.rate)
    encoded = [
        packet for part in [*resampler.resample(frame), *resampler.resample(None)] for packet in stream.encode(part)
    ]
    for packet in [*encoded, *stream.encode(None)]:
        at = float(packet.pts * packet.time_base)
        if kind.hole is not None and kind.hole[0] <= at < kind.hole[1]:
            continue
        shift = round(kind.late / packet.time_base)
        packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
        yield packet


def shown(path: Path) -> tuple[np.ndarray, int]:
    """The samples (N,) that FFmpeg decodes, at the times that it gives them, and their rate. A stream that carries no
    time of its own begins at 0."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        rate, pieces = stream.rate, []
        first = 0.0
        if (
            container.format.name in ("mpegts", "mpeg", "flv", "mp3") and stream.start_time is not None
        ):  # clocks that don't begin at 0
            first = float(stream.start_time * stream.time_base)
        resampler = av.AudioResampler("flt", "mono")
        for frame in container.decode(stream):
            time = frame.time
            pieces += [(time - first, part.to_ndarray()[0]) for part in resampler.resample(frame)]
    length = max(round(time * rate) + len(part) for time, part in pieces)
    samples = np.zeros(length)
    for time, part in pieces:
        begin = round(time * rate)
        samples[max(begin, 0) : begin + len(part)] = part[max(-begin, 0) :]
    return samples, rate


def onsets(samples: np.ndarray, rate: int) -> list[float]:
    """The seconds at which sound begins after silence."""
    loud = np.abs(samples) > 0.2 * np.abs(samples).max()
    places = np.flatnonzero(loud)
    starts = places[np.diff(places, prepend=-rate) > 0.2 * rate]
    return [float(start) / rate for start in starts]


@dataclass(frozen=True)
class Facts:
    """Of a file, as FFmpeg and as phonate read it. In seconds."""

    rates: tuple[int, int]
    """Hz."""
    lengths: tuple[float, float]
    onsets: tuple[list[float], list[float]]
    """Where the tones begin."""
    format: str
    known: bool
    """By its first bytes, as uploads must be."""


@cache
def facts(name: str) -> Facts:
    """Of a file of this kind."""
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), KINDS[name])
        both, format = (shown(path), read_audio(path)), probe(path).format
        known = recognised(path.read_bytes()[:HEAD])
    rates, lengths = (both[0][1], both[1][1]), tuple(len(samples) / rate for samples, rate in both)
    return Facts(rates, lengths, tuple(onsets(samples, rate) for samples, rate in both), format, known)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", KINDS)
def test_samples_are_at_the_times_of_a_player(name: str) -> None:
    read = facts(name)
    assert read.known
    assert read.rates[0] == read.rates[1]
    # Not shorter than what was written; a decoder's padding at the end is there where the file does not say its length.
    assert SECONDS + KINDS[name].late - CLOSE <= read.lengths[1] <= read.lengths[0] + CLOSE
    expected, found = read.onsets
    assert len(expected) == len(TONES)
    assert found == pytest.approx(expected, abs=CLOSE)
    assert expected[1] - expected[0] == pytest.approx(TONES[1][0] - TONES[0][0], abs=0.01)


def table() -> str:
    """The kinds of files by the times at which what is written at 1 s is read, for docs/reference/recordings.md."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name, kind in KINDS.items():
        read = facts(name)
        times = tuple(f"{time:.3f}" for time in (*(one[0] for one in read.onsets), *read.lengths))
        kinds.setdefault(times, []).append(name if kind.suffix in name else f"{name} (`.{kind.suffix}`)")
    rows = ["| first tone, by FFmpeg | by phonate | length, by FFmpeg | by phonate | files |"]
    rows += ["| --- | --- | --- | --- | --- |"]
    rows += [f"|{'|'.join(times)}| {'; '.join(names)} |" for times, names in kinds.items()]
    return "\n".join(rows)


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "recordings.md"
MARKS = "<!-- kinds: written by `python tests/audio/test_timeline.py` -->", "<!-- kinds: end -->"


def page() -> str:
    """The page with the table as it is now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


def test_the_page_of_kinds_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/audio/test_timeline.py"


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.late])
def test_a_late_start_moves_the_sound(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    own, rate = read_audio(written(tmp_path, kind))
    assert onsets(own, rate)[0] == pytest.approx(kind.late + TONES[0][0], abs=0.03)


@pytest.mark.parametrize(
    ("container", "video", "codec"),
    [
        ("mpegts", "mpeg2video", "mp2"),
        ("mpeg", "mpeg2video", "mp2"),
        ("flv", "flv", "libmp3lame"),
        ("mp4", "mpeg4", "aac"),
    ],
)
def test_sound_may_begin_behind_the_picture(tmp_path: Path, container: str, video: str, codec: str) -> None:
    """As a player shows it, whose time begins with the picture."""
    kind, path = Kind("", container, codec, 44_100, late=0.7), tmp_path / "film"
    with av.open(str(path), "w", format=container) as file:
        picture = file.add_stream(video, rate=25, width=64, height=48, pix_fmt="yuv420p")
        stream = file.add_stream(codec, rate=kind.rate, layout="mono")
        resampler = av.AudioResampler(stream.format.name, "mono", kind.rate, stream.codec_context.frame_size)
        frames = [av.VideoFrame(64, 48, "yuv420p") for _ in range(100)]
        packets = [packet for frame in frames for packet in picture.encode(frame)] + picture.encode(None)
        packets += _packets(stream, resampler, kind)
        file.mux(sorted(packets, key=lambda packet: packet.dts * packet.time_base))
    own, rate = read_audio(path)
    assert onsets(own, rate)[0] == pytest.approx(0.7 + TONES[0][0], abs=0.04)


def test_the_delay_of_an_mp3_in_pieces_is_not_shown(tmp_path: Path) -> None:
    """FFmpeg gives its frame a time before 0."""
    options = {"movflags": "frag_keyframe+delay_moov", "frag_duration": "500000"}
    path = written(tmp_path, Kind("mp4", "mp4", "libmp3lame", options=options))
    own, rate = read_audio(path)
    assert onsets(own, rate) == pytest.approx(onsets(*shown(path)), abs=CLOSE)
    np.testing.assert_array_equal(read_audio(path, offset=1.0, duration=0.1)[0], own[rate : round(1.1 * rate)])


@pytest.mark.parametrize("begin", [0.5, 2.0])
def test_what_is_copied_out_of_a_flac_is_at_its_times(tmp_path: Path, begin: float) -> None:
    """As by `ffmpeg -ss 0.5 -i sound.flac -c copy`: the header promises all, and frames keep their numbers."""
    path = tmp_path / "cut.flac"
    with av.open(str(written(tmp_path, KINDS["flac"]))) as whole, av.open(str(path), "w") as file:
        stream = file.add_stream_from_template(whole.streams.audio[0])
        for packet in whole.demux(whole.streams.audio[0]):
            if packet.pts is not None and packet.pts * packet.time_base >= begin:
                packet.stream = stream
                file.mux(packet)
    (own, rate), (samples, _) = read_audio(path), shown(path)
    assert len(own) == len(samples) == SECONDS * rate
    np.testing.assert_allclose(own, samples, atol=1e-4)


@pytest.mark.parametrize(("suffix", "codec"), [("opus", "libopus"), ("webm", "libopus"), ("m4a", "aac")])
def test_segments_of_one_recording_that_are_joined_go_on_with_its_clock(
    tmp_path: Path, suffix: str, codec: str
) -> None:
    kind, path = Kind(suffix, "segment", codec), tmp_path / "joined"
    with av.open(str(tmp_path / f"%d.{suffix}"), "w", format="segment", options={"segment_time": "1"}) as file:
        stream = file.add_stream(codec, rate=kind.rate, layout="mono")
        resampler = av.AudioResampler(stream.format.name, "mono", kind.rate, stream.codec_context.frame_size)
        for packet in _packets(stream, resampler, kind):
            file.mux(packet)
    path.write_bytes(b"".join(one.read_bytes() for one in sorted(tmp_path.glob(f"*.{suffix}"))))
    own, rate = read_audio(path)
    assert len(own) == probe(path).duration * rate == pytest.approx(SECONDS * rate, abs=0.03 * rate)
    assert onsets(own, rate) == pytest.approx([start for start, *_ in TONES], abs=0.025)  # an encoder's delay


Faulty = Callable[[np.ndarray], np.ndarray]


@pytest.mark.parametrize("faulty", [lambda own: own[100:], lambda own: np.concatenate([np.zeros(100), own])])
def test_two_milliseconds_are_seen(tmp_path: Path, faulty: Faulty) -> None:
    samples, rate = shown(written(tmp_path, KINDS["flac"]))
    assert onsets(faulty(samples), rate) != pytest.approx(onsets(samples, rate), abs=CLOSE)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
