from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import soundfile
from pool_work import die_at, linger

import phonate
from phonate.config.errors import DataError, InputError
from phonate.data.codes import measure
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Requirements, audio_files
from phonate.data.corpora.validation import Inspection, Report, validate
from phonate.data.dialogues import Audio
from phonate.data.parallel import map_files
from phonate.data.settings import VoiceData, VoiceRules
from phonate.data.voices import (
    VoiceDataDetector,
    extract_features,
    validate_voice_files,
    voice_profile,
    write_profile,
)
from phonate.tasks.cloning.data import check_pairs
from phonate.tasks.cloning.settings import CloningData
from sounds import voiced_tone

FOUND = """
================================================================================
Voice Training Data Check
================================================================================

✅ Voice data found in: recordings

Statistics:
  Total files: 150
  Total size: 245.67 MB
  Formats:
    .wav: 150 files"""

MISSING = """
================================================================================
Voice Training Data Check
================================================================================

❌ No voice data found in: recordings

Supported formats: .wav, .mp3, .flac, .ogg, .m4a and more"""

RATE = 22_050


def tone(seconds: float, pitch: float = 150.0, seed: int = 1) -> np.ndarray:
    return voiced_tone(seconds, pitch, (700.0, 1800.0, 2900.0), seed)


def write(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(os.fsencode(path), samples, rate, format=path.suffix[1:].upper(), subtype=None)
    return path


# --- finding


def test_the_check_is_printed_as_it_always_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("recordings")
    folder.mkdir()
    total = round(245.67 * 1024**2)
    for number in range(150):
        size = total // 150 + (total % 150 if number == 0 else 0)
        with (folder / f"{number:03d}.wav").open("wb") as file:
            file.truncate(size)  # no bytes on the disk
    assert VoiceDataDetector(folder).text() == FOUND
    shutil.rmtree(folder)
    assert VoiceDataDetector(folder).text() == MISSING
    folder.mkdir()
    (folder / "notes.txt").write_text("no voice")
    assert VoiceDataDetector(folder).text() == MISSING


def test_recordings_in_any_case_and_depth_are_found(tmp_path):
    for name in ("a.WAV", "b.Mp3", "deep/er/c.flac", "deep/d.OGG", "e.m4a", "f.txt", ".hidden.wav", "g.aiff"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345678")
    detector = phonate.VoiceDataDetector(tmp_path)
    assert detector.has_voice_data()
    assert [path.name for path in detector.get_voice_files()] == [
        "a.WAV",
        "b.Mp3",
        "d.OGG",
        "c.flac",
        "e.m4a",
        "g.aiff",
    ]
    assert detector.get_stats() == {
        "total_files": 6,
        "total_size_mb": 48 / 1024**2,
        "formats": {".wav": 1, ".mp3": 1, ".flac": 1, ".ogg": 1, ".m4a": 1, ".aiff": 1},
    }


def test_nothing_is_found_where_nothing_is(tmp_path):
    detector = VoiceDataDetector(str(tmp_path / "recordings"))
    assert not detector.has_voice_data()
    assert detector.get_voice_files() == []
    assert detector.get_stats() == {"total_files": 0, "total_size_mb": 0.0, "formats": {}}
    (tmp_path / "file.wav").write_bytes(b"x")
    with pytest.raises(InputError, match=r"file\.wav: .*give the folder"):
        VoiceDataDetector(tmp_path / "file.wav").has_voice_data()


def test_links_in_circles_and_into_nothing(tmp_path):
    write(tmp_path / "one" / "a.wav", tone(0.1))
    (tmp_path / "one" / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "nowhere.wav").symlink_to(tmp_path / "gone.wav")
    detector = VoiceDataDetector(tmp_path)
    assert [path.name for path in detector.get_voice_files()] == ["nowhere.wav", "a.wav"]
    assert detector.problems == []


def test_folders_that_can_not_be_read_are_passed_over_and_told(tmp_path, monkeypatch):
    """Root may read everything, so the refusal is the system call's."""
    write(tmp_path / "open" / "a.wav", tone(0.1))
    write(tmp_path / "closed" / "b.wav", tone(0.1))
    scandir = os.scandir

    def refuse(folder):
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    detector = VoiceDataDetector(tmp_path)
    assert [path.name for path in detector.get_voice_files()] == ["a.wav"]
    assert [(one.reason, Path(one.place).name) for one in detector.problems] == [("unreadable folder", "closed")]
    _, report = validate_voice_files(detector)
    assert "unreadable folder" in report.reasons()
    with pytest.raises(DataError, match="Permission denied"):  # corpora of recipes are to be whole
        list(audio_files(tmp_path))


def test_what_the_suffix_says_is_compared_with_what_is_there(tmp_path):
    write(tmp_path / "good.wav", tone(0.5))
    write(tmp_path / "good.flac", tone(0.5))
    write(tmp_path / "good.ogg", tone(0.5))
    write(tmp_path / "good.mp3", tone(0.5))
    shutil.copy(tmp_path / "good.flac", tmp_path / "renamed.wav")
    (tmp_path / "text.wav").write_text("this is no recording")
    found = {Path(one.place).name: one for one in VoiceDataDetector(tmp_path).validate_formats()}
    assert set(found) == {"renamed.wav", "text.wav"}
    assert found["renamed.wav"].reason == "wrong suffix"
    assert "holds FLAC" in found["renamed.wav"].detail
    assert found["text.wav"].reason == "unreadable"


# --- validation


def test_the_rules(tmp_path):
    loud = tone(5.0)
    write(tmp_path / "fine.wav", loud)
    write(tmp_path / "at_two_seconds.wav", tone(2.0))
    write(tmp_path / "brief.wav", tone(1.99))
    write(tmp_path / "quiet.wav", loud * 0.005)
    write(tmp_path / "long.wav", np.tile(loud, 7))
    write(tmp_path / "stereo.wav", np.stack([loud, loud], axis=1))
    usable, report = validate_voice_files(VoiceDataDetector(tmp_path))
    by_name = {file.path.name: file for file in usable}
    assert set(by_name) == {"fine.wav", "at_two_seconds.wav", "long.wav", "stereo.wav"}
    assert by_name["fine.wav"].quality == 1.0
    assert by_name["at_two_seconds.wav"].quality == pytest.approx(0.9)
    assert by_name["at_two_seconds.wav"].lowered_by == ("short (2.00 s is under 3)",)
    assert by_name["stereo.wav"].channels == 2
    assert by_name["stereo.wav"].levels.rms == pytest.approx(by_name["fine.wav"].levels.rms, rel=1e-3)
    assert (by_name["long.wav"].seconds, by_name["long.wav"].whole_seconds) == (30.0, 35.0)
    refused = {Path(one.place).name: one for one in report.refused}
    assert refused["brief.wav"].reason == "too short"
    assert refused["quiet.wav"].reason == "low quality"
    assert "quality 0.50 is under 0.7: quiet (RMS 0.000" in refused["quiet.wav"].detail
    assert [(Path(one.place).name, one.reason) for one in report.warnings] == [("long.wav", "too long")]
    assert f"cut it: phonate data prepare {tmp_path} --split -o NEW" in report.warnings[0].detail
    assert (report.listed, report.usable) == (6, 4)
    assert report.seconds == pytest.approx(5 + 2 + 30 + 5)


def test_other_rules(tmp_path):
    write(tmp_path / "a.wav", tone(1.5))
    usable, _ = validate_voice_files(VoiceDataDetector(tmp_path), VoiceRules(min_seconds=1.0, min_quality=0.95))
    assert usable == []
    usable, _ = validate_voice_files(VoiceDataDetector(tmp_path), VoiceRules(min_seconds=1.0))
    assert len(usable) == 1


@pytest.fixture(scope="module")
def garbage(tmp_path_factory) -> Path:
    """Everything that a folder of recordings should not hold, and three good ones."""
    folder = tmp_path_factory.mktemp("garbage")
    good = write(folder / "good.wav", tone(3.0))
    write(folder / "good.flac", tone(3.0))
    write(folder / "good.ogg", tone(3.0))
    content = good.read_bytes()
    (folder / "truncated.wav").write_bytes(content[: len(content) // 2])
    (folder / "headless.wav").write_bytes(content[:20])
    flac, ogg = ((folder / f"good{suffix}").read_bytes() for suffix in (".flac", ".ogg"))
    (folder / "truncated.flac").write_bytes(flac[: len(flac) // 2])
    (folder / "truncated.ogg").write_bytes(ogg[: len(ogg) // 2])
    (folder / "zero.wav").write_bytes(b"")
    (folder / "zero.m4a").write_bytes(b"")
    (folder / "text.wav").write_text("dear diary\n" * 500)
    (folder / "text.mp3").write_text("dear diary\n" * 500)
    (folder / "text.m4a").write_text("dear diary\n" * 500)
    rng = np.random.default_rng(0)
    for suffix in (".wav", ".mp3", ".flac", ".ogg", ".m4a"):
        (folder / f"noise{suffix}").write_bytes(rng.bytes(20_000))
    (folder / "folder.wav").mkdir()
    os.mkfifo(folder / "pipe.wav")
    (folder / "loop").symlink_to(folder)
    (folder / "nowhere.wav").symlink_to(folder / "gone")
    (folder / "circle.wav").symlink_to(folder / "circle.wav")
    (folder / os.fsdecode(b"caf\xe9.wav")).write_bytes(content)
    (folder / os.fsdecode(b"na\xefve.m4a")).write_bytes(b"text")
    nan = tone(3.0)
    nan[1000] = np.nan
    soundfile.write(folder / "nan.wav", nan, RATE, subtype="FLOAT")
    write(folder / "empty.wav", np.zeros(0))
    write(folder / "silent.wav", np.zeros(3 * RATE))
    write(folder / "hours.wav", tone(32.0), 8000)
    hours = bytearray((folder / "hours.wav").read_bytes()[:44])
    size = 8 * 3600 * 8000 * 2
    hours[4:8], hours[40:44] = (size + 36).to_bytes(4, "little"), size.to_bytes(4, "little")
    with (folder / "hours.wav").open("r+b") as file:
        file.write(hours)
        file.truncate(44 + size)  # eight hours, of which nearly none is on the disk
    return folder


UNREADABLE = {
    "truncated.wav", "headless.wav", "truncated.flac", "truncated.ogg", "zero.wav", "zero.m4a", "text.wav", "text.mp3",
    "text.m4a", "noise.wav", "noise.mp3", "noise.flac", "noise.ogg", "noise.m4a", "pipe.wav", "nowhere.wav",
    "circle.wav", "na\\udcefve.m4a", "nan.wav", "empty.wav",
}  # fmt: skip


@pytest.mark.parametrize("processes", [1, 2])
def test_a_folder_of_garbage_ends_in_a_table_of_reasons(garbage, processes):
    said: list[tuple[str, int, int]] = []
    usable, report = validate_voice_files(
        VoiceDataDetector(garbage), progress=lambda *what: said.append(what), processes=processes
    )
    names = {os.fsencode(file.path.name) for file in usable}
    assert names == {b"good.wav", b"good.flac", b"good.ogg", b"caf\xe9.wav", b"hours.wav"}
    reasons = {Path(one.place).name: one.reason for one in report.refused}
    assert {name for name, reason in reasons.items() if reason == "unreadable"} == UNREADABLE
    assert reasons["silent.wav"] == "low quality"
    assert [(one.reason, Path(one.place).name) for one in report.warnings] == [("too long", "hours.wav")]
    assert "28800.0 s, only the first 30 are used" in report.warnings[0].detail
    for line in (f"{one.place} {one.detail}" for one in report.refused):
        line.encode("utf-8")  # what terminals and JSON take
        assert "\n" not in line
        assert "Traceback" not in line
    json.dumps(report.to_json()).encode("utf-8")
    assert said[-1] == ("checking recordings", report.listed, report.listed)
    assert len(said) == report.listed


def test_garbage_has_no_features_but_reasons(garbage, tmp_path):
    detector = VoiceDataDetector(garbage)
    usable, _ = validate_voice_files(detector)
    found = extract_features(usable, cache_dir=tmp_path)
    assert len(found.features) == len(usable) == 5
    assert found.computed == 4  # two names of the same recording
    longest = max(one.duration for one in found.features)
    assert longest == pytest.approx(30.0)


def test_pipes_and_devices_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    os.mkfifo(tmp_path / "pipe.m4a")
    (tmp_path / "endless.wav").symlink_to("/dev/zero")
    (tmp_path / "gone.wav").symlink_to(tmp_path / "nowhere")
    detector = VoiceDataDetector(tmp_path)
    usable, report = validate_voice_files(detector)
    assert usable == []
    details = {Path(one.place).name: one.detail for one in report.refused}
    assert details.pop("gone.wav").endswith("no such file")
    assert len(details) == 3
    ends = ("is a folder; give a recording", "is a pipe or a device; give a recording")
    assert all(detail.endswith(ends) for detail in details.values())
    assert len(detector.validate_formats()) == 4


def test_numbers_that_are_no_sound_are_refused(tmp_path):
    """Their squares would be infinite, and so would the profile of all recordings."""
    for name, value in (("huge", 1e30), ("infinite", np.inf), ("nan", np.nan)):
        samples = tone(3.0).astype(np.float32)
        samples[1000] = value
        soundfile.write(tmp_path / f"{name}.wav", samples, RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "unscaled.wav", 32767 * tone(3.0), RATE, subtype="FLOAT")  # clipped, by the rules
    write(tmp_path / "fine.wav", tone(3.0))
    usable, report = validate_voice_files(VoiceDataDetector(tmp_path))
    assert [file.path.name for file in usable] == ["fine.wav", "unscaled.wav"]
    details = {Path(one.place).name: one.detail for one in report.refused}
    assert "sample 1000 (0.045 s) is 1e+30, far over full scale" in details["huge.wav"]
    assert "NaN or infinite" in details["infinite.wav"]
    assert "NaN or infinite" in details["nan.wav"]
    found = extract_features(usable, cache_dir=tmp_path / "cache")
    voice_profile(found.files, found.features)


# --- several processes


def test_a_process_that_dies_takes_one_file_with_it():
    said: list[int] = []
    found = list(
        map_files(
            partial(die_at, deadly=(5, 41, 42)),
            range(60),
            on_crash=lambda number: -number,
            what="squares",
            progress=lambda what, done, total: said.append(done),
            processes=2,
        )
    )
    assert found == [-n if n in (5, 41, 42) else n * n for n in range(60)]
    assert said == list(range(1, 61))


BUSY = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in a shell's background
from functools import partial
from pathlib import Path
sys.path.insert(0, {tests!r})
from phonate.data.parallel import map_files
from pool_work import linger
for number in map_files(partial(linger, folder=Path(sys.argv[1])), range(100_000), abs, "numbers", processes=2):
    print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_no_process_outlives_the_one_that_started_it(tmp_path, name):
    code = BUSY.format(tests=str(Path(__file__).parent))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "0\n"
        workers = [psutil.Process(int(path.name)) for path in tmp_path.iterdir()]
        assert workers
        started.send_signal(getattr(signal, name))
        said = started.communicate(timeout=30)[1]  # its end is also that of all who inherited its streams
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    if name == "SIGINT":
        assert said.rstrip().endswith("KeyboardInterrupt"), said
        assert "cannot schedule" not in said
        assert "ExecutorManagerThread" not in said


STRUCK = """
import os, signal, threading
plain, armed = threading.Condition.__enter__, []
def struck(condition):
    entered = plain(condition)
    if armed and threading.current_thread() is threading.main_thread():
        armed.clear()
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # here the interrupt is raised, unless it waits
            pass
    return entered
threading.Condition.__enter__ = struck
"""


@pytest.mark.slow
def test_an_interrupt_within_a_lock_of_the_pool_ends_the_work(tmp_path):
    code = STRUCK + BUSY.format(tests=str(Path(__file__).parent)).rstrip() + "; armed.append(True)\n"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout.startswith("0\n")
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt"), ended.stderr


def test_work_that_is_left_is_not_done(tmp_path):
    results = map_files(partial(linger, folder=tmp_path), range(2_000), abs, "numbers", processes=2)
    assert next(results) == 0
    results.close()
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert not any(psutil.pid_exists(worker) for worker in workers)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 64, "batches that were waiting were done"


# --- features and profile


@pytest.fixture(scope="module")
def voices(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("voices")
    for number in range(6):
        write(folder / f"{number}.wav", tone(2.5 + 0.3 * number, 140.0 + 4 * number, seed=number))
    return folder


def test_features_are_kept_by_content(voices, tmp_path, caplog):
    folder, cache = tmp_path / "voices", tmp_path / "cache"
    shutil.copytree(voices, folder)
    files, _ = validate_voice_files(VoiceDataDetector(folder))
    first = extract_features(files, cache_dir=cache)
    assert (len(first.features), first.computed) == (6, 6)
    (folder / "0.wav").rename(folder / "renamed.wav")
    write(folder / "1.wav", tone(3.0, 190.0, seed=9))
    files, _ = validate_voice_files(VoiceDataDetector(folder))
    second = extract_features(files, cache_dir=cache)
    assert second.computed == 1  # the one whose content is new
    by_name = {file.path.name: one for file, one in zip(second.files, second.features, strict=True)}
    assert by_name["renamed.wav"] == first.features[0]
    assert by_name["1.wav"].pitch_mean == pytest.approx(190.0, rel=0.05)
    shorter = extract_features(files, VoiceRules(max_seconds=1.0), cache_dir=cache)
    assert shorter.computed == 6
    assert shorter.features[0].duration == 1.0

    kept = next(cache.glob("*.jsonl"))
    kept.write_bytes(kept.read_bytes()[:-40])  # as after a loss of power
    assert extract_features(files, VoiceRules(max_seconds=1.0), cache_dir=cache).computed == 1
    assert "1 line is damaged" in caplog.text
    assert extract_features(files, VoiceRules(max_seconds=1.0), cache_dir=cache).computed == 0


def test_a_recording_that_is_gone_is_a_problem(voices, tmp_path):
    folder = tmp_path / "voices"
    shutil.copytree(voices, folder)
    files, _ = validate_voice_files(VoiceDataDetector(folder))
    (folder / "2.wav").unlink()
    found = extract_features(files, cache_dir=tmp_path / "cache")
    assert [Path(one.place).name for one in found.problems] == ["2.wav"]
    assert len(found.files) == len(found.features) == 5


def test_a_cache_that_can_not_be_written_is_warned_of(voices, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    files, _ = validate_voice_files(VoiceDataDetector(voices))
    assert extract_features(files, cache_dir=tmp_path / "file").computed == 6
    assert "can't be written" in caplog.text


def test_a_cache_that_can_not_be_read_is_warned_of(voices, tmp_path, caplog, monkeypatch):
    """Root may read everything, so the refusal is the call's."""
    files, _ = validate_voice_files(VoiceDataDetector(voices))
    assert extract_features(files, cache_dir=tmp_path).computed == 6
    read_text = Path.read_text

    def refuse(path, *args, **options):
        if path.suffix == ".jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert extract_features(files, cache_dir=tmp_path).computed == 6
    assert "can't be read" in caplog.text


def test_the_profile_is_that_of_all_frames(voices, tmp_path):
    import librosa

    from phonate.audio.pitch import f0

    files, _ = validate_voice_files(VoiceDataDetector(voices))
    found = extract_features(files, cache_dir=tmp_path / "cache")
    path = write_profile(voice_profile(found.files, found.features), tmp_path / "output")
    assert path == tmp_path / "output" / "voice_profile.json"
    profile = json.loads(path.read_text())
    assert list(profile) == [
        "sample_count", "total_duration", "avg_quality_score", "voice_pitch", "spectral_profile", "mfcc_profile",
        "energy_profile",
    ]  # fmt: skip
    assert profile["sample_count"] == 6
    assert profile["total_duration"] == pytest.approx(sum(2.5 + 0.3 * n for n in range(6)), abs=1e-3)
    assert profile["avg_quality_score"] == pytest.approx((2 * 0.9 + 4) / 6)

    waveforms = [librosa.load(file.path, sr=16_000)[0] for file in files]
    pitch = np.concatenate([f0(samples, 16_000, 160) for samples in waveforms])
    pitch = pitch[pitch > 0]
    wanted = {"mean": pitch.mean(), "std": pitch.std(), "min": pitch.min(), "max": pitch.max()}
    assert profile["voice_pitch"] == pytest.approx(wanted, rel=1e-3)
    centroid = np.concatenate([librosa.feature.spectral_centroid(y=one, sr=16_000)[0] for one in waveforms])
    assert profile["spectral_profile"]["centroid_mean"] == pytest.approx(centroid.mean(), rel=1e-3)
    assert profile["spectral_profile"]["centroid_std"] == pytest.approx(centroid.std(), rel=1e-3)
    coefficients = np.concatenate([librosa.feature.mfcc(y=one, sr=16_000, n_mfcc=13) for one in waveforms], axis=1)
    assert profile["mfcc_profile"]["mean"] == pytest.approx(coefficients.mean(axis=1).tolist(), rel=1e-3, abs=0.05)
    assert profile["mfcc_profile"]["std"] == pytest.approx(coefficients.std(axis=1).tolist(), rel=1e-3, abs=0.05)
    loudness = np.concatenate([librosa.feature.rms(y=one)[0] for one in waveforms])
    assert profile["energy_profile"]["mean"] == pytest.approx(loudness.mean(), rel=1e-3)
    assert profile["energy_profile"]["std"] == pytest.approx(loudness.std(), rel=1e-3)
    assert profile["energy_profile"]["min"] < profile["energy_profile"]["max"]


def test_a_profile_needs_recordings():
    with pytest.raises(DataError, match="recordings"):
        voice_profile([], [])


def test_noise_has_no_pitch_in_the_profile(tmp_path):
    write(tmp_path / "noise.wav", 0.1 * np.random.default_rng(0).standard_normal(3 * RATE))
    files, _ = validate_voice_files(VoiceDataDetector(tmp_path))
    found = extract_features(files, cache_dir=tmp_path / "cache")
    profile = voice_profile(found.files, found.features)
    if found.features[0].voiced_frames == 0:
        assert profile["voice_pitch"] == {"mean": None, "std": None, "min": None, "max": None}
    write_profile(profile, tmp_path)


def test_real_speech(recordings, tmp_path):
    folder = tmp_path / "speech"
    folder.mkdir()
    for path in sorted(recordings.glob("asr_en_an4/wavs/*.flac"))[:40]:
        (folder / path.name).symlink_to(path)
    usable, report = validate_voice_files(VoiceDataDetector(folder))
    assert report.listed == 40
    assert set(report.reasons()) <= {"too short", "low quality"}
    found = extract_features(usable, cache_dir=tmp_path / "cache")
    profile = voice_profile(found.files, found.features)
    assert 90 < profile["voice_pitch"]["mean"] < 260
    assert not found.problems


SLOW = """
import os, signal, sys, threading, time
from phonate.data.parallel import map_files

def work(number):
    time.sleep(2.0)
    return number

def crashed(number):
    return -1

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results = map_files(work, list(range(64)), crashed, "working", lambda *_: None, processes=2)
    threading.Timer(WHEN, os.killpg, (0, signal.SIGINT)).start()
    try:
        list(results)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", [0.05, 0.3, 3.0])
def test_ctrl_c_ends_the_processes_after_their_item_and_without_a_word(tmp_path, when):
    (tmp_path / "slow_work.py").write_text(SLOW.replace("WHEN", str(when)))
    process = subprocess.Popen(
        [sys.executable, "-c", "import slow_work; slow_work.main()"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    out, err = process.communicate(timeout=30)  # a batch of sixteen takes longer
    assert (out, err, process.returncode) == ("stopped\n", "", 0)


def test_all_who_read_folders_take_the_same_files_for_recordings(tmp_path):
    """By their suffix, whatever it is; what can't be read is refused by name."""
    sound = tone(3.0)
    for name in ("a.wav", "b.aiff", "c.au", "d.caf", "e.oga", "f.m4b", "g.sph"):
        soundfile.write(tmp_path / "take", sound, RATE, format="NIST" if name == "g.sph" else "FLAC", subtype="PCM_16")
        (tmp_path / "take").rename(tmp_path / name)
    (tmp_path / "h.amr").write_bytes(b"no sound" * 100)
    (tmp_path / "notes.pdf").write_bytes(b"no recording")
    names = [*"abcdefgh"]
    assert [path.stem for path in VoiceDataDetector(tmp_path).get_voice_files()] == names
    rows, _ = list_corpus(VoiceData(path=str(tmp_path)))
    assert [row.id for row in rows] == names
    report = Report("", "")
    assert [one.row.id for one in validate(rows, Requirements(), report)] == names[:-1]
    files, voices = validate_voice_files(VoiceDataDetector(tmp_path))
    assert [file.path.stem for file in files] == names[:-1]
    for refused in (report.refused, voices.refused):
        assert [(Path(one.place).name, one.reason) for one in refused] == [("h.amr", "unreadable")]
        assert "not readable as audio" in refused[0].detail


def test_recordings_whose_channels_cancel_each_other_are_used_and_named(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.stack([tone(3.0), -tone(3.0)], axis=1), RATE)
    rows, _ = list_corpus(VoiceData(path=str(tmp_path)))
    report = Report("", "")
    (checked,) = validate(rows, Requirements(), report)
    assert checked.quality.peak > 0.1
    files, voices = validate_voice_files(VoiceDataDetector(tmp_path))
    assert len(files) == 1
    audio = Audio(str(tmp_path / "a.wav"))
    for _ in range(2):  # measured, then remembered
        measured = measure([audio], 30.0, tmp_path / "remembered.jsonl")[audio]
        assert isinstance(measured, Inspection)
        assert measured.quality == checked.quality
        for warnings in (report.warnings, voices.warnings, list(measured.warnings())):
            assert warnings[0].reason == "unusual file"
            assert "channels cancel each other" in warnings[0].detail


def test_all_who_ask_refuse_for_the_same_reason_in_the_same_words(tmp_path):
    write(tmp_path / "short.wav", tone(1.5))
    (tmp_path / "damaged.wav").write_text("no recording")
    rows, _ = list_corpus(VoiceData(path=str(tmp_path)))
    report = Report("", "")
    validate(rows, Requirements(min_seconds=2.0), report)
    _, voices = validate_voice_files(VoiceDataDetector(tmp_path))
    write(tmp_path / "other/fine.wav", tone(3.0))
    pairs = [
        {
            "messages": [
                {"role": "user", "content": [{"type": "audio", "audio_url": str(tmp_path / "other/fine.wav")}]},
                {"role": "user", "content": [{"type": "text", "text": "one two three"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "one two three"}]},
                {"role": "assistant", "content": [{"type": "audio", "audio_url": str(tmp_path / f"{name}.wav")}]},
            ]
        }
        for name in ("damaged", "short")
    ]
    (tmp_path / "other/chatml.json").write_text(json.dumps(pairs))
    cloning = check_pairs(CloningData(path=str(tmp_path / "other/chatml.json"), min_seconds=2.0)).report
    for refused, setting in (
        (report.refused, "data.audio"),
        (voices.refused, "session.rules"),
        (cloning.refused, "data"),
    ):
        assert [one.reason for one in refused] == ["unreadable", "too short"]
        assert "not readable as audio" in refused[0].detail
        assert f"1.500 s, shorter than {setting}.min_seconds 2; record longer ones, or join them" in refused[1].detail
