"""Files as other programs leave them: joined, of any name, late, with holes, without a length."""

from __future__ import annotations

import logging
import os
import re
import struct
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from phonate.audio.containers import joined as joined_files
from phonate.audio.containers import joints, ogg
from phonate.audio.containers.kinds import HEAD, recognised
from phonate.audio.decoding import open_recording, probe, read_audio, read_blocks, read_start, writable, write_audio
from phonate.audio.live import file_sink
from phonate.config.errors import DataError, InputError
from phonate.data.annotations import write_rttm
from phonate.serving.speech import encoded
from phonate.workflows.pages.plots import write_page

RATE = 16_000
SNDFILE = {
    "ogg": "OGG",
    "opus": "OGG",
    "mp3": "MP3",
    "flac": "FLAC",
    "wav": "WAV",
    "aiff": "AIFF",
    "au": "AU",
    "caf": "CAF",
    "w64": "W64",
    "svx": "SVX",
}
FFMPEG = {  # container, codec, whether its samples are exactly those that were given
    "m4a": ("ipod", "aac"),
    "alac.m4a": ("ipod", "alac"),
    "aac": ("adts", "aac"),
    "webm": ("webm", "libopus"),
    "mka": ("matroska", "flac"),
    "oga": ("ogg", "flac"),
    "wma": ("asf", "wmav2"),
    "lame.mp3": ("mp3", "libmp3lame"),
    "mp3.wav": ("wav", "libmp3lame"),
    "wv": ("wv", "wavpack"),
    "avi": ("avi", "pcm_s16le"),
    "ts": ("mpegts", "mp2"),
    "flv": ("flv", "aac"),
    "tta": ("tta", "tta"),
}
OF_A_RATE = {  # container, codec, the rate that it needs
    "ac3": ("ac3", "ac3", 48_000),
    "amr": ("amr", "libopencore_amrnb", 8_000),
    "mpg": ("mpeg", "mp2", 44_100),
}


def tone(seconds: float, pitch: float = 400.0, rate: int = RATE) -> np.ndarray:
    """A rising tone that gets louder, so that a shift in time shows. (samples,)"""
    time = np.arange(round(seconds * rate)) / rate
    sound = (0.1 + 0.3 * time / seconds) * np.sin(2 * np.pi * (pitch + 150 * time) * time)
    return sound.astype(np.float32)


