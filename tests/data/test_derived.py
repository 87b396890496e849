"""Features that are computed once: streamed to the disk, read back, and never read when they are damaged."""

from __future__ import annotations

import os
import pickle
import shutil
import tracemalloc

import numpy as np
import pytest

from phonate.audio.decoding import write_audio
from phonate.audio.pitch import f0
from phonate.audio.settings import AudioConfig
from phonate.compute import system
from phonate.compute.system import NoSpaceError, SpaceWatch
from phonate.config.errors import DataError
from phonate.data.derived import open_derived, open_pitch
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData
from phonate.training.checkpoints.loading import recipe_of
from phonate.training.plan import plan
from sounds import SAMPLE_RATE, voiced_tone


def values(index, width=3):
    return np.random.default_rng(index).standard_normal((index % 4 + 1, width)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_features_come_back_and_are_computed_once(tmp_path, dtype):
    calls = []

    def compute(index):
        calls.append(index)
        return values(index)

    made = open_derived(tmp_path / "f0", 1200, compute, dtype)
    again = pickle.loads(pickle.dumps(open_derived(tmp_path / "f0", 1200, compute, dtype)))
    assert calls == list(range(1200))
    for derived in (made, again):
        assert (len(derived), derived.width) == (1200, 3)
        assert all(np.array_equal(derived[i], values(i).astype(dtype).astype(np.float32)) for i in range(1200))
    whole = np.load(tmp_path / "f0/values.npy")
    assert np.array_equal(whole, np.concatenate([values(i).astype(dtype) for i in range(1200)]))


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("4800 requested and 384 written")  # NumPy's words, without a number

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=rf"{tmp_path}/f0: can't write the cache \(disk full: .* [kM]B free\)"):
        open_derived(tmp_path / "f0", 3, values)
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_told_after_a_few_recordings(tmp_path, monkeypatch):
    computed = []

    def compute(index):
        computed.append(index)
        return np.zeros((10, 4), dtype=np.float32)

    monkeypatch.setattr(system, "free_bytes", lambda path: 100_000)
    with pytest.raises(DataError, match=r"the disk is too full: by the first 16 of 1000 about 0\.2 MB more are needed"):
        open_derived(tmp_path / "mel", 1000, compute)
    assert len(computed) == 16
    assert not (tmp_path / "mel").exists()
    assert len(open_derived(tmp_path / "mel", 700, compute)) == 700


def test_what_is_needed_is_told_by_the_kinds_that_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "free_bytes", lambda path: 10_000)
    kinds, weights = [".wav"] * 20 + [".mp3"] * 20, [1.0] * 20 + [100.0] * 20
    watch = SpaceWatch(tmp_path, weights, kinds)
    for item in range(0, 20, 2):  # the others are refused
        watch.add(item, 1000)
    for item in range(20, 33):
        watch.add(item, 3000)
    with pytest.raises(NoSpaceError, match="by the first 34 of 40"):
        watch.add(33, 3000)


def test_a_corpus_that_does_not_fit_is_told_after_a_few_recordings(tmp_path, monkeypatch):
    (tmp_path / "corpus/anna").mkdir(parents=True)
    for number in range(20):
        waveform = voiced_tone(0.5, 120 + number, (500, 1500), number)
        write_audio(tmp_path / f"corpus/anna/{number:02}.wav", waveform, SAMPLE_RATE)
    monkeypatch.setattr(system, "free_bytes", lambda path: 50_000)
    data = VoiceData(path=str(tmp_path / "corpus"), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"can't write the cache.*by the first 16 of 20"):
        prepare(data)


def test_features_are_written_as_they_come(tmp_path):
    tracemalloc.start()
    try:
        open_derived(tmp_path / "large", 40, lambda index: np.full((256, 1024), index, dtype=np.float32))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "large/values.npy").stat().st_size > 40 << 20
    assert peak < 8 << 20


