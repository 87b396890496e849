import functools
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import librosa
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import correlate

from phonate.audio.decoding import MADE, probe, read_audio, write_audio, write_pieces
from phonate.audio.readers import opened
from phonate.config.errors import DataError, InputError

RATE = 24000
SUFFIXES = [".aac", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav"]
LOSSLESS = {".wav", ".flac"}


def tone_steps(seconds: float = 2.0, rate: int = RATE) -> np.ndarray:
    """A tone that gets higher and louder, so that a shift in time shows."""
    time = np.arange(round(seconds * rate)) / rate
    return (0.1 + 0.2 * time / seconds) * np.sin(2 * np.pi * (200 + 300 * time) * time).astype(np.float32)


def encode(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    """Write the samples in the format that the suffix names."""
    suffix = path.suffix.lower()
    samples = samples.astype(np.float32)
    if suffix in {".m4a", ".aac"}:
        with av.open(str(path), "w", format="ipod" if suffix == ".m4a" else "adts") as container:
            stream = container.add_stream("aac", rate=rate, layout="mono")
            frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                container.mux(packet)
    elif suffix == ".opus":
        soundfile.write(path, samples, rate, format="OGG", subtype="OPUS")
    else:
        soundfile.write(path, samples, rate, format=suffix[1:].upper())
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("case", [str.lower, str.upper])
def test_every_format_in_any_case(tmp_path, suffix, case):
    original = tone_steps()
    path = encode(tmp_path / f"clip{case(suffix)}", original)
    info = probe(path)
    decoded, rate = read_audio(path)
    assert decoded.dtype == np.float32
    assert decoded.ndim == 1
    assert (info.sample_rate, info.channels, rate) == (RATE, 1, RATE)
    assert info.duration == pytest.approx(len(decoded) / rate)
    padding = 0.1 if suffix == ".aac" else 0.0  # a bare AAC stream can't say how much its ends were filled up
    assert info.duration == pytest.approx(2.0, abs=1e-6 + padding)
    if suffix in LOSSLESS:
        np.testing.assert_allclose(decoded, original, atol=1 / 32768)
    else:
        lag = correlate(decoded[: len(original)], original).argmax() - len(original) + 1
        assert lag == (1024 if suffix == ".aac" else 0)
        aligned = decoded[max(lag, 0) :][: len(original)]
        assert np.corrcoef(aligned, original[: len(aligned)])[0, 1] > 0.98


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_slice_is_the_part_of_the_whole(tmp_path, suffix):
    path = encode(tmp_path / f"clip{suffix}", tone_steps())
    whole, rate = read_audio(path)
    part, _ = read_audio(path, offset=0.75, duration=0.5)
    np.testing.assert_allclose(part, whole[round(0.75 * rate) : round(1.25 * rate)], atol=1e-6)
    rest, _ = read_audio(path, offset=1.5)
    np.testing.assert_allclose(rest, whole[round(1.5 * rate) :], atol=1e-6)


def test_seeking_in_mp3_would_be_wrong(tmp_path):
    """Why a slice of an MP3 is decoded from its start: after a seek the bit reservoir is empty."""
    time = np.arange(2 * RATE) / RATE
    path = encode(tmp_path / "tone.mp3", 0.5 * np.sin(2 * np.pi * 220 * time))
    whole = soundfile.read(path, dtype="float32")[0]
    with soundfile.SoundFile(path) as file:
        file.seek(RATE // 2)
        sought = file.read(RATE // 4, dtype="float32")
    expected = whole[RATE // 2 :][: RATE // 4]
    assert np.abs(sought - expected).max() > 0.1
    np.testing.assert_allclose(read_audio(path, offset=0.5, duration=0.25)[0], expected, atol=1e-6)


@pytest.mark.parametrize("seconds", [6.03, 180.03], ids=["shorter than a page can be", "longer"])
def test_the_end_of_vorbis_is_that_of_the_whole(tmp_path, seconds):
    """Whose last page is cut: libsndfile is late by what is cut off after a seek into it."""
    rate = 8000
    path = tmp_path / "a.ogg"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(round(seconds * rate)), rate)
    whole = read_audio(path)[0]
    with soundfile.SoundFile(path) as file:
        file.seek(len(whole) - 1000)
        sought = file.read(dtype="float32")
    assert np.abs(sought - whole[-1000:]).max() > 0.1
    for before_end in (1, 1000, 5000):
        part = read_audio(path, offset=(len(whole) - before_end) / rate)[0]
        np.testing.assert_array_equal(part, whole[-before_end:])


@pytest.mark.parametrize("rate", [16000, 22050, 48000])
@pytest.mark.slow
def test_resampling_equals_librosa(tmp_path, rate):
    path = encode(tmp_path / "clip.wav", tone_steps())
    ours, new_rate = read_audio(path, sample_rate=rate)
    theirs, _ = librosa.load(path, sr=rate)
    assert new_rate == rate
    assert len(ours) == len(theirs)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".m4a"])
def test_channels_are_averaged(tmp_path, suffix):
    left, right = tone_steps(), tone_steps()[::-1]
    path = tmp_path / f"stereo{suffix}"
    if suffix == ".m4a":
        with av.open(str(path), "w", format="ipod") as container:
            stream = container.add_stream("alac", rate=RATE, layout="stereo")
            samples = np.stack([left, right])
            frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16), "s16p", "stereo")
            frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                container.mux(packet)
    else:
        soundfile.write(path, np.stack([left, right], axis=1), RATE)
    assert probe(path).channels == 2
    np.testing.assert_allclose(read_audio(path)[0], (left + right) / 2, atol=1e-4)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"this is no sound\n" * 100, bytes(4096)], ids=["empty", "text", "zeros"])
