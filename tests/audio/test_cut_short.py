"""Files of every kind that end too early: refused with the second, told, or whole after all."""

from __future__ import annotations

import base64
import re
import tempfile
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile
from test_timeline import KINDS, Kind, sound, written

from phonate.audio.containers.frames import frame_bytes
from phonate.audio.decoding import joined, open_recording, probe, read_audio, read_start
from phonate.config.errors import DataError

LIBSNDFILE = {
    "ogg": ("OGG", "VORBIS"),
    "nist": ("NIST", "PCM_16"),
    "8svx": ("SVX", "PCM_S8"),
    "voc": ("VOC", "PCM_16"),
    "voc, A-law": ("VOC", "ALAW"),
    "avr": ("AVR", "PCM_16"),
    "mat4": ("MAT4", "PCM_32"),
    "mat5": ("MAT5", "FLOAT"),
    "mpc2k": ("MPC2K", "PCM_16"),
    "wve": ("WVE", "ALAW"),
    "sds": ("SDS", "PCM_16"),
    "ircam": ("IRCAM", "PCM_16"),
    "paf": ("PAF", "PCM_24"),
    "pvf": ("PVF", "PCM_S8"),
    "xi": ("XI", "DPCM_16"),
}
"""Kinds that FFmpeg does not write."""
FFMPEG = [name for name in KINDS if "late" not in name and "paused" not in name]
CUT = "its last frame is cut off; what comes before is read"
ENDS = {
    "its header has no length; it is read to the end of the file": "to their end",
    CUT: "up to a frame that is cut off",
}
"""The remark -> what the page says of kinds that get it."""


@cache
def content(name: str) -> bytes:
    """A file of this kind."""
    with tempfile.TemporaryDirectory() as folder:
        if name in KINDS:
            return written(Path(folder), KINDS[name]).read_bytes()
        path, (form, subtype) = Path(folder) / name, LIBSNDFILE[name]
        soundfile.write(path, sound(8000), 8000, format=form, subtype=subtype)
        return path.read_bytes()


def read(path: Path, content: bytes) -> tuple[np.ndarray, list[str]]:
    path.write_bytes(content)
    with open_recording(path) as recording:
        return joined(recording.blocks()), recording.remarks