@pytest.mark.parametrize("method", ["swift", "yin"])
@pytest.mark.slow
def test_pitch_is_the_same_from_several_processes(tmp_path, tone_corpus, method):
    for clip in range(8):  # more than are worked on in one process
        for file in sorted(tone_corpus.glob("*/0[0-4].wav")):
            shutil.copy(file, tmp_path / f"{file.parent.name}-{file.stem}-{clip}.wav")
    audio = AudioConfig()
    prepared = prepare(VoiceData(path=str(tmp_path), cache_dir=str(tmp_path / "cache")))
    pitch = open_pitch(prepared, audio, method)
    assert len(pitch) == 120
    for position in range(0, 120, 17):
        waveform = prepared.cache.waveform(position)
        assert np.array_equal(pitch[position][:, 0], f0(waveform, audio.sample_rate, audio.hop_length, method))


def test_runs_of_earlier_versions_keep_the_pitch_that_they_were_trained_with(tmp_path):
    """Their recipes do not say it."""
    for packaged in ("base/voice", "base/vocoder"):
        assert recipe_of(packaged).data.f0_method == "yin"
    run, data = tmp_path / "run", {"data.path": str(tmp_path / "corpus")}
    run.mkdir()
    resolved = plan("vocoder", data).written.to_yaml()
    assert "f0_method: swift" in resolved
    (run / "recipe.yaml").write_text(resolved.replace("  f0_method: swift\n", ""))

    def method(overrides=(), **options):
        return plan("vocoder", data | dict(overrides), **options).recipe.data.f0_method

    assert method(output=run) == "swift"  # a new run
    assert method(resume="auto", output=run) == "yin"
    assert method({"data.f0_method": "swift"}, resume="auto", output=run) == "swift"
    (run / "recipe.yaml").write_text(resolved)
    assert method(resume="auto", output=run) == "swift"


@pytest.mark.parametrize("name", ["values.npy", "starts.npy"])
@pytest.mark.parametrize("left", [0, -8])
def test_damaged_features_are_never_read(tmp_path, name, left):
    open_derived(tmp_path / "f0", 5, values)
    file = tmp_path / "f0" / name
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(DataError, match=r"f0: damaged .*delete this folder") as caught:
        open_derived(tmp_path / "f0", 5, values)
    assert "\n" not in str(caught.value)


def test_features_of_other_recordings_are_never_read(tmp_path):
    open_derived(tmp_path / "f0", 5, values)
    with pytest.raises(DataError, match=r"5 recordings.*6\); delete this folder"):
        open_derived(tmp_path / "f0", 6, values)
    np.save(tmp_path / "f0/starts.npy", np.zeros(6, dtype=np.int64))
    with pytest.raises(DataError, match=r"starts\.npy .*delete this folder"):
        open_derived(tmp_path / "f0", 5, values)


def test_features_of_another_width_are_never_mixed_in(tmp_path):
    with pytest.raises(ValueError, match="recording 2 "):
        open_derived(tmp_path / "f0", 5, lambda index: values(index, 4 if index == 2 else 3))
    assert not os.listdir(tmp_path)


def test_the_disk_has_the_files_before_the_folder_has_its_name(tmp_path, monkeypatch):
    synced, fsync = set(), os.fsync

    def noting(descriptor):
        assert not (tmp_path / "f0").exists()
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    open_derived(tmp_path / "f0", 5, values)
    written = [path for path in (tmp_path / "f0").iterdir() if path.name != "verified.json"]
    assert {path.stat().st_ino for path in written} <= synced


def test_folders_of_others_beside_the_target_are_kept(tmp_path):
    theirs, ours = tmp_path / ".cache.4194303", tmp_path / f".{'0' * 24}.4194303"
    for folder in (theirs, ours):
        folder.mkdir()
        os.utime(folder, (0, 0))
    open_derived(tmp_path / "mels", 1, values)
    assert theirs.is_dir()
    assert not ours.exists()