def test_no_recording_is_an_error_that_names_the_file(tmp_path, suffix, content):
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(content)
    for use in (probe, read_audio):
        with pytest.raises(DataError, match=r"broken\..*(empty|not readable)") as raised:
            use(path)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".aac"])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_file_cut_short_is_refused(tmp_path, suffix, kept):
    whole = encode(tmp_path / f"whole{suffix}", tone_steps(4.0)).read_bytes()
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(DataError, match=r"cut\..*(cut short|not readable)"):
        read_audio(path)


@pytest.mark.parametrize("with_length", [True, False])
def test_an_m4a_whose_recorder_did_not_end_says_so(tmp_path, with_length):
    path = encode(tmp_path / "memo.m4a", tone_steps(4.0))
    whole = path.read_bytes()
    sound = whole.index(b"mdat")
    length = whole[sound - 4 : sound] if with_length else bytes(4)  # which recorders fill in at the end
    path.write_bytes(whole[: sound - 4] + length + whole[sound : len(whole) // 2])
    with pytest.raises(DataError, match=r"memo\.m4a: cut short: its end is missing"):
        read_audio(path)


def test_an_m4a_with_its_header_in_front_is_refused_when_cut_short(tmp_path):
    path = tmp_path / "front.m4a"
    with av.open(str(path), "w", format="ipod", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("aac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone_steps(4.0).astype(np.float32)[None], "fltp", "mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    assert len(read_audio(path)[0]) == 4 * RATE
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(DataError, match=r"4\.00 s|not readable"):
        read_audio(path)
    sound = path.read_bytes().index(b"mdat") + 4
    path.write_bytes(path.read_bytes()[:sound] + b"\xff" * 4000)
    with opened(path) as reader, pytest.raises(DataError, match=r"front\.m4a: not readable as audio .*; copy it again"):
        list(reader.blocks())


def test_a_wav_from_a_pipe_is_read(tmp_path):
    """Programs that write into a pipe leave the length open; that isn't a file cut short."""
    path = encode(tmp_path / "clip.wav", tone_steps())
    content = bytearray(path.read_bytes())
    position = content.index(b"data") + 4
    content[4:8] = content[position : position + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    assert len(read_audio(path)[0]) == 2 * RATE


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_refused(tmp_path, value):
    samples = tone_steps()
    samples[RATE] = value
    soundfile.write(tmp_path / "hole.wav", samples, RATE, subtype="FLOAT")
    with pytest.raises(DataError, match=r"hole\.wav: sample 24000 \(1\.000 s\)"):
        read_audio(tmp_path / "hole.wav")
    assert len(read_audio(tmp_path / "hole.wav", duration=0.5)[0]) == RATE // 2


def test_header_without_samples_missing_file_and_folder_are_refused(tmp_path):
    soundfile.write(tmp_path / "none.wav", np.zeros(0), RATE)
    with pytest.raises(DataError, match=r"none\.wav: .*no samples"):
        read_audio(tmp_path / "none.wav")
    with pytest.raises(DataError, match=r"absent\.wav: no such file"):
        probe(tmp_path / "absent.wav")
    with pytest.raises(DataError, match="a folder"):
        probe(tmp_path)


def test_a_playlist_named_m4a_opens_nothing_else(tmp_path):
    encode(tmp_path / "secret.wav", tone_steps())
    (tmp_path / "list.m4a").write_text("#EXTM3U\n#EXTINF:2,\nsecret.wav\n#EXT-X-ENDLIST\n")
    with pytest.raises(DataError, match=r"list\.m4a: not readable"):
        read_audio(tmp_path / "list.m4a")
    (tmp_path / "list.m4a").rename(tmp_path / "turns.rttm")
    begins = (
        r"turns\.rttm: not readable as audio \(a text that begins with '#EXTM3U #EXTINF:2,[^;]*'\); give a recording"
    )
    with pytest.raises(DataError, match=begins):
        read_audio(tmp_path / "turns.rttm")


@pytest.mark.parametrize(("offset", "duration"), [(2.0, None), (1.9, 0.3), (-0.1, None), (0.0, 0.0)], ids=str)
def test_a_slice_outside_the_recording_is_refused(tmp_path, offset, duration):
    path = encode(tmp_path / "clip.flac", tone_steps())
    with pytest.raises(DataError, match=r"clip\.flac"):
        read_audio(path, offset=offset, duration=duration)


@settings(max_examples=40)
@given(content=st.binary(max_size=300), magic=st.sampled_from([b"", b"RIFF", b"OggS", b"fLaC", b"ID3"]))
@pytest.mark.parametrize("suffix", [".wav", ".m4a"])
def test_arbitrary_bytes_are_never_silence(tmp_path_factory, suffix, content, magic):
    path = tmp_path_factory.mktemp("bytes") / f"any{suffix}"
    path.write_bytes(magic + content)
    with pytest.raises(DataError, match=r"any\."):
        read_audio(path)


@pytest.fixture(scope="module")
def half_a_second(tmp_path_factory):
    """A function from a suffix to a file, its bytes and its samples."""

    @functools.cache
    def write(suffix):
        path = encode(tmp_path_factory.mktemp("cut") / f"clip{suffix}", tone_steps(0.5))
        return path, path.read_bytes(), read_audio(path)[0]

    return write


@settings(max_examples=30)
@given(share=st.floats(0, 1, exclude_max=True))
@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".aac"])
def test_cut_anywhere_it_is_refused_or_whole(half_a_second, suffix, share):
    path, content, whole = half_a_second(suffix)
    path.write_bytes(content[: int(share * len(content))])
    try:
        kept = read_audio(path)[0]
    except DataError:
        return
    np.testing.assert_array_equal(kept, whole)  # what was cut off was the comment at the end of an m4a


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".WAV"])
def test_written_audio_reads_back(tmp_path, suffix):
    path = tmp_path / "new" / f"out{suffix}"
    write_audio(path, tone_steps(), RATE)
    decoded, rate = read_audio(path)
    assert rate == RATE
    np.testing.assert_allclose(decoded, tone_steps(), atol=1 / 32768)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_writing_scales_instead_of_clipping(tmp_path):
    write_audio(tmp_path / "loud.wav", 10 * tone_steps(), RATE)
    decoded, _ = read_audio(tmp_path / "loud.wav")
    expected = tone_steps() / np.abs(tone_steps()).max()
    np.testing.assert_allclose(decoded, expected, atol=1e-4)


@pytest.mark.parametrize("samples", [np.zeros((2, 5)), np.zeros(0), np.array([0.0, np.nan])], ids=["2d", "none", "nan"])
def test_what_is_no_waveform_is_not_written(tmp_path, samples):
    write_audio(tmp_path / "kept.wav", tone_steps(), RATE)
    before = (tmp_path / "kept.wav").read_bytes()
    with pytest.raises(DataError, match="not written"):
        write_audio(tmp_path / "kept.wav", samples, RATE)
    assert (tmp_path / "kept.wav").read_bytes() == before
    with pytest.raises(InputError, match=r"only \.wav, \.flac and \.mp3"):
        write_audio(tmp_path / "out.ogg", tone_steps(), RATE)


@pytest.mark.parametrize("rate", [8000, 22050, 44100])
def test_mp3_is_written_without_a_delay(tmp_path, rate):
    sweep = 0.9 * np.sin(2 * np.pi * np.cumsum(np.linspace(100, 3000, 70 * rate)) / rate)
    write_audio(tmp_path / "at_once.mp3", sweep, rate, MADE)
    assert write_pieces(tmp_path / "in_pieces.mp3", np.array_split(sweep, 7), rate, MADE) == len(sweep)
    for path in sorted(tmp_path.iterdir()):
        decoded, found = read_audio(path)
        assert (found, len(decoded)) == (rate, len(sweep))
        error = decoded / np.abs(decoded).max() - sweep / np.abs(sweep).max()
        assert 10 * np.log10(np.mean(sweep**2) / np.mean(error**2)) > 20
        with soundfile.SoundFile(path) as file:
            assert file.comment == MADE
    assert len([*tmp_path.iterdir()]) == 2


def test_mp3_is_refused_where_it_can_not_be_written(tmp_path, monkeypatch):
    made = (pytest.fail("a piece was made") for _ in range(1))
    for write, sound in ((write_audio, tone_steps()), (write_pieces, made)):
        with pytest.raises(InputError, match=r"out\.mp3: an MP3 file can't have 40000 Hz; name a \.wav or \.flac"):
            write(tmp_path / "out.mp3", sound, 40000)
    monkeypatch.setattr(soundfile, "check_format", lambda form, subtype: form != "MP3")
    with pytest.raises(InputError, match="writes no MP3"):
        write_audio(tmp_path / "out.mp3", tone_steps(), RATE)
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path):
    """In a process of its own, whose files may not grow past 20 kB."""
    path = tmp_path / "out.wav"
    write_audio(path, np.zeros(100), RATE)
    before = path.read_bytes()
    code = (
        "import resource, signal, sys, numpy as np; from phonate.audio.decoding import write_audio;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
        "write_audio(sys.argv[1], np.zeros(24_000), 24_000)"
    )
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert result.returncode == 1
    assert re.search(r"InputError: .*out\.wav: can't be written \(File too large\)", result.stderr)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.wav"]


