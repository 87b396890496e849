"""Reading in blocks, and headers that lie."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from phonate.audio.decoding import open_recording, probe, read_audio, read_blocks, read_start
from phonate.cli import main
from phonate.config.errors import DataError

RATE = 16000


def noise(seconds: float, channels: int = 1) -> np.ndarray:
    return 0.1 * np.random.default_rng(0).standard_normal((round(seconds * RATE), channels)).astype(np.float32)


def write_m4a(path: Path, samples: np.ndarray) -> None:
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout="mono")
        frame.sample_rate = RATE
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)


@pytest.fixture
def recording(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / f"long{request.param}"
    if request.param == ".m4a":
        write_m4a(path, noise(40.0))
    else:
        soundfile.write(path, noise(40.0), RATE)
    return path


def test_a_stream_is_not_continued_as_if_it_began(tmp_path: Path) -> None:
    write_m4a(tmp_path / "a.m4a", noise(1.0))
    with open_recording(tmp_path / "a.m4a") as opened:
        next(opened.blocks())
        with pytest.raises(RuntimeError, match="open it again"):
            next(opened.blocks())


def test_what_a_decoder_did_not_expect_names_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_options(*_: object, **options: object) -> None:
        raise TypeError(f"open() got an unexpected keyword argument {min(options)!r}")

    path = tmp_path / "a.m4a"
    write_m4a(path, noise(1.0))
    monkeypatch.setattr(av, "open", without_options)
    assert main(["convert", "base/voice", str(path), "-o", str(tmp_path / "a.wav")]) == 1
    assert capsys.readouterr().err.endswith(
        f"error: TypeError: open() got an unexpected keyword argument 'format' (while {path} was read); "
        "--traceback shows where\n"
    )


@pytest.mark.parametrize("recording", [".wav", ".flac", ".mp3", ".ogg", ".m4a"], indirect=True)
@pytest.mark.parametrize("part", [(0.0, None), (3.21, None), (1.5, 17.003), (39.0, 0.5)], ids=str)
def test_blocks_are_the_recording(recording: Path, part: tuple[float, float | None]) -> None:
    whole, _ = read_audio(recording, None, *part)
    blocks = list(read_blocks(recording, None, part[0], None if part[1] is None else sum(part), block_seconds=2.5))
    assert {len(block) for block in blocks[:-1]} <= {round(2.5 * RATE)}
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


@pytest.mark.parametrize("recording", [".wav", ".m4a"], indirect=True)
@pytest.mark.parametrize("rate", [8000, 22050, 24000])
def test_resampled_blocks_are_the_resampled_recording(recording: Path, rate: int) -> None:
    whole, _ = read_audio(recording, rate)
    blocks = np.concatenate(list(read_blocks(recording, rate, block_seconds=1.0)))
    assert len(blocks) == len(whole)
    np.testing.assert_allclose(blocks, whole, atol=1e-6)


def test_one_channel_of_several(tmp_path: Path) -> None:
    samples = noise(1.0, channels=3)
    soundfile.write(tmp_path / "three.wav", samples, RATE, subtype="FLOAT")
    for channel in range(3):
        np.testing.assert_array_equal(read_audio(tmp_path / "three.wav", channel=channel)[0], samples[:, channel])
    np.testing.assert_allclose(read_audio(tmp_path / "three.wav")[0], samples.mean(axis=1), atol=1e-7)
    with pytest.raises(DataError, match=r"three\.wav: .*channel 3"):
        read_audio(tmp_path / "three.wav", channel=3)


@pytest.mark.parametrize(("suffix", "subtype"), [("w64", "GSM610"), ("au", "G721_32"), ("wav", "PCM_16")])
def test_a_recording_of_several_blocks_whose_format_may_not_seek(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, subtype: str
) -> None:
    path = tmp_path / f"call.{suffix}"
    soundfile.write(path, 0.5 * np.sin(np.arange(40000) / 20), 8000, subtype=subtype)
    whole = read_audio(path, 8000)[0]
    monkeypatch.setattr("phonate.audio.readers._BLOCK", 1000)
    assert np.array_equal(read_audio(path, 8000)[0], whole)


@pytest.mark.parametrize(("suffix", "subtype"), [("au", "G721_32"), ("aiff", "GSM610")])
def test_excerpts_of_a_recording_whose_format_may_not_seek(tmp_path: Path, suffix: str, subtype: str) -> None:
    path = tmp_path / f"call.{suffix}"
    soundfile.write(path, 0.5 * np.sin(np.arange(40000) / 20), 8000, subtype=subtype)
    whole, _ = read_audio(path)
    np.testing.assert_array_equal(read_audio(path, offset=1.0, duration=2.0)[0], whole[8000:24_000])


@pytest.mark.parametrize("samples", [4095, 40_000])
def test_alac_in_caf_is_read_to_its_end(tmp_path: Path, samples: int) -> None:
    """FFmpeg cuts the last packet twice."""
    path = tmp_path / "memo.caf"
    soundfile.write(path, noise(samples / RATE), RATE, subtype="ALAC_16")
    expected = soundfile.read(path, dtype="float32")[0]
    np.testing.assert_allclose(read_audio(path)[0], expected, atol=1e-6)
    assert probe(path).duration == pytest.approx(samples / RATE)
    np.testing.assert_allclose(read_audio(path, offset=0.1)[0], expected[RATE // 10 :], atol=1e-6)


@pytest.mark.parametrize("blocks", [49, 50])
def test_no_noise_follows_the_gsm_of_a_telephone_system(tmp_path: Path, blocks: int) -> None:
    """An odd number of blocks of 65 bytes is filled up by a byte."""
    path = tmp_path / "call.wav"
    soundfile.write(path, 0.1 * np.sin(np.arange(320 * blocks) / 5), 8000, subtype="GSM610")
    waveform, _ = read_audio(path)
    assert len(waveform) == 320 * blocks
    assert np.abs(waveform).max() < 0.15
    assert probe(path).duration == pytest.approx(0.04 * blocks)
    np.testing.assert_array_equal(read_audio(path, offset=1.0)[0], waveform[8000:])


def test_flac_without_a_length(tmp_path: Path) -> None:
    """An encoder that writes into a pipe leaves the number of samples 0, which is legal (RFC 9639, 8.2)."""
    path = tmp_path / "streamed.flac"
    soundfile.write(path, noise(3.0), RATE)
    expected = read_audio(path)[0]
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0  # the lower 36 bits of bytes 18 to 25 are the number of samples
    data[22:26] = bytes(4)
    path.write_bytes(data)
    assert soundfile.info(path).frames > 2**60  # what libsndfile makes of it
    assert probe(path).duration == 3.0
    np.testing.assert_array_equal(read_audio(path)[0], expected)
    np.testing.assert_array_equal(read_audio(path, offset=1.0, duration=0.5)[0], expected[RATE : RATE + RATE // 2])
    start, info = read_start(path, 2.0)
    assert (len(start), info.duration) == (2 * RATE, 3.0)
    with pytest.raises(DataError, match=r"seconds 2 to 4 .*3\.000"):
        read_audio(path, offset=2.0, duration=2.0)


def test_a_promised_length_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "liar.flac"
    soundfile.write(path, noise(1.0), RATE)
    data = bytearray(path.read_bytes())
    data[22:26] = struct.pack(">I", 0xFFFFFFF0)  # 4 billion samples
    path.write_bytes(data)
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from phonate.audio.decoding import read_audio
read_audio({str(path)!r})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "DataError" in done.stderr, done.stderr
    assert "liar.flac: " in done.stderr
    assert "MemoryError" not in done.stderr


def test_an_implausible_rate_is_refused_before_anything_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "slow.wav"
    soundfile.write(path, noise(2.0), RATE)
    data = bytearray(path.read_bytes())
    data[24:28] = struct.pack("<I", 1)
    path.write_bytes(data)
    for read in (probe, read_audio, lambda file: read_start(file, 1.0), lambda file: list(read_blocks(file))):
        with pytest.raises(DataError, match=r"slow\.wav: 1 samples per second"):
            read(path)