def write(
    path: Path, samples: np.ndarray, rate: int = RATE, late: float = 0.0, hole: tuple[float, float] | None = None
) -> Path:
    """Write samples (n,) or (n, channels) in the form that the name's ending says. `late`, `hole`: packets from `late`
    seconds on, without those in the hole."""
    ending = path.name.split(".", 1)[1]
    if ending in SNDFILE:
        subtype = "OPUS" if ending == "opus" else None
        soundfile.write(path, samples, rate, format=SNDFILE[ending], subtype=subtype)
        return path
    form, codec = FFMPEG.get(ending) or OF_A_RATE[ending][:2]
    samples = samples.reshape(len(samples), -1)
    options = {"movie_timescale": "1000"} if form in ("ipod", "mov", "mp4") else {}
    with av.open(str(path), "w", format=form, options=options) as file:
        layout = "mono" if samples.shape[1] == 1 else "stereo"
        stream = file.add_stream(codec, rate=48_000 if codec == "libopus" else rate, layout=layout)
        if codec == "wmav2":
            stream.bit_rate = 48_000
        packed = np.ascontiguousarray(np.round(samples * 32767).astype(np.int16).reshape(1, -1))
        frame = av.AudioFrame.from_ndarray(packed, "s16", layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            at = float(packet.pts * packet.time_base) if packet.pts is not None else 0.0
            if hole is not None and hole[0] <= at < hole[1]:
                continue
            shift = round(late / packet.time_base)
            if shift:
                packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
            file.mux(packet)
    return path


def bare_mp3(folder: Path, pitch: float) -> bytes:
    """A second of MPEG frames alone, of which nothing says how many there are."""
    frame = av.AudioFrame.from_ndarray(tone(1.0, pitch)[None], "fltp", "mono")
    frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
    path = folder / "bare.mp3"
    with av.open(str(path), "w", format="mp3", options={"write_xing": "0", "id3v2_version": "0"}) as file:
        stream = file.add_stream("libmp3lame", rate=RATE, layout="mono")
        file.mux([*stream.encode(frame), *stream.encode(None)])
    return path.read_bytes()


def joined(path: Path, *files: Path) -> Path:
    path.write_bytes(b"".join(file.read_bytes() for file in files))
    return path


def onset(samples: np.ndarray, level: float = 0.05) -> int:
    return int(np.argmax(np.abs(samples) > level))


@pytest.mark.parametrize(
    "ending",
    [*SNDFILE, "lame.mp3", "oga", "m4a", "webm", "mka", "wma", "mp3.wav", "avi", "flv", "tta"],
)
def test_all_of_joined_files_is_read(tmp_path: Path, ending: str) -> None:
    first, second = write(tmp_path / f"a.{ending}", tone(1.0)), write(tmp_path / f"b.{ending}", tone(1.4, 900.0))
    path = joined(tmp_path / f"ab.{ending}", first, second, first)
    whole, rate = read_audio(path)
    parts = [read_audio(one)[0] for one in (first, second, first)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert probe(path).duration == pytest.approx(3.4, abs=0.25)
    np.testing.assert_array_equal(np.concatenate(list(read_blocks(path, block_seconds=0.3))), whole)
    np.testing.assert_array_equal(read_audio(path, None, 0.8, 0.5)[0], whole[round(0.8 * rate) : round(1.3 * rate)])
    start, info = read_start(path, 1.2)
    np.testing.assert_array_equal(start, whole[: round(1.2 * rate)])
    assert info.duration == pytest.approx(len(whole) / rate)


_FIRST = [*SNDFILE, "lame.mp3", "m4a", "webm", "wma", "avi", "flv", "tta", "ts", "wv", "aac", *OF_A_RATE]


@pytest.mark.parametrize("second", ["wav", "flac", "lame.mp3", "m4a", "webm"])
@pytest.mark.parametrize("first", _FIRST)
def test_files_of_several_kinds_that_were_joined_are_all_read(tmp_path: Path, first: str, second: str) -> None:
    rate = OF_A_RATE[first][2] if first in OF_A_RATE else RATE
    files = (
        write(tmp_path / f"a.{first}", tone(1.0, rate=rate), rate),
        write(tmp_path / f"b.{second}", tone(1.4, 900.0)),
    )
    with open_recording(joined(tmp_path / "ab", *files)) as recording:
        rate, whole = recording.sample_rate, np.concatenate(list(recording.blocks()))
        assert recording.remarks == ["2 files were joined in it; all are read"]
    parts = [read_audio(file, rate)[0] for file in files]
    assert len(whole) == pytest.approx(sum(map(len, parts)), abs=2)
    np.testing.assert_array_equal(whole[: len(parts[0])], parts[0])
    np.testing.assert_allclose(whole[len(parts[0]) :][: rate // 2], parts[1][: rate // 2], atol=2e-3)


@pytest.mark.parametrize("shortest", [b"\x10\0", b"\x08\0"], ids=["frames of one length", "of several"])
def test_the_wav_in_the_metadata_of_a_flac_is_no_second_file(tmp_path: Path, shortest: bytes) -> None:
    """FLAC's own program keeps the header of what it compressed."""
    content = write(tmp_path / "a.flac", tone(1.0)).read_bytes()
    assert content[8:12] == b"\x10\0\x10\0"
    kept = b"riff" + write(tmp_path / "a.wav", tone(0.1)).read_bytes()
    block = b"\x02" + len(kept).to_bytes(3, "big") + kept
    path = tmp_path / "b.flac"
    path.write_bytes(content[:8] + shortest + content[10:42] + block + content[42:])
    assert len(joined_files.parts(path)) == 1
    path.write_bytes(path.read_bytes() + content)
    assert len(joined_files.parts(path)) == 2


@pytest.mark.parametrize(
    ("ending", "name", "at", "length"),
    [("mka", b"\x18\x53\x80\x67", 4, b"\x01\x7f" + bytes(6)), ("m4a", b"free", -4, b"\0\0\0\1free\x7f" + bytes(7))],
)
def test_a_length_beyond_all_files_is_a_cut(tmp_path: Path, ending: str, name: bytes, at: int, length: bytes) -> None:
    """File systems do not even seek there."""
    path = write(tmp_path / f"a.{ending}", tone(1.0))
    content = path.read_bytes()
    at += content.index(name)
    path.write_bytes(content[:at] + length + content[at + len(length) :])
    with pytest.raises(DataError, match=rf"a\.{ending}: cut short"):
        read_audio(path)


def test_damaged_lengths_lead_decoders_of_joined_files_nowhere(tmp_path: Path) -> None:
    """Before that of the first object in the header are 30 bytes, and 16 of its name."""
    path, second = write(tmp_path / "a.wma", tone(1.0)), write(tmp_path / "b.wav", tone(0.5))
    content = path.read_bytes()
    path.write_bytes(content[:46] + struct.pack("<Q", 2**62) + content[54:] + second.read_bytes())
    with pytest.raises(DataError, match=r"a\.wma: "):
        read_audio(path)


def test_a_flac_whose_header_has_no_length_of_its_frames_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flac", tone(1.0))
    content, whole = path.read_bytes(), read_audio(path)[0]
    path.write_bytes(content[:8] + bytes(4) + content[12:])
    np.testing.assert_array_equal(read_audio(path)[0], whole)


def test_an_flv_whose_size_is_no_number_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flv", tone(1.0))
    content, whole = path.read_bytes(), read_audio(path)[0]
    at = content.index(b"filesize\0") + 9
    path.write_bytes(content[:at] + struct.pack(">d", float("nan")) + content[at + 8 :])
    np.testing.assert_array_equal(read_audio(path)[0], whole)


def test_a_tag_behind_amr_is_no_sound(tmp_path: Path) -> None:
    """The decoder that knows pauses makes noise of it."""
    path = write(tmp_path / "a.amr", tone(1.0, rate=8_000), 8_000)
    whole = read_audio(path)[0]
    path.write_bytes(path.read_bytes() + b"TAG" + b"title".ljust(125, b"\0"))
    with open_recording(path) as recording:
        np.testing.assert_array_equal(np.concatenate(list(recording.blocks())), whole)
        assert recording.remarks == ["128 bytes behind its last frame are no sound; they are left out"]


def test_behind_frames_that_nothing_counts_another_kind_may_follow(tmp_path: Path) -> None:
    path = tmp_path / "ab.mp3"
    path.write_bytes(bare_mp3(tmp_path, 400.0) + write(tmp_path / "b.flac", tone(1.4)).read_bytes())
    np.testing.assert_allclose(read_audio(path)[0][-len(tone(1.4)) :], tone(1.4), atol=1e-4)


def test_the_count_behind_a_short_mp3_is_another_file_s(tmp_path: Path) -> None:
    """libsndfile counts frames under another name than FFmpeg."""
    files = write(tmp_path / "a.lame.mp3", tone(1.0)), write(tmp_path / "b.mp3", tone(1.0, 900.0))
    both = read_audio(joined(tmp_path / "ab.mp3", *files))[0]
    np.testing.assert_array_equal(both, np.concatenate([read_audio(file)[0] for file in files]))


def test_the_size_of_a_box_is_no_signature(tmp_path: Path) -> None:
    """442 bytes are the first of an MPEG program stream."""
    path = write(tmp_path / "a.m4a", tone(1.0))
    whole = read_audio(path)[0]
    path.write_bytes(path.read_bytes() + struct.pack(">I", 442) + b"free" + bytes(434))
    with open_recording(path) as recording:
        np.testing.assert_array_equal(np.concatenate(list(recording.blocks())), whole)
        assert not recording.remarks


@pytest.mark.parametrize("ending", ["wav", "lame.mp3", "ogg", "m4a", "webm"])
@pytest.mark.parametrize(
    "junk", [b"\xff" * 3000, b"\xff\xfb\x90\xc4" + bytes(3000), b"\x0bw" * 500], ids=["ff", "mp3", "ac3"]
)
def test_two_bytes_are_no_second_file(tmp_path: Path, ending: str, junk: bytes) -> None:
    path = write(tmp_path / f"a.{ending}", tone(1.0))
    path.write_bytes(path.read_bytes() + junk)
    assert len(joined_files.parts(path)) == 1


@pytest.mark.parametrize("ending", ["flac", "ogg", "mka", "tta", "flv"])
def test_the_joint_is_seen_wherever_reading_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    first = write(tmp_path / f"a.{ending}", tone(0.3))
    path, size = joined(tmp_path / f"ab.{ending}", first, first), first.stat().st_size
    for chunk in (97, size - 4, size - 3, size, size + 1):
        monkeypatch.setattr(joints, "CHUNK", chunk)
        joined_files._parts.cache_clear()
        assert [part.start for part in joined_files.parts(path)] == [0, size]


def test_adts_parts_follow_each_other(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.aac", tone(1.0, pitch)) for name, pitch in (("a", 400.0), ("b", 900.0))]
    joint, single = read_audio(joined(tmp_path / "ab.aac", *files))[0], read_audio(files[0])[0]
    assert len(joint) == 2 * len(single)


@pytest.mark.parametrize("ending", ["mp3", "lame.mp3", "ogg", "opus", "flac", "wav", "m4a"])
def test_joined_files_may_differ_in_rate_and_channels(tmp_path: Path, ending: str) -> None:
    first = write(tmp_path / f"a.{ending}", tone(1.0))
    stereo = np.stack([tone(1.0, 900.0, 24_000), np.zeros(24_000, np.float32)], axis=1)
    second = write(tmp_path / f"b.{ending}", stereo, 24_000)
    whole, rate = read_audio(joined(tmp_path / f"ab.{ending}", first, second))
    assert len(whole) / rate == pytest.approx(2.0, abs=0.05)
    assert np.sqrt(np.square(whole[rate + 800 :]).mean()) == pytest.approx(
        0.5 * np.sqrt(np.square(tone(1.0)).mean()), rel=0.1
    )
    spectrum = np.abs(np.fft.rfft(whole[rate + rate // 4 : rate + 3 * rate // 4]))
    assert 2 * np.argmax(spectrum) == pytest.approx(900 + 150, abs=80)


@pytest.mark.parametrize("ending", ["mp3", "ogg", "flac", "wav"])
def test_what_of_joined_files_can_not_be_read_is_named(tmp_path: Path, ending: str) -> None:
    first, second = write(tmp_path / f"a.{ending}", tone(1.0)), write(tmp_path / f"b.{ending}", tone(1.0))
    second.write_bytes(second.read_bytes()[:-600])
    with pytest.raises(DataError, match=rf"ab\.{ending}: file 2 of 2"):
        read_audio(joined(tmp_path / f"ab.{ending}", first, second))


_COVER = np.random.default_rng(0).bytes(100_000)
"""As large as in tags of songs: ID3 writes a length in 7 bits of each byte."""
_ID3 = b"ID3\x03\0\0" + bytes(len(_COVER) >> shift & 0x7F for shift in (21, 14, 7, 0)) + _COVER


@pytest.mark.parametrize(
    "tag",
    [b"TAG" + bytes(125), b"APETAGEX" + bytes(24), b"TAG" + bytes(125) + _ID3, b"APETAGEX" + bytes(24) + _COVER],
    ids=["ID3v1", "APEv2", "ID3v1 and a cover", "APEv2 with a cover"],
)
def test_a_tag_within_an_mp3_without_a_count_ends_a_file(tmp_path: Path, tag: bytes) -> None:
    path, frames = tmp_path / "ab.mp3", [bare_mp3(tmp_path, pitch) for pitch in (400.0, 900.0)]
    path.write_bytes(tag.join(frames))
    with open_recording(path) as recording:
        both = np.concatenate(list(recording.blocks()))
        assert recording.remarks == ["2 files were joined in it; all are read"]
    pieces = []
    for content in frames:
        (tmp_path / "one.mp3").write_bytes(content)
        pieces.append(read_audio(tmp_path / "one.mp3")[0])
    np.testing.assert_array_equal(both, np.concatenate(pieces))


def test_an_mp3_without_a_count_of_which_decoders_lose_a_half_is_refused(tmp_path: Path) -> None:
    """Where bytes between frames look like the beginning of one, libmpg123 stops without a word."""
    (tmp_path / "ab.mp3").write_bytes(np.random.default_rng(1).bytes(5000).join([bare_mp3(tmp_path, 400.0)] * 2))
    with pytest.raises(DataError, match=r"ab\.mp3: not readable as audio from 1\.62 s on"):
        read_audio(tmp_path / "ab.mp3")


def test_a_counted_mp3_with_a_cover_may_be_joined_to_another(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"{pitch}.lame.mp3", tone(1.0, pitch)) for pitch in (400, 900))
    alone = [read_audio(one)[0] for one in (first, second)]
    first.write_bytes(first.read_bytes() + b"TAG" + bytes(125))
    second.write_bytes(_ID3 + second.read_bytes())
    np.testing.assert_array_equal(read_audio(joined(tmp_path / "ab.mp3", first, second))[0], np.concatenate(alone))


def test_tags_at_the_end_are_no_second_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp3", tone(1.0))
    whole = read_audio(path)[0]
    path.write_bytes(path.read_bytes() + b"APETAGEX" + bytes(40) + b"TAG" + bytes(125))
    np.testing.assert_array_equal(read_audio(path)[0], whole)


@pytest.mark.parametrize("ending", [*SNDFILE, *FFMPEG])
@pytest.mark.parametrize("name", ["take", "take.txt", "take.m4a", "take.aac", "take.wav"])
def test_the_bytes_tell_the_kind_whatever_the_name(tmp_path: Path, ending: str, name: str) -> None:
    path = write(tmp_path / f"a.{ending}", tone(1.0))
    whole, rate = read_audio(path)
    renamed = path.rename(tmp_path / name)
    np.testing.assert_array_equal(read_audio(renamed)[0], whole)
    assert len(whole) / rate == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("ending", ["wav", "flac", "aiff", "ogg", "mp3", "caf", "au"])
def test_both_decoders_agree(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.{ending}", tone(2.0))
    ours, rate = read_audio(path)
    with av.open(str(path)) as file:
        theirs = np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)])
    theirs = theirs / 32768 if theirs.dtype == np.int16 else theirs
    padding = 1024 if ending == "ogg" else 0  # PyAV leaves what fills the last block of Vorbis
    assert -0.001 * rate <= len(theirs) - len(ours) <= 0.001 * rate + padding
    assert abs(onset(ours) - onset(theirs)) <= 0.001 * rate
    count = min(len(ours), len(theirs))
    np.testing.assert_allclose(ours[:count], theirs[:count], atol=2e-3)


@pytest.mark.parametrize("ending", ["m4a", "webm", "mka"])
def test_a_late_start_is_silence(tmp_path: Path, ending: str) -> None:
    plain = read_audio(write(tmp_path / f"a.{ending}", tone(2.0)))[0]
    path = write(tmp_path / f"late.{ending}", tone(2.0), late=1.5)
    late, rate = read_audio(path)
    assert onset(late) - onset(plain) == pytest.approx(1.5 * rate, abs=0.01 * rate)
    assert not late[: rate // 2].any()
    assert probe(path).duration == pytest.approx(len(late) / rate)
    np.testing.assert_array_equal(read_audio(path, None, 1.0, 1.0)[0], late[rate : 2 * rate])
    np.testing.assert_array_equal(np.concatenate(list(read_blocks(path, block_seconds=0.3))), late)


@pytest.mark.parametrize("ending", ["webm", "mka"])
def test_a_hole_is_silence(tmp_path: Path, ending: str) -> None:
    """A recorder that was paused goes on with its clock."""
    plain, rate = read_audio(write(tmp_path / f"a.{ending}", tone(4.0)))
    paused, _ = read_audio(write(tmp_path / f"paused.{ending}", tone(4.0), hole=(1.0, 2.5)))
    assert len(paused) == pytest.approx(len(plain), abs=0.01 * rate)
    assert not paused[round(1.3 * rate) : round(2.3 * rate)].any()
    part = plain[3 * rate : 3 * rate + rate // 2]
    shifts = range(-rate // 200, rate // 200)
    best = max(shifts, key=lambda shift: float(np.dot(part, paused[3 * rate + shift :][: len(part)])))
    assert abs(best) <= rate // 1000


def test_times_that_no_recording_has_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "live.webm", tone(1.0), late=1e6)
    with pytest.raises(DataError, match=r"live\.webm: .*1000000"):
        read_audio(path)


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0], ids=hex)
@pytest.mark.parametrize("riff", [None, 36, 0])
def test_a_wav_without_a_length_is_read_to_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int, riff: int | None
) -> None:
    path = write(tmp_path / "piped.wav", tone(1.0))
    expected, content = read_audio(path)[0], bytearray(path.read_bytes())
    content[4:8], content[40:44] = struct.pack("<I", length if riff is None else riff), struct.pack("<I", length)
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "phonate"):
        np.testing.assert_array_equal(read_audio(path)[0], expected)
    assert "piped.wav: its header has no length" in caplog.text
    assert probe(path).duration == 1.0
    np.testing.assert_array_equal(read_audio(path, None, 0.5, 0.25)[0], expected[RATE // 2 : 3 * RATE // 4])


def test_a_caf_of_a_recorder_that_has_not_ended_is_read_to_its_end(tmp_path: Path) -> None:
    path = write(tmp_path / "growing.caf", tone(1.0))
    expected, content = read_audio(path)[0], bytearray(path.read_bytes())
    at = content.index(b"data")
    content[at + 4 : at + 12] = struct.pack(">q", -1)
    path.write_bytes(content)
    np.testing.assert_array_equal(read_audio(path)[0], expected)
    assert probe(path).remarks == ("its header has no length; it is read to the end of the file",)


def test_a_wav_of_no_samples_is_still_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "none.wav", np.zeros(0, np.float32))
    path.write_bytes(path.read_bytes() + b"LIST" + struct.pack("<I", 4) + b"INFO")
    with pytest.raises(DataError, match=r"none\.wav: .*no samples"):
        read_audio(path)


@pytest.mark.parametrize(
    "ending", ["wav", "aiff", "au", "caf", "w64", "svx", "avi", "opus", "flac", "mka", "webm", "wma", "wv", "lame.mp3"]
)
def test_what_is_cut_short_is_refused_with_the_second(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"cut.{ending}", tone(6.0))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(DataError, match=r"cut\..*(cut short|not readable)") as raised:
        read_audio(path)
    place = re.search(r"([\d.]+) s (are there|on)", str(raised.value))
    assert place is not None
    assert float(place[1]) == pytest.approx(4.0, abs=1.1)  # a page of Ogg has up to a second


@pytest.mark.parametrize("ending", ["ogg", "m4a"])
def test_of_what_is_cut_short_there_may_be_nothing(tmp_path: Path, ending: str) -> None:
    """An M4A has its header at its end; this Ogg is so short that all of it is in one page."""
    path = write(tmp_path / f"cut.{ending}", tone(2.0))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(DataError, match=r"cut\..*: cut short: its end is missing; copy or export it again"):
        read_audio(path)


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flac", tone(6.0))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 3000] = bytes(3000)
    path.write_bytes(content)
    said = r"a\.flac: not readable as audio from [23]\.\d\d s on \(.*; copy it again"
    with pytest.raises(DataError, match=said):
        read_audio(path)
    with open_recording(path) as recording, pytest.raises(DataError, match=said):  # also within
        list(recording.blocks())


def test_damage_within_the_first_second_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.aac", tone(1.0))
    content = bytearray(path.read_bytes())
    content[-1000:-900] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.aac: not readable as audio from 0\.[89]\d s on"):
        read_audio(path)


@pytest.mark.parametrize("ending", ["wav", "flac", "m4a"])
@pytest.mark.parametrize("noise", [0.0, 0.0003])
def test_of_channels_that_cancel_each_other_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str, noise: float
) -> None:
    sound = np.concatenate([np.zeros(RATE, np.float32), tone(3.0)])
    hiss = noise * np.random.default_rng(0).standard_normal((len(sound), 2))
    path = write(tmp_path / f"inverted.{ending}", np.stack([sound, -sound], axis=1) + hiss)
    with caplog.at_level(logging.WARNING, "phonate"):
        waveform, rate = read_audio(path)
    assert "channels cancel each other (correlation -1.00); channel 0 alone is used" in caplog.text
    one = read_audio(path, channel=0)[0]
    np.testing.assert_array_equal(waveform, one)
    np.testing.assert_array_equal(read_audio(path, None, 2.0, 1.0)[0], one[2 * rate : 3 * rate])
    np.testing.assert_array_equal(np.concatenate(list(read_blocks(path, block_seconds=0.7))), one)
    np.testing.assert_array_equal(read_start(path, 2.0)[0], one[: 2 * rate])


@pytest.mark.parametrize(
    "right",
    [lambda x: x, lambda x: 0 * x, lambda x: -0.4 * x, lambda x: x[::-1]],
    ids=["equal", "silent", "partly", "other"],
)
def test_other_channels_are_averaged(tmp_path: Path, caplog: pytest.LogCaptureFixture, right: object) -> None:
    sound = tone(2.0)
    both = np.stack([sound, right(sound)], axis=1)  # type: ignore[operator]
    path = tmp_path / "stereo.wav"
    soundfile.write(path, both, RATE, subtype="FLOAT")
    np.testing.assert_array_equal(read_audio(path)[0], both.mean(axis=1))
    assert not caplog.records


@pytest.mark.parametrize("name", ["aac", "opus", "mp3", "flac", "wav"])
@pytest.mark.parametrize("whole", [True, False])
def test_what_the_server_sends_is_read_at_its_times(tmp_path: Path, name: str, whole: bool) -> None:
    sound = np.concatenate([np.zeros(RATE, np.float32), tone(1.5)[8000:], np.zeros(RATE // 2, np.float32)])
    path = tmp_path / "reply"
    path.write_bytes(b"".join(encoded(np.array_split(sound, 9), RATE, name, whole)))
    waveform, rate = read_audio(path, RATE)
    padding = {"aac": 1024, "mp3": 0 if whole else 1105}.get(name, 0)  # raw frames can't say what was put before them
    assert onset(waveform) - onset(sound) == pytest.approx(padding, abs=RATE // 1000)
    assert len(waveform) == pytest.approx(len(sound) + padding, abs=0 if not padding else 1300)
    assert rate == RATE


def test_a_pipe_or_a_device_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.wav"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match=r"pipe\.wav: .*a pipe"):
        read_audio(pipe)
    for write_to in (
        lambda: writable(pipe),
        lambda: write_audio(pipe, tone(1.0), RATE),
        lambda: file_sink(pipe, RATE).__enter__(),
        lambda: write_rttm(pipe, {}),
        lambda: write_page(pipe, "text"),
    ):
        with pytest.raises(InputError, match=r"pipe\.wav: .*a pipe"):
            write_to()
    assert pipe.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe.wav"]


# ------------------------------------------------------------------- As in the test suites of other programs


def test_joined_mp3_whose_header_counts_frames_and_not_bytes_is_read_whole(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.lame.mp3", tone(1.0)), write(tmp_path / "b.lame.mp3", tone(1.4, 900.0))
    alone = len(read_audio(second)[0])
    for file in (first, second):
        data = bytearray(file.read_bytes())
        at = max(data.find(b"Xing"), data.find(b"Info"))
        flags = struct.unpack(">I", data[at + 4 : at + 8])[0]
        assert flags & 3 == 3
        # The flag of the bytes and their four bytes go; what is behind them moves up.
        data[at + 4 : at + 8] = struct.pack(">I", flags & ~2)
        data[at + 12 : at + 120] = data[at + 16 : at + 120] + b"\0" * 4
        file.write_bytes(data)
    both = read_audio(joined(tmp_path / "ab.mp3", first, second))[0]
    assert len(both) == pytest.approx(2.4 * RATE, abs=0.15 * RATE)
    assert len(both) > len(read_audio(first)[0]) + alone - 0.1 * RATE


def test_tags_that_are_not_utf8_do_not_hinder(tmp_path: Path) -> None:
    path = tmp_path / "tagged.m4a"
    with av.open(str(path), "w", format="ipod") as file:
        file.metadata["title"] = "TITLE OF IT"
        stream = file.add_stream("aac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone(1.0)[None], format="fltp", layout="mono")
        frame.sample_rate = RATE
        file.mux([*stream.encode(frame), *stream.encode(None)])
    plain = read_audio(path)[0]
    path.write_bytes(path.read_bytes().replace(b"TITLE OF IT", b"TITL\xd8 OF \xedT"))
    np.testing.assert_array_equal(read_audio(path)[0], plain)


def _atom(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + name + content


def _itunes(path: Path, samples: np.ndarray, delay: int = 1024) -> Path:
    """Without an edit list, the encoder's delay in a tag."""
    with av.open(str(path), "w", format="ipod", options={"use_editlist": "0"}) as file:
        stream = file.add_stream("aac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts = RATE, 0
        file.mux([*stream.encode(frame), *stream.encode(None)])
    data = path.read_bytes()
    at = data.rfind(b"moov") - 4
    assert at + struct.unpack(">I", data[at : at + 4])[0] == len(data)
    words = f" 00000000 {delay:08X} {64:08X} {RATE:016X}" + " 00000000" * 8
    value = _atom(b"data", struct.pack(">II", 1, 0) + words.encode())
    name = _atom(b"mean", b"\0\0\0\0com.apple.iTunes") + _atom(b"name", b"\0\0\0\0iTunSMPB")
    handler = _atom(b"hdlr", b"\0" * 8 + b"mdirappl" + b"\0" * 9)
    tag = _atom(b"udta", _atom(b"meta", b"\0\0\0\0" + handler + _atom(b"ilst", _atom(b"----", name + value))))
    path.write_bytes(data[:at] + _atom(b"moov", data[at + 8 :] + tag))
    return path


def test_the_delay_that_itunes_notes_is_no_silence(tmp_path: Path) -> None:
    """Players leave it out, and the sound begins at 0."""
    path = _itunes(tmp_path / "itunes.m4a", tone(1.0))
    delayed, plain = read_audio(path)[0], read_audio(write(tmp_path / "plain.m4a", tone(1.0)))[0]
    assert onset(delayed) == pytest.approx(onset(plain), abs=16)
    assert len(delayed) == pytest.approx(RATE, abs=1100)


def test_an_mp4_whose_sound_ends_before_it_begins_holds_none(tmp_path: Path) -> None:
    """As the delay that iTunes notes may say."""
    path = _itunes(tmp_path / "short.m4a", tone(0.01), 2112)
    with pytest.raises(DataError, match=r"short\.m4a: holds no samples"):
        read_audio(path)


def _remainder(byte: int) -> int:
    value = byte << 24
    for _ in range(8):
        value = (value << 1) ^ (0x04C11DB7 if value & 0x80000000 else 0)
    return value & 0xFFFFFFFF


_CRC = [_remainder(byte) for byte in range(256)]


def _checked(page: bytes) -> bytes:
    """A page of Ogg with its checksum (RFC 3533, section 6)."""
    value = 0
    for byte in page[:22] + bytes(4) + page[26:]:
        value = (value << 8 & 0xFFFFFFFF) ^ _CRC[value >> 24 ^ byte]
    return page[:22] + struct.pack("<I", value) + page[26:]


def _ogg_page(packet: bytes, flags: int, granule: int, number: int) -> bytes:
    """With one packet of under 255 bytes."""
    return _checked(
        struct.pack("<4sBBqIII", b"OggS", 0, flags, granule, 7, number, 0) + bytes([1, len(packet)]) + packet
    )


def _moved(path: Path, samples: int, behind: int = 0) -> Path:
    """An Ogg file whose pages with sound that end later than sample `behind` are later by so many samples."""
    content, pages = path.read_bytes(), []
    for page in content.split(b"OggS")[1:]:
        page = b"OggS" + page
        granule = struct.unpack("<q", page[6:14])[0]
        if granule > behind:
            page = _checked(page[:6] + struct.pack("<q", granule + samples) + page[14:])
        pages.append(page)
    moved = path.with_name(f"moved-{path.name}")
    moved.write_bytes(b"".join(pages))
    return moved


@pytest.mark.parametrize("ending", ["ogg", "opus"])
@pytest.mark.parametrize("late", [0.05, 1.5])
def test_an_ogg_that_begins_late_begins_with_silence(tmp_path: Path, ending: str, late: float) -> None:
    """As players have it that cut a recording out of a longer one, and FFmpeg."""
    plain, rate = read_audio(write(tmp_path / f"a.{ending}", tone(12.0)))
    clock = 48_000 if ending == "opus" else rate
    path = _moved(tmp_path / f"a.{ending}", round(late * clock))
    samples, own = read_audio(path)
    assert onset(samples) / own - onset(plain) / rate == pytest.approx(late, abs=0.001)
    assert len(samples) / own - len(plain) / rate == pytest.approx(late, abs=0.001)


@pytest.mark.parametrize("ending", ["ogg", "opus"])
def test_a_hole_in_an_ogg_is_silence(tmp_path: Path, ending: str) -> None:
    plain, rate = read_audio(write(tmp_path / f"a.{ending}", tone(12.0)))
    clock = 48_000 if ending == "opus" else rate
    path = _moved(tmp_path / f"a.{ending}", 2 * clock, behind=10 * clock)
    samples, _ = read_audio(path, rate)
    assert len(samples) - len(plain) == pytest.approx(2 * rate, abs=0.001 * rate)
    last = plain[-rate // 2 : -rate // 4]
    moved = samples[len(plain) - rate // 2 + 2 * rate :][: len(last)]
    np.testing.assert_allclose(moved, last, atol=5e-3)
    assert abs(onset(samples) - onset(plain)) <= 0.001 * rate


def _frames(path: Path, samples: np.ndarray, info: bool) -> bytes:
    """The frames of an MP3 of samples (n,) or (n, 2)."""
    layout = "mono" if samples.ndim == 1 else "stereo"
    options = {"write_xing": str(int(info)), "id3v2_version": "0"}
    with av.open(str(path), "w", format="mp3", options=options) as file:
        stream = file.add_stream("libmp3lame", rate=RATE, layout=layout)
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(samples.reshape(len(samples), -1).T), format="fltp", layout=layout
        )
        frame.sample_rate, frame.pts = RATE, 0
        for part in av.AudioResampler(stream.format.name, layout, RATE, 576).resample(frame):
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return path.read_bytes()


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("order", ["mono first", "stereo first"])
def test_an_mp3_that_changes_between_mono_and_stereo_is_one_recording(
    tmp_path: Path, counted: bool, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each frame where FFmpeg decodes it, and no gap between them."""
    mono, stereo = tone(1.0), np.stack([tone(1.0)] * 2, axis=1)
    first, second = (mono, stereo) if order == "mono first" else (stereo, mono)
    path = tmp_path / "changes.mp3"
    content = bytearray(_frames(path, first, counted) + _frames(path, second, info=False))
    if counted:  # the count is of all frames
        at = max(content.find(b"Info"), content.find(b"Xing"))
        count = struct.unpack(">I", content[at + 8 : at + 12])[0]
        content[at + 8 : at + 16] = struct.pack(">II", count + 30, len(content))
    path.write_bytes(content)
    with av.open(str(path)) as file:
        theirs = np.concatenate([frame.to_ndarray().mean(axis=0) for frame in file.decode(audio=0)])
    samples, _ = read_audio(path)
    np.testing.assert_allclose(samples, theirs, atol=1e-6)
    assert probe(path).channels == 2
    assert "joined" not in caplog.text


def test_the_frame_in_which_vbri_counts_the_others_is_no_sound(tmp_path: Path) -> None:
    """As Fraunhofer's encoders write it."""
    content, length = _frames(tmp_path / "plain.mp3", tone(2.0), info=False), 108
    frames, rest = divmod(len(content), length)
    assert rest == 0
    tag = b"VBRI" + struct.pack(">HHHII", 1, 0, 75, len(content) + length, frames)
    path = tmp_path / "vbri.mp3"
    path.write_bytes((content[:4] + bytes(32) + tag).ljust(length, b"\0") + content)
    with av.open(str(tmp_path / "plain.mp3")) as file:
        theirs = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    np.testing.assert_allclose(read_audio(path)[0], theirs, atol=1e-6)
    assert probe(path).duration == len(theirs) / RATE
    path.write_bytes(path.read_bytes()[: 20 * length])
    with pytest.raises(DataError, match=r"vbri\.mp3: cut short: the header says 2\.05 s"):
        read_audio(path)


@pytest.mark.parametrize(
    "tag",
    [
        b"LYRICSBEGIN" + b"IND0000200" + b"LYR02000" + b"la " * 667 + b"002029LYRICS200",
        b"ID3\x04\0\0\0\0\x20\0TIT2\0\0\0\x0b\0\0\x03a title".ljust(10 + 32 * 128, b"\0"),
    ],
    ids=["lyrics", "ID3"],
)
def test_long_tags_behind_frames_that_nothing_counts_are_no_sound(tmp_path: Path, tag: bytes) -> None:
    path = tmp_path / "a.mp3"
    content = _frames(path, tone(2.0), info=False)
    samples = read_audio(path)[0]
    title = b"ID3\x04\0\0\0\0\0\x15TIT2\0\0\0\x0b\0\0\x03a title".ljust(31, b"\0")
    for tags in (b"", title, 2 * title):
        path.write_bytes(tags + content + tag)
        np.testing.assert_array_equal(read_audio(path)[0], samples)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
@pytest.mark.parametrize("name", ["10:30:00.m4a", "file:x.m4a", "pipe:0.m4a", "a%03d?#.m4a", "\udcff.m4a"])
def test_a_name_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    samples = read_audio(write(Path("a.m4a"), tone(1.0)))[0]
    Path("a.m4a").rename(name)
    np.testing.assert_array_equal(read_audio(name)[0], samples)


@pytest.mark.parametrize("ending", ["ogg", "opus"])
@pytest.mark.parametrize("count", [1, 3, 2000])
def test_headers_of_ogg_may_be_there_twice(tmp_path: Path, ending: str, count: int) -> None:
    path = write(tmp_path / f"a.{ending}", tone(2.0))
    samples, content = read_audio(path)[0], path.read_bytes()
    sound = next(page.start for page in pages_of(path) if page.granule > 0)
    path.write_bytes(count * content[:sound] + content)
    np.testing.assert_array_equal(read_audio(path)[0], samples)


@pytest.mark.parametrize("ending", ["wav", "m4a"])
def test_sizes_that_no_file_has_are_refused_in_a_line_or_ignored(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    if ending == "wav":
        soundfile.write(path, tone(1.0), RATE, format="RF64")
        content = bytearray(path.read_bytes())
        content[20:28] = b"\xff" * 8  # of the whole
    else:
        content = bytearray(write(path, tone(1.0)).read_bytes())
        at = content.index(b"mdat") - 4
        content[at : at + 4] = struct.pack(">I", 1)
        content[at + 8 : at + 16] = b"\xff" * 8
    path.write_bytes(content)
    with suppress(DataError):
        assert len(read_audio(path)[0]) == RATE


def test_of_an_ogg_there_may_be_half_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.opus", tone(1.0))
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(DataError, match=r"a\.opus: "):
        read_audio(path)


def test_vorbis_without_a_rate_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ogg", tone(1.0))
    content = bytearray(path.read_bytes())
    at = content.index(b"\x01vorbis") + 12
    assert content[at : at + 4] == struct.pack("<I", RATE)
    content[at : at + 4] = bytes(4)
    end = pages_of(path)[0].end
    path.write_bytes(_checked(bytes(content[:end])) + content[end:])
    with pytest.raises(DataError, match=r"a\.ogg: "):
        read_audio(path)


def pages_of(path: Path) -> list[ogg.Page]:
    with path.open("rb") as file:
        return list(ogg.pages(file, 0, path.stat().st_size))


def test_bw64_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(1.0), RATE, format="RF64")
    samples = read_audio(path)[0]
    path.write_bytes(b"BW64" + path.read_bytes()[4:])
    np.testing.assert_allclose(read_audio(path)[0], samples, atol=1e-4)
    path.write_bytes(path.read_bytes()[:-RATE])
    with pytest.raises(DataError, match=r"cut short: its end is missing, 0\.50 s are there"):
        read_audio(path)


@pytest.mark.parametrize("name", ["stream", "stream.mp3", "stream.wav"])
@pytest.mark.parametrize("counted", [False, True])
def test_an_mp3_may_begin_behind_junk(tmp_path: Path, name: str, counted: bool) -> None:
    content = _frames(tmp_path / "plain.mp3", tone(2.0), counted)
    path = tmp_path / name
    path.write_bytes(b"ICY 200 OK\r\n\r\n" * 40 + content)
    np.testing.assert_array_equal(read_audio(path)[0], read_audio(tmp_path / "plain.mp3")[0])


@pytest.mark.parametrize("name", ["notes.vox", "notes.gsm", "notes.raw"])
def test_no_name_makes_sound_of_a_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"this is no sound\n" * 100)
    with pytest.raises(DataError, match="a text that begins with 'this is no sound"):
        read_audio(path)


@pytest.mark.parametrize("name", ["take.raw", "take.PCM"])
def test_raw_samples_have_no_header(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((tone(0.5) * 2**15).astype("<i2").tobytes())
    with pytest.raises(DataError, match=rf"{name}: .*raw samples have no header\); convert it to WAV or FLAC"):
        read_audio(path)


def test_flac_of_32_bits_is_read(tmp_path: Path) -> None:
    path, samples = tmp_path / "fine.flac", tone(0.5).astype(np.float64)
    with av.open(str(path), "w", format="flac") as file:
        stream = file.add_stream("flac", rate=RATE, layout="mono", options={"strict": "experimental"})
        stream.codec_context.format = "s32"
        stream.codec_context.options = {"strict": "experimental", "bits_per_raw_sample": "32"}
        frame = av.AudioFrame.from_ndarray(np.round(samples * 2**31).astype(np.int32)[None], "s32", "mono")
        frame.sample_rate, frame.pts = RATE, 0
        file.mux([*stream.encode(frame), *stream.encode(None)])
    np.testing.assert_allclose(read_audio(path)[0], samples, atol=1e-7)
    assert probe(path).duration == 0.5


def test_a_piece_of_a_live_mp4_begins_where_it_began(tmp_path: Path) -> None:
    """As browsers and downloaders leave it that come later: the header, then pieces from the middle on."""
    path = tmp_path / "live.mp4"
    with av.open(str(path), "w", format="mp4", options={"movflags": "cmaf", "frag_duration": "1000000"}) as file:
        stream = file.add_stream("aac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone(4.0)[None], "fltp", "mono")
        frame.sample_rate, frame.pts = RATE, 0
        file.mux([*stream.encode(frame), *stream.encode(None)])
    whole, content = read_audio(path)[0], path.read_bytes()
    first, second = (content.index(b"moof", at) - 4 for at in (0, content.index(b"moof") + 1))
    path.write_bytes(content[second:])
    with pytest.raises(DataError, match=r"live\.mp4: .*a piece of a live MP4 without its header"):
        read_audio(path)
    path.write_bytes(content[:first] + content[second:])
    samples = read_audio(path)[0]
    begins = onset(samples)
    assert begins / RATE == pytest.approx(1.0, abs=0.1)
    assert probe(path).duration == pytest.approx(len(samples) / RATE)
    np.testing.assert_allclose(samples[2 * RATE : 3 * RATE], whole[2 * RATE : 3 * RATE], atol=1e-5)


def test_a_picture_that_begins_behind_the_sound_does_not_end_it(tmp_path: Path) -> None:
    path = write(tmp_path / "call.flv", tone(10.0, rate=44_100), 44_100)
    samples = read_audio(path)[0]
    picture = b"\x13" + bytes(20)
    tag = b"\x09" + len(picture).to_bytes(3, "big") + (10_050).to_bytes(3, "big") + bytes(4) + picture
    path.write_bytes(path.read_bytes() + tag + struct.pack(">I", len(tag)))
    np.testing.assert_array_equal(read_audio(path)[0], samples)


@pytest.mark.parametrize("seconds", [2.0, 3.5])
def test_sound_that_begins_late_may_be_trimmed(tmp_path: Path, seconds: float) -> None:
    """An edit list of a second of nothing, and of the first seconds of four."""
    path = write(tmp_path / "memo.alac.m4a", tone(4.0), late=1.0)
    content = bytearray(path.read_bytes())
    at = content.index(b"elst") + 8
    assert struct.unpack(">IIi", content[at : at + 12]) == (2, 1000, -1)
    content[at + 16 : at + 20] = struct.pack(">I", round(1000 * seconds))
    path.write_bytes(content)
    samples = read_audio(path)[0]
    assert len(samples) / RATE == pytest.approx(1.0 + seconds, abs=4096 / RATE)
    np.testing.assert_allclose(samples[RATE : RATE + 16_000], tone(4.0)[:16_000], atol=1e-4)
    assert not samples[:RATE].any()


@pytest.mark.parametrize("packets", [1, 2, 7])
def test_a_transport_stream_may_begin_anywhere(tmp_path: Path, packets: int) -> None:
    path = write(tmp_path / "broadcast.ts", tone(2.0))
    samples = read_audio(path)[0]
    path.write_bytes(path.read_bytes()[188 * packets :])
    assert recognised(path.read_bytes()[:HEAD])
    assert len(read_audio(path)[0]) / RATE == pytest.approx(len(samples) / RATE, abs=0.3)


def test_the_clock_of_a_transport_stream_may_be_set(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.ts", tone(1.0)), write(tmp_path / "b.ts", tone(1.0, 900.0), late=2000.0)
    path = joined(tmp_path / "ab.ts", first, second)
    np.testing.assert_allclose(len(read_audio(path)[0]), 2 * len(read_audio(first)[0]), atol=1200)
    (remark,) = probe(path).remarks
    assert re.match(r"its clock jumps by \d+ s at 1\.\d\d s; no silence is read there", remark)


@pytest.mark.parametrize("tag", [b"TAG" + bytes(125), b""], ids=["ID3v1", "without"])
def test_a_picture_in_a_tag_behind_aac_is_no_sound(tmp_path: Path, tag: bytes) -> None:
    path = write(tmp_path / "a.aac", tone(1.0))
    whole = read_audio(path)[0]
    item = b"\xff\xd8" + np.random.default_rng(0).bytes(200_000)
    item = struct.pack("<II", len(item), 2) + b"Cover Art (Front)\0" + item
    head, foot = (
        b"APETAGEX" + struct.pack("<IIIII8x", 2000, len(item) + 32, 1, flags, 0)[:-4]
        for flags in (0xA0000000, 0x80000000)
    )
    path.write_bytes(path.read_bytes() + head + item + foot + tag)
    np.testing.assert_array_equal(read_audio(path)[0], whole)
    assert not probe(path).remarks


def test_a_voc_of_several_blocks_is_read(tmp_path: Path) -> None:
    path, samples = tmp_path / "a.voc", np.round(32767 * tone(1.0)).astype(np.int16)
    with av.open(str(path), "w", format="voc") as file:
        stream = file.add_stream("pcm_s16le", rate=RATE, layout="mono")
        for start in range(0, RATE, 1000):
            frame = av.AudioFrame.from_ndarray(samples[None, start : start + 1000], "s16", "mono")
            frame.sample_rate, frame.pts = RATE, start
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    np.testing.assert_array_equal(read_audio(path)[0], samples / np.float32(32768))


@pytest.mark.parametrize("ending", [b"", b"\0"], ids=["without", "with"])
def test_blocks_of_silence_in_a_voc_are_silence(tmp_path: Path, ending: bytes) -> None:
    """FFmpeg leaves them out. At 8000 Hz; one is too short for a sample; the last has 2000 of 4000 Hz."""

    def block(kind: int, content: bytes) -> bytes:
        return bytes([kind]) + len(content).to_bytes(3, "little") + content

    def silence(samples: int, rate: int = 8000) -> bytes:
        return block(3, struct.pack("<HB", samples - 1, 256 - 1_000_000 // rate))

    sounds = [np.round(128 + 127 * tone(1.0, pitch, 8000)).astype(np.uint8) for pitch in (300.0, 500.0)]
    first, second = (block(1, bytes([131, 0]) + sound.tobytes()) for sound in sounds)
    head = b"Creative Voice File\x1a" + struct.pack("<HHH", 26, 0x010A, 0x1129)
    (tmp_path / "a.voc").write_bytes(
        head + silence(800) + first + silence(3000) + second + silence(1, 1_000_000) + silence(2000, 4000) + ending
    )
    samples, rate = read_audio(tmp_path / "a.voc")
    silent = [np.full(count, 128, np.uint8) for count in (800, 3000, 4000)]
    expected = np.concatenate([silent[0], sounds[0], silent[1], sounds[1], silent[2]])
    assert rate == 8000
    np.testing.assert_array_equal(samples, (expected.astype(np.float32) - 128) / 128)


def test_an_rf64_without_a_length_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    soundfile.write(path, tone(1.0), RATE, format="RF64", subtype="PCM_16")
    whole, content = read_audio(path)[0], bytearray(path.read_bytes())
    sizes = content.index(b"ds64") + 8
    content[sizes : sizes + 24] = bytes(24)
    at = content.index(b"data") + 4
    content[at : at + 4] = b"\xff" * 4
    path.write_bytes(content)
    np.testing.assert_array_equal(read_audio(path)[0], whole)
    assert probe(path).remarks == ("its header has no length; it is read to the end of the file",)


@pytest.mark.parametrize("codec", [0x01, 0xFFFE], ids=["plain", "extensible"])
def test_integers_of_64_bits_are_read(tmp_path: Path, codec: int) -> None:
    samples = tone(0.5).astype(np.float64)
    form = struct.pack("<HHIIHH", codec, 1, RATE, 8 * RATE, 8, 64)
    if codec == 0xFFFE:
        form += struct.pack("<HHIH", 22, 64, 4, 1) + bytes.fromhex("000000001000800000aa00389b71")
    data = (samples * 2**63).astype("<i8").tobytes()
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    path = tmp_path / "long.wav"
    path.write_bytes(b"RIFF" + struct.pack("<I", len(chunks)) + chunks)
    np.testing.assert_allclose(read_audio(path)[0], samples, atol=1e-7)


def test_an_empty_packet_at_the_end_of_a_stream_is_no_damage(tmp_path: Path) -> None:
    """As some encoders of Speex end their streams."""
    numbers = (1, 80, 8000, 0, 4, 1, -1, 160, 0, 1, 0, 0, 0)
    header = b"Speex   " + b"1.2".ljust(20, b"\0") + struct.pack("<13i", *numbers)
    packets = [header, struct.pack("<II", 0, 0), *[bytes(20)] * 10, b""]
    pages = [
        _ogg_page(packet, 2 * (i == 0) + 4 * (i == len(packets) - 1), 160 * max(0, min(i, 11) - 1), i)
        for i, packet in enumerate(packets)
    ]
    path = tmp_path / "a.spx"
    path.write_bytes(b"".join(pages))
    samples, rate = read_audio(path)
    assert rate == 8000
    assert len(samples) >= 1600


def test_dsd_is_read(tmp_path: Path) -> None:
    """A DSF file of a second, in which a tone is half the samples' density of ones."""
    rate, blocks = 2_822_400, 87
    time = np.arange(blocks * 4096 * 8) / rate
    level, bits = 0.25 + 0.25 * np.sin(2 * np.pi * 500.0 * time), np.zeros(len(time), np.uint8)
    total = np.floor(np.cumsum(level))
    bits[1:] = np.diff(total) > 0
    sound = np.packbits(bits, bitorder="little").tobytes()
    form = struct.pack("<4sQIIIIIIQII", b"fmt ", 52, 1, 0, 1, 1, rate, 1, len(time), 4096, 0)
    data = struct.pack("<4sQ", b"data", 12 + len(sound)) + sound
    head = struct.pack("<4sQQQ", b"DSD ", 28, 28 + len(form) + len(data), 0)
    path = tmp_path / "tone.dsf"
    path.write_bytes(head + form + data)
    samples, own_rate = read_audio(path, RATE)
    assert len(samples) / own_rate == pytest.approx(blocks * 4096 * 8 / rate, abs=0.01)
    spectrum = np.abs(np.fft.rfft(samples - samples.mean()))
    assert np.argmax(spectrum) * own_rate / len(samples) == pytest.approx(500.0, abs=2.0)
    path.write_bytes((head + form + data)[:-200_000])
    with pytest.raises(DataError, match="cut short"):
        read_audio(path)


def test_a_wav_that_phonate_streamed_is_no_surprise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "said.wav"
    parts = list(encoded(iter([tone(0.5), tone(0.5)]), RATE, "wav"))
    path.write_bytes(b"".join(parts))
    with caplog.at_level(logging.WARNING, "phonate"):
        assert len(read_audio(path)[0]) == RATE
    assert len(parts) > 1
    assert not caplog.text


def test_of_several_sound_tracks_the_one_that_players_choose_is_read(tmp_path: Path, caplog) -> None:
    path = tmp_path / "obs.mkv"
    with av.open(str(path), "w", format="matroska") as file:
        tracks = {
            title: file.add_stream("flac", rate=RATE, layout="mono") for title in ("Desktop", "Microphone", "Music")
        }
        for title, track in tracks.items():
            track.metadata["title"] = title
            track.disposition = av.stream.Disposition.default if title == "Microphone" else 0
        for pitch, track in zip((0.0, 440.0, 880.0), tracks.values(), strict=True):
            frame = av.AudioFrame.from_ndarray(np.round(32767 * tone(1.0, pitch))[None].astype(np.int16), "s16", "mono")
            frame.sample_rate, frame.pts = RATE, 0
            file.mux([*track.encode(frame), *track.encode(None)])
    with caplog.at_level(logging.WARNING):
        samples, _ = read_audio(path)
    np.testing.assert_allclose(samples, tone(1.0, 440.0), atol=1e-4)
    assert "3 sound tracks (Desktop, Microphone, Music); Microphone alone is read" in caplog.text
    caplog.clear()
    path.write_bytes(path.read_bytes().replace(b"Microphone", b"Micr\xf3fono!"))  # no UTF-8
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(read_audio(path)[0], samples)
    assert "3 sound tracks (Desktop, Micr\ufffdfono!, Music); Micr\ufffdfono! alone is read" in caplog.text


@pytest.mark.parametrize("ending", ["amr", "3gp"])
def test_pauses_that_a_phone_leaves_out_of_amr_are_read(tmp_path: Path, ending: str) -> None:
    path, rate = tmp_path / f"memo.{ending}", 8000
    noise = np.random.default_rng(0).normal(0.0, 1e-4, 2 * rate).astype(np.float32)
    spoken = np.concatenate([tone(1.0, rate=rate), noise, tone(1.0, rate=rate)])
    with av.open(str(path), "w", format=ending) as file:
        track = file.add_stream("libopencore_amrnb", rate=rate, layout="mono", options={"dtx": "1"})
        samples = np.round(32767 * spoken).astype(np.int16)
        for start in range(0, len(samples), 160):
            frame = av.AudioFrame.from_ndarray(samples[None, start : start + 160], "s16", "mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
            file.mux(track.encode(frame))
        file.mux(track.encode(None))
    own, _ = read_audio(path)
    assert len(own) / rate == pytest.approx(4.0, abs=0.05)
    loud = np.flatnonzero(np.abs(own) > 0.05)
    pause = np.argmax(np.diff(loud))
    assert (loud[pause] / rate, loud[pause + 1] / rate) == pytest.approx((1.0, 3.0), abs=0.05)