def test_a_folder_that_can_not_be_made_is_explained(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"out\.wav: can't be written"):
        write_audio(tmp_path / "file" / "out.wav", tone_steps(), RATE)


def test_real_recordings_read(recordings):
    for folder in ("tts_en_kathleen", "spk_en_librispeech", "asr_en_an4"):
        path = sorted((recordings / folder).rglob("*.flac"))[0]
        waveform, rate = read_audio(path)
        assert len(waveform) / rate == pytest.approx(probe(path).duration)
        assert 0.01 < np.abs(waveform).max() <= 1.0


@pytest.mark.parametrize("seconds", [0.1, 2.0, 20.0])
def test_an_mp3_without_a_count_of_frames_is_read_to_its_end(tmp_path, seconds):
    """As programs leave it that write into a pipe; libsndfile's guess of the length is too long by a few frames."""
    path, tone = tmp_path / "piped.mp3", tone_steps(seconds)
    with av.open(str(path), "w", format="mp3", options={"write_xing": "0"}) as container:
        container.metadata["comment"] = "a tag before the first frame"
        stream = container.add_stream("libmp3lame", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone[None].astype(np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    assert soundfile.info(path).duration > seconds
    decoded, _ = read_audio(path)
    assert len(decoded) / RATE == pytest.approx(seconds, abs=0.1)
    assert probe(path).duration == len(decoded) / RATE


def test_an_mp3_of_varying_bit_rate_without_a_count_is_read_to_its_end(tmp_path):
    """As LAME and FFmpeg write it into a pipe; libsndfile's guess of the length is from the first frames, so too short
    where those are long."""
    path, samples = tmp_path / "piped.mp3", np.random.default_rng(0).normal(0, 0.2, 8 * RATE).astype(np.float32)
    samples[RATE:] = tone_steps(7.0)
    with av.open(str(path), "w", format="mp3", options={"write_xing": "0"}) as container:
        stream = container.add_stream("libmp3lame", rate=RATE, layout="mono", options={"abr": "1", "b": "96000"})
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    assert soundfile.info(path).duration < 7.5
    decoded, _ = read_audio(path)
    assert len(decoded) / RATE == pytest.approx(8.0, abs=0.1)
    assert probe(path).duration == len(decoded) / RATE
    assert np.abs(decoded[-RATE:]).max() > 0.1


def test_an_mp3_with_a_count_of_frames_is_not_cut_unnoticed(tmp_path):
    path = encode(tmp_path / "whole.mp3", tone_steps())
    path.write_bytes(path.read_bytes()[:-1500])
    with pytest.raises(DataError, match=r"cut short: .*2\.00 s"):
        read_audio(path)


def test_notes_of_the_mp3_decoder_stay_off_the_console(tmp_path, capfd):
    path = encode(tmp_path / "a.mp3", tone_steps())
    content = bytearray(path.read_bytes())
    for position in range(len(content) // 3, len(content), 97):
        content[position] = 0x5A
    path.write_bytes(content)
    (tmp_path / "zero.mp3").write_bytes(bytes(3000))
    read_all = (
        "import sys\nfrom phonate.audio.decoding import read_audio\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        read_audio(path)\n"
        "    except ValueError as error:\n        print('said', file=sys.stderr, flush=True)\n"
    )
    direct = f"import soundfile; soundfile.read({str(path)!r})"
    noisy = subprocess.run([sys.executable, "-c", direct], capture_output=True, text=True, check=False)
    assert "libmpg123" in noisy.stderr or "Note: " in noisy.stderr, "the file makes the decoder write notes"
    ran = subprocess.run(
        [sys.executable, "-c", read_all, str(path), str(tmp_path / "zero.mp3")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(ran.stderr.splitlines()) == {"said"}, ran.stderr


def test_what_others_write_while_an_mp3_is_decoded_is_not_lost(capfd):
    import os

    from phonate.audio.readers import quiet

    with quiet():
        os.write(2, b"Note: Trying to resync...\nmine\n")
        with quiet():
            os.write(2, b"[src/libmpg123/layer3.c:1] error: dequantization failed!\nmine, too\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "mine\nmine, too\nafter\n"


def test_an_mp3_that_can_not_be_decoded_is_not_called_missing(tmp_path):
    (tmp_path / "zero.mp3").write_bytes(bytes(3000))
    with pytest.raises(DataError, match=r"zero\.mp3: not readable"):
        probe(tmp_path / "zero.mp3")


def test_pieces_that_are_no_sound_are_not_written(tmp_path):
    with pytest.raises(DataError, match="not finite"):
        write_pieces(tmp_path / "out.wav", [np.full(9, 0.1, np.float32), np.full(9, np.nan, np.float32)], 16000)
    assert list(tmp_path.iterdir()) == []


def test_where_pieces_find_no_place_a_line_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="can't be written"):
        write_pieces(tmp_path / "file" / "out.wav", [np.zeros(9, np.float32)], 16000)

    def full(self, data):  # as on a full disk
        raise AssertionError

    monkeypatch.setattr(soundfile.SoundFile, "write", full)
    with pytest.raises(InputError, match="disk full"):
        write_pieces(tmp_path / "out.wav", [np.zeros(9, np.float32)], 16000)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
