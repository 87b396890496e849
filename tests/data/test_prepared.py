"""Prepared corpora: made once, split, and never read when they are damaged."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from small_corpora import RATE, corpus, wav

from phonate.audio import readers
from phonate.audio.decoding import Recording, write_audio
from phonate.audio.processor import AudioProcessor
from phonate.audio.quality import loudness
from phonate.audio.settings import AudioConfig
from phonate.config.errors import DataError
from phonate.data import cache
from phonate.data.corpora.manifest import check_corpus
from phonate.data.prepared import prepare, refused, split
from phonate.data.settings import VoiceData


def test_prepared_once_reused_and_made_anew_when_something_changed(folder):
    calls = []
    data = corpus(folder)
    first = prepare(data, lambda *args: calls.append(args))
    assert calls
    calls.clear()
    second = prepare(data, lambda *args: calls.append(args))
    assert not calls
    assert second.folder == first.folder
    wav(folder / "ann/0.wav", 0.8)
    third = prepare(data)
    assert third.fingerprint != first.fingerprint
    other = data.model_copy(update={"audio": AudioConfig(sample_rate=RATE, n_mels=40, min_seconds=0.1)})
    assert prepare(other).cache.features(0).shape[1] == 40


def test_digests_follow_sound_text_and_speaker_and_nothing_else(folder):
    listed = folder / "metadata.csv"

    def digests(*rows):
        listed.write_text("".join(f"{row}\n" for row in ("path,speaker,text", *rows)))
        prepared = prepare(corpus(folder))
        found = prepared.digests(range(len(prepared.index)))
        assert found == prepare(corpus(folder)).digests(range(len(prepared.index)))  # as they were kept
        return {name.removesuffix(".wav"): digest for name, digest in found.items()}

    rows = ["ann/0.wav,ann,one", "ann/1.wav,ann,two", "bob/0.wav,bob,three"]
    before = digests(*rows)
    assert len(set(before.values())) == 3
    os.utime(folder / "ann/0.wav", (1, 1))
    assert digests(*rows) == before
    wav(folder / "ann/0.wav", 0.4, 331.0)
    sound = digests(*rows)
    text = digests(rows[0], "ann/1.wav,ann,2", rows[2])
    speaker = digests(rows[0], "ann/1.wav,ann,2", "bob/0.wav,cid,three")
    for one, other, changed in ((before, sound, 0), (sound, text, 1), (text, speaker, 2)):
        assert [one[name] != other[name] for name in sorted(one)] == [i == changed for i in range(3)]


def test_of_many_recordings_that_cannot_be_used_the_first_are_named(folder, caplog):
    for number in range(5):
        (folder / "ann" / f"broken{number}.wav").write_bytes(b"RIFF, but no sound")
    prepared = prepare(corpus(folder))
    (message,) = [record.getMessage() for record in caplog.records if "can't be used" in record.getMessage()]
    listing = prepared.folder / "report.json"
    said = f"5 recordings can't be used (5 unreadable; {listing} lists all), and are left out: "
    assert listing.read_text().count("/broken") >= 5
    assert message.startswith(said)
    assert message.count("broken") == 3
    assert message.endswith(" and 2 more")


def test_recordings_that_cannot_be_used_are_named_once_and_then_counted(folder, caplog):
    (folder / "ann" / "broken.wav").write_bytes(b"RIFF, but no sound")
    for _ in range(2):
        prepared = prepare(corpus(folder))
    first, later = [record.getMessage() for record in caplog.records if "can't be used" in record.getMessage()]
    assert first.startswith("1 recording can't be used")
    assert "broken.wav" in first
    report = prepared.folder / "report.json"
    assert later == f"{folder}: 1 recording can't be used, and is left out, as before; {report} says why"
    assert refused(corpus(folder)) == json.loads(report.read_text())["refused"]
    report.write_text("{")
    with pytest.raises(DataError, match=r"damaged .* delete this folder"):
        refused(corpus(folder))


def test_cached_features_are_those_of_the_processor(folder):
    from phonate.audio.processor import AudioProcessor

    data = corpus(folder)
    prepared = prepare(data)
    processor = AudioProcessor(data.audio)
    for position in range(len(prepared.index)):
        waveform = processor.load(prepared.index.path[position])
        assert np.array_equal(prepared.cache.features(position), processor.mel(waveform))
        assert np.abs(prepared.cache.waveform(position) - waveform).max() <= 0.5 / 32767 + 1e-7
        speaker = prepared.speakers[prepared.index.speaker[position]]
        assert prepared.index.id[position].startswith(speaker)
    part = prepared.cache.features(2, 3, 9)
    assert np.array_equal(part, prepared.cache.features(2)[3:9])


def test_a_cache_that_cannot_be_written_is_one_clear_error(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    data = corpus(folder).model_copy(update={"cache_dir": str(tmp_path / "file/cache")})
    with pytest.raises(DataError, match=r"can't write .*data\.cache_dir"):
        prepare(data)


def test_an_index_of_earlier_versions_is_read(folder):
    data = corpus(folder)
    prepared = prepare(data)
    ids, texts = prepared.index.id[:], prepared.index.text[:]
    file = prepared.folder / "index.safetensors"
    for name, values in load_file(file).items():
        np.save(prepared.folder / f"{name}.npy", values)
    file.unlink()
    names = [one.name for one in prepared.folder.iterdir() if one.name not in ("digests.json", "verified.json")]
    digests = {
        name: hashlib.blake2b((prepared.folder / name).read_bytes(), digest_size=16).hexdigest() for name in names
    }
    (prepared.folder / "digests.json").write_text(json.dumps(digests))
    again = prepare(data)
    assert again.folder == prepared.folder
    assert (again.index.id[:], again.index.text[:]) == (ids, texts)
    assert np.array_equal(again.cache.features(1), prepared.cache.features(1))
    (prepared.folder / "segment_text.npy").unlink()
    with pytest.raises(DataError, match=r"damaged .*delete this folder"):
        prepare(data)


@given(st.lists(st.binary(max_size=300), max_size=20))
@settings(max_examples=50)
def test_the_checksum_of_a_file_follows_from_those_of_its_parts(parts):
    sums = np.array([zlib.crc32(part) for part in parts], dtype=np.uint32)
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    expected = f"{zlib.crc32(b''.join(parts)):08x}"
    assert cache.joined_checksum(sums, sizes) == expected


def test_checksums_of_files_and_of_recordings_are_those_of_their_bytes(folder):
    where = prepare(VoiceData(path=str(folder), cache_dir=str(folder.parent / "cache"))).folder
    digests = json.loads((where / "digests.json").read_text())
    for name in ("audio.int16", "features.bin"):
        assert digests[name] == f"{zlib.crc32((where / name).read_bytes()):08x}"


def test_digests_of_earlier_versions_are_known(folder):
    data = corpus(folder)
    prepared = prepare(data)
    file = prepared.folder / "digests.json"
    earlier = {
        name: hashlib.blake2b((prepared.folder / name).read_bytes(), digest_size=16).hexdigest()
        for name in json.loads(file.read_text())
    }
    file.write_text(json.dumps(earlier))
    assert prepare(data).folder == prepared.folder
    file.write_text(json.dumps(earlier | {"report.json": "0" * 32}))
    with pytest.raises(DataError, match=r"damaged \(report\.json differs"):
        prepare(data)


@pytest.mark.parametrize("name", ["audio.int16", "features.bin", "index.safetensors"])
def test_a_damaged_cache_is_never_read(folder, name):
    prepared = prepare(corpus(folder))
    damaged = prepared.folder / name
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"damaged.*delete this folder"):
        prepare(corpus(folder))


def test_a_cache_with_files_of_no_length_is_never_read(folder):
    """What a power cut can leave of files that were not synced."""
    prepared = prepare(corpus(folder))
    for file in prepared.folder.iterdir():
        if file.name == "verified.json":  # when the others were compared last
            continue
        content = file.read_bytes()
        file.write_bytes(b"")
        with pytest.raises(DataError, match=r"damaged.*delete this folder"):
            prepare(corpus(folder))
        file.write_bytes(content)
    assert len(prepare(corpus(folder)).index) == 6


def test_the_disk_has_all_files_before_the_folder_has_its_name(folder, monkeypatch):
    synced, fsync = set(), os.fsync
    data = corpus(folder)

    def noting(descriptor):
        assert all(entry.startswith(".") for entry in os.listdir(data.cache_dir))
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    prepared = prepare(data)
    written = [file for file in prepared.folder.iterdir() if file.name != "verified.json"]
    assert {file.stat().st_ino for file in written} <= synced


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(folder, monkeypatch):
    import errno

    from phonate.data.cache import CacheWriter

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(CacheWriter, "add", full)
    data = corpus(folder)
    with pytest.raises(DataError, match=r"can't write the cache \(disk full: .* [kM]B free\).*data\.cache_dir"):
        prepare(data)
    assert not os.listdir(data.cache_dir)


def test_a_killed_preparation_leaves_nothing_that_counts(folder, monkeypatch):
    from phonate.data import prepared as module

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "cut_document", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(corpus(folder))
    monkeypatch.undo()
    assert len(prepare(corpus(folder)).index) == 6


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.floats(0.0, 0.6),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_split_keeps_every_speaker_in_training(speakers, share):
    numbers = np.unique(speakers, return_inverse=True)[1]
    ids = [f"clip-{i}" for i in range(len(numbers))]
    train, validation = split(ids, numbers, share)
    assert sorted([*train, *validation]) == list(range(len(ids)))
    assert set(numbers[train]) == set(numbers)
    if share == 0:
        assert len(validation) == 0
    again = split(ids, numbers, share)
    assert np.array_equal(again[1], validation)


def test_speaker_numbers_do_not_depend_on_the_process(folder):
    """Salted string hashes are the usual fault: another number in each process, and collisions."""
    import subprocess
    import sys

    code = (
        "from phonate.data.prepared import prepare; from phonate.data.settings import VoiceData;"
        f"p = prepare(VoiceData(path={str(folder)!r}, cache_dir={str(folder.parent / 'elsewhere')!r}));"
        "print(p.speakers, p.index.speaker.tolist(), hash('ann'))"
    )
    data = VoiceData(path=str(folder), cache_dir=str(folder.parent / "cache"))
    here = prepare(data)
    # This process drew its own salt; the other one has the one that is given here.
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    ).stdout.strip()
    ours, salted = there.rsplit(" ", 1)
    assert ours == f"{here.speakers} {here.index.speaker.tolist()}" == "['ann', 'bob'] [0, 0, 0, 1, 1, 1]"
    assert int(salted) != hash("ann")


@pytest.mark.parametrize("name", ["audio.int16", "features.bin", "index.safetensors"])
@pytest.mark.parametrize("keep_time", [False, True])
def test_a_flipped_bit_is_never_trained_on(folder, name, keep_time, monkeypatch):
    import json

    for speaker in ("ann", "bob"):
        (folder / f"{speaker}/0.txt").write_text("hello there")
    prepared = prepare(corpus(folder))
    prepare(corpus(folder))
    file = prepared.folder / name
    status, content = file.stat(), bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    if keep_time:  # a disk that lost a bit tells nobody
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(DataError, match=rf"damaged \({name} "):  # a small file
            prepare(corpus(folder))
        monkeypatch.setattr(cache, "_COMPARED_BYTES", 0)
        last = len(prepared.index) - 1
        if name != "index.safetensors":
            large = prepare(corpus(folder)).cache
            read = large.waveform if name == "audio.int16" else large.features
            read(0)
            with pytest.raises(DataError, match=rf"recording {last} of {name} differs from what was written"):
                read(last, 0, 2)  # not the part that is damaged
        prepare(corpus(folder))  # all is read again once a week
        verified = json.loads((prepared.folder / "verified.json").read_text())
        verified["time"] -= 8 * 24 * 3600
        (prepared.folder / "verified.json").write_text(json.dumps(verified))
    with pytest.raises(DataError, match=rf"damaged \({name} .*delete this folder"):
        prepare(corpus(folder))


def test_what_a_killed_preparation_left_behind_is_removed(folder):
    import socket
    import subprocess
    import sys
    from pathlib import Path

    data = corpus(folder)
    host = socket.gethostname().replace(".", "-")
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    cache = Path(data.cache_dir)
    mine, other = f".{'a' * 24}.{host}.{gone.pid}", f".{'b' * 24}.elsewhere.{gone.pid}"
    old, running = f".{'c' * 24}.{gone.pid}", f".{'d' * 24}.{host}.{os.getpid()}"
    for name in (mine, other, old, running, "notes.1"):
        (cache / name).mkdir(parents=True)
        (cache / name / "audio.int16").write_bytes(b"0")
    os.utime(cache / old, (0, 0))
    prepare(data)
    left = {entry.name for entry in cache.iterdir()}
    assert {other, running, "notes.1"} <= left
    assert not {mine, old} & left


class Voices(VoiceData):
    """Settings of a task that learns each speaker's voice."""

    @property
    def requirements(self):
        return replace(super().requirements, trained_speaker=True)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_recording_is_decoded_once_on_its_way_into_the_cache(tmp_path, monkeypatch, split):
    """Unless it is known only behind the last row which rows can be used, as it is where speakers are held out."""
    for number, name in enumerate("abc"):
        wav(tmp_path / f"{name}.wav", 0.5, 200.0 + 30.0 * number)
    (tmp_path / "broken.wav").write_text("no recording")
    lines = [{"audio_path": f"{name}.wav", "speaker_id": "ann", "split": "train"} for name in ("a", "broken", "b")]
    lines.append({"audio_path": "c.wav", "speaker_id": "bob", "split": split})
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    decoded = []
    blocks = Recording.blocks
    monkeypatch.setattr(Recording, "blocks", lambda self, *part: decoded.append(self._path.stem) or blocks(self, *part))
    data = Voices(**corpus(tmp_path / "list.jsonl").model_dump())
    prepared = prepare(data)
    assert prepared.index.id[:] == (["a", "b", "c"] if split == "train" else ["a", "b"])
    assert sorted(decoded) == (["a", "b", "c"] if split == "train" else ["a", "a", "b", "b", "c"])
    for number, name in enumerate(prepared.index.id[:]):
        sound = AudioProcessor(data.audio).load(tmp_path / f"{name}.wav")
        np.testing.assert_allclose(prepared.cache.waveform(number), sound, atol=1e-4)


