"""Recordings in blocks are the recordings as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile

from phonate.audio.decoding import read_audio, read_blocks
from phonate.audio.processor import AudioProcessor
from phonate.audio.quality import describe, describe_blocks
from phonate.audio.settings import AudioConfig
from phonate.config.errors import DataError

RATE = 16000


def noise(seconds=5.0, channels=2):
    shape = (int(seconds * RATE), channels)
    return (0.1 * np.random.default_rng(0).normal(size=shape)).astype(np.float32)


def written(path, samples):
    if path.suffix != ".m4a":
        soundfile.write(path, samples, RATE)
        return path
    import av

    with av.open(str(path), "w", format="ipod") as container:
        stream = container.add_stream("aac", rate=RATE, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout="stereo")
        frame.rate = RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "ogg", "m4a"])
@pytest.mark.parametrize("rate", [None, 22050, 8000])
@pytest.mark.parametrize("span", [(0.0, None), (1.25, 3.5)])
def test_blocks_put_together_are_the_recording(tmp_path, suffix, rate, span):
    path = written(tmp_path / f"a.{suffix}", noise())
    start, stop = span
    whole, _ = read_audio(path, rate, start, None if stop is None else stop - start)
    blocks = list(read_blocks(path, rate, start, stop, block_seconds=0.3))
    assert len(blocks) > 5
    assert np.abs(np.concatenate(blocks) - whole).max() < 1e-6


@pytest.mark.parametrize("suffix", ["flac", "m4a"])
def test_one_channel_of_several(tmp_path, suffix):
    samples = noise()
    path = written(tmp_path / f"a.{suffix}", samples)
    one = np.concatenate(list(read_blocks(path, channel=1, block_seconds=0.5)))
    other = np.concatenate(list(read_blocks(path, channel=0, block_seconds=0.5)))
    assert np.abs((one + other) / 2 - read_audio(path)[0]).max() < 1e-6
    assert np.corrcoef(one, other)[0, 1] < 0.2
    with pytest.raises(DataError, match="channel 2"):
        list(read_blocks(path, channel=2))


def test_a_file_that_is_cut_short_or_has_no_such_part_is_an_error(tmp_path):
    path = written(tmp_path / "a.wav", noise())
    with pytest.raises(DataError, match="seconds 6 to 7"):
        list(read_blocks(path, start=6.0, stop=7.0))
    with pytest.raises(DataError, match="seconds 2 to 1"):
        list(read_blocks(path, start=2.0, stop=1.0))
    with pytest.raises(DataError, match="seconds -1 "):
        list(read_blocks(path, start=-1.0))
    path.write_bytes(path.read_bytes()[:-50000])
    with pytest.raises(DataError, match=r"5\.00 s, 4\.22 s"):
        list(read_blocks(path))


@pytest.mark.parametrize("samples", [1, 255, 256, 100_000, 2 * 2048 * 256, 2 * 2048 * 256 + 777])
@pytest.mark.parametrize("preemphasis", [0.0, 0.97])
def test_mel_in_blocks_is_equal_to_the_bit(samples, preemphasis):
    processor = AudioProcessor(AudioConfig(preemphasis=preemphasis))
    waveform = noise(samples / RATE, 1)[:samples, 0]

    def read():
        return (waveform[start : start + 30_011] for start in range(0, len(waveform), 30_011))

    blocks = np.concatenate(list(processor.mel_blocks(read)))
    assert np.array_equal(blocks, processor.mel(waveform))


def test_quality_in_blocks_is_that_of_the_whole():
    waveform = noise(20.0, 1)[:, 0]
    waveform[: 2 * RATE] = 0.0
    waveform[9 * RATE : 11 * RATE] = 0.0
    waveform[5 * RATE : 5 * RATE + 40] = 0.9
    whole = describe(waveform, RATE)
    blocks = describe_blocks((waveform[start : start + 30_000] for start in range(0, len(waveform), 30_000)), RATE)
    for name, value in vars(whole).items():
        assert getattr(blocks, name) == pytest.approx(value, rel=1e-5, abs=1e-6), name