@cache
def ends(name: str) -> frozenset[str]:
    """What becomes of a file of this kind that is cut at several places: "refused", the remark, "whole" or "short"."""
    with tempfile.TemporaryDirectory() as folder:
        path, everything = Path(folder) / "cut", content(name)
        whole, _ = read(path, everything)
        outcomes = set()
        for length in (round(0.9 * len(everything)), len(everything) // 2, len(everything) // 10, len(everything) - 1):
            at = set[str]()
            for end in (length, length - 1):  # frames that nothing counts may be cut between two of them
                try:
                    samples, remarks = read(path, everything[:end])
                except DataError:
                    at.add("refused")
                else:
                    at.add(remarks[-1] if remarks else "whole" if np.array_equal(samples, whole) else "short")
            outcomes |= at - {"short"} if at & {*ENDS} else at
        return frozenset(outcomes)


@pytest.mark.parametrize("name", [*FFMPEG, *LIBSNDFILE])
def test_no_cut_is_silent(name: str) -> None:
    assert "short" not in ends(name)


@pytest.mark.parametrize("name", ["wav", "w64", "voc", "mat5", "avr", "caf", "realmedia"])
def test_the_second_is_named(name: str, tmp_path: Path) -> None:
    everything = content(name)
    with pytest.raises(DataError, match=r" 1\.[45]\d s (are there|on)"):
        read(tmp_path / "cut", everything[: len(everything) // 2])


@pytest.mark.parametrize("name", ["mp3 without a header", "aac, ADTS", "mpeg-ts", "webm, streamed"])
def test_a_frame_that_is_cut_off_is_told_once_and_by_all(name: str, tmp_path: Path, caplog) -> None:
    path = tmp_path / "cut"
    path.write_bytes(content(name)[:-3])
    (remark,) = probe(path).remarks
    assert [*read_start(path, 0.5)[1].remarks] == [remark]
    read_audio(path)
    assert caplog.text.count(remark) == 1
    assert remark in ENDS


@pytest.mark.parametrize("behind", [b"\0" * 1000, b"\0" * 200_000, b"TAG" + bytes(125)], ids=["few", "many", "ID3v1"])
@pytest.mark.parametrize("name", ["mp3 without a header", "mp2", "ac3", "eac3", "aac, ADTS", "mpeg-ts"])
def test_zeros_and_tags_behind_the_last_frame_are_no_part_of_it(name: str, behind: bytes, tmp_path: Path) -> None:
    whole, _ = read(tmp_path / "whole", content(name))
    samples, remarks = read(tmp_path / "padded", content(name) + behind)
    np.testing.assert_allclose(samples, whole, atol=1e-5)  # AC-3's decoder fills bands with noise
    assert not remarks


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["mp3 without a header", "mp2", "webm, streamed", "aac, ADTS", "ac3"])
def test_junk_behind_the_last_frame_is_told(name: str, seed: int, tmp_path: Path) -> None:
    """Players pass over it. Of seed 1 the first bytes look like a frame of another rate."""
    whole, _ = read(tmp_path / "whole", content(name))
    junk = np.random.default_rng(seed).bytes(100_000)
    for behind in (junk, junk[:3000]):
        samples, remarks = read(tmp_path / "junk", content(name) + behind)
        np.testing.assert_allclose(samples[: len(whole)], whole[: len(samples)], atol=1e-5)
        assert len(samples) == len(whole)
        if name in ("mp3 without a header", "mp2", "webm, streamed"):
            assert remarks == [f"{len(behind)} bytes behind its last frame are no sound; they are left out"]
        else:  # parsers leave most of it out
            assert all(re.fullmatch(r"what is behind [23]\.\d\d s is no sound; it is left out", one) for one in remarks)


@pytest.mark.parametrize("left", [7, 6, 1])
def test_a_frame_of_aac_of_which_only_the_header_is_there_is_told(left: int, tmp_path: Path) -> None:
    everything = content("aac, ADTS")
    samples, remarks = read(tmp_path / "cut", everything[: everything.rindex(everything[:3]) + left])
    assert remarks == [CUT]
    assert len(samples) == len(read(tmp_path / "cut", everything)[0]) - 1024


TRUEHD = (
    b"c-mW_{Qt&}qWoP93=NFigBXCIr(TdX1V}eDFfg>pDhPdi#lXNQ0FvQw020i)zd4u~JQ|X<7dSBXtZQUoVfYlkfSrLMfn}mYg8~P`"
    b"g>DB{28{$J2Zooj8(0|vAS?k^h6)G^D7yf{TENP10xtUj!b)Ielz{1Fbb!e+X24}9Kv)M@8F#>CAHYmz;()L|ure7ySPaTc5rq85"
    b")PU^2{TTjxG>d_qsR7}?2dqphV0JTIfVr0G2h46}1(+<e2h69;1u%Cr&w$Gwfazs^0b{WUz+_o0U^-Y5V5YEiz-2c;SO9KOb#n"
)
"""32 frames of 1/1200 s, of 14, 10 and, with a sync, 70 bytes, by FFmpeg, whose part in PyAV only reads TrueHD."""


@pytest.mark.parametrize("missing", [1, 5, 9])
def test_a_frame_of_truehd_that_is_cut_off_is_told(missing: int, tmp_path: Path) -> None:
    everything = zlib.decompress(base64.b85decode(TRUEHD))
    whole, remarks = read(tmp_path / "a.thd", everything)
    assert (len(whole), remarks) == (32 * 40, [])
    samples, remarks = read(tmp_path / "a.thd", everything[:-missing])
    assert (len(samples), remarks) == (31 * 40, [CUT])
    assert read(tmp_path / "a.thd", everything[:-10])[1] == []


def test_realmedia_that_was_streamed_is_told(tmp_path: Path) -> None:
    """No chunk says where the packets end."""
    everything = bytearray(content("realmedia"))
    at = everything.index(b"DATA")
    everything[at + 4 : at + 8] = (18).to_bytes(4, "big")
    samples, remarks = read(tmp_path / "a.rm", bytes(everything))
    assert (len(samples), remarks) == (len(read(tmp_path / "b.rm", content("realmedia"))[0]), [*ENDS][:1])


def test_an_mp4_without_its_last_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cut short: the header says 3\.00 s, 2\.9\d s are there"):
        read(tmp_path / "cut", content("mp4, header first")[:-8])


@pytest.mark.parametrize("into", [3, 20])
def test_a_live_mp4_that_ends_within_the_header_of_a_piece_is_told(into: int, tmp_path: Path) -> None:
    options = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "frag_duration": "500000"}
    everything = written(tmp_path, Kind("mp4", "mp4", "aac", options=options)).read_bytes()
    at = everything.rindex(b"moof") - 4
    samples, remarks = read(tmp_path / "cut", everything[: at + into])
    assert remarks == [CUT]
    assert len(samples) == len(read(tmp_path / "cut", everything[:at])[0])


@pytest.mark.parametrize("into", [2, 7, 12])
def test_a_live_flv_that_ends_within_the_header_of_a_tag_is_told(into: int, tmp_path: Path) -> None:
    everything = written(tmp_path, replace(KINDS["flv"], streamed=True)).read_bytes()
    last = len(everything) - 4 - int.from_bytes(everything[-4:], "big")
    before = last - 4 - int.from_bytes(everything[last - 4 : last], "big")
    assert read(tmp_path / "cut", everything[: before + into])[1] == [CUT]
    assert read(tmp_path / "cut", everything[:before])[1] == []
    assert read(tmp_path / "cut", everything[: before - 4])[1] == []
    assert read(tmp_path / "whole", everything)[1] == []


def test_a_tta_that_ends_between_frames_is_refused(tmp_path: Path) -> None:
    """Of which three, of a second and more each, are promised: behind what is missing FFmpeg sees the end."""
    everything = content("true audio")
    first = 22 + 4 * 3 + 4
    end = first + int.from_bytes(everything[22:26], "little")
    with pytest.raises(DataError, match=r"cut short: the header says 3\.00 s, 1\.04 s are there"):
        read_audio(_file(tmp_path, everything[:end]))


def test_forty_milliseconds_of_samples_are_missed(tmp_path: Path) -> None:
    options = {"movflags": "faststart"}
    everything = written(tmp_path, Kind("mov", "mov", "pcm_s16le", options=options)).read_bytes()
    with pytest.raises(DataError, match=r"cut short: the header says 3\.00 s, 2\.96 s are there"):
        read_audio(_file(tmp_path, everything[: -round(0.04 * 48_000) * 2]))


def _file(folder: Path, content: bytes) -> Path:
    path = folder / "cut"
    path.write_bytes(content)
    return path


def test_an_mp3_of_free_format_that_is_cut_is_refused(tmp_path: Path) -> None:
    """Of which no frame says how long it is."""
    everything = bytearray(content("mp3"))
    at = everything.index(b"\xff\xfb")
    while length := frame_bytes("mp3", bytes(everything[at : at + 4])):
        everything[at + 2] &= 0x0F
        at += length
    whole, remarks = read(tmp_path / "free.mp3", bytes(everything))
    assert (len(whole), remarks) == (144_000, [])
    with pytest.raises(DataError, match=r"cut short: the header says 3\.00 s, 2\.\d\d s are there"):
        read(tmp_path / "free.mp3", bytes(everything[:-1000]))


def test_what_is_behind_a_hole_is_not_left_out_in_silence(tmp_path: Path) -> None:
    everything = content("mp3 without a header")
    with pytest.raises(DataError, match=r"not readable as audio from \d\.\d\d s on"):
        read(tmp_path / "hole", everything + bytes(200_000) + everything)


def test_an_ogg_without_a_last_page_is_read(tmp_path: Path) -> None:
    """As radio streams are recorded, and as recorders that are killed leave it."""
    path, everything = tmp_path / "radio.opus", bytearray(content("opus"))
    last = everything.rindex(b"OggS")
    samples, remarks = read(path, bytes(everything[:last]))
    assert remarks == ["no page of it is marked as the last; it is read to the end of the file"]
    assert 1.9 < len(samples) / 48_000 < 3.0
    np.testing.assert_array_equal(samples, read(path, bytes(everything))[0][: len(samples)])


def sentences() -> str:
    """What becomes of files that are cut, for docs/reference/recordings.md."""
    kinds = {told: [name for name in [*FFMPEG, *LIBSNDFILE] if told in ends(name)] for told in ENDS}
    return "\n".join(f"- {what}: {'; '.join(kinds[told])}" for told, what in ENDS.items())


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "recordings.md"
MARKS = "<!-- cut short: written by `python tests/audio/test_cut_short.py` -->", "<!-- cut short: end -->"


def page() -> str:
    """The page with the list as it is now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{sentences()}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


def test_the_page_says_what_becomes_of_cut_files() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/audio/test_cut_short.py"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