def _speechlike(seconds: float, peak: float, rate: int = RATE) -> np.ndarray:
    """(N,) syllables of noise, four a second."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(round(1000 * seconds)).standard_normal(len(time)) * np.sin(4 * np.pi * time) ** 2
    return (peak * noise / np.abs(noise).max()).astype(np.float32)


def _lufs(waveform: np.ndarray) -> float:
    return loudness([waveform], RATE)


def test_recordings_are_brought_to_the_loudness_that_data_loudness_says(tmp_path, caplog):
    clips = {"loud": (2.03, 0.9), "quiet": (3.0, 0.02), "short": (0.3, 0.5), "long": (125.0, 0.1)}
    for name, facts in clips.items():
        write_audio(tmp_path / f"corpus/ann/{name}.wav", _speechlike(*facts), RATE)
    audio = AudioConfig(sample_rate=RATE, min_seconds=0.1, max_seconds=200.0)
    plain = corpus(tmp_path / "corpus").model_copy(update={"audio": audio})
    data = VoiceData.model_validate({**plain.model_dump(), "loudness": -26.0})
    prepared = prepare(data)
    at = {Path(prepared.index.path[i]).stem: i for i in range(len(clips))}
    for name in ("loud", "quiet", "long"):
        assert _lufs(prepared.cache.waveform(at[name])) == pytest.approx(-26.0, abs=0.1)
    assert np.abs(prepared.cache.waveform(at["short"])).max() == pytest.approx(0.5, abs=0.001)
    assert "short" in (said := caplog.text)
    assert "0.4 s" in said
    assert "loud" not in said.partition("data.loudness")[2]
    # Features have the level, too, and are those of any file that is read for the trained model.
    processor = AudioProcessor(data.audio)
    for name in clips:
        waveform = processor.load(tmp_path / f"corpus/ann/{name}.wav")
        assert np.allclose(prepared.cache.features(at[name]), processor.mel(waveform), atol=1e-4)
    # Without the option everything is as it was, and caches are apart.
    before = prepare(plain)
    assert before.folder != prepared.folder
    assert np.abs(before.cache.waveform(at["quiet"])).max() == pytest.approx(1.0)
    assert AudioProcessor(plain.audio).fingerprint == AudioProcessor(AudioConfig(sample_rate=RATE)).fingerprint


def test_what_full_scale_does_not_allow_is_said(tmp_path, caplog):
    clip = np.zeros(2 * RATE, np.float32)
    clip[:: RATE // 10] = 0.9
    write_audio(tmp_path / "corpus/ann/clicks.wav", clip + 0.01 * _speechlike(2.0, 1.0), RATE)
    data = corpus(tmp_path / "corpus")
    prepared = prepare(VoiceData.model_validate({**data.model_dump(), "loudness": -10.0}))
    assert np.abs(prepared.cache.waveform(0)).max() == pytest.approx(1.0)
    assert "full scale" in caplog.text
    (warning,) = [one for one in prepared.report["warnings"] if one["reason"] == "loudness"]
    assert f"{_lufs(prepared.cache.waveform(0)):.1f} LUFS" in warning["detail"]


def _write_adts(path, samples):
    """Samples (N,) as AAC in a stream without a header."""
    import av

    path.parent.mkdir(parents=True)
    with av.open(str(path), "w", format="adts") as file:
        stream = file.add_stream("aac", rate=RATE, layout="mono")
        for start in range(0, len(samples), 1024):
            block = samples[None, start : start + 1024].copy()
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = RATE, start
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


def test_a_recording_whose_header_has_no_length_is_decoded_once(tmp_path, monkeypatch):
    _write_adts(tmp_path / "corpus/ann/a.aac", _speechlike(2.0, 0.5)[: 31 * 1024])
    decoded = []
    blocks = readers._AVReader.blocks
    monkeypatch.setattr(readers._AVReader, "blocks", lambda self, start=0: decoded.append(start) or blocks(self, start))
    prepared = prepare(corpus(tmp_path / "corpus"))
    assert decoded == [0]
    assert len(prepared.cache.waveform(0)) == pytest.approx(31 * 1024, abs=2048)
    assert prepared.report["seconds"] == pytest.approx(len(prepared.cache.waveform(0)) / RATE, abs=0.01)


def test_a_long_recording_whose_header_has_no_length_is_checked_whole(tmp_path, monkeypatch):
    _write_adts(tmp_path / "corpus/ann/a.aac", _speechlike(4.5, 0.5))
    data = corpus(tmp_path / "corpus")
    (whole,), _ = check_corpus(data)
    for module in ("corpora.validation", "prepared"):
        monkeypatch.setattr(f"phonate.data.{module}.LONG_SECONDS", 3.0)
    (checked,), report = check_corpus(data)
    assert checked.seconds == whole.seconds == pytest.approx(4.5, abs=0.2)
    assert checked.quality.checksum == whole.quality.checksum
    assert report.seconds == pytest.approx(4.5, abs=0.2)
    assert len(prepare(data).cache.waveform(0)) == pytest.approx(4.5 * RATE, abs=0.2 * RATE)


def test_a_part_of_a_recording_whose_header_has_no_length_is_read_from_its_beginning(tmp_path):
    _write_adts(tmp_path / "corpus/ann/a.aac", _speechlike(4.5, 0.5))
    line = {"audio_filepath": "ann/a.aac", "duration": 2.0, "text": "one two", "speaker": "ann"}
    (tmp_path / "corpus/list.jsonl").write_text(json.dumps(line) + "\n")
    (checked,), report = check_corpus(corpus(tmp_path / "corpus/list.jsonl"))
    assert not report.refused
    assert checked.seconds == pytest.approx(2.0, abs=0.01)
